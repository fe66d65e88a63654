"""Curves of every metric over the epochs: PNG files and TensorBoard."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tympan.runtime.atomic import atomic_write
from tympan.runtime.plotting import import_matplotlib
from tympan.training.event_files import remove_later_points
from tympan.training.reporter import Done, EpochReporter, Reporter

MAX_SHARE = 0.02
"""Largest fraction of the run time used for drawing. Without a limit, it was an eighth with epochs of 15 s."""


class Quiet:
    """Base class of watchers: its methods do nothing, and subclasses override some of them."""

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None:
        return None

    def logged(self, part: EpochReporter) -> None:
        return None

    def close(self) -> None:
        return None


class Curves(Quiet):
    """Draws `images/NAME.png` after an epoch and at the end of the run.

    After short epochs, drawing is skipped often enough to take only a small fraction of the run time.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._waiting: Reporter | None = None
        self._not_before = 0.0

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        self._waiting = reporter
        began = time.monotonic()
        if began >= self._not_before:
            self._draw()
            took = time.monotonic() - began
            self._not_before = time.monotonic() + took / MAX_SHARE

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._waiting is None:
            return
        stats, self._waiting = self._waiting.stats, None
        names = {name for parts in stats.values() for means in parts.values() for name in means}
        for name in sorted(names - {"total_count"}):
            curves = {
                phase: [(epoch, parts[phase][name]) for epoch, parts in stats.items() if name in parts.get(phase, {})]
                for phase in ("train", "valid")
            }
            draw_curve(self.directory / f"{name}.png", name, curves)


def draw_curve(path: Path, name: str, curves: Mapping[str, list[tuple[int, float]]]) -> None:
    """Draw one figure with one line per phase."""
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 4.0))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for phase, points in curves.items():
        if points:
            axes.plot([epoch for epoch, _ in points], [value for _, value in points], marker="x", label=phase)
    axes.set_title(f"epoch vs {name}")
    axes.set_xlabel("epoch")
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png")
    with atomic_write(path, "wb") as stream:
        stream.write(image.getvalue())


class TensorBoard(Quiet):
    """Writes `tensorboard/train` per batch and per epoch, and `tensorboard/valid` per epoch."""

    def __init__(self, directory: Path, *, done: Done | None = None) -> None:
        """`done` is the progress of a resumed run. Later points are removed, since they are written again."""
        from torch.utils.tensorboard import SummaryWriter

        if done is not None:
            for phase in ("train", "valid"):
                remove_later_points(directory / phase, done)
        # A TensorBoard that is running drops them at this step. In train/, batches and epochs share one axis.
        first = (None, None) if done is None else (done.batches + 1, done.epochs + 1)
        self.writers = {
            phase: SummaryWriter(str(directory / phase), purge_step=step)
            for phase, step in zip(("train", "valid"), first, strict=True)
        }

    def logged(self, part: EpochReporter) -> None:
        for name, value in part.last_window.items():
            self.writers["train"].add_scalar(f"{name}_by_batch", value, part.batches_before + part.batches)

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        for phase, means in reporter.stats[epoch].items():
            for name, value in means.items():
                self.writers[phase].add_scalar(f"{name}_by_epoch", value, epoch)
            self.writers[phase].flush()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
