"""Curves take little time to draw and are complete at the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tympan.training import curves


def test_short_epochs_wait_and_the_end_shows_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    clock = iter([0.0, 1.0, 1.0, 5.0, 60.0, 61.0, 61.0, 62.0])  # drawing takes 1 s, so the next one is 50 s later

    def draw(path: Path, name: str, lines: dict[str, list[tuple[int, float]]]) -> None:
        drawn.append(len(lines["train"]))

    monkeypatch.setattr(curves, "draw_curve", draw)
    monkeypatch.setattr(curves, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reporter: Any = SimpleNamespace(stats={})
    watcher = curves.Curves(tmp_path)
    for epoch in (1, 2, 3, 4):
        reporter.stats[epoch] = {"train": {"loss": 1.0 / epoch}}
        watcher.epoch_done(epoch, reporter, nn.Module())
    assert drawn == [1, 3]
    watcher.close()
    assert drawn == [1, 3, 4]
    watcher.close()
    assert drawn == [1, 3, 4]
