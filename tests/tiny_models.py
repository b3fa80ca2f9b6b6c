"""Tiny deterministic model folders for tests that mlx-lm can load.

build(family, out) writes random weights (seed 0), build_tokenizer_only(family, out) none. build_scripted(family, out, rules)
writes a model whose logits spell out a given text, so that the real tokenizer, sampler, caches, generation loop and server
produce it; register_scripted(out) lets this process load it. A family's own template is used unless `template` names one of EXTRA.
"""
import json
import sys
from pathlib import Path

from tiny_templates import EXTRA, TEMPLATE

CORPUS = """The quick brown fox jumps over the lazy dog. You are a helpful assistant that can call tools.
To call a function answer with its name and arguments as JSON: {"name": "Bash", "arguments": {"command": "ls -la /tmp"}}
{"type": "function", "function": {"name": "Read", "description": "Read a file", "parameters": {"type": "object",
"properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}}} system user assistant tool model developer
def main(): import os, sys; print("hello world"); return 0 <function=Bash> <parameter=command> </parameter> </function>
What is the capital of France? The capital of France is Paris. List the files in the current directory and show me the
contents of the first one. thought: I should look at the files first, then answer the question. call:Bash{command:ls}
0 1 2 3 4 5 6 7 8 9 10 11 12 2024 2025 error warning result output input message content role response available
""" * 4

# ---- special tokens: (token, is_special); eos is a tuple, the first one being the turn's end.
# eos_token: what tokenizer_config.json calls it, where that isn't eos[0]; auto_bos: the tokenizer itself puts bos in front.
CHATML = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True)]
TOOLTAGS = [("<tool_call>", False), ("</tool_call>", False), ("<tool_response>", False), ("</tool_response>", False)]
THINK = [("<think>", False), ("</think>", False)]
VISION = [(t, True) for t in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")]
TOK = {
    "llama": dict(style="bpe", bos="<|begin_of_text|>", pad="<|finetune_right_pad_id|>", eos=("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        special=[("<|begin_of_text|>", True), ("<|end_of_text|>", True), ("<|finetune_right_pad_id|>", True), ("<|start_header_id|>", True),
                 ("<|end_header_id|>", True), ("<|eom_id|>", True), ("<|eot_id|>", True), ("<|python_tag|>", True)]),
    "gemma3": dict(style="spm", bos="<bos>", pad="<pad>", eos=("<end_of_turn>", "<eos>"),
        special=[(t, True) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")]),
    # <|tool_response> ends a generation as well: the model writes it after its calls
    "gemma4": dict(style="spm", bos="<bos>", pad="<pad>", eos=("<turn|>", "<eos>", "<|tool_response>"), eos_token="<eos>", auto_bos=False,
        special=[(t, True) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
                 "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>")]),
    "qwen3": dict(style="bpe", bos=None, pad="<|endoftext|>", eos=("<|im_end|>", "<|endoftext|>"), special=CHATML + TOOLTAGS + THINK),
}
for _f in ("qwen3_next", "qwen3_moe"):
    TOK[_f] = TOK["qwen3"]
TOK["qwen3_5"] = dict(TOK["qwen3"], special=CHATML + VISION + TOOLTAGS + THINK)

# ---- model shapes
_D = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, max_position_embeddings=32768, rope_theta=10000.0)
_LIN = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4)
SHAPE = {
    "llama": dict(_D, model_type="llama", num_hidden_layers=4, tie_word_embeddings=True),
    "gemma3": dict(_D, model_type="gemma3_text", num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16, sliding_window=64, sliding_window_pattern=3),
    "gemma4": dict(model_type="gemma4", text_config=dict(_D, model_type="gemma4_text", num_hidden_layers=6, head_dim=16, global_head_dim=32, sliding_window=64,
        sliding_window_pattern=3, num_kv_shared_layers=2, hidden_size_per_layer_input=8)),
    "qwen3": dict(_D, model_type="qwen3", num_hidden_layers=4, head_dim=16, tie_word_embeddings=True),
    "qwen3_moe": dict(_D, model_type="qwen3_moe", num_hidden_layers=4, head_dim=16, tie_word_embeddings=True, num_experts=8, num_experts_per_tok=2,
        decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=32, norm_topk_prob=True),
    "qwen3_next": dict(_D, **_LIN, model_type="qwen3_next", num_hidden_layers=4, head_dim=16, tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2,
        decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=32, shared_expert_intermediate_size=32, partial_rotary_factor=0.25, full_attention_interval=4, norm_topk_prob=True),
    "qwen3_5": dict(model_type="qwen3_5", text_config=dict(_D, **_LIN, model_type="qwen3_5_text", num_hidden_layers=4, head_dim=16, tie_word_embeddings=True, full_attention_interval=4,
        rope_parameters=dict(type="default", mrope_section=[1, 1, 0], rope_theta=10000.0, partial_rotary_factor=0.25))),
}
FAMILIES = list(SHAPE)
VOCAB = 768


