"""Learning-rate schedulers with ESPnet2's names, and when each of them steps.

ESPnet2 keeps its own counters besides those of torch. Here the learning rate is a function of `last_epoch` (the number
of steps taken), so this number is the whole state. `step` below is `last_epoch + 1`, as in the formulas of the papers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tympan.config.choices import SCHEDULERS
from tympan.config.range import Range
from tympan.errors import UserError

Moment = Literal["batch", "epoch", "valid"]
"""Step after each update, after each epoch, or after each epoch with the value of `val_scheduler_criterion`."""


def build_scheduler(name: str, conf: Mapping[str, Any], optimizer: Optimizer) -> Any:
    """Build the scheduler with this name for the optimizer."""
    try:
        return SCHEDULERS.build(name, conf, optimizer)
    except (TypeError, ValueError) as error:
        raise UserError(f"scheduler_conf: {name} rejects these values: {error}") from error


class WarmupLR(LRScheduler):
    """Linear warmup to the optimizer's lr at `warmup_steps`, then decay with the inverse square root of the step."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: Annotated[int | float, Range(0)] = 25000,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = self.last_epoch + 1
        warmup = self.warmup_steps
        if warmup == 0:
            return [lr * step**-0.5 for lr in self.base_lrs]
        return [lr * warmup**0.5 * min(step**-0.5, step * warmup**-1.5) for lr in self.base_lrs]


class NoamLR(LRScheduler):
    """Schedule of "Attention Is All You Need", equation 3, multiplied by the optimizer's lr."""

    def __init__(
        self,
        optimizer: Optimizer,
        model_size: Annotated[int | float, Range(1)] = 320,
        warmup_steps: Annotated[int | float, Range(1)] = 25000,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        self.model_size = model_size
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = self.last_epoch + 1
        factor = self.model_size**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)
        return [lr * factor for lr in self.base_lrs]


