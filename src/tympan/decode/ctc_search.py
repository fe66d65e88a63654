"""Searches with only CTC, frame by frame and for all utterances at once: greedy search and prefix beam search.

CTC prefix beam search follows Hannun et al. 2014. Each hypothesis is a text whose alignments in the beam are summed.
Equal texts are found by comparing 64-bit hashes of the token sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended

NEVER = float("-inf")
HASH_FACTOR = 6364136223846793005  # Knuth's MMIX multiplier


def build_greedy(loaded: LoadedModel, options: DecodeOptions) -> GreedySearch:
    return GreedySearch(blank_id=loaded.model.blank_id)


def build_prefix(loaded: LoadedModel, options: DecodeOptions) -> CtcPrefixSearch:
    return CtcPrefixSearch(blank_id=loaded.model.blank_id, beam_size=options.beam_size)


@dataclass(frozen=True)
class GreedyState:
    """For each utterance: its tokens so far, the best token of its last frame, and the score of the best path."""

    token_ids: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]
    scores: tuple[float, ...]


class GreedySearch:
    """The best token of every frame, repeats and blanks removed. The score is that of the best path."""

    def __init__(self, *, blank_id: int) -> None:
        self.blank_id = blank_id

    def start(self, utterances: int) -> GreedyState:
        return GreedyState(((),) * utterances, (-1,) * utterances, (0.0,) * utterances)

    @torch.inference_mode()
    def accept(self, state: GreedyState, encoded: Encoded) -> GreedyState:
        assert encoded.log_probs is not None
        best = encoded.log_probs.max(2)
        before = torch.tensor(state.last, device=best.indices.device).unsqueeze(1)
        changed = best.indices != torch.cat([before, best.indices[:, :-1]], 1)
        inside = torch.arange(best.indices.size(1), device=changed.device) < encoded.lengths.unsqueeze(1)
        kept = changed & inside & (best.indices != self.blank_id)
        scores = best.values.double().masked_fill(~inside, 0.0).sum(1).tolist()
        rows = zip(best.indices, kept, encoded.lengths.tolist(), strict=True)
        found = [(ids[keep].tolist(), int(ids[length - 1]) if length else None) for ids, keep, length in rows]
        return GreedyState(
            tuple((*old, *new) for old, (new, _) in zip(state.token_ids, found, strict=True)),
            tuple(old if new is None else new for old, (_, new) in zip(state.last, found, strict=True)),
            tuple(old + new for old, new in zip(state.scores, scores, strict=True)),
        )

    def partial(self, state: GreedyState) -> list[Ended]:
        return [best for (best,) in self.finish(state)]

    def finish(self, state: GreedyState) -> list[list[Ended]]:
        return [
            [Ended(token_ids, score, {"ctc": score})]
            for token_ids, score in zip(state.token_ids, state.scores, strict=True)
        ]


@dataclass(frozen=True)
class _Texts:
    """B texts per utterance, with the log probability of having just emitted each, ending in blank or in its token."""

    tokens: Tensor  # (U, B, capacity)
    lengths: Tensor  # (U, B)
    hashes: Tensor  # (U, B)
    in_blank: Tensor  # (U, B)
    in_token: Tensor  # (U, B)

    @property
    def total(self) -> Tensor:
        return torch.logaddexp(self.in_blank, self.in_token)

    @property
    def last(self) -> Tensor:
        """(U, B) the last token of each text, -1 if it is empty."""
        index = (self.lengths - 1).clamp(min=0).unsqueeze(2)
        return self.tokens.gather(2, index).squeeze(2).masked_fill(self.lengths == 0, -1)


@dataclass(frozen=True)
class PrefixState:
    """The texts in the beam; None before the first frame."""

    utterances: int
    texts: _Texts | None = None


class CtcPrefixSearch:
    """The `beam_size` best texts of each utterance."""

    def __init__(self, *, blank_id: int, beam_size: int) -> None:
        self.blank_id = blank_id
        self.beam_size = beam_size

    def start(self, utterances: int) -> PrefixState:
        return PrefixState(utterances)

    @torch.inference_mode()
    def accept(self, state: PrefixState, encoded: Encoded) -> PrefixState:
        assert encoded.log_probs is not None
        log_probs = encoded.log_probs.double().contiguous()  # frame by frame
        texts = _empty(log_probs, self.beam_size) if state.texts is None else state.texts
        for frame in range(log_probs.size(1)):
            now = log_probs[:, frame]
            is_over = (frame >= encoded.lengths).unsqueeze(1)
            texts = _advance(texts, now.masked_fill(is_over, 0.0), blank_id=self.blank_id, is_over=is_over)
        return PrefixState(state.utterances, texts)

    def partial(self, state: PrefixState) -> list[Ended]:
        nothing = Ended((), 0.0, {})
        return [found[0] if found else nothing for found in self.finish(state)]

    def finish(self, state: PrefixState) -> list[list[Ended]]:
        return [[] for _ in range(state.utterances)] if state.texts is None else _results(state.texts)


def _empty(log_probs: Tensor, beam_size: int) -> _Texts:
    utterances = log_probs.size(0)
    never = log_probs.new_full((utterances, beam_size), NEVER)
    in_blank = never.clone()
    in_blank[:, 0] = 0.0
    zeros = torch.zeros_like(never, dtype=torch.long)
    hashes = torch.where(in_blank == 0.0, zeros, _no_text(zeros))
    return _Texts(tokens=zeros.unsqueeze(2), lengths=zeros, hashes=hashes, in_blank=in_blank, in_token=never)


def _advance(texts: _Texts, log_probs: Tensor, *, blank_id: int, is_over: Tensor) -> _Texts:
    """Advance by one frame. log_probs: (U, V)."""
    beams = texts.lengths.size(1)
    last, total = texts.last, texts.total
    blank = log_probs[:, blank_id : blank_id + 1]
    others = log_probs.clone()
    others[:, blank_id] = NEVER
    best = others.topk(min(beams, others.size(1) - 1), dim=1)  # (U, C)
    tokens = best.indices.unsqueeze(1)

    # The text stays the same: the frame is a blank or repeats the last token.
    stay_blank = total + blank
    stay_token = texts.in_token + log_probs.gather(1, last.clamp(min=0))
    # A token is added. To repeat the last token, the frame before must be a blank.
    before = torch.where(tokens == last.unsqueeze(2), texts.in_blank.unsqueeze(2), total.unsqueeze(2))
    added = before + best.values.unsqueeze(1)  # (U, B, C)
    hashes = texts.hashes.unsqueeze(2) * HASH_FACTOR + tokens + 1
    is_known = hashes.flatten(1).unsqueeze(2) == texts.hashes.unsqueeze(1)  # (U, B*C, B)
    to_known = added.flatten(1).unsqueeze(2).masked_fill(~is_known, NEVER).logsumexp(1)
    stay_token = torch.logaddexp(stay_token, to_known)
    added = added.flatten(1).masked_fill(is_known.any(2), NEVER)

    everything = torch.cat([torch.logaddexp(stay_blank, stay_token), added], dim=1)
    chosen = everything.topk(beams, dim=1).indices  # (U, B)
    chosen = torch.where(is_over, torch.arange(beams, device=chosen.device), chosen)
    is_new = chosen >= beams
    addition = (chosen - beams).clamp(min=0)
    parents = torch.where(is_new, addition // best.indices.size(1), chosen)
    kept = parents.where(~is_new, 0)
    new_token = added.gather(1, addition)
    in_blank = torch.where(is_new, NEVER, stay_blank.gather(1, kept))
    in_token = torch.where(is_new, new_token, stay_token.gather(1, kept))
    new_hashes = torch.where(is_new, hashes.flatten(1).gather(1, addition), texts.hashes.gather(1, kept))
    # With fewer texts than slots, the unused slots hold copies of a text. They must never become active.
    is_empty = everything.gather(1, chosen) == NEVER
    new_hashes = torch.where(is_empty, _no_text(new_hashes), new_hashes)
    return _Texts(
        tokens=_append(texts, parents, best.indices.gather(1, addition % best.indices.size(1)), is_new),
        lengths=texts.lengths.gather(1, parents) + is_new,
        hashes=torch.where(is_over, texts.hashes, new_hashes),
        in_blank=torch.where(is_over, texts.in_blank, in_blank),
        in_token=torch.where(is_over, texts.in_token, in_token),
    )


def _no_text(hashes: Tensor) -> Tensor:
    """Hashes of unused slots. All are different, so that none of them count as equal texts."""
    return (-1 - torch.arange(hashes.size(1), device=hashes.device)).expand_as(hashes)


def _append(texts: _Texts, parents: Tensor, tokens: Tensor, is_new: Tensor) -> Tensor:
    capacity = texts.tokens.size(2)
    history = texts.tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, capacity))
    if int(texts.lengths.max()) == capacity:
        history = torch.nn.functional.pad(history, (0, capacity))
    index = texts.lengths.gather(1, parents).unsqueeze(2).clamp(max=history.size(2) - 1)
    value = torch.where(is_new.unsqueeze(2), tokens.unsqueeze(2), history.gather(2, index))
    return history.scatter(2, index, value)


def _results(texts: _Texts) -> list[list[Ended]]:
    found = []
    for tokens, lengths, scores in zip(texts.tokens, texts.lengths, texts.total, strict=True):
        order = scores.argsort(descending=True).tolist()
        ranked = [(tokens[beam, : int(lengths[beam])].tolist(), float(scores[beam])) for beam in order]
        found.append([Ended(tuple(ids), score, {"ctc": score}) for ids, score in ranked if score > NEVER])
    return found
