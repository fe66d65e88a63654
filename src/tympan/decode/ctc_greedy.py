"""CTC greedy search: the best token of every frame, repeats and blanks removed."""

from __future__ import annotations

import torch

from tympan.decode.ended import Ended
from tympan.decode.scorer import Encoded


@torch.inference_mode()
def ctc_greedy(encoded: Encoded, *, blank_id: int) -> list[list[Ended]]:
    """One hypothesis an utterance; its score is that of the best path."""
    assert encoded.log_probs is not None
    best = encoded.log_probs.max(2)
    changed = torch.ones_like(best.indices, dtype=torch.bool)
    changed[:, 1:] = best.indices[:, 1:] != best.indices[:, :-1]
    inside = torch.arange(best.indices.size(1), device=changed.device) < encoded.lengths.unsqueeze(1)
    kept = changed & inside & (best.indices != blank_id)
    scores = best.values.double().masked_fill(~inside, 0.0).sum(1).tolist()
    return [
        [Ended(token_ids=tuple(ids[keep].tolist()), score=score, scores={"ctc": score})]
        for ids, keep, score in zip(best.indices, kept, scores, strict=True)
    ]