class PiecewiseLinearWarmupLR(LRScheduler):
    """Linear between the given points, then decay with the inverse square root of the step."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps_list: Annotated[Sequence[int | float], Range(0)] = (0, 25000),
        warmup_lr_list: Annotated[Sequence[float], Range(0, 1_000)] = (0.0, 0.001),
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        if len(warmup_steps_list) != len(warmup_lr_list):
            raise UserError(
                f"scheduler_conf: warmup_steps_list has {len(warmup_steps_list)} points and warmup_lr_list "
                f"{len(warmup_lr_list)}; both lists must have the same length"
            )
        self.warmup_steps_list = [float(step) for step in warmup_steps_list]
        self.warmup_lr_list = [float(lr) for lr in warmup_lr_list]
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step, steps, values = self.last_epoch + 1, self.warmup_steps_list, self.warmup_lr_list
        if step > steps[-1]:
            return [lr * steps[-1] ** 0.5 * step**-0.5 for lr in self.base_lrs]
        right = max(1, bisect.bisect_left(steps, step))
        left = right - 1
        share = max(0.0, (step - steps[left]) / (steps[right] - steps[left]))
        return [values[left] + share * (values[right] - values[left])] * len(self.base_lrs)


class WarmupStepLR(LRScheduler):
    """Linear warmup to the optimizer's lr, then multiply the lr by `gamma` every `step_size` epochs.

    An epoch has `steps_per_epoch` updates.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: Annotated[int | float, Range(0)] = 25000,
        steps_per_epoch: Annotated[int, Range(1)] = 10000,
        step_size: Annotated[int, Range(1)] = 1,
        gamma: Annotated[float, Range(0, 1_000)] = 0.1,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        self.warmup_steps = warmup_steps
        self.steps_per_epoch = steps_per_epoch
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = self.last_epoch + 1
        if step <= self.warmup_steps:
            return [lr * step / self.warmup_steps for lr in self.base_lrs]
        epochs = step // self.steps_per_epoch - self.warmup_steps // self.steps_per_epoch
        return [lr * self.gamma ** (epochs // self.step_size) for lr in self.base_lrs]


class WarmupReduceLROnPlateau(ReduceLROnPlateau):
    """Linear warmup to the optimizer's lr, then reduce the lr when the validation value stops improving.

    Differs from ESPnet2: a reduction during warmup stays in effect afterwards. In ESPnet2, the next warmup step
    reverts it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: Annotated[int | float, Range(0)] = 25000,
        mode: Literal["min", "max"] = "min",
        factor: Annotated[float, Range(0, below=1)] = 0.1,
        patience: Annotated[int, Range(0)] = 10,
        threshold: Annotated[float, Range(0)] = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: Annotated[int, Range(0)] = 0,
        min_lr: Annotated[float, Range(0, 1_000)] = 0,
        eps: Annotated[float, Range(0, 1)] = 1e-8,
    ) -> None:
        self.warmup_steps = warmup_steps
        self.step_num = 0
        self.targets = [float(group["lr"]) for group in optimizer.param_groups]
        super().__init__(
            optimizer,
            mode=mode,
            factor=factor,
            patience=patience,
            threshold=threshold,
            threshold_mode=threshold_mode,
            cooldown=cooldown,
            min_lr=min_lr,
            eps=eps,
        )

    def step(self, metrics: Any = None, epoch: Any = None) -> None:  # type: ignore[override]
        if metrics is None:
            self._warm_up()
        else:
            self._set(self.targets)
            super().step(metrics)
            self.targets = [float(group["lr"]) for group in self.optimizer.param_groups]
            self._set(self._current())

    def _warm_up(self) -> None:
        self.step_num += 1
        self._set(self._current())

    def _current(self) -> list[float]:
        if self.step_num == 0 or self.warmup_steps == 0:
            return list(self.targets)
        share = min(1.0, self.step_num / self.warmup_steps)
        return [lr * share for lr in self.targets]

    def _set(self, rates: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = list(rates)


class CosineAnnealingWarmupRestarts(LRScheduler):
    """Cycles of linear warmup and cosine decay between `min_lr` and `max_lr` (SGDR, equation 5, with warmup)."""

    def __init__(
        self,
        optimizer: Optimizer,
        first_cycle_steps: Annotated[int, Range(1)],
        cycle_mult: Annotated[float, Range(above=0, most=1_000)] = 1.0,
        max_lr: Annotated[float, Range(0, 1_000)] = 0.1,
        min_lr: Annotated[float, Range(0, 1_000)] = 0.001,
        warmup_steps: Annotated[int, Range(0)] = 0,
        gamma: Annotated[float, Range(0, 1_000)] = 1.0,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        if warmup_steps >= first_cycle_steps:
            raise UserError(
                f"scheduler_conf: warmup_steps ({warmup_steps}) must be below first_cycle_steps ({first_cycle_steps})"
            )
        self.first_cycle_steps = first_cycle_steps
        self.cycle_mult = cycle_mult
        self.max_lr = max_lr
        self.min_lr = min_lr
        self.warmup_steps = warmup_steps
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        cycle, length, position = self._place()
        peak = self.max_lr * self.gamma**cycle
        if self.last_epoch == 0:
            share = 0.0  # the first step is at min_lr even without warmup
        elif position < self.warmup_steps:
            share = position / self.warmup_steps
        else:
            share = (1 + math.cos(math.pi * (position - self.warmup_steps) / (length - self.warmup_steps))) / 2
        return [self.min_lr + (peak - self.min_lr) * share] * len(self.base_lrs)

    def _place(self) -> tuple[int, int, int]:
        cycle, length, position = 0, self.first_cycle_steps, self.last_epoch
        while position >= length:
            position -= length
            cycle += 1
            length = int((length - self.warmup_steps) * self.cycle_mult) + self.warmup_steps
        return cycle, length, position


class TristageLR(LRScheduler):
    """Linear warmup, constant lr and exponential decay, each for a fraction of `max_steps`."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_steps: Annotated[int | float, Range(1)] = 25000,
        warmup_ratio: Annotated[float, Range(0, 1)] = 0.1,
        hold_ratio: Annotated[float, Range(0, 1)] = 0.4,
        decay_ratio: Annotated[float, Range(0, 1)] = 0.5,
        init_lr_scale: Annotated[float, Range(0, 1)] = 0.01,
        final_lr_scale: Annotated[float, Range(0, 1)] = 0.01,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        if not math.isclose(warmup_ratio + hold_ratio + decay_ratio, 1.0):
            raise UserError(
                f"scheduler_conf: warmup_ratio + hold_ratio + decay_ratio is "
                f"{warmup_ratio + hold_ratio + decay_ratio:g}; it must be 1"
            )
        for name, scale in (("init_lr_scale", init_lr_scale), ("final_lr_scale", final_lr_scale)):
            if not 0.0 < scale <= 1.0:
                raise UserError(f"scheduler_conf: {name} must be above 0 and at most 1, found {scale:g}")
        self.max_steps = int(max_steps)
        self.warmup_steps = int(self.max_steps * warmup_ratio)
        self.hold_steps = int(self.max_steps * hold_ratio)
        # The remaining steps: three fractions rounded down would end before max_steps.
        self.decay_steps = self.max_steps - self.warmup_steps - self.hold_steps
        self.init_lr_scale = init_lr_scale
        self.final_lr_scale = final_lr_scale
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = min(self.last_epoch + 1, self.max_steps)
        if step < self.warmup_steps:
            scale = self.init_lr_scale + (1 - self.init_lr_scale) * step / self.warmup_steps
        elif step < self.warmup_steps + self.hold_steps or self.decay_steps == 0:
            scale = 1.0
        else:
            fallen = (step - self.warmup_steps - self.hold_steps) / self.decay_steps
            scale = self.final_lr_scale**fallen
        return [lr * scale for lr in self.base_lrs]


class ExponentialDecayWarmup(LRScheduler):
    """Linear warmup to `max_lr` (or constant `max_lr`), then exponential decay to `min_lr` at `total_steps`."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Annotated[float, Range(0, 1_000)],
        min_lr: Annotated[float, Range(0, 1_000)],
        total_steps: Annotated[int, Range(1)],
        warmup_steps: Annotated[int, Range(0)] = 0,
        warm_from_zero: bool = False,
        last_epoch: Annotated[int, Range(-1)] = -1,
    ) -> None:
        if warmup_steps >= total_steps:
            raise UserError(f"scheduler_conf: warmup_steps ({warmup_steps}) must be below total_steps ({total_steps})")
        self.max_lr = max_lr
        self.min_lr = min_lr
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.warm_from_zero = warm_from_zero
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = self.last_epoch
        if step == 0 and self.warm_from_zero:
            lr = 0.0
        elif step < self.warmup_steps:
            lr = self.max_lr * (step + 1) / self.warmup_steps if self.warm_from_zero else self.max_lr
        else:
            fallen = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
            lr = self.max_lr * (self.min_lr / self.max_lr) ** fallen
        return [lr] * len(self.base_lrs)


_EPOCHWISE = (
    lr_scheduler.LambdaLR,
    lr_scheduler.StepLR,
    lr_scheduler.MultiStepLR,
    lr_scheduler.ExponentialLR,
    lr_scheduler.CosineAnnealingLR,
)


def moments(scheduler: Any) -> frozenset[Moment]:
    """Return when this scheduler steps, as in ESPnet2. A user-defined class sets it with an attribute `step_on`."""
    chosen = getattr(scheduler, "step_on", None)
    if chosen is not None:
        return frozenset([chosen] if isinstance(chosen, str) else chosen)
    if isinstance(scheduler, WarmupReduceLROnPlateau):
        return frozenset(("batch", "valid"))
    if isinstance(scheduler, ReduceLROnPlateau):
        return frozenset(("valid",))
    return frozenset(("epoch",)) if isinstance(scheduler, _EPOCHWISE) else frozenset(("batch",))
