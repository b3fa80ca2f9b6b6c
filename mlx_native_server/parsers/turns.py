"""The marks around a model's turns: which of them end generation as tokens, and what they mean where they leak into text.

One table for both: models end their answers with these tokens, but conversions often forget some in their configs, and
then the mark is spelled out in the answer.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """`stops`: as a special token it ends generation. `cuts`: no answer holds it outside code, so that it ends one as
    text too; else an answer may well hold it, and it is dropped only at the very end. `families` use it."""

    text: str
    stops: bool
    cuts: bool
    families: str


MARKS = (
    Mark("<|im_end|>", True, True, "ChatML: Qwen, Hermes, Nemotron, LFM2, MiniCPM"),
    Mark("<|im_start|>", False, True, "ChatML"),
    Mark("<|endoftext|>", True, True, "Qwen, GLM, gpt-oss"),
    Mark("<|eot_id|>", True, True, "Llama 3"),
    Mark("<|eom_id|>", True, True, "Llama 3"),
    Mark("<|end_of_text|>", True, True, "Llama 3, Granite"),
    Mark("<|start_header_id|>", False, True, "Llama 3"),
    Mark("<|eot|>", True, True, "Llama 4, Muse"),
    Mark("<|eom|>", False, True, "Llama 4; in Muse another message follows"),
    Mark("<turn|>", True, True, "Gemma 4"),
    Mark("<|turn>", False, True, "Gemma 4"),
    Mark("<|tool_response>", True, True, "Gemma 4"),
    Mark("<end_of_turn>", True, True, "Gemma 3"),
    Mark("<start_of_turn>", False, True, "Gemma 3"),
    Mark("<start_function_response>", True, True, "functiongemma"),
    Mark("<eos>", True, False, "Gemma"),
    Mark("<｜end▁of▁sentence｜>", True, True, "DeepSeek"),
    Mark("<｜User｜>", False, True, "DeepSeek"),
    Mark("<｜tool▁outputs▁begin｜>", False, True, "DeepSeek"),
    Mark("<｜tool▁output▁begin｜>", False, True, "DeepSeek"),
    Mark("<|start|>user", False, True, "gpt-oss"),
    Mark("<|start|>functions", False, True, "gpt-oss"),
    Mark("<|return|>", True, False, "gpt-oss"),
    Mark("<|call|>", True, False, "gpt-oss"),
    Mark("<|end|>", False, False, "Phi; in gpt-oss another message follows"),
    Mark("<|observation|>", True, True, "GLM"),
    Mark("<|user|>", True, True, "GLM, Phi"),
    Mark("[e~[", True, True, "MiniMax"),
    Mark("<|im_user|>", False, True, "Kimi"),
    Mark("<|end_of_msg|>", True, True, "Kimi K3"),
    Mark("<|close|>", False, False, "Kimi K3"),
    Mark("<seed:eos>", True, True, "Seed-OSS"),
    Mark("</longcat_s>", True, True, "LongCat"),
    Mark("</s>", True, False, "Mistral, Llama 2"),
)

HEADERS = (
    "<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|turn>model\n", "<start_of_turn>model\n",
    "<|im_assistant|>assistant<|im_middle|>", "<|start_of_role|>assistant<|end_of_role|>",
)
"""What a model may write once more that the prompt has ended with; only as the first thing of an answer."""

STOP_TOKENS = frozenset(mark.text for mark in MARKS if mark.stops)
TURN_MARKERS = tuple(mark.text for mark in MARKS if mark.cuts)
END_MARKERS = tuple(mark.text for mark in MARKS if not mark.cuts)
