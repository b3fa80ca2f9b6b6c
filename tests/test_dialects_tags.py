"""The dialects whose values are raw text between tags, by tables of model output: each row under every split."""
from __future__ import annotations

import json
import random

import pytest

from dialect_writers import TAG_WRITERS
from mlx_native_server.protocol import Tool
from mlx_native_server.answer.streaming import ResponseStream
from outputs import BASH, GLOB, STRING, TOOLS, WRITE, answer, tool

EDIT = tool("Edit", {"file_path": STRING, "old": STRING, "new": STRING, "all": {"type": "boolean"}}, ["file_path", "old", "new"])
LS = ("Bash", {"command": "ls"})

QWEN = ("<tool_call>\n<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>")
SEED = ("<seed:tool_call>\n<function={}>\n", "<parameter={}>{}</parameter>\n", "</function>\n</seed:tool_call>")
GLM = ("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>")
GLM_47 = ("<tool_call>{}", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>")
LONGCAT = tuple(part.replace("<tool", "<longcat_tool").replace("</tool", "</longcat_tool").replace("<arg", "<longcat_arg").replace("</arg", "</longcat_arg") for part in GLM)
MINIMAX = ('<minimax:tool_call>\n<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>\n</minimax:tool_call>")
DSML = tuple(part.replace("</", "<//").replace("<", "<｜DSML｜").replace("｜DSML｜//", "/｜DSML｜") for part in (
    '<tool_calls>\n<invoke name="{}">\n', '<parameter name="{}" string="true">{}</parameter>\n', "</invoke>\n</tool_calls>"))
MINICPM = ('<function name="{}">', '<param name="{}">{}</param>', "</function>")
M3 = (']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="{}">', "]<]minimax[>[<{0}>{1}]<]minimax[>[</{0}>", "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>")
FORMS = {"qwen": QWEN, "seed": SEED, "glm 4.5": GLM, "glm 4.7": GLM_47, "longcat": LONGCAT, "minimax": MINIMAX, "minimax m3": M3, "dsml": DSML, "minicpm": MINICPM}


def call(form: tuple[str, str, str], name: str, **given: str) -> str:
    return form[0].format(name) + "".join(form[1].format(key, value) for key, value in given.items()) + form[2]


# ── one call, by spelling ────────────────────────────────────────────────────────────────────────

BARE = "<parameter=command>\nls\n</parameter>\n"
INVOKE = '<invoke name="Bash">\n<parameter name="command">ls</parameter>\n</invoke>'
CALLED = "<｜DSML｜invoke name=\"Bash\">\n<｜DSML｜parameter name=\"command\" string=\"true\">ls</｜DSML｜parameter>\n</｜DSML｜invoke>"

ONE_CALL = {
    **{name: call(form, "Bash", command="ls") for name, form in FORMS.items()},
    **{f"{name}, wrong case": call(form, "bash", command="ls") for name, form in FORMS.items()},
    **{f"{name}, invented namespace": call(form, "functions.Bash", command="ls") for name, form in FORMS.items()},
    **{f"{name}, the same key twice": form[0].format("Bash") + 2 * form[1].format("command", "ls") + form[2] for name, form in FORMS.items()},
    **{f"{name}, undeclared key behind": call(form, "Bash", command="ls", why="to see") for name, form in FORMS.items()},
    **{f"{name}, undeclared key first": call(form, "Bash", why="to see", command="ls") for name, form in FORMS.items()},
    **{f"{name}, an alias": call(form, "Bash", cmd="ls") for name, form in FORMS.items()},
    **{f"{name}, closer cut": call(form, "Bash", command="ls")[:-3] for name, form in FORMS.items()},
    **{f"{name}, closer twice": call(form, "Bash", command="ls") + form[2].split("\n")[-1] for name, form in FORMS.items()},
    **{f"{name}, turn marker behind": call(form, "Bash", command="ls") + "<|im_end|>\n" for name, form in FORMS.items()},
    **{f"{name}, last closers missing": call(form, "Bash", command="ls").removesuffix(form[2]) for name, form in FORMS.items()},
    **{f"{name}, turn marker for the last closers": call(form, "Bash", command="ls").removesuffix(form[2]) + "<|im_end|>" for name, form in FORMS.items()},
    "qwen on one line": "<tool_call><function=Bash><parameter=command>ls</parameter></function></tool_call>",
    "qwen opener twice": f"<tool_call>\n<tool_call>\n<function=Bash>\n{BARE}</function>\n</tool_call>",
    "qwen without the block": f"<function=Bash>\n{BARE}</function>",
    "qwen without the block's opener": f"<function=Bash>\n{BARE}</function>\n</tool_call>",
    "qwen without the block's closer": f"<tool_call>\n<function=Bash>\n{BARE}</function>",
    "qwen without the function's closer": f"<tool_call>\n<function=Bash>\n{BARE}</tool_call>",
    "qwen without the value's closer": "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</function>\n</tool_call>",
    "qwen without two closers": "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</tool_call>",
    "qwen, no > behind the key": "<tool_call>\n<function=Bash>\n<parameter=command\nls\n</parameter>\n</function>\n</tool_call>",
    "qwen, no > behind the name": f"<tool_call>\n<function=Bash\n{BARE}</function>\n</tool_call>",
    "qwen, = for >": "<tool_call>\n<function=Bash>\n<parameter=command=ls\n</parameter>\n</function>\n</tool_call>",
    "qwen attributes": "<tool_call>\n<function name=\"Bash\" >\n<parameter name='command'>\nls\n</parameter>\n</function>\n</tool_call>",
    "qwen quoted names": '<tool_call>\n<function="Bash">\n<parameter="command">\nls\n</parameter>\n</function>\n</tool_call>',
    "qwen spaces": "<tool_call>\n<function = Bash >\n<parameter = command >\nls\n</parameter>\n</function>\n</tool_call>",
    "qwen type on the tag": '<tool_call>\n<function=Bash>\n<parameter=command type="string">\nls\n</parameter>\n</function>\n</tool_call>',
    "qwen name in a parameter": f"<tool_call>\n<parameter=Bash>\n{BARE}</function>\n</tool_call>",
    "qwen the same key twice": f"<tool_call>\n<function=Bash>\n{BARE}{BARE}</function>\n</tool_call>",
    "qwen CRLF": "<tool_call>\r\n<function=Bash>\r\n<parameter=command>\r\nls\r\n</parameter>\r\n</function>\r\n</tool_call>",
    "json in a function": '<function=Bash>{"command": "ls"}</function>',
    "json in a function in a block": '<tool_call>\n<function=Bash>\n{"command": "ls"}\n</function>\n</tool_call>',
    "json for glm's arguments": '<tool_call>Bash\n{"command": "ls"}\n</tool_call>',
    "json behind longcat's key": '<longcat_tool_call>Bash\n<longcat_arg_key>{"command": "ls"}</longcat_arg_key>\n</longcat_tool_call>',
    "json in longcat's tag": '<longcat_tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</longcat_tool_call>',
    "json in an invocation": '<｜DSML｜toolcalls>\n<｜DSML｜invoke name="Bash">\n{"command": "ls"}\n</｜DSML｜invoke>\n</｜DSML｜toolcalls>',
    "glm opener twice": "<tool_call>\n<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "glm without the value's opener": "<tool_call>Bash\n<arg_key>command</arg_key>\nls</arg_value>\n</tool_call>",
    "glm 4.7 without the value's opener": "<tool_call>Bash<arg_key>command</arg_key>ls</arg_value></tool_call>",
    "glm without the value's closer": "<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>ls\n</tool_call>",
    "glm without the key's opener": "<tool_call>Bash\ncommand</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "glm without the key's closer": "<tool_call>Bash\n<arg_key>command\n<arg_value>ls</arg_value>\n</tool_call>",
    "glm key and name in one": "<tool_call>Bashcommand</arg_key><arg_value>ls</arg_value></tool_call>",
    "glm stray closer behind the name": "<tool_call>Bash</arg_value><arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>",
    "glm turn": call(GLM, "Bash", command="ls") + "<|observation|>",
    "minimax without the block": INVOKE,
    "minimax turn": f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>[e~[",
    "function_calls": f"<function_calls>\n{INVOKE}\n</function_calls>",
    "dsml without the block": CALLED,
    "dsml unclosed": f"<｜DSML｜function_calls>\n{CALLED}\n",
    "dsml closed without the marker": "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"Bash\">\n<｜DSML｜parameter name=\"command\" string=\"true\">ls</parameter>\n</invoke>\n</tool_calls>",
    "dsml with spaces": f"<｜DSML｜function_calls>\n{CALLED}\n</｜DSML｜function_calls>".replace("｜DSML｜", "｜DSML｜ ").replace("function_calls", "calls"),
    "dsml json text": CALLED.replace('"true">ls', '"false">"ls"'),
    "dsml no type": CALLED.replace(' string="true"', ""),
    "minicpm CDATA": '<function name="Bash"><param name="command"><![CDATA[ls]]></param></function>',
    "minicpm in a tag": '<tool_call>\n<function name="Bash">\n<param name="command">ls</param>\n</function>\n</tool_call>',
}


@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL)
def test_spelling_of_one_call(text: str) -> None:
    got = answer(text)
    assert (got["calls"], got["text"], got["kinds"], got["stop_reason"]) == ([LS], "", ["tool_use"], "tool_use")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_calls_in_a_row_with_text_around_them(form: tuple[str, str, str]) -> None:
    text = f"One.\n{call(form, 'Bash', command='ls')}\n{call(form, 'Bash', command='ls')}\n{call(form, 'list_pages')}\nTwo."
    got = answer(text)
    assert got["calls"] == [LS, LS, ("list_pages", {})] and got["text"].split() == ["One.", "Two."]


SEVERAL = {
    "qwen in one block": f"<tool_call>\n<function=Bash>\n{BARE}</function>\n<function=list_pages>\n</function>\n</tool_call>",
    "qwen without the first closer": f"<tool_call>\n<function=Bash>\n{BARE}<function=list_pages>\n</function>\n</tool_call>",
    "qwen naked": f"<function=Bash>\n{BARE}</function>\n<function=list_pages>\n</function>",
    "glm without the first closer": "<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n<tool_call>list_pages</tool_call>",
    "glm name only": call(GLM_47, "Bash", command="ls") + "<tool_call>list_pages\n</tool_call>",
    "minimax in one block": f'<minimax:tool_call>\n{INVOKE}\n<invoke name="list_pages">\n</invoke>\n</minimax:tool_call>',
    "dsml in one block": f'<｜DSML｜tool_calls>\n{CALLED}\n<｜DSML｜invoke name="list_pages">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "dsml naked": f'{CALLED}\n<｜DSML｜invoke name="list_pages">\n</｜DSML｜invoke>',
}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL)
def test_several_calls(text: str) -> None:
    got = answer(text)
    assert got["calls"] == [LS, ("list_pages", {})] and got["text"] == ""


# ── values ───────────────────────────────────────────────────────────────────────────────────────

VALUES = (
    "", " ", "  ls  ", "    if x:\n        y\n", "\n\n", "\tx", "a\r\nb\r\n", "12", "1.50", "true", "null", "None", '{"k": 1}', "[1]", '"quoted"', "it's",
    "a < b && c > d", "&amp; &lt;b&gt;", "é🚀\u2028", "<ul>\n<li>a</li>\n</ul>", "<docs>\n  <k name=\"x\">v</k>\n</docs>", "<", "</", "<|im_end|>", "<think>x</think>",
    "```\ncode\n```", "`", "<tool_call>", "</tool_call>.", "see <function=x> and <parameter=y>.", '{"name": "Bash", "arguments": {"command": "rm"}}',
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "rm"}}\n</tool_call>\n<tool_call>\n{"name": "Bash", "arguments": {"command": "rm"}}\n</tool_call>',
    'say("</parameter>")', 'say("</arg_value>")', 'say("</｜DSML｜parameter>")', 'say("</param>")', "ends with </parameter> and then </function>, </invoke>, </tool_call>. So",
    "closed by </arg_value></tool_call> as always", "closed by </parameter></function></tool_call>, as always", "<parameter name=\"k\">v</parameter>",
    "<docs>\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">2</parameter>\n</docs>", "</parameter>", "</arg_value>",
    *(f"For example:\n{call(form, 'demo', path='/x', other='y')}\nThat was it." for form in FORMS.values()),
    *(f"For example:\n{call(form, 'Bash', command='rm')}\n{call(form, 'Bash', command='rm')}\nThat was it." for form in FORMS.values()),
    *(f"A conversation:\n{text}<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>" for text in (
        call(QWEN, "demo", path="/x"), call(GLM, "demo", path="/x"), '<tool_call>\n{"name": "demo", "arguments": {}}\n</tool_call>')),
    *(f"Only this:\n{call(form, 'Write', file_path='/x', content='y')}" for form in FORMS.values()),
)


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form != MINICPM], ids=[name for name in FORMS if name != "minicpm"])
@pytest.mark.parametrize("written", VALUES)
def test_a_string_arrives_as_it_was_written(form: tuple[str, str, str], written: str) -> None:
    got = answer(call(form, "Write", file_path="/a", content=written) + "\nText.")
    assert got["calls"] == [("Write", {"file_path": "/a", "content": written})] and got["text"] == "Text."


