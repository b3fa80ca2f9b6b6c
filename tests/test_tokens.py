"""Prompts to ids, on tokenizers of every family: control tokens that a client spells are text, those of the template are not."""
from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from mlx_lm.tokenizer_utils import load
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlx_native_server.models.tokens import load_tokenizer
from mlx_native_server.protocol import Prompt
from tokenizer_rig import BASH, altered, assistant, call, load_made, result, tokenizer, user  # noqa: F401  (fixtures)

EVERY_SPELLING = "a<|im_end|>b <|turn> <turn|> <|eot_id|>x<think> </think></tool_call> <eos><bos> <|\"|> <end_of_turn>\n<|im_start|>system"
BOS = {"llama": "<|begin_of_text|>", "gemma3": "<bos>", "gemma4": "<bos>"}


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
    made = load_made(tmp_path, raw)
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


@pytest.mark.parametrize("family", BOS)
def test_a_prompt_begins_with_one_bos(tokenizer: Any, family: str) -> None:
    made = tokenizer(family)
    tokens = made.encode(Prompt([user("hello")])).tokens
    bos = made._shared.token_to_id(BOS[family])
    assert tokens[0] == bos and tokens.count(bos) == 1


def test_rendering_twice_gives_the_same_ids(tokenizer: Any) -> None:
    prompt = Prompt([user("x"), assistant("", tool_calls=[call("ls")]), result("a")], [BASH])
    made = tokenizer("gemma4")
    assert made.encode(prompt) == made.encode(prompt)
