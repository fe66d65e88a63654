"""Statistics of training: running sums of the current epoch, and the means of all epochs.

Statistics are kept as (total, count) tensors on their device until they are logged. Then all of them are summed over
the ranks and copied to the host at once, so every rank has the same numbers.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.models.loss import PERPLEXITY, Stat
from tympan.runtime.comm import Comm
from tympan.runtime.device import has_float64

Sums = dict[str, tuple[float, float]]
"""(total, count) by name, over all ranks."""


@dataclass(frozen=True)
class Done:
    """Progress of a run: finished epochs, and batches trained in all epochs."""

    epochs: int = 0
    batches: int = 0


class EpochReporter:
    """The running statistics of one phase (`train`, `valid`) of one epoch."""

    def __init__(self, phase: str, epoch: int, *, comm: Comm, done: int = 0, batches_before: int = 0) -> None:
        self.phase = phase
        self.epoch = epoch
        self.batches = done
        self.batches_before = batches_before
        """Number of batches in earlier epochs."""
        self.logged_batches = done
        self.start = time.perf_counter()
        self.frames = 0
        """Number of frames this process has trained on since it started, for the progress bar."""
        self.last_window: dict[str, float] = {}
        self._comm = comm
        self._tensors: dict[str, tuple[Tensor, Tensor]] = {}
        self._floats: dict[str, tuple[float, float]] = {}
        self._order: dict[str, None] = {}
        self._window: Sums = {}
        self._total: Sums = {}

    def register(self, stats: Mapping[str, Stat]) -> None:
        """Add statistics. Values that are not finite are ignored."""
        for name, stat in stats.items():
            total, count = _wide(stat.total), _wide(stat.count)
            finite = torch.isfinite(total) & torch.isfinite(count)
            total, count = torch.where(finite, total, 0.0), torch.where(finite, count, 0.0)
            if name in self._tensors:
                old_total, old_count = self._tensors[name]
                total, count = old_total + total, old_count + count
            self._tensors[name] = (total, count)
            self._order.setdefault(name)

    def register_value(self, name: str, value: float) -> None:
        """Add one number that is on the host already, such as a time."""
        total, count = self._floats.get(name, (0.0, 0.0))
        self._floats[name] = (total + value, count + 1)
        self._order.setdefault(name)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.register_value(name, time.perf_counter() - start)

    def log_message(self) -> str:
        """Return the means since the last line, formatted as in ESPnet2."""
        self._flush()
        self.last_window = _means(self._window)
        means = ", ".join(f"{name}={_short(value)}" for name, value in self.last_window.items())
        message = f"{self.epoch}epoch:{self.phase}:{self.logged_batches + 1}-{self.batches}batch: {means}"
        self._window = {}
        self.logged_batches = self.batches
        return message

    def means(self) -> dict[str, float]:
        """Return the means of the epoch so far, over all ranks."""
        self._flush()
        return _means(self._total)

    def local_means(self) -> dict[str, float]:
        """Return the means of this rank since the last line. This needs no communication between ranks."""
        seen = {name: (float(total), float(count)) for name, (total, count) in self._tensors.items()}
        return _means(seen)

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {
            "batches": self.batches,
            "logged_batches": self.logged_batches,
            "window": dict(self._window),
            "total": dict(self._total),
            "elapsed": time.perf_counter() - self.start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises an error for a damaged state before anything uses it."""
        self.batches = int(state["batches"])
        self.logged_batches = int(state["logged_batches"])
        self._window = _read_sums(state["window"])
        self._total = _read_sums(state["total"])
        self._order = dict.fromkeys(self._total)
        self.start = time.perf_counter() - state["elapsed"]

    def _flush(self) -> None:
        """Add the statistics of this rank to the sums over all ranks."""
        names = [name for name in self._order if name in self._tensors or name in self._floats]
        if not names:
            return
        held = {name: self._tensors.get(name) or self._floats[name] for name in names}
        on_device = [torch.stack(held[name]) for name in names if name in self._tensors]  # type: ignore[arg-type]
        read = iter(torch.stack(on_device).cpu().tolist() if on_device else [])
        local = [next(read) if name in self._tensors else list(held[name]) for name in names]
        summed = self._comm.sum(torch.tensor(local, dtype=torch.float64)).tolist()
        for name, (total, count) in zip(names, summed, strict=True):
            for sums in (self._window, self._total):
                old_total, old_count = sums.get(name, (0.0, 0.0))
                sums[name] = (old_total + total, old_count + count)
        self._tensors, self._floats = {}, {}


