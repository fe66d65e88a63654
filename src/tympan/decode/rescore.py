"""Second pass: score the hypotheses of a first search anew with other scorers, and rank them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tympan.decode.ended import Ended, rank
from tympan.decode.scorer import Encoded
from tympan.decode.search import Weighted


@torch.inference_mode()
def rescore(
    encoded: Encoded,
    found: Sequence[Sequence[Ended]],
    *,
    full: Mapping[str, Weighted],
    first_weights: Mapping[str, float],
    sos: int,
    eos: int,
    is_length_normalized: bool = False,
) -> list[list[Ended]]:
    """Add the scores of `full` (eos included) to those of the first pass, which count with `first_weights`."""
    totals = {name: _walk(item, encoded, found, sos=sos, eos=eos) for name, item in full.items()}
    weights = {**first_weights, **{name: item.weight for name, item in full.items()}}
    ranked = []
    for row, hypotheses in enumerate(found):
        anew = []
        for beam, hypothesis in enumerate(hypotheses):
            scores = {**hypothesis.scores, **{name: float(total[row, beam]) for name, total in totals.items()}}
            total = sum(weights[name] * value for name, value in scores.items())
            anew.append(Ended(token_ids=hypothesis.token_ids, score=total, scores=scores))
        ranked.append(rank(anew, is_length_normalized=is_length_normalized))
    return ranked


def _walk(item: Weighted, encoded: Encoded, found: Sequence[Sequence[Ended]], *, sos: int, eos: int) -> Tensor:
    """(U, B) log score of every hypothesis: the scorer is led along it, token by token."""
    beams = max(map(len, found))
    longest = max((len(h.token_ids) for hypotheses in found for h in hypotheses), default=0)
    targets = torch.full((len(found), beams, longest + 1), eos)
    lengths = torch.zeros(len(found), beams, dtype=torch.long)
    for row, hypotheses in enumerate(found):
        for beam, hypothesis in enumerate(hypotheses):
            targets[row, beam, : len(hypothesis.token_ids)] = torch.tensor(hypothesis.token_ids, dtype=torch.long)
            lengths[row, beam] = len(hypothesis.token_ids) + 1
    targets, lengths = targets.to(encoded.memory.device), lengths.to(encoded.memory.device)
    state = item.scorer.start(encoded, beams)
    tokens = torch.full_like(lengths, sos)
    total = torch.zeros_like(lengths, dtype=torch.float64)
    for step in range(longest + 1):
        scores, state = item.scorer.step(tokens, state)
        tokens = targets[:, :, step]
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2).double()
        total = total + torch.where(step < lengths, chosen, 0.0)
    return total
