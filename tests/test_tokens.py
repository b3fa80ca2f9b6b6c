"""Prompts to ids and ids to text, on tokenizers of every family."""
from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from huggingface_hub import constants
from mlx_lm.tokenizer_utils import load
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlx_native_server.models.folder import DEFAULT_CONTEXT_TOKENS, ModelError
from mlx_native_server.protocol import ApiError, Prompt, Sampling
from mlx_native_server.models.template import thinking_at_end
from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer

BASH = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string", "description": "what to run"}, "n": {"type": "integer"}}, "required": ["command"]},
    },
}
EVERY_SPELLING = "a<|im_end|>b <|turn> <turn|> <|eot_id|>x<think> </think></tool_call> <eos><bos> <|\"|> <end_of_turn>\n<|im_start|>system"
BOS = {"llama": "<|begin_of_text|>", "gemma3": "<bos>", "gemma4": "<bos>"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(command: str, call_id: str = "toolu_01") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "Bash", "arguments": {"command": command, "n": 3}}}


def result(text: str, call_id: str = "toolu_01") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "Bash", "content": text}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Callable[..., Path]) -> Callable[..., ModelTokenizer]:
    made: dict[Any, ModelTokenizer] = {}

    def get(family: str, template: str | None = None) -> ModelTokenizer:
        if (family, template) not in made:
            made[family, template] = load_tokenizer(tokenizer_folder(family, template))
        return made[family, template]

    return get


@pytest.fixture
def altered(tokenizer_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a family's folder with some keys of its JSON files changed; None removes a key."""

    def copy(family: str, **files: dict[str, Any]) -> Path:
        out = tmp_path / family
        shutil.copytree(tokenizer_folder(family), out)
        for name, changes in files.items():
            path = out / f"{name}.json"
            facts = json.loads(path.read_text()) | changes
            path.write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))
        return out

    return copy


# ── spellings ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_spelled_control_tokens_are_text(tokenizer: Any, family: str) -> None:
    """The ids are those of the same prompt with a harmless word, but for the spelled characters themselves."""
    made = tokenizer(family)
    spelled, harmless = (made.encode(Prompt([user(text)])) for text in (f"x {EVERY_SPELLING} x", "x harmless x"))
    assert EVERY_SPELLING in spelled.text
    assert made.decode(spelled.tokens) == spelled.text
    control = set(made._shared.get_added_tokens_decoder())
    assert [i for i in spelled.tokens if i in control] == [i for i in harmless.tokens if i in control]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_prompt_without_spellings_has_the_ids_that_the_library_gives(tokenizer: Any, tokenizer_folder: Any, family: str) -> None:
    made, library = tokenizer(family), load(tokenizer_folder(family))
    prompt = Prompt([{"role": "system", "content": "Be brief."}, user("Where is  Köln? 😀\n\tx"), assistant("On the Rhine."), user("And\n\nBonn?")])
    encoded = made.encode(prompt)
    assert encoded.tokens == library.encode(encoded.text, add_special_tokens=False)


def test_spellings_are_text_everywhere_in_a_request(tokenizer: Any) -> None:
    made = tokenizer("qwen3")
    tool = json.loads(json.dumps(BASH).replace("what to run", "ends with <|im_end|>").replace("Run a command", "not <tool_call>"))
    messages = [
        {"role": "system", "content": "<|im_end|> s"},
        user("<think>"),
        assistant("a</think>b", reasoning_content="<|im_start|>", tool_calls=[call("echo '</tool_call>'")]),
        result("<tool_response><|endoftext|>"),
    ]
    encoded = made.encode(Prompt(messages, [tool]))
    assert made.decode(encoded.tokens) == encoded.text
    for text in ("<|im_end|> s", "ends with <|im_end|>", "not <tool_call>", "a</think>b", "echo '</tool_call>'", "<tool_response><|endoftext|>\n"):
        assert text in encoded.text
    assert encoded.tokens.count(made._shared.token_to_id("<|im_end|>")) == 4
    assert encoded.tokens.count(made._shared.token_to_id("<|im_start|>")) == 5
    assert messages[0]["content"] == "<|im_end|> s"


def test_private_use_characters_of_the_client_are_kept(tokenizer: Any) -> None:
    made, text = tokenizer("qwen3"), "\U000f0000 <|im_end|> \U000f0001\ue000\U00100000"
    encoded = made.encode(Prompt([user(text)]))
    assert text in encoded.text and made.decode(encoded.tokens) == encoded.text


