"""Decoders whose text begins with a prompt, such as Whisper's: the prompt, rules for special tokens, and times.

Shapes: U utterances, B beams, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from tympan.decode.hypothesis import Hypothesis
from tympan.decode.options import DecodeOptions
from tympan.decode.scorer import FullScorer
from tympan.decode.search import Encoded, Ended
from tympan.errors import UserError
from tympan.files import read_text
from tympan.models.speech_model import HasPrompt, SpeechModel
from tympan.nn.beam_state import STATIC, BeamState
from tympan.text.codec import TextCodec
from tympan.text.whisper import EOT, LANGUAGES, NO_TIMESTAMPS, SOT, SPECIAL, TIMESTAMP, WhisperTokenizer

DETECT = "auto"
LATEST_START = 50
"""A text begins in the first second: 50 steps of 20 ms, as in Whisper."""


@dataclass(frozen=True)
class Prompt:
    """The tokens before the text, and the special tokens that the text may contain."""

    tokens: tuple[int | None, ...]
    """None: the most probable language."""
    languages: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    first_time: int | None = None
    """The token of time 0, the first of those of all times; None: the text has no times."""
    eos: int = 0


def read_prompt(model: SpeechModel, codec: TextCodec, options: DecodeOptions) -> Prompt | None:
    """The prompt of training, changed as `options` say; None for a model without Whisper's tokens.

    As in ESPnet2, the search of other models does not begin with `model_conf lang_token_id`.
    """
    trained = model.prompt if isinstance(model, HasPrompt) else ()
    if not isinstance(codec.tokenizer, WhisperTokenizer):
        for name in ("lang_prompt_token", "nlp_prompt_token", "lid_prompt", "prompt_token_file", "predict_time"):
            if getattr(options, name):
                raise UserError(f"{name} needs a model with Whisper's tokens")
        return None
    ids = {token: number for number, token in enumerate(codec.vocabulary.tokens)}
    names = [codec.vocabulary.tokens[number] for number in trained]
    added = _added_tokens(options.prompt_token_file, ids)
    if options.lang_prompt_token is not None:
        names = _changed(names, options.lang_prompt_token.split(), ids)
    elif options.nlp_prompt_token is not None:
        names = _with_text(names, codec.tokenizer.with_added(added).text2tokens(options.nlp_prompt_token), ids)
    elif options.lid_prompt:
        names = []
    if options.predict_time:
        names = [name for name in names if name != NO_TIMESTAMPS]
    times = [number for token, number in ids.items() if TIMESTAMP.fullmatch(token)]
    if options.predict_time and not times:
        raise UserError("predict_time: the token list has no tokens for times, such as <|0.00|>")
    # All special tokens, except the end, the times, and everything where the first token is the language
    kept = {EOT} | ({token for token in ids if TIMESTAMP.fullmatch(token)} if options.predict_time else set())
    if options.lid_prompt:
        kept |= set(ids) - {SOT}
    return Prompt(
        tuple(None if name == DETECT else ids[name] for name in names),
        languages=tuple(ids[token] for code in LANGUAGES if (token := f"<|{code}|>") in ids),
        suppressed=tuple(number for token, number in ids.items() if SPECIAL.fullmatch(token) and token not in kept),
        first_time=min(times) if options.predict_time else None,
        eos=model.eos,
    )


def _changed(names: list[str], given: Sequence[str], ids: dict[str, int]) -> list[str]:
    """The given tokens instead of language and task of training. A language by itself keeps the task."""
    for name in given:
        if name not in ids and name != DETECT:
            raise UserError(f"lang_prompt_token: there is no token '{name}'; give <|en|> <|transcribe|>, or auto")
    _require_tasks(names, "lang_prompt_token")
    is_language = len(given) == 1 and (given[0] == DETECT or given[0][2:-2] in LANGUAGES)
    return [*given, *names[1 if is_language else 2 :]]


def _with_text(names: list[str], text: Sequence[str], ids: dict[str, int]) -> list[str]:
    """The tokens of a text instead of the task."""
    _require_tasks(names, "nlp_prompt_token")
    missing = [token for token in text if token not in ids]
    if missing or not text:
        what = f"its token '{missing[0]}' is not in the model's token list" if missing else "the text is empty"
        raise UserError(f"nlp_prompt_token: {what}")
    return [names[0], *text, *names[2:]]


def _require_tasks(names: Sequence[str], option: str) -> None:
    if len(names) < 3:
        raise UserError(f"{option}: a model for English only has no tokens of languages and tasks")


def _added_tokens(path: Path | None, ids: dict[str, int]) -> list[str]:
    if path is None:
        return []
    tokens = [line.rstrip() for line in read_text(path, kind="prompt_token_file").splitlines() if line.strip()]
    for token in tokens:
        if token not in ids:
            raise UserError(f"{path}: the token '{token}' is not in the model's token list")
    return tokens


@dataclass(frozen=True)
class PromptedState(BeamState):
    """The state of the scorer, and what the rules for times need to know about each hypothesis."""

    inner: BeamState
    is_first: bool = field(metadata=STATIC)
    is_time: Tensor | None = None  # (U, B), whether the last token is a time
    was_time: Tensor | None = None  # (U, B), whether the one before it is a time, or there is none
    latest: Tensor | None = None  # (U, B), the last time, or -1


class PromptedScorer:
    """Scores the tokens after a prompt. The prompt is not part of the hypotheses, and its score does not count."""

    def __init__(self, scorer: FullScorer, prompt: Prompt) -> None:
        self.scorer = scorer
        self.prompt = prompt

    def start(self, encoded: Encoded, beams: int) -> PromptedState:
        return PromptedState(self.scorer.start(encoded, beams), is_first=True)

    def step(self, tokens: Tensor, state: PromptedState) -> tuple[Tensor, PromptedState]:
        """Log scores of the next token. Tokens that the rules forbid have a probability of 0."""
        scores, inner = self.scorer.step(tokens, state.inner)
        if state.is_first:
            for number in self.prompt.tokens:
                following = torch.full_like(tokens, number) if number is not None else self._language(scores)
                scores, inner = self.scorer.step(following, inner)
        state = self._followed(tokens, replace(state, inner=inner))
        return self._allowed(scores, state), replace(state, is_first=False)

    def _language(self, scores: Tensor) -> Tensor:
        languages = torch.tensor(self.prompt.languages, device=scores.device)
        return languages[scores[:, :, languages].argmax(-1)]

    def _followed(self, tokens: Tensor, state: PromptedState) -> PromptedState:
        if self.prompt.first_time is None:
            return state
        if state.is_first:
            nothing = torch.zeros_like(tokens, dtype=torch.bool)
            return replace(state, is_time=nothing, was_time=~nothing, latest=torch.full_like(tokens, -1))
        assert state.is_time is not None
        assert state.latest is not None
        is_time = tokens >= self.prompt.first_time
        latest = torch.where(is_time, tokens, state.latest)
        # The beginning counts as a time, so that a text may begin with a single one
        before = state.is_time | (state.latest < 0)
        return replace(state, is_time=is_time, was_time=before, latest=latest)

    def _allowed(self, scores: Tensor, state: PromptedState) -> Tensor:
        """Whisper's rules: times come in pairs and never decrease; a text begins and ends with one."""
        first, eos = self.prompt.first_time, self.prompt.eos
        is_bad = torch.zeros_like(scores, dtype=torch.bool)
        if self.prompt.suppressed:
            is_bad[:, :, list(self.prompt.suppressed)] = True
        if first is None:
            return scores.masked_fill(is_bad, float("-inf")).log_softmax(-1) if self.prompt.suppressed else scores
        assert state.is_time is not None
        assert state.was_time is not None
        assert state.latest is not None
        number = torch.arange(scores.size(2), device=scores.device)
        is_text = (number < first) & (number != eos)
        if state.is_first:
            is_bad |= (number < first) | (number > first + LATEST_START)
        else:
            is_time, was_time, latest = (item.unsqueeze(2) for item in (state.is_time, state.was_time, state.latest))
            is_bad |= is_time & was_time & (number >= first)
            is_bad |= is_time & ~was_time & is_text
            is_bad |= (number >= first) & (number < latest + (~is_time | was_time).long())
        scores = scores.masked_fill(is_bad, float("-inf")).log_softmax(-1)
        # A time, if all of them together are more probable than every other token
        is_over = scores[:, :, first:].logsumexp(-1) > scores[:, :, :first].amax(-1)
        return scores.masked_fill(is_over.unsqueeze(2) & (number < first), float("-inf")).log_softmax(-1)


