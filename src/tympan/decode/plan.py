"""Which utterances are decoded together: neighbours in length, within a bound on memory."""

from __future__ import annotations

from collections.abc import Sequence


def plan_by_length(lengths: Sequence[float], *, batch_size: int, max_total: float) -> list[list[int]]:
    """Places in `lengths`, longest first, at most `batch_size` of them and `max_total` with padding in a batch.

    What is longer than `max_total` by itself is a batch of one.
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches:
            batch = batches[-1]
            if len(batch) < batch_size and lengths[batch[0]] * (len(batch) + 1) <= max_total:
                batch.append(place)
                continue
        batches.append([place])
    return batches