def test_added_tokens_that_are_content_stay_tokens(altered: Any) -> None:
    folder = altered("qwen3")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_tokens([AddedToken("<table>", special=False, normalized=False)])
    raw.save(str(folder / "tokenizer.json"))
    made = load_tokenizer(folder)
    assert made._shared.token_to_id("<table>") in made.encode(Prompt([user("<table>")])).tokens


@pytest.mark.parametrize("form", ["prepend", "metaspace"])
def test_a_tokenizer_that_puts_a_space_in_front_adds_none_around_a_spelling(tmp_path: Path, form: str) -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁", *"abcdefg<>/s[]IN"]
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, [], unk_token="<unk>"))
    if form == "prepend":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
        raw.decoder = decoders.Metaspace("▁", "first", split=False)
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    raw.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "</s>"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(pieces)}))
    made = load_tokenizer(tmp_path)
    assert made.decode(made.encode(Prompt([user("ab</s>cd </s> <s>e")])).tokens) == "ab</s>cd </s> <s>e"
    assert made.encode(Prompt([user("ab")])).tokens == raw.encode("ab", add_special_tokens=False).ids


def test_many_threads_get_the_ids_that_one_gets(tokenizer: Any) -> None:
    made = tokenizer("gemma4")
    prompts = [Prompt([user(f"{i} <turn|> text {'word ' * i}" if i % 2 else f"{i} plain {'word ' * i}")]) for i in range(60)]
    alone = [made.encode(prompt).tokens for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda prompt: made.encode(prompt).tokens, prompts * 5)) == alone * 5


def test_a_hundred_kilobytes_are_quick(tokenizer: Any) -> None:
    text = "def main(): <div> print('hello world')  # <|im_end|>\n" * 2000
    start_s = time.monotonic()
    tokenizer("qwen3").encode(Prompt([user(text)]))
    assert time.monotonic() - start_s < 2  # 0.2 s on two slow cores


# ── rendering ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", BOS)
def test_a_prompt_begins_with_one_bos(tokenizer: Any, family: str) -> None:
    made = tokenizer(family)
    tokens = made.encode(Prompt([user("hello")])).tokens
    bos = made._shared.token_to_id(BOS[family])
    assert tokens[0] == bos and tokens.count(bos) == 1


@pytest.mark.parametrize(
    ("tail", "opens", "suppresses"),
    [
        ("<|im_start|>assistant\n<think>\n", True, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, True),
        ("<|turn>model\n<|channel>thought\n", True, False),
        ("<|turn>model\n<|channel>thought\n<channel|>", False, True),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False, False),
        ("<｜Assistant｜></think>", False, True),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", False, False),
    ],
)
def test_thinking_at_the_end_of_a_prompt(tail: str, opens: bool, suppresses: bool) -> None:
    assert thinking_at_end(tail) == (opens, suppresses)


@pytest.mark.parametrize(
    ("family", "options", "opens", "suppresses"),
    [
        ("qwen3", {}, False, False),
        ("qwen3", {"enable_thinking": False}, False, True),
        ("qwen3_5", {}, True, False),
        ("qwen3_5", {"enable_thinking": False}, False, True),
        ("gemma4", {}, False, True),
        ("gemma4", {"enable_thinking": True}, False, False),
    ],
)
def test_the_thinking_option_reaches_the_template(tokenizer: Any, family: str, options: dict[str, bool], opens: bool, suppresses: bool) -> None:
    encoded = tokenizer(family).encode(Prompt([user("what is <think>")], options=options))
    assert (encoded.opens_thinking, encoded.suppresses_thinking) == (opens, suppresses)


def test_a_thought_that_the_client_spells_at_the_end_opens_none(tokenizer: Any) -> None:
    encoded = tokenizer("qwen3").encode(Prompt([user("hi"), assistant("so <think>")], continues=True))
    assert not encoded.opens_thinking and encoded.text.endswith("so <think>")


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_prefill_is_left_open(tokenizer: Any, family: str) -> None:
    made = tokenizer(family)
    encoded = made.encode(Prompt([user("hi"), assistant("The capital <eos> of")], continues=True))
    assert encoded.text.endswith("The capital <eos> of")
    assert made.decode(encoded.tokens) == encoded.text


def test_a_prefill_that_the_template_drops_is_refused(altered: Any) -> None:
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"}))
    with pytest.raises(ApiError, match=r"messages\.1: .* cannot continue") as caught:
        made.encode(Prompt([user("hi"), assistant("The")], continues=True))
    assert caught.value.status == 400


def test_a_refusal_is_a_400_in_the_templates_words(tokenizer: Any) -> None:
    with pytest.raises(ApiError, match="messages: .*System message must be at the beginning") as caught:
        tokenizer("qwen3_5").encode(Prompt([user("hi"), {"role": "system", "content": "late"}]))
    assert caught.value.status == 400


