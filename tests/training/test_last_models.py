"""Which models are kept and averaged: those of the best epochs, or of the last ones for recipes that average these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tympan.training.nbest import average_nbest, remove_others, save_weights


class Ranked:
    """A fake reporter in which epoch 2 is the best."""

    def ranking(self, phase: str, name: str, mode: str) -> list[tuple[int, float]]:
        return [(2, 0.9), (5, 0.8), (1, 0.7), (4, 0.6), (3, 0.5)]


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [2, 5]), (2, [2, 4, 5]), (10, [1, 2, 3, 4, 5])])
def test_kept_epochs(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    for epoch in range(1, 6):
        (tmp_path / f"{epoch}epoch.pth").touch()
    remove_others(tmp_path, Ranked(), 5, [("valid", "acc", "max")], keep=1, keep_last=keep_last)
    assert sorted(int(path.name.removesuffix("epoch.pth")) for path in tmp_path.iterdir()) == kept


def test_models_that_were_removed_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As when a finished run is resumed with a larger --keep_nbest_models."""
    for epoch in (2, 1, 4):
        save_weights(tmp_path / f"{epoch}epoch.pth", {"w": torch.tensor([float(epoch)])})
    written = average_nbest(tmp_path, Ranked(), [("valid", "acc", "max")], nbests=[1, 3])
    assert [path.name for path in written] == ["valid.acc.ave_1best.pth", "valid.acc.ave_2best.pth"]
    assert torch.load(written[1], weights_only=True)["w"].item() == 1.5
    assert "averaging without epochs 5, which are among the best 3" in caplog.text