class Reporter:
    """The means of every finished epoch: `stats[epoch][phase][name]`."""

    def __init__(self) -> None:
        self.stats: dict[int, dict[str, dict[str, float]]] = {}

    def finish(self, part: EpochReporter) -> None:
        means = part.means()
        means["time"] = time.perf_counter() - part.start
        means["total_count"] = float(part.batches + part.batches_before)
        self.stats.setdefault(part.epoch, {})[part.phase] = means

    def has(self, phase: str, name: str, epoch: int) -> bool:
        return name in self.stats.get(epoch, {}).get(phase, {})

    def get(self, phase: str, name: str, epoch: int) -> float:
        means = self.stats[epoch][phase]
        if name not in means:
            raise UserError(f"epoch {epoch} has no statistic {phase}.{name}; {phase} has {', '.join(sorted(means))}")
        return means[name]

    def ranking(self, phase: str, name: str, mode: str) -> list[tuple[int, float]]:
        """Return (epoch, value) from best to worst. Equal values are sorted by epoch, and NaN is last."""
        sign = {"min": 1.0, "max": -1.0}[mode]
        found = [(epoch, parts[phase][name]) for epoch, parts in self.stats.items() if name in parts.get(phase, {})]
        return sorted(found, key=lambda pair: (math.isnan(pair[1]), sign * pair[1], pair[0]))

    def log_message(self, epoch: int) -> str:
        parts = []
        for phase, means in self.stats[epoch].items():
            shown = ", ".join(f"{name}={_shown(name, value)}" for name, value in means.items())
            parts.append(f"[{phase}] {shown}")
        return f"{epoch}epoch results: {', '.join(parts)}"

    def state_dict(self) -> dict[str, Any]:
        return {"stats": {e: {p: dict(m) for p, m in parts.items()} for e, parts in self.stats.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stats = {
            int(epoch): {phase: {name: float(value) for name, value in means.items()} for phase, means in parts.items()}
            for epoch, parts in state["stats"].items()
        }

    def batches_until(self, phase: str, epoch: int) -> int:
        """Return the number of batches of all epochs up to this one."""
        return int(self.stats.get(epoch, {}).get(phase, {}).get("total_count", 0))


def is_repeated(line: str, *, epoch: int, step: int) -> bool:
    """Return whether a run that continues after `step` batches of an epoch writes this line of the log again."""
    if found := _BATCHES.search(line):
        return (int(found[1]), int(found[2])) > (epoch, step)
    found = _RESULTS.search(line)
    return found is not None and int(found[1]) >= epoch


_BATCHES = re.compile(r": (\d+)epoch:train:\d+-(\d+)batch: ")
_RESULTS = re.compile(r": (\d+)epoch results: ")


def _wide(tensor: Tensor) -> Tensor:
    """Convert to float64 if the device has it: float32 is too inaccurate for sums over a thousand steps."""
    wide = torch.float64 if has_float64(tensor.device) else torch.float32
    return tensor.detach().to(wide)


def _read_sums(sums: Mapping[str, tuple[float, float]]) -> Sums:
    return {name: (float(total), float(count)) for name, (total, count) in sums.items()}


def _means(sums: Sums) -> dict[str, float]:
    means = {name: total / count if count else math.nan for name, (total, count) in sums.items()}
    if PERPLEXITY in means:
        # Not the mean of perplexities, but exp of the mean negative log-likelihood per token. The limit avoids an
        # OverflowError if training diverges.
        means[PERPLEXITY] = math.exp(min(means[PERPLEXITY], 700.0))
    return means


def _shown(name: str, value: float) -> str:
    if name == "time":
        minutes, seconds = divmod(value, 60)
        return f"{int(minutes)} minutes {seconds:.2f} seconds" if minutes else f"{seconds:.2f} seconds"
    return str(int(value)) if name == "total_count" else _short(value)


def _short(value: float) -> str:
    return f"{value:.3f}" if 1e-3 < abs(value) <= 1e3 else f"{value:.3e}"