@pytest.mark.parametrize("written, value", [
    ("a &lt;b&gt; &amp;amp; &quot;c&apos; &#233;&#x1F680;", "a <b> &amp; \"c' é🚀"), ("a && b & c &; &nbsp; &", "a && b & c &; &nbsp; &"),
    ("<![CDATA[a &lt; b < c]]>", "a &lt; b < c"), ('<![CDATA[x("</param></function>")\n]]>', 'x("</param></function>")\n'), ("<![CDATA[a[b[0]]]]>", "a[b[0]]"),
    ("<![CDATA[]]>", ""), ("<![CDATA[a ]]> b]]>", "a ]]> b"), ("x <![CDATA[y]]>", "x <![CDATA[y]]>"),
])
def test_minicpm_writes_xml(written: str, value: str) -> None:
    got = answer(call(MINICPM, "Write", file_path="/a", content=written))
    assert got["calls"] == [("Write", {"file_path": "/a", "content": value})]


@pytest.mark.parametrize("first", [
    "<function=Bash>\n<parameter=command>\nls",  # the beginning of a call
    "a\n</parameter>\n</function>",  # its end
    "use <parameter=x> here",
])
def test_a_part_of_a_call_as_a_value(first: str) -> None:
    got = answer(call(QWEN, "Edit", file_path="/a", old=first, new="x"), tools=[EDIT, BASH])
    assert got["calls"] == [("Edit", {"file_path": "/a", "old": first, "new": "x"})]


