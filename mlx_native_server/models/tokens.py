"""A model's tokenizer: prompts to token ids, token ids to text, and what the model's files say of both.

It needs neither weights nor MLX arrays, and every method may be called from any thread. The shared tokenizer object is
only ever called with one fixed set of options, given once here: options are state of that object, and changing them per
call gives wrong ids to other threads. Text that spells a control token goes through a second object without such tokens.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import StreamingDetokenizer, TokenizerWrapper, load
from tokenizers import Tokenizer

from . import fallback
from .branches import Messages, branch_offsets
from .folder import ModelError, ModelFolder, read_folder
from ..protocol import Encoded, Prompt, Sampling, Traits, bad_request
from .spellings import Hidden, Spellings
from .template import ChatTemplate, jinja_template, python_template, thinking_at_end
from .traits import marks_results, probe
from ..parsers.thinking import TAGS
from ..parsers.turns import STOP_TOKENS

logger = logging.getLogger(__name__)

_PRIMER = "a"


class SafeDetokenizer:
    """mlx-lm's streaming detokenizer, where an id beyond the tokenizer (a padding row of the model's) has no text."""

    def __init__(self, inner: StreamingDetokenizer, known: int):
        self._inner, self._known = inner, known

    def add_token(self, token: int) -> None:
        """Take the next generated id."""
        if token < self._known:
            self._inner.add_token(token)

    def finalize(self) -> None:
        """Let go of an incomplete character."""
        self._inner.finalize()

    @property
    def last_segment(self) -> str:
        """The text that became readable since this was last asked."""
        return self._inner.last_segment


class ModelTokenizer:
    """See the module. `vocab_size` is the model's number of logits, padding included; `stop_ids` end an answer."""

    def __init__(self, folder: ModelFolder, wrapper: TokenizerWrapper):
        self._wrapper = wrapper
        self._shared: Tokenizer = wrapper.backend_tokenizer
        self._shared.no_truncation()
        self._shared.no_padding()
        self._known = self._shared.get_vocab_size(with_added_tokens=True)
        self._encoders = _Encoders(self._shared)
        self._primer = self._encoders.start.encode(_PRIMER, add_special_tokens=False).ids
        self._template = _usable_template(folder.path, wrapper)
        self._spellings = Spellings(self._control_texts())
        # a token that takes the white space before it along is no place to cut
        self._cutting = [t.content for t in self._shared.get_added_tokens_decoder().values() if t.special and not t.lstrip]
        self.traits: Traits = probe(self._template.render)
        self.context_tokens: int = folder.context_tokens
        self.sampling: Sampling = folder.sampling
        self.vocab_size: int = folder.vocab_size or self._known
        self.stop_ids: frozenset[int] = self._stop_ids(folder)

    def encode(self, prompt: Prompt) -> Encoded:
        """Render and encode. Raises `ApiError` 400 where the chat template refuses the conversation."""
        messages, tools, hidden = self._spellings.hide(prompt)
        if prompt.continues:
            text = self._render_open(messages, tools, prompt, hidden)
        else:
            text = self._template.render(messages, tools, prompt.options)
        opens, suppresses = thinking_at_end(text)
        tokens, checkpoints = self._encode_parts(hidden, text, self._branches(text, messages, tools, prompt, hidden))
        return Encoded(hidden.show(text), tokens, opens, suppresses, checkpoints)

    def _branches(self, text: str, messages: Messages, tools: Messages | None, prompt: Prompt, hidden: Hidden) -> list[int]:
        def render(branch: Messages, header: bool) -> str:
            return self._template.render(branch, tools, prompt.options, header=header)

        return branch_offsets(text, messages, render, self._cutting, hidden.end_mark)

    def _encode_parts(self, hidden: Hidden, text: str, offsets: list[int]) -> tuple[list[int], tuple[int, ...]]:
        """The ids of `text`, and how many of them lie before each of `offsets`."""
        tokens: list[int] = []
        counts = []
        for start, end in zip([0, *offsets], [*offsets, len(text)]):
            tokens += self._encoders.encode(hidden.cut(text[start:end]), at_start=start == 0)
            counts.append(len(tokens))
        return tokens, tuple(dict.fromkeys(counts[:-1]))

    def ids(self, text: str) -> list[int]:
        """The ids of markup that goes on from a prompt: control tokens spelled in it are meant."""
        return self._encoders.encode([(text, False)], at_start=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some ids, control tokens spelled out."""
        return self._shared.decode(list(tokens), skip_special_tokens=False)

    def detokenizer(self) -> SafeDetokenizer:
        """A fresh streaming detokenizer that keeps an answer's leading space.

        mlx-lm's drop it where no text stands before it. So they are given a letter first, whose text is discarded. The
        prompt's last token would not always do: a newline is flushed, half a character is no text yet.
        """
        inner = self._wrapper.detokenizer
        for token in self._primer:
            inner.add_token(token)
        inner.last_segment  # noqa: B018  (reading it is what discards the primer)
        return SafeDetokenizer(inner, self._known)

    def _render_open(self, messages: Messages, tools: Messages | None, prompt: Prompt, hidden: Hidden) -> str:
        """The text up to the end of the last message's content, which the model goes on with."""
        last = messages[-1] | {"content": f"{messages[-1].get('content') or ''}{hidden.end_mark}"}
        text = self._template.render([*messages[:-1], last], tools, prompt.options, header=False)
        before, mark, _ = text.rpartition(hidden.end_mark)
        if not mark:
            raise bad_request(f"messages.{len(messages) - 1}: the model's chat template cannot continue this message")
        return before

    def _control_texts(self) -> Iterator[str]:
        """Special tokens, and other added ones that the template or a thought is written with.

        Added tokens that are plain content (runs of spaces, HTML tags) stay what they are in the client's text.
        """
        written = self._template.literals + "".join(a + b for a, b in TAGS.items())
        for token in self._shared.get_added_tokens_decoder().values():
            if token.content.strip() and (token.special or token.content in written):
                yield token.content

    def _stop_ids(self, folder: ModelFolder) -> frozenset[int]:
        ends = {i for i, t in self._shared.get_added_tokens_decoder().items() if t.special and t.content in STOP_TOKENS}
        stops = folder.stop_ids | ends | {i for i in self._wrapper.eos_token_ids if isinstance(i, int)}
        if added := stops - folder.stop_ids:
            logger.info("answers also end at %s", ", ".join(sorted(map(repr, filter(None, map(self._shared.id_to_token, added))))))
        return frozenset(i for i in stops if i < self.vocab_size)


def load_tokenizer(path: Path) -> ModelTokenizer:
    """Read the tokenizer of a model folder; about a second. Raises `ModelError`."""
    folder = read_folder(path)
    try:
        wrapper = load(path, tokenizer_config_extra={"local_files_only": True})
    except Exception as error:  # a damaged tokenizer.json raises bare Exception, nothing narrower
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"The tokenizer in {path} does not load: {lines[0][:300]}") from error
    if not isinstance(getattr(wrapper, "backend_tokenizer", None), Tokenizer):
        raise ModelError(f"The tokenizer in {path} is of a kind that this server does not read: it has no tokenizer.json.")
    return ModelTokenizer(folder, wrapper)


