"""The progress bar: loss, accuracy, learning rate, audio seconds per second, time left."""

from __future__ import annotations

import sys
import time
from typing import Any

from torch import nn
from tqdm import tqdm

from tympan.train.reporter import EpochReporter, Reporter

REFRESH_S = 2.0
"""Values are read from the device at most this often."""


class ProgressBar:
    """One bar an epoch on the terminal. `frames_per_second` turns what the loop counts into seconds of audio."""

    def __init__(self, *, frames_per_second: float | None, processes: int = 1) -> None:
        self.frames_per_second = frames_per_second
        self.processes = processes
        self._bar: Any = None
        self._epoch = 0
        self._since = (0.0, 0)

    @staticmethod
    def is_wanted() -> bool:
        return sys.stderr.isatty()

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None:
        if self._bar is None or self._epoch != part.epoch:
            self.close()
            self._epoch = part.epoch
            self._since = (time.perf_counter(), part.frames)
            self._bar = tqdm(
                total=steps, initial=part.batches - 1, desc=f"epoch {part.epoch}", unit="batch", leave=False
            )
        self._bar.update(part.batches - self._bar.n)
        start, frames = self._since
        elapsed = time.perf_counter() - start
        if elapsed >= REFRESH_S:
            self._bar.set_postfix_str(self._values(part, (part.frames - frames) / elapsed, updater), refresh=True)
            self._since = (time.perf_counter(), part.frames)

    def logged(self, part: EpochReporter) -> None:
        return None

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _values(self, part: EpochReporter, speed: float, updater: Any) -> str:
        means = part.local_means() or part.last_window
        shown = [f"{name} {means[name]:.3f}" for name in ("loss", "acc") if name in means]
        shown.append(f"lr {updater.learning_rates()[0]:.2e}")
        if self.frames_per_second:
            shown.append(f"{speed * self.processes / self.frames_per_second:.1f} audio s/s")
        return ", ".join(shown)
