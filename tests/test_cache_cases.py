"""Whole requests through the service and real engines: what a conversation costs, and that each answer is a cold one's."""
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_rig import FAMILIES, WAIT_S
from mlx_native_server.config import Settings
from mlx_native_server.protocol import ApiError
from mlx_native_server.service import Service
from mlx_native_server.models.tokens import load_tokenizer
from served import Served, serve_folder  # noqa: F401  (fixtures)

TOOLS = [{"name": name, "description": f"{name}: does what its name says, and says what came of it.",
          "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}} for name in ("Bash", "Read", "Grep")]
SYSTEM = "You are a careful assistant in a terminal. " + " ".join(f"Rule {number}: look before you write." for number in range(12))
HELPER = "You are a helper that searches files. " + " ".join(f"Step {number}: read, then report." for number in range(10))
REMINDER = {"type": "text", "text": "<system-reminder>\nThe file list may have changed.\n</system-reminder>"}


@pytest.fixture
def serve(tiny_model: Callable[..., Path], serve_folder: Callable[..., Served]) -> Callable[..., Served]:
    """`serve(family, folder=None, **settings)`."""
    return lambda family, folder=None, **settings: serve_folder(folder or tiny_model(family), prefill_size=256, **settings)


def body(messages: list[Any], system: str = SYSTEM, tools: list[Any] | None = TOOLS, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 6, "temperature": 0, "system": system, "messages": messages, **({"tools": tools} if tools else {}), **fields}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


class Client:
    """A client that keeps conversations, and the books on what they cost."""

    def __init__(self, serve: Any, cold: Served, **fields: Any):
        self.server, self.cold, self.fields = serve, cold, fields
        self.known: dict[str, list[list[int]]] = defaultdict(list)  # by system prompt: what another has before it is a template's matter
        self.requests = self.prefilled = self.new = 0

    def send(self, messages: list[Any], session: str = "s", agent: str = "", **fields: Any) -> list[Any]:
        wanted = body(messages, **{**self.fields, **fields})
        message, tokens = self.server.ask(wanted, session, agent), self.server.tokens(wanted)
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == len(tokens)
        new = len(tokens) - max((agree(tokens, known) for known in self.known[wanted["system"]]), default=0)
        assert usage["input_tokens"] <= 1.05 * new + 32, f"request {self.requests}"
        self.known[wanted["system"]].append(tokens)
        self.requests, self.prefilled, self.new = self.requests + 1, self.prefilled + usage["input_tokens"], self.new + new
        if self.requests % 6 == 0:
            assert message["content"] == self.cold.ask(wanted)["content"]
        return message["content"]


def agree(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def step(number: int, said: list[Any]) -> list[Any]:
    """What follows an answer: the tool that it called, as the client has it, and the result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": f"cat file_{number}"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"line {number} of the file: the quick brown fox"}
    said = [block for block in said if block["type"] != "text" or block["text"].strip()]
    return [{"role": "assistant", "content": [*said, call]}, {"role": "user", "content": [result, *([REMINDER] if number % 3 == 1 else [])]}]


@pytest.mark.parametrize(("family", "thinks"), [*((family, False) for family in FAMILIES), ("qwen3_5", True)])
def test_an_agents_session_prefills_what_is_new(serve: Any, tmp_path: Path, family: str, thinks: bool) -> None:
    """Twelve tool steps with reminders, two sub-agents, a title request, a step cut off and sent again, a second session, a restart."""
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}} if thinks else {}
    client = Client(serve(family, states=tmp_path / "m"), serve(family, prompt_cache_gb=0.0), **thinking)
    messages = [user("What is in the files of this folder?")]
    for number in range(12):
        if number == 2:
            client.send([user("A title for: what is in the files?")], system="Write a title of three words.", tools=None)
        if number in (4, 6):
            helping = [user(f"Find file {number}.")]
            for turn in range(2):
                helping += step(100 + 10 * number + turn, client.send(helping, agent=f"a{number}", system=HELPER))
        if number == 8:
            client.server.cut_off(body(messages, **client.fields))
        if number == 10:
            assert client.server.engine.close(WAIT_S)
            client.server = serve(family, states=tmp_path / "m")
        messages += step(number, client.send(messages))
    messages.append(user("Thank you. Now the other folder."))
    client.send(messages)
    second = [user("Something else entirely.")]
    for number in range(2):
        second += step(200 + number, client.send(second, session="other"))
    assert client.prefilled <= 1.05 * client.new + 32 * client.requests


# ── one thing each ───────────────────────────────────────────────────────────────────────────────


def reused(message: dict[str, Any]) -> int:
    return message["usage"]["cache_read_input_tokens"]


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_a_longer_list_of_tools_is_reused_up_to_the_first_new_one(serve: Any, family: str) -> None:
    """And answers as a cold run does; the reason is told: some templates write tools into the first message."""
    server, cold = serve(family), serve(family, prompt_cache_gb=0.0)
    server.ask(body([user("hello")], tools=TOOLS[:2]))
    wanted = body([user("hello")])
    answer = server.ask(wanted)
    assert answer["content"] == cold.ask(wanted)["content"]
    assert reused(answer) <= agree(server.tokens(body([user("hello")], tools=TOOLS[:2])), server.tokens(wanted))
    assert server.engine.health()["prompt_cache"]["reasons"].keys() <= {"cold", "tools_changed", "untrimmable"}


def test_another_system_prompt_reuses_what_the_template_begins_with_alone(serve: Any) -> None:
    server, cold = serve("llama"), serve("llama", prompt_cache_gb=0.0)
    first, second = body([user("hello")], tools=None), body([user("hello")], system="Quite another text. " + SYSTEM, tools=None)
    server.ask(first)
    answer = server.ask(second)
    assert reused(answer) == agree(server.tokens(first), server.tokens(second)) < 120
    assert answer["content"] == cold.ask(second)["content"]


def test_a_thought_that_is_left_out_of_the_history_ends_the_reuse_where_it_began(serve: Any) -> None:
    server, cold = serve("qwen3"), serve("qwen3", prompt_cache_gb=0.0)
    first = body([user("hello")], thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=12)
    said = [block for block in server.ask(first)["content"] if block["type"] == "text"] or [{"type": "text", "text": "Hello."}]
    second = body([user("hello"), {"role": "assistant", "content": said}, user("go on")])
    answer = server.ask(second)
    assert len(server.tokens(first)) - 16 <= reused(answer) <= agree(server.tokens(first), server.tokens(second)) + 16
    assert answer["content"] == cold.ask(second)["content"]


@pytest.mark.parametrize("family", ["llama", "gemma4"])
def test_a_request_for_no_tokens_warms_up(serve: Any, family: str) -> None:
    server, cold = serve(family), serve(family, prompt_cache_gb=0.0)
    first = server.ask(body([user("hello")], max_tokens=0))
    assert (first["content"], first["usage"]["output_tokens"]) == ([], 0)
    answer = server.ask(body([user("hello")]))
    assert answer["usage"]["input_tokens"] == 1 and answer["content"] == cold.ask(body([user("hello")]))["content"]


def test_a_prompt_that_is_too_long_leaves_a_server_that_works(serve: Any) -> None:
    server, cold = serve("llama", context_tokens=2000), serve("llama", prompt_cache_gb=0.0)
    with pytest.raises(ApiError, match="prompt is too long"):
        server.ask(body([user("word " * 5000)]))
    assert server.ask(body([user("hello")]))["content"] == cold.ask(body([user("hello")]))["content"]


def test_a_failure_within_a_prefill_leaves_a_server_that_works(serve: Any, monkeypatch: Any) -> None:
    server, cold = serve("gemma3"), serve("gemma3", prompt_cache_gb=0.0)
    expected = cold.ask(body([user("hello")]))["content"]
    server.ask(body([user("hi")]))
    kind = type(server.engine._loop._loaded.model)
    real = kind.__call__

    def broken(model: Any, *args: Any, **rest: Any) -> Any:
        real(model, *args, **rest)
        raise RuntimeError("[malloc] Unable to allocate 99 bytes.")

    monkeypatch.setattr(kind, "__call__", broken)
    with pytest.raises(ApiError):
        server.ask(body([user("hello " * 200)]))
    monkeypatch.setattr(kind, "__call__", real)
    assert server.ask(body([user("hello")]))["content"] == expected


def test_a_second_attempts_instruction_is_in_no_later_prompt(serve: Any, scripted_model: Any) -> None:
    """The garbled call is asked for again; the client's next turn goes on from what it knows, and is not answered otherwise."""
    rules = [{"match": "fox", "reply": "The fox is quick."}, {"match": "again|valid|correct", "reply": "I cannot."},
             {"reply": '<tool_call>\n{"name": "Bash", "arguments": {"command": "l'}]
    folder = scripted_model("qwen3", rules)
    server, cold = serve("", folder=folder), serve("", folder=folder, prompt_cache_gb=0.0)
    first = server.ask(body([user("list the files")], max_tokens=200))
    said = [block for block in first["content"] if block["type"] == "text"] or [{"type": "text", "text": "no"}]
    second = body([user("list the files"), {"role": "assistant", "content": said}, user("what of the fox?")], max_tokens=50)
    answer = server.ask(second)
    assert answer["content"] == cold.ask(second)["content"] == [{"type": "text", "text": "The fox is quick."}]
    assert reused(answer) + answer["usage"]["input_tokens"] == len(server.tokens(second))


def test_every_generated_token_is_counted(serve: Any, scripted_model: Any) -> None:
    """Also those of a thought that is not shown and of a call's markup."""
    text = '<think>\nlong and deep\n</think>\n\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    server = serve("", folder=scripted_model("qwen3", text))
    wanted = body([user("go")], max_tokens=500, thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"})
    message = server.ask(wanted)
    assert [block["type"] for block in message["content"] if block["type"] != "thinking"] == ["tool_use"]
    assert message["usage"]["output_tokens"] == len(server.tokenizer.ids(text)) + 1


# ── counting ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_are_of_the_whole_prompt(tokenizer_folder: Any, family: str) -> None:
    service = Service(Settings(context_tokens=100_000), None)
    service.use(load_tokenizer(tokenizer_folder(family)))

    def count(**fields: Any) -> int:
        return service.count(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello there"}], **fields}).encode(), {})

    words = "word " * 60
    called = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {"file_path": "/a"}}]}]
    billing = "x-anthropic-billing-header: cc_version=2.1.250.0aa; cc_entrypoint=cli; cch="
    assert count(system=words) > count() + 40
    assert count(tools=TOOLS) > count() + 30
    assert count(messages=[*called, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": words}]}]) > count() + 60
    assert len({count(system=[{"type": "text", "text": f"{billing}{nonce};"}, {"type": "text", "text": "S"}]) for nonce in ("aaaa", "b1b1b")}) == 1
    with pytest.raises(ApiError) as raised:
        count(messages="hi")
    assert (raised.value.status, raised.value.kind) == (400, "invalid_request_error")
