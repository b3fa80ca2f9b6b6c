"""Ids to text, one by one: exactly the text, and its leading space too."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, NaiveStreamingDetokenizer, SPMStreamingDetokenizer
from tokenizers import Tokenizer, decoders, models

from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer
from tokenizer_rig import altered, load_made, tokenizer  # noqa: F401  (fixtures)


def text_of(made: ModelTokenizer, tokens: Iterable[int]) -> str:
    detokenizer, pieces = made.detokenizer(), []
    for token in tokens:
        detokenizer.add_token(token)
        pieces.append(detokenizer.last_segment)
    detokenizer.finalize()
    return "".join([*pieces, detokenizer.last_segment])


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4", "qwen3"])
@pytest.mark.parametrize("text", [" Paris", "  two", "\n next", "é 😀!", "<tool_call>", "a"])
def test_the_detokenizer_gives_exactly_the_text(tokenizer: Any, family: str, text: str) -> None:
    made = tokenizer(family)
    assert text_of(made, made._shared.encode(text, add_special_tokens=False).ids) == text


SPM = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
KINDS = {
    "SPM that trims": (SPMStreamingDetokenizer, "▁", decoders.Sequence([*SPM, decoders.Strip(" ", 1, 0)])),
    "SPM": (SPMStreamingDetokenizer, "▁", decoders.Sequence(SPM)),
    "BPE": (BPEStreamingDetokenizer, "Ġ", decoders.ByteLevel()),
    "naive": (NaiveStreamingDetokenizer, "▁", decoders.Metaspace("▁", "first")),
}


@pytest.mark.parametrize("words", ["_b", "_ b", "_ _b", "b _b"])
@pytest.mark.parametrize(("kind", "space", "decoder"), KINDS.values(), ids=KINDS)
def test_every_kind_of_detokenizer_keeps_the_space_that_an_answer_begins_with(tmp_path: Path, kind: type, space: str, decoder: Any, words: str) -> None:
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(["<unk>", "</s>", "a", "b", space, f"{space}b"])}, [], unk_token="<unk>"))
    raw.decoder = decoder
    made = load_made(tmp_path, raw)
    assert type(made._wrapper.detokenizer) is kind
    tokens = [raw.token_to_id(word.replace("_", space)) for word in words.split()]
    assert text_of(made, tokens) == words.replace(" ", "").replace("_", " ")


def test_an_id_of_the_models_padding_has_no_text(altered: Any) -> None:
    made = load_tokenizer(altered("gemma3", config={"vocab_size": 800}))
    assert made.vocab_size == 800 and text_of(made, [799]) == ""
