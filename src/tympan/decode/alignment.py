"""CTC forced alignment: the frames of each token of a given text, and the model's confidence in it.

A long recording is encoded segment by segment and aligned as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tympan.decode.search import Encoded
from tympan.errors import UserError
from tympan.models.abilities import AlignsText
from tympan.text.codec import WORD_START, TextCodec
from tympan.text.phonemes import PhonemeTokenizer

NEVER = float("-inf")

BLOCK_CELLS = 4_000_000
"""Scores (frames times states) to compute at once. All scores of a long recording would take gigabytes."""

MAX_NAMED = 10


@dataclass(frozen=True)
class AlignedToken:
    """Frames [start, end) of a token, and its highest posterior there."""

    start: int
    end: int
    confidence: float


@dataclass(frozen=True)
class Aligned:
    """The best alignment of a text, and its log probability (-inf: the text does not fit into the frames)."""

    tokens: list[AlignedToken]
    log_prob: float


@torch.inference_mode()
def align_tokens(
    log_probs: Tensor, lengths: Tensor, texts: Sequence[Sequence[int]], *, blank_id: int
) -> list[Aligned | None]:
    """Viterbi over CTC's states (blank, token, blank, token, ... blank), all utterances and states at once.

    log_probs: (U, T, V). None where a text has more tokens than its utterance has frames to hold.
    """
    states, last_state = _states(texts, blank_id=blank_id, device=log_probs.device)
    frames = lengths.cpu().numpy()
    moves = np.zeros((len(texts), log_probs.size(1), states.size(1)), dtype=np.int8)
    score = _viterbi(_emissions(log_probs, states), _skip_scores(states, blank_id=blank_id), frames=frames, moves=moves)
    return [
        _trace(moves[u, : frames[u]], score[u], log_probs[u], last=last_state[u], text=text)
        for u, text in enumerate(texts)
    ]


def _viterbi(
    emissions: Iterator[np.ndarray], skips: np.ndarray, *, frames: np.ndarray, moves: np.ndarray
) -> np.ndarray:
    """The score of ending in each state (U, states). Fills `moves`: by how many states the best path advanced.

    In NumPy, because a frame needs a few tiny operations and torch has five times the overhead per operation.
    """
    padded = np.full((len(skips), 2 + skips.shape[1]), NEVER)  # two columns without a predecessor
    padded[:, 2:4] = 0.0
    score = padded[:, 2:]
    for frame, emission in enumerate(emissions):
        goes_on = (frame < frames)[:, None]
        if frame == 0:
            score += np.where(goes_on, emission, 0.0)
            continue
        step, skip = padded[:, 1:-1], padded[:, :-2] + skips
        best = np.maximum(score, step)
        move = np.where(skip > best, 2, step > score)
        np.maximum(best, skip, out=best)
        best += emission
        moves[:, frame] = np.where(goes_on, move, 0)
        score[:] = np.where(goes_on, best, score)
    return score


def _emissions(log_probs: Tensor, states: Tensor) -> Iterator[np.ndarray]:
    """(U, states) of every frame, in double precision."""
    size = max(1, BLOCK_CELLS // states.numel())
    for block in torch.split(log_probs, size, dim=1):
        chosen = block.gather(2, states.unsqueeze(1).expand(-1, block.size(1), -1))
        yield from chosen.double().cpu().numpy().swapaxes(0, 1)


def _states(texts: Sequence[Sequence[int]], *, blank_id: int, device: torch.device) -> tuple[Tensor, list[int]]:
    count = max(2 * max(map(len, texts)) + 1, 2)
    states = torch.full((len(texts), count), blank_id)
    for row, text in enumerate(texts):
        states[row, 1 : 2 * len(text) : 2] = torch.tensor(text, dtype=torch.long)
    return states.to(device), [2 * len(text) for text in texts]


def _skip_scores(states: Tensor, *, blank_id: int) -> np.ndarray:
    """(U, states): 0 where the blank before a token may be skipped: the token before it must be a different one."""
    before = torch.nn.functional.pad(states[:, :-2], (2, 0), value=blank_id)
    may_skip = (states != blank_id) & (states != before)
    return np.where(may_skip.cpu().numpy(), 0.0, NEVER)


def _trace(
    moves: np.ndarray, score: np.ndarray, log_probs: Tensor, *, last: int, text: Sequence[int]
) -> Aligned | None:
    state = last
    if text and score[last - 1] > score[last]:
        state = last - 1
    if score[state] == NEVER:
        return None
    log_prob = float(score[state])
    spans: dict[int, tuple[int, int]] = {}
    for frame in reversed(range(len(moves))):
        if state % 2 == 1:
            spans[state // 2] = (frame, spans.get(state // 2, (0, frame + 1))[1])
        state -= int(moves[frame, state])
    return Aligned(
        tokens=[_token(log_probs[:, number], *spans[index]) for index, number in enumerate(text)], log_prob=log_prob
    )


def _token(log_probs: Tensor, start: int, end: int) -> AlignedToken:
    confidence = float(log_probs[start:end].max().double().exp())
    return AlignedToken(start=start, end=end, confidence=min(confidence, 1.0))


@dataclass(frozen=True)
class TimedAlignment:
    """An alignment with token times in seconds, and the number of frames; None if the text does not fit."""

    aligned: Aligned | None
    times: tuple[tuple[float, float], ...]
    frames: int


def align_segments(
    segments: Iterable[tuple[float, Encoded]], text: Sequence[int], *, blank_id: int, frame_shift_s: float
) -> TimedAlignment:
    """`segments`: (start in seconds, encoding) in order. Each one is released before the next one is computed.

    A segment gives about one frame less than its duration suggests, so times are counted from its own start.
    """
    tokens = sorted({blank_id, *text})  # of thousands in the vocabulary
    parts, starts = [], []
    for start_s, encoded in segments:
        assert encoded.log_probs is not None
        log_probs = encoded.log_probs[0]
        parts.append(log_probs.index_select(1, torch.tensor(tokens, device=log_probs.device)))
        starts += [(start_s, frame) for frame in range(len(log_probs))]
    column = {token: index for index, token in enumerate(tokens)}
    (aligned,) = align_tokens(
        torch.cat(parts).unsqueeze(0),
        torch.tensor([len(starts)], device=parts[0].device),
        [[column[token] for token in text]],
        blank_id=column[blank_id],
    )

    return _timed(aligned, starts, frame_shift_s)


def align_segments_by_model(
    model: AlignsText, segments: Iterable[tuple[float, Encoded]], text: Sequence[int], *, frame_shift_s: float
) -> TimedAlignment:
    """`align_segments` for a model with an alignment of its own."""
    parts, starts = [], []
    for start_s, encoded in segments:
        parts.append(encoded.memory[0])
        starts += [(start_s, frame) for frame in range(len(parts[-1]))]
    found = model.align_text(torch.cat(parts), text)
    aligned = None if found is None else Aligned(aligned_tokens(found.spans), found.log_prob)
    return _timed(aligned, starts, frame_shift_s)


def aligned_tokens(spans: Iterable[tuple[int, int, float]]) -> list[AlignedToken]:
    return [AlignedToken(start=start, end=end, confidence=confidence) for start, end, confidence in spans]


def _timed(aligned: Aligned | None, starts: Sequence[tuple[float, int]], frame_shift_s: float) -> TimedAlignment:
    def seconds(frame: int, *, is_end: bool) -> float:
        start_s, within = starts[frame]
        return round(start_s + (within + is_end) * frame_shift_s, 3)

    times = tuple(
        (seconds(token.start, is_end=False), seconds(min(token.end, len(starts)) - 1, is_end=True))
        for token in (aligned.tokens if aligned is not None else [])
    )
    return TimedAlignment(aligned, times, len(starts))


@dataclass(frozen=True)
class GivenText:
    text: str
    """After the model's cleaner."""
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    words: tuple[tuple[str, int], ...] | None
    """Words with the number of tokens of each, where tokens are phones of a lexicon."""
    unknown: tuple[str, ...]
    """Tokens (words, where tokens are phones) that are unknown to the model, each once."""


