"""Models whose layers are of rarer kinds: lists of caches, attention windows, kinds that only fit as they are."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step

from engine_rig import WAIT_S, Ids, Rig, job, prompt, words
from mlx_native_server.engine.engine import Loaded

SHAPES: dict[str, dict[str, Any]] = {
    "gpt_oss": dict(num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=2, vocab_size=600, hidden_size=64, intermediate_size=64,
                    head_dim=16, num_attention_heads=4, num_key_value_heads=2, sliding_window=32),
    "falcon_h1": dict(hidden_size=64, head_dim=16, intermediate_size=64, mamba_d_head=16, mamba_d_ssm=64, mamba_d_state=16, mamba_n_heads=4,
                      num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, vocab_size=600),
    "deepseek_v32": dict(vocab_size=600, hidden_size=64, index_head_dim=32, index_n_heads=2, index_topk=2048, intermediate_size=64,
                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=16,
                         v_head_dim=16, qk_nope_head_dim=16),
    "afm7": dict(model_type="afm7", vocab_size=600, hidden_dim=64, num_layers=4, num_kv_reuse_layers=2, num_heads=4, num_kv_heads=2),
    "llama4": dict(model_type="llama4", text_config=dict(
        attention_bias=False, attention_chunk_size=64, head_dim=16, hidden_size=64, interleave_moe_layer_step=4, intermediate_size=64,
        intermediate_size_mlp=64, max_position_embeddings=4096, model_type="llama4_text", num_attention_heads=4, num_experts_per_tok=1,
        num_hidden_layers=4, num_key_value_heads=2, num_local_experts=2, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1e4,
        use_qk_norm=True, vocab_size=600)),
}
"""Small models of these modules of mlx-lm."""
REUSED = {"deepseek_v32": 230, "afm7": 230}
"""Where all layers can be cut; elsewhere it is the checkpoint."""


def make(kind: str) -> Any:
    """A model of random weights, the same each time and in each thread."""
    module = import_module(f"mlx_lm.models.{kind}")
    model = module.Model(module.ModelArgs.from_dict(SHAPES[kind]))
    weights = [(name, 0.1 * mx.random.normal(value.shape, key=mx.random.key(number)) if value.ndim > 1 or "bias" in name else value)
               for number, (name, value) in enumerate(tree_flatten(model.parameters()))]
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return model


class Made(Rig):
    """An engine over a model that is made, not read."""

    def __init__(self, kind: str, **settings: Any):
        self.kind = kind
        super().__init__(None, **settings)

    def _load(self, progress: Callable[[str], None]) -> Loaded:
        return Loaded(make(self.kind), Ids, frozenset(), 600)


@pytest.fixture
def made() -> Iterator[Callable[[str], Rig]]:
    rigs: list[Rig] = []

    def start(kind: str) -> Rig:
        rigs.append(Made(kind))
        rigs[-1].engine.start()
        return rigs[-1]

    yield start
    for each in rigs:
        assert each.engine.close(WAIT_S)


@pytest.mark.parametrize("kind", SHAPES)
def test_steps_branches_and_rows_beside_each_other_give_what_a_cold_run_gives(made: Any, kind: str) -> None:
    engine, model = made(kind), make(kind)

    def cold(tokens: list[int]) -> list[int]:
        return [token for token, _ in generate_step(mx.array(tokens), model, max_tokens=6)]

    first = prompt(1, 200) + prompt(2, 40)
    answer = engine.ask(first, 6, checkpoints=(200, 237))
    assert answer == cold(first)
    step = job(first + answer + prompt(3, 30), 6, checkpoints=(200, 237, 270))
    branch = job(first[:230] + prompt(4, 30), 6, checkpoints=(200, 255))
    tickets = [engine.engine.submit(each) for each in (step, branch)]
    for each, ticket, reused in zip((step, branch), tickets, (246, REUSED.get(kind, 200))):
        replies = engine.replies(ticket)
        assert words(replies[1:-1]) == cold(each.tokens)
        assert replies[0].reused_tokens == reused
