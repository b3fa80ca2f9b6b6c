"""Checkpoints of a prompt: each must be a token prefix of the prompts that branch off there."""
from __future__ import annotations

import pytest

from mlx_native_server.models.branches import agreement
from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.models.tokens import load_tokenizer

FAMILIES = ("llama", "gemma3", "gemma4", "qwen3", "qwen3_5", "qwen3_next")
TOOL = {"name": "Read", "description": "Read a file", "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}}
ASK = {"role": "user", "content": "What is in a.txt?"}
CALL = {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.txt"}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ALPHA <|im_end|> <end_of_turn>"}]}
ANSWER = {"role": "assistant", "content": "It says ALPHA."}
FOLLOW = {"role": "user", "content": "And in b.txt?"}
OTHER = {"role": "user", "content": "Something else entirely."}


def encode(tokenizer, *messages):
    body = {"model": "m", "max_tokens": 9, "system": "You help.", "tools": [TOOL], "messages": list(messages)}
    return tokenizer.encode(to_prompt(parse_request(body, {}, 9), tokenizer.traits, True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "conversation, branch",
    [
        ((ASK,), (OTHER,)),
        ((ASK,), (ASK, CALL, RESULT)),
        ((ASK, CALL, RESULT), (OTHER,)),
        ((ASK, CALL, RESULT), (ASK, CALL, RESULT, ANSWER, FOLLOW)),
        ((ASK, CALL, RESULT, ANSWER, FOLLOW), (ASK, CALL, RESULT, ANSWER, OTHER)),
    ],
    ids=["new session", "next step", "new session after a step", "next turn", "another last message"],
)
def test_a_later_prompt_branches_off_at_a_checkpoint(tokenizer_folder, family, conversation, branch):
    tokenizer = load_tokenizer(tokenizer_folder(family))
    before, after = encode(tokenizer, *conversation), encode(tokenizer, *branch)
    shared = agreement("".join(map(chr, before.tokens)), "".join(map(chr, after.tokens)))
    kept = max((count for count in before.checkpoints if count <= shared), default=0)
    assert list(before.checkpoints) == sorted(set(before.checkpoints))
    assert 0 < kept < len(before.tokens)
    # what lies between the last usable checkpoint and the first difference: at most a turn's header
    assert shared - kept <= 12


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_do_not_change_the_tokens(tokenizer_folder, family):
    tokenizer = load_tokenizer(tokenizer_folder(family))
    encoded = encode(tokenizer, ASK, CALL, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ALPHA"}]})
    whole = tokenizer._encoders.encode([(encoded.text, False)], at_start=True)
    assert encoded.tokens == whole and encoded.checkpoints


@pytest.mark.parametrize("a, b, same", [("", "", 0), ("a", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("abc", "abcd", 3), ("x", "y", 0)])
def test_agreement(a, b, same):
    assert agreement(a, b) == same
