"""CTC prefix beam search, frame by frame (Hannun et al. 2014), for all utterances at once.

Each hypothesis is a text; all alignments of it that stay in the beam are summed. Two ways to the same text are found
by comparing 64-bit hashes of the token sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.decode.ended import Ended
from tympan.decode.scorer import Encoded

NEVER = float("-inf")
HASH_FACTOR = 6364136223846793005  # Knuth's MMIX multiplier


@dataclass(frozen=True)
class _Texts:
    """B texts an utterance, with the log probability of having just emitted each, ending in blank or in its token."""

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
        place = (self.lengths - 1).clamp(min=0).unsqueeze(2)
        return self.tokens.gather(2, place).squeeze(2).masked_fill(self.lengths == 0, -1)


@torch.inference_mode()
def ctc_prefix_beam_search(encoded: Encoded, *, beam_size: int, blank_id: int) -> list[list[Ended]]:
    """The `beam_size` best texts of each utterance, best first."""
    assert encoded.log_probs is not None
    log_probs = encoded.log_probs.double().contiguous()  # frame by frame
    texts = _empty(log_probs, beam_size)
    for frame in range(log_probs.size(1)):
        now = log_probs[:, frame]
        is_over = (frame >= encoded.lengths).unsqueeze(1)
        texts = _advance(texts, now.masked_fill(is_over, 0.0), blank_id=blank_id, is_over=is_over)
    return _results(texts)


def _empty(log_probs: Tensor, beam_size: int) -> _Texts:
    utterances = log_probs.size(0)
    never = log_probs.new_full((utterances, beam_size), NEVER)
    in_blank = never.clone()
    in_blank[:, 0] = 0.0
    zeros = torch.zeros_like(never, dtype=torch.long)
    hashes = torch.where(in_blank == 0.0, zeros, _no_text(zeros))
    return _Texts(tokens=zeros.unsqueeze(2), lengths=zeros, hashes=hashes, in_blank=in_blank, in_token=never)


def _advance(texts: _Texts, log_probs: Tensor, *, blank_id: int, is_over: Tensor) -> _Texts:
    """One frame further. log_probs: (U, V)."""
    beams = texts.lengths.size(1)
    last, total = texts.last, texts.total
    blank = log_probs[:, blank_id : blank_id + 1]
    others = log_probs.clone()
    others[:, blank_id] = NEVER
    best = others.topk(min(beams, others.size(1) - 1), dim=1)  # (U, C)
    tokens = best.indices.unsqueeze(1)

    # The text stays as it is: a blank, or its last token goes on.
    stay_blank = total + blank
    stay_token = texts.in_token + log_probs.gather(1, last.clamp(min=0))
    # A token is added; the same one again needs a blank between.
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
    # Fewer texts than places: what fills the others is a copy of one, which must not come to life beside it.
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
    """Hashes of places without a text: each its own, lest they be taken for one."""
    return (-1 - torch.arange(hashes.size(1), device=hashes.device)).expand_as(hashes)


def _append(texts: _Texts, parents: Tensor, tokens: Tensor, is_new: Tensor) -> Tensor:
    capacity = texts.tokens.size(2)
    history = texts.tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, capacity))
    if int(texts.lengths.max()) == capacity:
        history = torch.nn.functional.pad(history, (0, capacity))
    place = texts.lengths.gather(1, parents).unsqueeze(2).clamp(max=history.size(2) - 1)
    value = torch.where(is_new.unsqueeze(2), tokens.unsqueeze(2), history.gather(2, place))
    return history.scatter(2, place, value)


def _results(texts: _Texts) -> list[list[Ended]]:
    found = []
    for tokens, lengths, scores in zip(texts.tokens, texts.lengths, texts.total, strict=True):
        order = scores.argsort(descending=True).tolist()
        ranked = [(tokens[beam, : int(lengths[beam])].tolist(), float(scores[beam])) for beam in order]
        found.append([Ended(tuple(ids), score, {"ctc": score}) for ids, score in ranked if score > NEVER])
    return found