# ── text to ids ──────────────────────────────────────────────────────────────────────────────────


class _Encoders:
    """`start` is the shared object; `middle` is for text that does not begin the prompt, `plain` for spellings.

    The three hold their options from here on. Where the tokenizer puts no space in front of a text, `middle` is `start`.
    """

    def __init__(self, shared: Tokenizer):
        self.start = self.middle = shared
        parts = [_component(shared.normalizer), _component(shared.pre_tokenizer)]
        bare = [_without_prefix_space(part) for part in parts]
        if bare == parts:
            self.plain = Tokenizer(shared.model)
            for name in ("normalizer", "pre_tokenizer"):
                if part := getattr(shared, name):
                    setattr(self.plain, name, part)
        else:
            facts = json.loads(shared.to_str()) | {"normalizer": bare[0], "pre_tokenizer": bare[1]}
            self.middle = Tokenizer.from_str(json.dumps(facts))
            self.plain = Tokenizer.from_str(json.dumps(facts | {"added_tokens": [], "post_processor": None}))
        self._added = frozenset(shared.get_added_tokens_decoder())
        self._spelled: dict[str, list[int]] = {}

    def encode(self, pieces: Iterable[tuple[str, bool]], at_start: bool) -> list[int]:
        """The ids of consecutive pieces of a prompt, from its start or from further on; each says whether it is a spelling."""
        ids: list[int] = []
        for i, (piece, is_spelling) in enumerate(pieces):
            ids += self._spelling(piece) if is_spelling else _ids(self.middle if i or not at_start else self.start, piece)
        return ids

    def _spelling(self, text: str) -> list[int]:
        if text not in self._spelled:
            self._spelled[text] = self._plain_ids(text)
        return self._spelled[text]

    def _plain_ids(self, text: str) -> list[int]:
        """Without any control token, also where the plain vocabulary holds its text as one piece."""
        ids = _ids(self.plain, text)
        if len(text) > 1 and self._added.intersection(ids):
            return self._plain_ids(text[: len(text) // 2]) + self._plain_ids(text[len(text) // 2 :])
        return ids


def _ids(encoder: Tokenizer, text: str) -> list[int]:
    # the batch call lets other threads run meanwhile, the single one does not
    return encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _component(part: Any) -> Any:
    """A normalizer or pre-tokenizer as JSON, None where there is none."""
    return json.loads(part.__getstate__()) if part else None


def _without_prefix_space(part: Any) -> Any:
    """The same component, putting no space in front of a text."""
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    changed = dict(part)
    if part["type"] == "Metaspace":
        changed |= {"prepend_scheme": "never"}
    elif part["type"] == "ByteLevel":
        changed |= {"add_prefix_space": False}
    for key in ("normalizers", "pretokenizers"):
        if key in part:
            changed[key] = [item for item in map(_without_prefix_space, part[key]) if item is not None]
    return changed


# ── the template ─────────────────────────────────────────────────────────────────────────────────


def _usable_template(path: Path, wrapper: TokenizerWrapper) -> ChatTemplate:
    """The model's own template, or one that stands in for it; which and why is logged. Raises `ModelError`."""
    special_tokens = wrapper.special_tokens_map
    stand_in, name = fallback.template_for(lambda text: wrapper.backend_tokenizer.token_to_id(text) is not None)
    if wrapper.chat_template is None and wrapper.has_chat_template:
        return python_template(wrapper.apply_chat_template)
    if wrapper.chat_template is None:
        logger.warning("%s has no chat template: the built-in one for %s is used", path, name)
        return jinja_template(lambda tools: stand_in, special_tokens, stand_in)
    own = jinja_template(lambda tools: wrapper.get_chat_template(tools=tools), special_tokens, _all_sources(wrapper.chat_template))
    if fault := own.fault():
        raise ModelError(f"The chat template in {path} is damaged: {fault}")
    if name == fallback.GEMMA4_NAME and not marks_results(own.render, "<|tool_response>"):
        logger.warning("%s has an early chat template that cannot show tool results: the built-in one for %s is used", path, name)
        return jinja_template(lambda tools: stand_in, special_tokens, stand_in)
    return own


def _all_sources(chat_template: str | dict[str, str]) -> str:
    return chat_template if isinstance(chat_template, str) else "".join(chat_template.values())
