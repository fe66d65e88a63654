"""One update of the weights: accumulate the gradients of one or more batches, clip, check and apply them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config.train import UpdateOptions
from tympan.data.batch import Batch, tensors_for
from tympan.errors import UserError
from tympan.models.loss import Loss, Stat
from tympan.runtime.comm import Comm
from tympan.runtime.parallel import Parallel
from tympan.runtime.precision import MasterWeights, Precision, Scaler
from tympan.runtime.seed import seed_step
from tympan.training.reporter import EpochReporter
from tympan.training.schedulers import moments

READ_EVERY = 16
"""Number of updates between two checks for finite gradients, on devices where a check makes the host wait."""


@dataclass
class _Group:
    """Batches and results of one update."""

    seen: list[tuple[str, ...]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    """Kept only for an optimizer that evaluates them again (L-BFGS)."""
    scale: Tensor | None = None
    """Factor that turns the sum of weighted gradients into their mean."""


class Updater:
    """Updates the weights from a group of batches, with model, optimizer, scheduler and precision."""

    def __init__(
        self,
        parallel: Parallel,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        masters: MasterWeights,
        precision: Precision,
        comm: Comm,
        device: torch.device,
        options: UpdateOptions,
        seed: int = 0,
        defers: bool | None = None,
    ) -> None:
        """If `defers` is true, whether updates were finite is checked only every few updates.

        None means true on accelerators and false on the CPU. `seed` is for the gradient noise.
        """
        self.parallel = parallel
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.masters = masters
        self.precision = precision
        self.scaler = Scaler(precision)
        self.comm = comm
        self.device = device
        self.options = options
        self.seed = seed
        self.updates = 0
        self.skipped_in_a_row = 0
        self.skipped_total = 0
        self._unread: list[tuple[_Group, Tensor]] = []
        self._repeats = isinstance(optimizer, torch.optim.LBFGS)
        if self._repeats and self.scaler.is_enabled:
            raise UserError(
                "--optim lbfgs can't be used with loss scaling: remove --loss_scale and use --train_dtype float32 or "
                "bfloat16"
            )
        is_fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not self.scaler.is_dynamic
        self._defers = is_fused and (device.type != "cpu" if defers is None else defers)

    def learn(self, batches: Iterable[Batch], *, number: int, reporter: EpochReporter) -> None:
        """Do one update from the next `number` batches, as if they were one large batch.

        Batches are weighted by their size, so a last group of fewer or smaller batches is correct too. The result is
        exact if the loss has one term or if all terms are averaged over utterances. If one term is averaged over
        tokens and another over utterances, batches are weighted by their number of utterances.
        """
        group = self._accumulate(iter(batches), number=number, reporter=reporter)
        with reporter.measure("optim_step_time"):
            self._apply(group, reporter)

    def _accumulate(self, iterator: Iterator[Batch], *, number: int, reporter: EpochReporter) -> _Group:
        """Add up the gradients of the next `number` batches."""
        group = _Group()
        first_weight: Tensor | None = None
        group_weight: Tensor | None = None
        for index in range(number):
            with reporter.measure("iter_time"):
                batch = next(iterator)
            reporter.frames += _frames(batch)
            with _naming(batch), self.parallel.sync_gradients(index == number - 1):
                with reporter.measure("forward_time"):
                    loss, share = self.forward(batch)
                    counts = self.comm.sum(counts_of(loss) * share)
                    value = loss.value_over(counts) * share
                    weight = counts[0] if len(loss.terms) == 1 else counts.new_tensor(float(batch.global_size))
                    first_weight = weight if first_weight is None else first_weight
                    group_weight = weight if group_weight is None else group_weight + weight
                reporter.register(stats_of(loss, value, counts, share=share))
                with reporter.measure("backward_time"):
                    # torch averages gradients over the ranks, but the loss is a sum over them
                    self.scaler.scale(value * (weight / first_weight) * self.comm.size).backward()  # type: ignore[no-untyped-call]
            group.seen.append(batch.ids)
            group.values.append(value.detach())
            if self._repeats:
                group.batches.append(batch)
            reporter.batches += 1
        if number > 1:
            assert first_weight is not None
            assert group_weight is not None
            group.scale = first_weight / group_weight
        return group

    def learning_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def forward(self, batch: Batch) -> tuple[Loss, float]:
        """Return the loss of this rank's part of the batch and its weight.

        A rank without utterances runs the model on a dummy utterance with weight 0.
        """
        share = 1.0 if len(batch) else 0.0
        tensors = self.precision.inputs(batch.or_stand_in().to(self.device, non_blocking=True).tensors)
        model = self.parallel.model if torch.is_grad_enabled() else self.parallel.module
        with self.parallel.holding(share > 0), self.precision.forward_context():
            loss = model(**tensors_for(self.parallel.module.forward, tensors))
        if not isinstance(loss, Loss):
            raise UserError(
                f"forward of {type(self.parallel.module).__name__} must return a tympan.models.loss.Loss, "
                f"found {type(loss).__name__} (docs/tasks.md)"
            )
        return loss, share

    def check(self) -> None:
        """Check the updates that have not been checked for finite gradients. They are the same on every rank."""
        unread, self._unread = self._unread, []
        for group, norm in unread:
            if torch.isfinite(norm).item():
                self.skipped_in_a_row = 0
            else:
                self._skip(norm, group)

    def _apply(self, group: _Group, reporter: EpochReporter) -> None:
        scale = self.scaler.value
        norm = self._gradient_norm(group)
        self.updates += 1
        self._unread.append((group, norm))
        is_done = self._defers
        if self._defers:
            # The fused kernel does not change the weights if this is 1, so the host does not have to wait for it
            self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
            self.optimizer.step()
            self.masters.write_back()
        elif torch.isfinite(norm).item():
            self._step(group)
            is_done = True
        if is_done:
            one = torch.ones_like(norm)
            clipped = torch.where(norm > self.options.grad_clip, 100.0 * one, 0.0 * one)
            reporter.register({"grad_norm": Stat(norm, one), "clip": Stat(clipped, one)})
            reporter.register_value("loss_scale", scale)
            for index, lr in enumerate(self.learning_rates()):
                reporter.register_value(f"optim0_lr{index}", lr)
            if self.scheduler is not None and "batch" in moments(self.scheduler):
                self.scheduler.step()
        if not self._defers or len(self._unread) >= READ_EVERY:
            self.check()
        self.scaler.update()
        self._forget_gradients()

    def _gradient_norm(self, group: _Group) -> Tensor:
        """Unscale, weight and clip the gradients in place, and add noise. Returns the norm before clipping."""
        self.masters.take_gradients()
        parameters = [parameter for parameter in self.masters.masters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.scaler.is_enabled:
            self.scaler.unscale(self.optimizer)
        if group.scale is not None:
            torch._foreach_mul_(gradients, group.scale.to(gradients[0].dtype))
        if self.options.grad_noise:
            # The noise must be the same on every rank, or their weights would differ. Other seeds depend on the rank.
            seed_step(self.seed, step=self.updates, rank=0)
            add_gradient_noise(gradients, self.updates)
        return self.parallel.clip_gradients(
            parameters, max_norm=self.options.grad_clip, norm_type=self.options.grad_clip_type
        )

    def _step(self, group: _Group) -> None:
        if not self._repeats:
            self.optimizer.step()
            self.masters.write_back()
            return
        generator = torch.get_rng_state()

        def again() -> Tensor:
            """L-BFGS evaluates the same batches several times, each time with the same dropout."""
            torch.set_rng_state(generator)
            self._forget_gradients()
            unseen = EpochReporter("again", 0, comm=self.comm)
            repeated = self._accumulate(iter(group.batches), number=len(group.batches), reporter=unseen)
            self._gradient_norm(repeated)
            return self.comm.sum(torch.stack(repeated.values).mean())

        self.optimizer.step(again)  # type: ignore[arg-type]
        self.masters.write_back()

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for weight in self.masters.weights:
            weight.grad = None

    def _skip(self, norm: Tensor, group: _Group) -> None:
        pairs = zip(group.seen, group.values, strict=True)
        bad = [ids for ids, value in pairs if not torch.isfinite(value).item()]
        what = "loss" if self.comm.any(bool(bad)) else "gradient"
        names = self.comm.gather([name for ids in (bad if what == "loss" else group.seen) for name in ids])
        # A dynamic loss scale overflows in normal operation, so this is not a problem of the data
        if self.scaler.is_dynamic and what == "gradient" and self.scaler.value > 1.0:
            logging.info(
                "update %d skipped: the loss scale %g caused an overflow and is lowered",
                self.updates,
                self.scaler.value,
            )
            return
        self.skipped_in_a_row += 1
        self.skipped_total += 1
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        logging.warning(
            "update %d skipped (%d in total): the %s is not finite (gradient norm %s); utterances: %s",
            self.updates, self.skipped_total, what, norm.item(), shown,
        )  # fmt: skip
        if self.skipped_in_a_row >= self.options.max_skipped_steps:
            raise UserError(self._diagnosis(what, shown))

    def _diagnosis(self, what: str, names: str) -> str:
        model = self.parallel.module
        broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all().item()]
        if broken:
            cause = f"some weights are not finite ({', '.join(broken[:3])}): start from the model of an earlier epoch"
        elif self.scaler.is_dynamic:
            cause = "values exceed the range of float16: try --train_dtype bfloat16 or float32"
        else:
            cause = (
                "training diverged or the data is unusual: try a lower lr or a larger warmup_steps, check these "
                "utterances (empty, silent or very long audio), and use --detect_anomaly true to find the operation"
            )
        rates = ", ".join(f"{lr:g}" for lr in self.learning_rates())
        return (
            f"the {what} was not finite in {self.skipped_in_a_row} updates in a row (--max_skipped_steps "
            f"{self.options.max_skipped_steps}); learning rate {rates}, loss scale {self.scaler.value:g}; "
            f"the last utterances were {names}. Likely cause: {cause}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer, scheduler, loss scale, master weights and counters, complete on every rank."""
        self.check()
        return {
            "optimizers": [self.parallel.full_optimizer_state(self.optimizer)],
            "schedulers": [None if self.scheduler is None else _scheduler_state(self.scheduler)],
            "scaler": self.scaler.state_dict(),
            "masters": self.masters.state_dict(),
            "counters": {
                "updates": self.updates,
                "skipped_total": self.skipped_total,
                "skipped_in_a_row": self.skipped_in_a_row,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parallel.load_optimizer_state(self.optimizer, state["optimizers"][0])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["schedulers"][0])
        self.scaler.load_state_dict(state["scaler"])
        self.masters.load_state_dict(state["masters"])
        counters = state["counters"]
        self.updates = counters["updates"]
        self.skipped_total = counters["skipped_total"]
        self.skipped_in_a_row = counters["skipped_in_a_row"]


@contextmanager
def _naming(batch: Batch) -> Iterator[None]:
    """Log the utterances of the batch if torch raises an error, such as out of memory or a wrong shape."""
    try:
        yield
    except RuntimeError:
        logging.error("the batch that failed has the utterances %s", ", ".join(batch.ids))
        raise


def counts_of(loss: Loss) -> Tensor:
    """Return the counts of the terms, in at least float32 so that they can be divisors."""
    kind = torch.promote_types(loss.terms[0].total.dtype, torch.float32)
    return torch.stack([term.count for term in loss.terms]).to(kind)


def stats_of(loss: Loss, value: Tensor, counts: Tensor, *, share: float) -> dict[str, Stat]:
    """Return the statistics of a batch, with weight 0 if this rank had no utterances.

    `loss` is `value` if the model does not report it.
    """
    stats = {name: Stat(stat.total * share, stat.count * share) for name, stat in loss.stats.items()}
    if "loss" not in stats:
        stats["loss"] = Stat(value.detach() * counts[0], loss.terms[0].count * share)
    return stats


def add_gradient_noise(gradients: Sequence[Tensor], update: int) -> None:
    """Add decaying Gaussian noise (Neelakantan et al.) with ESPnet2's sigma = 1 / (1 + update // 100) ** 0.55."""
    sigma = 1.0 / (update // 100 + 1) ** 0.55
    for gradient in gradients:
        gradient.add_(torch.randn_like(gradient), alpha=sigma)


def _frames(batch: Batch) -> int:
    """Count samples or frames of speech, or tokens if there is no speech. The batch must still be on the CPU."""
    lengths = batch.tensors.get("speech_lengths", batch.tensors.get("text_lengths"))
    return 0 if lengths is None else int(lengths.sum())


def _scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Return the state of a scheduler, without functions."""
    return {name: value for name, value in scheduler.state_dict().items() if not callable(value)}


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return (name, parameter) of the weights that are not frozen."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
