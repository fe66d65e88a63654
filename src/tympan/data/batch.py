"""One padded mini-batch: what the loader yields and the model takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Padded tensors of some utterances, by ESPnet2's names.

    `tensors` holds for each data name NAME: NAME (batch, time[, dim]) and NAME_lengths (batch,).
    ASR: speech, speech_lengths, text, text_lengths (text padded with -1), and while training
    augment_seed (batch,) int64, from which every random choice for that utterance is drawn.
    LM: text, text_lengths.
    """

    ids: tuple[str, ...]
    tensors: dict[str, Tensor]
    global_size: int
    """Utterances in the whole batch over all ranks; `len(ids)` with one process. This rank may hold none."""

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Batch:
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors.items()}
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        return replace(self, tensors={name: tensor.pin_memory() for name, tensor in self.tensors.items()})
