"""What a rank without utterances runs, so that every rank takes part in every exchange."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tympan.data.batch import Batch


def with_stand_in(batch: Batch) -> Batch:
    """The batch itself, or for an empty one an utterance made up from its shapes; its loss must be given weight zero.

    The made-up sound is not constant: a variance of zero could turn into a gradient that is no number.
    """
    if len(batch) > 0:
        return batch
    return replace(
        batch, tensors={name: _made_up(name, tensor) for name, tensor in batch.tensors.items()} | _lengths(batch)
    )


def _made_up(name: str, empty: Tensor) -> Tensor:
    shape = (1, *empty.shape[1:])
    if not empty.is_floating_point():
        return torch.ones(shape, dtype=empty.dtype, device=empty.device)
    wave = torch.arange(torch.Size(shape).numel(), device=empty.device, dtype=torch.float32).sin()
    return wave.view(shape).to(empty.dtype)


def _lengths(batch: Batch) -> dict[str, Tensor]:
    return {
        f"{name}_lengths": torch.tensor([tensor.shape[1]], dtype=torch.int64, device=tensor.device)
        for name, tensor in batch.tensors.items()
        if f"{name}_lengths" in batch.tensors
    }