def write_tokenizer(family, out: Path, template=None):
    """tokenizer.json + tokenizer_config.json; returns (vocab size, eos ids)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    spec = TOK[family]
    added = [AddedToken(t, special=s, normalized=False) for t, s in spec["special"]]
    if spec["style"] == "bpe":
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        tr = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=added, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
        tok.train_from_iterator(CORPUS.splitlines(), tr)
    else:  # SentencePiece-like, with byte fallback, as Gemma's
        tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tok.normalizer = normalizers.Replace(" ", "\u2581")
        tok.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        tr = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[t for t, _ in spec["special"]] + bytes_, initial_alphabet=[], show_progress=False)
        tok.train_from_iterator(CORPUS.splitlines(), tr)
        # the bytes must be plain vocabulary, not added tokens: rebuild with the same vocabulary and merges
        j = json.loads(tok.to_str())
        j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] not in set(bytes_)]
        tok = Tokenizer.from_str(json.dumps(j))
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
        tok.add_special_tokens(added)
    tok.add_special_tokens([a for a in added if a.special])
    tok.add_tokens([a for a in added if not a.special])
    v = tok.get_vocab()
    if spec["bos"] and spec.get("auto_bos", True):
        b = spec["bos"]
        tok.post_processor = processors.TemplateProcessing(single=f"{b} $A", pair=f"{b} $A {b} $B", special_tokens=[(b, v[b])])
    tok.save(str(out / "tokenizer.json"))
    cfg = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=spec["bos"], eos_token=spec.get("eos_token", spec["eos"][0]), pad_token=spec["pad"],
               clean_up_tokenization_spaces=False, model_max_length=32768, chat_template=EXTRA[template] if template else TEMPLATE[family])
    if spec["style"] == "spm":
        cfg["unk_token"] = "<unk>"
    (out / "tokenizer_config.json").write_text(json.dumps(cfg, indent=1) + "\n")
    # exactly the tokenizer's size: the SPM detokenizer raises IndexError on an id that it does not know
    return max(v.values()) + 1, [v[t] for t in spec["eos"]]


def _write_config(out, cfg, eos):
    (out / "config.json").write_text(json.dumps(cfg, indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps(dict(eos_token_id=eos)) + "\n")


def build_tokenizer_only(family, out_dir, template=None):
    """tokenizer, config and generation config without weights (and without importing mlx)."""
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    size, eos = write_tokenizer(family, out, template)
    cfg = json.loads(json.dumps(SHAPE[family]))
    cfg.get("text_config", cfg)["vocab_size"] = size
    _write_config(out, cfg | dict(eos_token_id=eos), eos)
    return out


def build(family, out_dir, seed=0, template=None, **shape_overrides):
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map_with_path
    from mlx_lm.utils import _get_classes

    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    size, eos = write_tokenizer(family, out, template)
    cfg = json.loads(json.dumps(SHAPE[family]))
    text = cfg.get("text_config", cfg)
    text.update(shape_overrides)
    text["vocab_size"] = size
    if family == "gemma4":
        cfg["vocab_size"] = size
        text["vocab_size_per_layer_input"] = size
    cfg["eos_token_id"] = eos
    Model, Args = _get_classes(cfg)
    mx.random.seed(seed)
    model = Model(Args.from_dict(json.loads(json.dumps(cfg))))

    def init(path, p):
        last = path.rsplit(".", 1)[-1]
        if p.ndim >= 2:  # scales picked so that greedy text isn't one token for ever (tied embeddings repeat their input)
            emb = 0.05 if "gemma" in family else 1.0
            return mx.random.normal(p.shape) * (emb if "embed" in path or "lm_head" in path else 1.5 / p.shape[-1] ** 0.5)
        if last == "A_log":
            return mx.log(mx.random.uniform(1, 8, p.shape))
        return p

    model.update(tree_map_with_path(init, model.parameters()))
    weights = {k: v.astype(mx.float32) for k, v in tree_flatten(model.parameters())}
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_config(out, cfg, eos)
    return out


# ---------------------------------------------------------------- scripted model
SCRIPTED = '''"""A model whose logits spell out scripted replies (see tiny_models.build_scripted)."""
import json, re, time
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.base import BaseModelArgs
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from tokenizers import Tokenizer


@dataclass
class ModelArgs(BaseModelArgs):
    model_type: str
    vocab_size: int
    turn_start: list = field(default_factory=list)   # texts after which the assistant speaks (the last one in the prompt counts)
    eos: int = 0
    script_dir: str = ""
    extra_caches: list = field(default_factory=list)   # of "rotating", "arrays"
    prefill_ms_per_token: float = 0.0


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.dummy = mx.zeros((1,))
        d = Path(args.script_dir) if args.script_dir else Path(__file__).parent
        self._tok = Tokenizer.from_file(str(d / "tokenizer.json"))
        self._path = d / "script.json"
        self._marks = [self._tok.encode(t, add_special_tokens=False).ids for t in args.turn_start]
        self._memo = {}

    @property
    def layers(self):
        return [None] * (1 + len(self.args.extra_caches))

    def make_cache(self):
        make = {"rotating": lambda: RotatingKVCache(max_size=32), "arrays": lambda: ArraysCache(size=1)}
        return [KVCache()] + [make[k]() for k in self.args.extra_caches]

    def _reply(self, head):
        """The reply's token ids and delay for a prompt (ids up to the assistant's turn)."""
        key = tuple(head)
        if key not in self._memo:
            text = self._tok.decode(head, skip_special_tokens=False)
            for rule in json.loads(self._path.read_text()):
                if re.search(rule.get("match", ""), text, re.S):
                    ids = self._tok.encode(rule["reply"], add_special_tokens=False).ids
                    if not rule.get("no_eos"):
                        ids.append(self.args.eos)
                    self._memo[key] = ids, rule.get("token_ms", 0), bool(rule.get("no_eos"))
                    break
            else:
                raise ValueError("no rule of script.json matches the prompt: " + text[-400:])
        return self._memo[key]

    def _next(self, ids):
        for end in range(len(ids), 0, -1):
            if any(ids[max(0, end - len(m)) : end] == m for m in self._marks):
                reply, ms, again = self._reply(ids[:end])
                done = ids[end:]
                if again:  # no_eos: the reply over and over, until max_tokens
                    reply = reply * (len(done) // len(reply) + 2)
                # the template may have opened the turn with more text: count only from the reply's start
                k = len(done)
                while k and done[len(done) - k :] != reply[:k]:
                    k -= 1
                if ms:
                    time.sleep(ms / 1000)
                return reply[k] if k < len(reply) else self.args.eos
        return self.args.eos  # not inside an assistant's turn

    def __call__(self, inputs, cache=None, input_embeddings=None):
        B, L = inputs.shape
        k = inputs.astype(mx.float32)[:, None, :, None]
        k = mx.concatenate([k, mx.zeros_like(k)], axis=-1)
        left = [0] * B
        if cache is not None:
            c = cache[0]
            keys, _ = c.update_and_fetch(k, k)
            if (lp := getattr(c, "left_padding", None)) is not None:
                left = lp.tolist()
            for c in cache[1:]:
                if isinstance(c, ArraysCache):
                    c[0] = inputs[:, -1:].astype(mx.float32)
                    c.advance(L)
                else:
                    c.update_and_fetch(k, k)
        else:
            keys = k
        if self.args.prefill_ms_per_token and L > 1:
            time.sleep(self.args.prefill_ms_per_token * L / 1000)
        logits = np.zeros((B, L, self.args.vocab_size), np.float32)
        if L <= 8:  # longer calls are prefill: nobody reads their logits
            hist = np.array(keys[:, 0, :, 0]).astype(np.int64)
            for b in range(B):
                ids = hist[b, left[b] :].tolist()
                for p in range(L):
                    logits[b, p, self._next(ids[: len(ids) - (L - 1 - p)])] = 100.0
        return mx.array(logits)
'''
# Gemma 4 goes on in the same turn after a tool's response, so that closes a prompt too
TURN = {"llama": ["<|start_header_id|>assistant<|end_header_id|>\n\n"], "gemma3": ["<start_of_turn>model\n"], "gemma4": ["<|turn>model\n", "<tool_response|>"]}


def build_scripted(family, out_dir, rules, extra_caches=(), prefill_ms_per_token=0.0, template=None):
    """rules: [{"match": regex on the decoded prompt, "reply": text, "token_ms": 0, "no_eos": false}, ...], first match wins; no_eos repeats the reply for ever."""
    import mlx.core as mx

    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    size, eos = write_tokenizer(family, out, template)
    (out / "scripted.py").write_text(SCRIPTED)
    (out / "script.json").write_text(json.dumps(rules, indent=1))
    mx.save_safetensors(str(out / "model.safetensors"), {"dummy": mx.zeros((1,))})
    # With model_file mlx-lm ignores model_type: keep the family's own config, since a server may look at it
    # and since transformers' AutoTokenizer validates config.json by its model_type.
    cfg = json.loads(json.dumps(SHAPE[family]))
    cfg.get("text_config", cfg)["vocab_size"] = size
    cfg |= dict(model_file="scripted.py", vocab_size=size, eos_token_id=eos, eos=eos[0], turn_start=TURN.get(family, ["<|im_start|>assistant\n"]),
        extra_caches=list(extra_caches), prefill_ms_per_token=prefill_ms_per_token)
    _write_config(out, cfg, eos)
    return out


def register_scripted(out_dir):
    """The other way in: no trust_remote_code; drops model_file and puts the module where mlx-lm imports it from."""
    import importlib.util

    out = Path(out_dir)
    cfg = json.loads((out / "config.json").read_text())
    cfg.pop("model_file", None)
    cfg["model_type"] = "scripted"
    cfg["script_dir"] = str(out.resolve())
    (out / "config.json").write_text(json.dumps(cfg, indent=1))
    spec = importlib.util.spec_from_file_location("mlx_lm.models.scripted", out / "scripted.py")
    mod = importlib.util.module_from_spec(spec)
    sys.modules["mlx_lm.models.scripted"] = mod
    spec.loader.exec_module(mod)
