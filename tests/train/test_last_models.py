"""The models of the last epochs are kept beside the best ones, for recipes that average them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.train.nbest import remove_others


class Ranked:
    """Stands in for the reporter: epoch 2 is the best."""

    def ranking(self, phase: str, name: str, mode: str) -> list[tuple[int, float]]:
        return [(2, 0.9), (5, 0.8), (1, 0.7), (4, 0.6), (3, 0.5)]


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [2, 5]), (2, [2, 4, 5]), (10, [1, 2, 3, 4, 5])])
def test_kept_epochs(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    for epoch in range(1, 6):
        (tmp_path / f"{epoch}epoch.pth").touch()
    remove_others(tmp_path, Ranked(), 5, [("valid", "acc", "max")], keep=1, keep_last=keep_last)
    assert sorted(int(path.name.removesuffix("epoch.pth")) for path in tmp_path.iterdir()) == kept