@dataclass(frozen=True)
class Spoken:
    """The tokens of a text without special tokens, and their times in seconds if the text has times."""

    indices: tuple[int, ...]
    times: tuple[tuple[float, float], ...] | None


def spoken(tokens: Sequence[str]) -> Spoken:
    """Each pair of times is a segment. Its duration is divided among its tokens by their lengths."""
    found = {index: float(match[1]) for index, token in enumerate(tokens) if (match := TIMESTAMP.fullmatch(token))}
    indices = tuple(index for index, token in enumerate(tokens) if not SPECIAL.fullmatch(token))
    if not found:
        return Spoken(indices, None)
    times: dict[int, tuple[float, float]] = {}
    marks = sorted(found)
    for here, following in zip(marks, [*marks[1:], len(tokens)], strict=True):
        inside = [index for index in indices if here < index < following]
        start, end = found[here], found.get(following, found[here])
        total = sum(len(tokens[index]) for index in inside)
        done = 0
        for index in inside:
            begin, done = done, done + len(tokens[index])
            share = (end - start) / max(1, total)
            times[index] = (round(start + begin * share, 3), round(start + done * share, 3))
    return Spoken(indices, tuple(times.get(index, (found[marks[0]],) * 2) for index in indices))


def spoken_hypothesis(
    ended: Ended, tokens: Sequence[str], codec: TextCodec, *, space_symbol: str, keeps_special: bool = False
) -> Hypothesis:
    """A hypothesis of Whisper's tokens, with the times that it predicted.

    The confidence of all its tokens is their mean probability: the decoder gives no better one. `keeps_special` keeps
    the tokens of languages and tasks, which stand before the text.
    """
    found = Spoken(tuple(range(len(tokens))), None) if keeps_special else spoken(tokens)
    kept = tuple(tokens[index] for index in found.indices)
    special = [token for token in kept if SPECIAL.fullmatch(token)]
    mean = math.exp(min(0.0, ended.scores.get("decoder", 0.0) / (len(tokens) + 1)))
    return Hypothesis(
        text=" ".join([*special, codec.text_of(kept).strip()]).strip(),
        tokens=kept,
        token_ids=tuple(ended.token_ids[index] for index in found.indices),
        score=ended.score,
        scores=ended.scores,
        times=found.times,
        token_confidences=None if found.times is None else (mean,) * len(kept),
        space_symbol=space_symbol,
    )