def read_given_text(text: str, codec: TextCodec) -> GivenText:
    """UserError for a text without tokens, or with only unknown ones: its alignment would be meaningless."""
    vocabulary, tokenizer = codec.vocabulary, codec.tokenizer
    text = codec.cleaner(text)
    tokens = tokenizer.text2tokens(text)
    ids = vocabulary.tokens2ids(tokens)
    if not text.strip() or not ids:
        raise UserError("there is no text to align")
    words = tokenizer.text2words(text) if isinstance(tokenizer, PhonemeTokenizer) else None
    names = tokens if words is None else [word for word, count in words for _ in range(count)]
    unknown = tuple(dict.fromkeys(name for name, number in zip(names, ids, strict=True) if number == vocabulary.unk_id))
    # The space token does not count: every text with spaces contains it.
    silent = (tokenizer.space_symbol, WORD_START)
    if all(number == vocabulary.unk_id for token, number in zip(tokens, ids, strict=True) if token not in silent):
        raise UserError(
            f"the model knows no token of this text ({name_some(unknown)}): write it like the training texts, "
            "with the same case and script"
        )
    return GivenText(text, tuple(tokens), tuple(ids), None if words is None else tuple(words), unknown)


def name_some(tokens: tuple[str, ...]) -> str:
    """`'a', 'b' and 7 more`"""
    named = ", ".join(f"'{token}'" for token in tokens[:MAX_NAMED])
    return named if len(tokens) <= MAX_NAMED else f"{named} and {len(tokens) - MAX_NAMED} more"