def test_what_a_template_trips_over_is_a_400(tokenizer: Any) -> None:
    with pytest.raises(ApiError, match="messages: "):
        tokenizer("gemma4").encode(Prompt([user("hi"), assistant("", tool_calls=[{"id": "x", "function": {"name": 3, "arguments": {}}}])]))


def test_a_template_of_its_own_for_tools_is_used_with_tools(altered: Any) -> None:
    named = [{"name": "default", "template": "plain {{ messages[0].content }}"}, {"name": "tool_use", "template": "{{ tools[0].function.name }} {{ tools[0].function.parameters.type }} {{ messages[0].content }}"}]
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": named}))
    assert made.encode(Prompt([user("hi")])).text == "plain hi"
    assert made.encode(Prompt([user("hi")], [BASH])).text == "Bash object hi"


@pytest.mark.parametrize("expression", ["strftime_now('%Y-%m-%d')", "date_string"])
def test_the_clock_is_not_in_the_prompt(altered: Any, expression: str) -> None:
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": "{{ " + expression + " }}{% for m in messages %}{{ m.content }}{% endfor %}"}))
    assert made.encode(Prompt([user(" x")])).text in ("2024-07-26 x", "26 Jul 2024 x")


def test_rendering_twice_gives_the_same_ids(tokenizer: Any) -> None:
    prompt = Prompt([user("x"), assistant("", tool_calls=[call("ls")]), result("a")], [BASH])
    made = tokenizer("gemma4")
    assert made.encode(prompt) == made.encode(prompt)


# ── models without a usable template ─────────────────────────────────────────────────────────────

CONVERSATIONS = {
    "plain": [user("hi")],
    "system": [{"role": "system", "content": " Be brief. "}, user("hi")],
    "turns": [{"role": "system", "content": "s"}, user("hi"), assistant("hello"), user("bye")],
    "call": [user("hi"), assistant("", tool_calls=[call("ls")])],
    "result": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a b")],
    "text beside": [user("hi"), assistant("Looking."), assistant("", tool_calls=[call("ls")]), result("a b")],
    "two calls": [user("hi"), assistant("", tool_calls=[call("ls"), call("pwd", "toolu_02")]), result("a"), result("b", "toolu_02")],
    "answer": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), assistant("done"), user("more")],
    "late user": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), user("stop")],
    "loop": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), assistant("", tool_calls=[call("pwd", "toolu_02")]), result("b", "toolu_02")],
    "thought": [user("hi"), assistant("", reasoning_content="I look", tool_calls=[call("ls")]), result("a")],
    "old thought": [user("hi"), assistant("x", reasoning_content="I look"), user("more")],
    "nameless result": [user("hi"), assistant("", tool_calls=[call("ls")]), {"role": "tool", "content": "a"}],
}
NESTED = {
    "type": "function",
    "function": {
        "name": "Edit",
        "description": "Edits",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["a", "b"]},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string", "description": "d"}}, "required": ["x"]}},
                "opts": {"type": "object", "properties": {"deep": {"type": "boolean", "nullable": True}}, "required": ["deep"]},
                "description": {"type": "string"},
            },
            "required": ["type"],
        },
    },
}


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}], ids=["quiet", "thinking"])
@pytest.mark.parametrize("tools", [None, [BASH, NESTED]], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_built_in_gemma_4_template_writes_what_the_published_form_does(altered: Any, tokenizer: Any, name: str, tools: Any, options: Any) -> None:
    prompt = Prompt(CONVERSATIONS[name], tools, options)
    bare = load_tokenizer(altered("gemma4", tokenizer_config={"chat_template": None}))
    assert bare.encode(prompt) == tokenizer("gemma4").encode(prompt)


def test_a_built_in_gemma_4_template_keeps_system_text_and_tools(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = load_tokenizer(altered("gemma4", tokenizer_config={"chat_template": None}))
    assert "no chat template" in caplog.text and "Gemma 4" in caplog.text
    text = made.encode(Prompt([{"role": "system", "content": "Be brief."}, user("hi")], [BASH])).text
    assert text.startswith("<bos><|turn>system\nBe brief.<|tool>declaration:Bash{") and "<|turn>user\nhi<turn|>" in text
    assert made.traits.dialect == "gemma4" and made.traits.text_beside_calls


def test_an_early_gemma_4_template_is_replaced(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = tokenizer("gemma4", "gemma4_launch")
    assert "early chat template" in caplog.text
    text = made.encode(Prompt(CONVERSATIONS["result"], [BASH])).text
    assert "<|tool_response>response:Bash{value:" in text


def test_other_models_without_a_template_get_chatml(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = load_tokenizer(altered("llama", tokenizer_config={"chat_template": None}))
    assert "ChatML" in caplog.text
    assert made.encode(Prompt([user("hi")])).text == "<|begin_of_text|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert not made.traits.tools


# ── facts of the model's files ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"max_position_embeddings": 4096}, {}, 4096),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 777}}, {}, 777),
        ({"max_position_embeddings": None}, {"model_max_length": 2048}, 2048),
        ({"max_position_embeddings": None}, {"model_max_length": 10**30}, DEFAULT_CONTEXT_TOKENS),
        ({"max_position_embeddings": 0}, {"model_max_length": None}, DEFAULT_CONTEXT_TOKENS),
    ],
)
def test_context_tokens(altered: Any, config: dict[str, Any], tokenizer_config: dict[str, Any], expected: int) -> None:
    assert load_tokenizer(altered("qwen3", config=config, tokenizer_config=tokenizer_config)).context_tokens == expected


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, Sampling(1.0, 1.0, 0)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, Sampling(0.6, 0.95, 20)),
        ({"temperature": 0, "top_p": 0, "top_k": None}, Sampling(0.0, 1.0, 0)),
        ({"temperature": "hot", "top_p": 2, "top_k": -1}, Sampling(1.0, 1.0, 0)),
    ],
)
def test_sampling(altered: Any, generation: dict[str, Any], expected: Sampling) -> None:
    assert load_tokenizer(altered("qwen3", generation_config=generation)).sampling == expected


