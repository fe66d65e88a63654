"""DeepSpeed's learning-rate schedules, for translated configurations (`config/deepspeed.py`).

DeepSpeed's counter is one step behind torch's: the first two updates have the same rate, except with a cosine decay,
where the first update has the rate 0. The formulas are those of DeepSpeed 0.19.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tympan.config.range import Range

WarmupType = Literal["log", "linear"]


class DeepSpeedWarmupLR(LRScheduler):
    """Warmup to `warmup_max_lr`, then a constant rate, or a linear decay to 0 at `total_num_steps`.

    DeepSpeed's WarmupLR, and with `total_num_steps` its WarmupDecayLR. `warmup_max_lr` null: the optimizer's lr.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_min_lr: Annotated[float, Range(0, 1_000)] = 0.0,
        warmup_max_lr: Annotated[float | None, Range(0, 1_000)] = None,
        warmup_num_steps: Annotated[int, Range(1)] = 1000,
        warmup_type: WarmupType = "log",
        total_num_steps: Annotated[int | None, Range(1)] = None,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        self.warmup_min_lr = warmup_min_lr
        self.warmup_max_lr = warmup_max_lr
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.warmup_type = warmup_type
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        share = self._share(max(0, self.last_epoch - 1))
        low, high = self.warmup_min_lr, self.warmup_max_lr
        return [low + ((lr if high is None else high) - low) * share for lr in self.base_lrs]

    def _share(self, step: int) -> float:
        if step < self.warmup_num_steps:
            return _warmup(step, self.warmup_num_steps, self.warmup_type)
        if self.total_num_steps is None:
            return 1.0
        return max(0.0, (self.total_num_steps - step) / max(1, self.total_num_steps - self.warmup_num_steps))


class DeepSpeedWarmupCosineLR(LRScheduler):
    """Warmup to the optimizer's lr, then a cosine decay to `cos_min_ratio` of it: DeepSpeed's WarmupCosineLR."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: Annotated[int, Range(1)],
        warmup_min_ratio: Annotated[float, Range(0, 1)] = 0.0,
        warmup_num_steps: Annotated[int, Range(1)] = 1000,
        cos_min_ratio: Annotated[float, Range(0, 1)] = 0.0001,
        warmup_type: WarmupType = "log",
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.cos_min_ratio = cos_min_ratio
        self.warmup_type = warmup_type
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        ratio = self._ratio(self.last_epoch - 1)
        return [lr * ratio for lr in self.base_lrs]

    def _ratio(self, step: int) -> float:
        if step < 0:
            return 0.0
        if step < self.warmup_num_steps:
            low = self.warmup_min_ratio
            return low + (1.0 - low) * _warmup(step, self.warmup_num_steps, self.warmup_type)
        # The first step of the decay is already one step below the maximum.
        done = (step - self.warmup_num_steps + 1) / max(1, self.total_num_steps - self.warmup_num_steps)
        low = self.cos_min_ratio
        return low + (1.0 - low) * (1 + math.cos(math.pi * min(1.0, done))) / 2


def _warmup(step: int, steps: int, kind: str) -> float:
    return math.log(step + 1) / math.log(steps) if kind == "log" else step / steps
