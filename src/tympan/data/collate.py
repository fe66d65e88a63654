"""Utterances side by side: padded tensors under ESPnet2's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tympan.data.batch import Batch
from tympan.data.dataset import Utterance
from tympan.errors import UserError

TEXT_PADDING = -1
"""ESPnet2's ignore_id."""


def collate(
    utterances: Sequence[Utterance],
    *,
    global_size: int,
    pad_to: Mapping[str, int] | None = None,
    augment_seeds: Sequence[int] | None = None,
) -> Batch:
    """Pad to the longest, or to the fixed length that `pad_to` gives for a name."""
    tensors: dict[str, Tensor] = {}
    for name in utterances[0].arrays:
        arrays = [utterance.arrays[name] for utterance in utterances]
        length = (pad_to or {}).get(name)
        tensors[name] = _padded(arrays, name, utterances, length)
        tensors[f"{name}_lengths"] = torch.tensor([len(array) for array in arrays], dtype=torch.int64)
    if augment_seeds is not None:
        tensors["augment_seed"] = torch.tensor(list(augment_seeds), dtype=torch.int64)
    return Batch(tuple(utterance.id for utterance in utterances), tensors, global_size)


def empty_like(batch: Batch) -> Batch:
    """A rank's share of a batch that has fewer utterances than ranks: no ids, first dimensions of zero."""
    return Batch((), {name: tensor[:0] for name, tensor in batch.tensors.items()}, batch.global_size)


def _padded(arrays: Sequence[np.ndarray], name: str, utterances: Sequence[Utterance], length: int | None) -> Tensor:
    first = arrays[0]
    for array, utterance in zip(arrays, utterances, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise UserError(
                f"utterance '{utterance.id}': {name} has the shape {array.shape} and the type {array.dtype}, "
                f"but '{utterances[0].id}' in the same batch has {first.shape} and {first.dtype}"
            )
    longest = max(len(array) for array in arrays)
    if length is not None and longest > length:
        raise UserError(
            f"{name} of an utterance in the batch of '{utterances[0].id}' is {longest} long, "
            f"its bucket holds {length}: the shape file does not belong to this data"
        )
    value = 0 if first.dtype.kind == "f" else TEXT_PADDING
    padded = np.full((len(arrays), length or longest, *first.shape[1:]), value, dtype=first.dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded)