def test_the_closing_tag_of_a_value_may_be_the_value() -> None:
    got = answer(call(QWEN, "Glob", pattern="</parameter>"), tools=[GLOB])
    assert got["calls"] == [("Glob", {"pattern": "</parameter>"})]


def test_a_forgotten_closing_tag_ends_where_the_next_key_begins() -> None:
    wants = [("Write", {"file_path": "/a", "content": "x"})]
    assert answer(call(QWEN, "Write", file_path="/a", content="x").replace("\n</parameter>", "", 1))["calls"] == wants
    assert answer(call(MINIMAX, "Write", file_path="/a", content="x").replace("</parameter>", "", 1))["calls"] == wants
    assert answer(call(GLM, "Write", file_path="/a", content="x").replace("</arg_value>", "", 1))["calls"] == wants


TYPED = tool("typed", {
    "text": STRING, "n": {"type": "integer"}, "-C": {"type": "number"}, "flag": {"type": "boolean"}, "list": {"type": "array"}, "object": {"type": "object"},
    "maybe": {"type": ["string", "null"]}, "maybe_n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "level": {"enum": ["none", "high"]}, "any": {},
})
TYPES = {
    "text": ("12", "12"), "n": ("12", 12), "-C": ("3", 3), "flag": ("True", True), "list": ("[1, {'a': None}]", [1, {"a": None}]), "object": ('{"k": [true]}', {"k": [True]}),
    "maybe": ("null", None), "maybe_n": ("8", 8), "level": ("none", "none"), "any": ("[1]", [1]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_types_come_from_the_schema(form: tuple[str, str, str]) -> None:
    got = answer(call(form, "typed", **{key: written for key, (written, _) in TYPES.items()}).replace(' string="true"', ""), tools=[TYPED])
    assert json.dumps(got["calls"]) == json.dumps([("typed", {key: value for key, (_, value) in TYPES.items()})])


DSML_TYPES = [("text", "true", "12", "12"), ("text", "false", "12.50", "12.50"), ("n", "true", "5", 5), ("n", "false", "5", 5), ("maybe", "true", "null", "null"),
              ("maybe", "false", "null", None), ("list", "false", '["</｜DSML｜parameter>"]', ["</｜DSML｜parameter>"]), ("any", "true", "12", "12"), ("any", "false", "12", 12)]


@pytest.mark.parametrize("key, stated, written, value", DSML_TYPES)
def test_deepseek_says_on_the_tag_what_is_text(key: str, stated: str, written: str, value: object) -> None:
    got = answer(call(DSML, "typed", **{key: written}).replace('string="true"', f'string="{stated}"'), tools=[TYPED])
    assert json.dumps(got["calls"]) == json.dumps([("typed", {key: value})])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_tool_without_declared_keys_takes_them_all(form: tuple[str, str, str]) -> None:
    assert answer(call(form, "any", a="1", b="x"), tools=[Tool("any", input_schema={"type": "object"})])["calls"] == [("any", {"a": 1 if form != DSML else "1", "b": "x"})]


NESTED = tool("nested", {"text": STRING, "opts": {"type": "object", "properties": {"n": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}}}, "any": {}})


@pytest.mark.parametrize("key, written, value", [
    ("opts", "N<n>12N</n>N<list>N<item>1N</item>N<item>2N</item>N</list>", {"n": "12", "list": [1, 2]}), ("any", "N<k>N<item>1N</item>N</k>", {"k": [1]}),
    ("any", "\n N <item> xN </item>\nN<item>trueN</item>\n", [" x", True]), ("opts", '{"n": "a"}', {"n": "a"}), ("any", "N<-A>3N</-A>", {"-A": 3}),
    ("text", "a <b> N<c>dN</c> ", "a <b> N<c>dN</c> "), ("text", "N", "N"),
])
def test_minimax_m3_nests_tags(key: str, written: str, value: object) -> None:
    written, value = written.replace("N", "]<]minimax[>["), json.loads(json.dumps(value).replace("N", "]<]minimax[>["))
    got = answer(call(M3, "nested", **{key: written}), tools=[NESTED])
    assert json.dumps(got["calls"]) == json.dumps([("nested", {key: value})])


# ── no calls ─────────────────────────────────────────────────────────────────────────────────────

NOT_A_CALL = {
    **{f"{name}, undeclared": call(form, "nope", command="rm") for name, form in FORMS.items()},
    **{f"{name}, a call inside an undeclared one": call(form, "nope", text=call(form, "Bash", command="rm")) for name, form in FORMS.items()},
    **{f"{name}, required key missing": call(form, "Bash", timeout="5", x="6", y="7").replace("timeout", "z") for name, form in FORMS.items()},
    **{f"{name}, in a fence": f"```xml\n{call(form, 'Bash', command='rm')}\n```" for name, form in FORMS.items()},
    "tags in a sentence": "Some use <function=...>, some <function=Bash>, <tool_call> or <invoke name=\"Bash\"> for it.",
    "a parameter in a sentence": "You would write <parameter=command>rm -rf /tmp/x</parameter> inside a function element.",
    "a function in a sentence": "You would write <function=Bash><parameter=command>rm</parameter></function> there.",
    "a laid out function behind an introduction": "For example: <function=Bash>\n<parameter=command>\nrm\n</parameter>\n</function>",
    "a function that begins a sentence": "<function=Bash> is how it begins",
    "an invocation in a sentence": f"Write {INVOKE} there.",
    "a name in tags": "Put <tool_call>name</tool_call> there.",
    "a declared name behind the tag": "Use <tool_call> list_pages",
    "required key missing": "<tool_call>\n<function=Bash>\n</function>\n</tool_call>",
    "required key missing, glm": "<tool_call>Bash</tool_call>",
    "name cut": "<tool_call>\n<function=Ba",
    "empty name": "<tool_call>\n<function=>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("text", NOT_A_CALL.values(), ids=NOT_A_CALL)
def test_what_is_no_call_is_text_to_the_character(text: str) -> None:
    got = answer(text)
    assert (got["calls"], got["unfinished"], got["text"], got["stop_reason"]) == ([], 0, text, "end_turn")


def test_a_laid_out_function_within_a_line_is_a_call() -> None:
    got = answer(f"Running it:<function=Bash>\n{BARE}</function>\n</tool_call>")
    assert got["calls"] == [LS] and got["text"] == "Running it:"


@pytest.mark.parametrize("text", [f"Hm.\n<function=Bash>\n{BARE}</function>", f"Hm.\n{call(QWEN, 'Bash', command='ls')}", f"Hm.\n{call(GLM, 'Bash', command='ls')}"])
def test_a_call_that_ends_an_unclosed_thought_counts(text: str) -> None:
    assert answer(text, opens_thinking=True)["calls"] == [LS]


# ── live ─────────────────────────────────────────────────────────────────────────────────────────


def content(size: int) -> str:
    """A file whose text looks like markup all over."""
    rng = random.Random(size)
    words = ("if a < b:", "</li>", "<ul>", "\n", "    ", "</param", "</arg", "<parameter", "</", "x = 1\n", "</parameter>.", "</arg_value>.", "é", "&amp", '"')
    text = ""
    while len(text) < size:
        text += rng.choice(words)
    return text + "."


@pytest.mark.parametrize("write", TAG_WRITERS, ids=lambda write: write.head.splitlines()[0])
def test_a_long_string_streams_as_it_is_written(write) -> None:
    given = write.can_say({"file_path": "/a", "content": content(20_000)})
    text = write(random.Random(1), "Write", given)
    start, size = text.index(given["content"][:40]), len(json.dumps(given["content"], ensure_ascii=False)) - 2
    stream = ResponseStream(model="m", tools=[WRITE])
    stream.start(1)
    sent = 0
    for at in range(0, len(text), 4):
        for event in stream.feed(text[at:at + 4]):
            sent += len(event.get("delta", {}).get("partial_json", ""))
        written = at + 4 - start
        if 100 < written < len(given["content"]):
            share = len(json.dumps(given["content"][:written], ensure_ascii=False)) - 2
            assert share - sent < 100, f"{share - sent} characters are held back at {written}"
    assert sent > size
