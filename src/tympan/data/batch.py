"""One padded mini-batch, and the protocol of the objects that produce batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tympan.data.dataset import Utterance
from tympan.data.table import Ints
from tympan.errors import UserError

TEXT_PADDING = -1
"""ESPnet2's ignore_id."""


@dataclass(frozen=True)
class Batch:
    """Padded tensors of several utterances, with ESPnet2's names.

    `tensors` holds for each data name NAME: NAME (batch, time[, dim]) and NAME_lengths (batch,).
    ASR: speech, speech_lengths, text, text_lengths (text padded with -1), and while training
    augment_seed (batch,) int64, from which every random choice for that utterance is drawn.
    LM: text, text_lengths.
    """

    ids: tuple[str, ...]
    tensors: dict[str, Tensor]
    global_size: int
    """Number of utterances in the global batch over all ranks; `len(ids)` with one process. This rank may have none."""

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Batch:
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors.items()}
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        return replace(self, tensors={name: tensor.pin_memory() for name, tensor in self.tensors.items()})

    def or_stand_in(self) -> Batch:
        """The batch itself; for an empty batch, a dummy utterance of the right shapes, whose loss must get weight 0.

        A rank without utterances runs it, so that every rank takes part in every collective. The dummy audio is not
        constant: a variance of zero could lead to NaN gradients.
        """
        if len(self) > 0:
            return self
        made_up = {name: _made_up(tensor) for name, tensor in self.tensors.items()}
        lengths = {
            f"{name}_lengths": torch.tensor([tensor.shape[1]], dtype=torch.int64, device=tensor.device)
            for name, tensor in self.tensors.items()
            if f"{name}_lengths" in self.tensors
        }
        return replace(self, tensors=made_up | lengths)


def tensors_for(function: Callable[..., object], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that are arguments of a method of the model, or all of them if it has `**tensors`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(tensors)
    return {name: tensor for name, tensor in tensors.items() if name in parameters}


class Batches(Protocol):
    """The source of a run's batches: a data directory, shards, a mixture. The trainer uses only this interface.

    The batches of an epoch depend only on the seed and the epoch, so that training can resume at any step.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The data names: `speech`, `text`."""
        ...

    @property
    def sample_rate(self) -> int | None:
        """Sample rate of the recordings in Hz; None if there are none, or with several rates."""
        ...

    def num_steps(self, epoch: int) -> int: ...

    def build_iter(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's part of each global batch of an epoch, from `start_step`."""
        ...

    def describe(self) -> str:
        """Describe number, size and padding of the batches, for the log."""
        ...

    def mean_size(self) -> MeanSize: ...

    def examples(self, number: int) -> Batch:
        """Return the first utterances of the data, for plots."""
        ...

    def lengths(self) -> Mapping[str, Ints]:
        """Return data name -> length of every utterance, or nothing if this needs reading all the data."""
        ...

    def utterance(self, row: int) -> Utterance:
        """Return the utterance of a row of `lengths`."""
        ...


@dataclass(frozen=True)
class MeanSize:
    """The average size of a global batch."""

    utterances: float
    seconds: float | None
    """Seconds of audio, if the sample rate is known."""


def collate(
    utterances: Sequence[Utterance],
    *,
    global_size: int,
    pad_to: Mapping[str, int] | None = None,
    augment_seeds: Sequence[int] | None = None,
) -> Batch:
    """Pad to the longest utterance, or to the fixed length that `pad_to` gives for a name."""
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
    """Return the part of a rank without utterances: no ids, and tensors with a first dimension of zero."""
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
            f"{name} of an utterance in the batch of '{utterances[0].id}' has length {longest}, but "
            f"its bucket is padded to {length}: the shape file does not match this data"
        )
    value = 0 if first.dtype.kind == "f" else TEXT_PADDING
    padded = np.full((len(arrays), length or longest, *first.shape[1:]), value, dtype=first.dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded)


def _made_up(empty: Tensor) -> Tensor:
    shape = (1, *empty.shape[1:])
    if not empty.is_floating_point():
        return torch.ones(shape, dtype=empty.dtype, device=empty.device)
    wave = torch.arange(torch.Size(shape).numel(), device=empty.device, dtype=torch.float32).sin()
    return wave.view(shape).to(empty.dtype)