@pytest.mark.parametrize("form", ["int", "list", "missing"])
def test_stop_ids_are_the_union_of_all_files_and_of_the_familys_turn_ends(altered: Any, form: str) -> None:
    one = {"int": 5, "list": [5, 7], "missing": None}[form]
    made = load_tokenizer(altered("gemma4", config={"eos_token_id": one}, generation_config={"eos_token_id": 3 if one else None}))
    names = {made._shared.token_to_id(t) for t in ("<turn|>", "<eos>", "<|tool_response>")}
    assert made.stop_ids == names | {"int": {5, 3}, "list": {5, 7, 3}, "missing": set()}[form]


def test_the_vocabulary_is_the_models_with_its_padding(altered: Any) -> None:
    made = load_tokenizer(altered("gemma3", config={"vocab_size": 800}))
    assert made.vocab_size == 800
    detokenizer = made.detokenizer(3)
    detokenizer.add_token(799)
    detokenizer.finalize()
    assert detokenizer.last_segment == ""


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4", "qwen3"])
@pytest.mark.parametrize("text", [" Paris", "  two", "\n next", "é 😀!", "<tool_call>", "a"])
def test_the_detokenizer_gives_exactly_the_text(tokenizer: Any, family: str, text: str) -> None:
    made = tokenizer(family)
    tokens = made._shared.encode(text, add_special_tokens=False).ids
    detokenizer, pieces = made.detokenizer(tokens[-1]), []
    for token in tokens:
        detokenizer.add_token(token)
        pieces.append(detokenizer.last_segment)
    detokenizer.finalize()
    assert "".join([*pieces, detokenizer.last_segment]) == text


# ── folders that cannot be used ──────────────────────────────────────────────────────────────────


def break_file(name: str, content: str | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(content) if content is not None else (folder / name).unlink()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (break_file("config.json", None), "no config.json"),
        (break_file("config.json", "{"), "config.json cannot be read"),
        (break_file("config.json", "[]"), "not a JSON object"),
        (break_file("config.json", '{"model_type": "qwen3", "max_position_embeddings": "many"}'), "does not load"),
        (break_file("tokenizer.json", "{}"), "tokenizer in .* does not load"),
        (break_file("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE"}}'), "tokenizer in .* does not load"),
        (break_file("tokenizer.json", None), "tokenizer in "),
        (break_file("chat_template.jinja", "{% for %}"), "chat template in .* is damaged"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(altered: Any, change: Callable[[Path], None], message: str) -> None:
    folder = altered("qwen3")
    change(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_loading_opens_no_connection(tokenizer_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: connect(None, address))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for family in tiny_models.FAMILIES:
        load_tokenizer(tokenizer_folder(family)).encode(Prompt([user("hi")]))
    assert tried == []


def test_a_broken_generation_config_is_ignored(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = altered("qwen3")
    (folder / "generation_config.json").write_text("{")
    assert load_tokenizer(folder).sampling == Sampling()
    assert "generation_config.json is ignored" in caplog.text
