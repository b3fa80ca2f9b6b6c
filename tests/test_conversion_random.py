"""Any order of roles and blocks fits any template, and no word of it is lost or doubled."""
from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

from conversations import BASH, call, prompt, result, text
from mlx_native_server.protocol import Traits


def all_traits() -> list[Traits]:
    names = ("tools", "tool_calls", "several_calls", "text_beside_calls", "string_arguments", "system", "late_system", "alternates", "moves_late_text")
    return [Traits(**dict(zip(names, values))) for values in product((True, False), repeat=len(names))]


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """Any order of roles and blocks; every text is a word that occurs once."""
    words = (f"w{n}w" for n in range(10_000))
    messages, ids = [], ["z"]
    for _ in range(rng.randint(1, 8)):
        role = rng.choice(["user", "user", "assistant", "assistant", "system"])
        blocks = [text(rng.choice(["", "<system-reminder>"]) + next(words))] if role != "assistant" else []
        for _ in range(rng.randint(0, 3)):
            if role == "assistant" and rng.random() < 0.6:
                ids.append(rng.choice([f"id{len(ids)}", ids[-1]]))
                blocks.append(call(ids[-1], "Bash", command=next(words)))
            elif role == "user" and rng.random() < 0.6:
                blocks.append(result(rng.choice(ids[-3:]), next(words), is_error=rng.random() < 0.2))
            else:
                blocks.append(text(next(words)))
        messages.append({"role": role, "content": blocks})
    return messages


def check_shape(messages: list[dict[str, Any]], traits: Traits) -> None:
    """What every template relies on."""
    assert all(isinstance(m["content"], str) for m in messages)
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    assert turns[0]["role"] == "user" and (traits.late_system or all(m["role"] != "system" for m in turns))
    due: list[str] = []
    for message in turns:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
        else:
            assert not due
            due = [c["id"] for c in message.get("tool_calls", ())]
            assert "tool_calls" not in message or (due and (traits.several_calls or len(due) == 1))
            assert not due or traits.text_beside_calls or not message["content"]
    assert not due
    if traits.alternates:
        plain = [m["role"] for m in turns if m["role"] in ("user", "assistant") and "tool_calls" not in m]
        assert plain == ["user", "assistant"] * (len(plain) // 2) + ["user"] * (len(plain) % 2)


def test_any_conversation_keeps_every_word_once_and_fits_any_template() -> None:
    rng = random.Random(3)
    every = all_traits()
    for _ in range(1500):
        traits, messages = rng.choice(every), conversation(rng)
        made = prompt(*messages, traits=traits, system="w-system", tools=[BASH])
        check_shape(made.messages, traits)
        whole = json.dumps(made.messages)
        words = [w for w in json.dumps(messages).replace("<system-reminder>", '"').split('"') if w[:1] == "w" and w[-1:] == "w"]
        assert {w: whole.count(w) for w in words} == {w: 1 for w in words}
        assert whole.count("w-system") == 1
