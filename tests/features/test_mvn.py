"""Normalization by corpus and by utterance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tympan.errors import UserError
from tympan.features.mvn import GlobalMvn, UtteranceMvn

FEATURES = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0)) * 4 + 2
LENGTHS = torch.tensor([9, 5])


def write_statistics(path: Path) -> np.ndarray:
    rows = np.random.default_rng(0).normal(3.0, 2.0, (100, 3)).astype(np.float32)
    np.savez(path, count=100, sum=rows.sum(0), sum_square=(rows**2).sum(0))
    return rows


@pytest.mark.parametrize(("norm_means", "norm_vars"), [(True, True), (True, False), (False, True)])
def test_global(tmp_path: Path, norm_means: bool, norm_vars: bool) -> None:
    rows = write_statistics(tmp_path / "stats.npz")
    out = GlobalMvn(tmp_path / "stats.npz", norm_means, norm_vars)(FEATURES, LENGTHS)
    expected = FEATURES.numpy() - (rows.mean(0) if norm_means else 0)
    expected = expected / (rows.std(0) if norm_vars else 1)
    expected[1, 5:] = 0
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-4)


def test_matrix_of_kaldi(tmp_path: Path) -> None:
    rows = write_statistics(tmp_path / "stats.npz")
    matrix = np.stack([np.append(rows.sum(0), 100), np.append((rows**2).sum(0), 0)])
    np.save(tmp_path / "stats.npy", matrix)
    new, old = GlobalMvn(tmp_path / "stats.npz"), GlobalMvn(tmp_path / "stats.npy")
    torch.testing.assert_close(new.mean, old.mean)
    torch.testing.assert_close(new.std, old.std)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--collect_stats"):
        GlobalMvn(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UserError, match="not a statistics file"):
        GlobalMvn(tmp_path / "text.npz")
    write_statistics(tmp_path / "stats.npz")
    with pytest.raises(UserError, match="3 values per frame, but the features have 80"):
        GlobalMvn(tmp_path / "stats.npz", input_size=80)


@pytest.mark.parametrize(("norm_means", "norm_vars"), [(True, True), (True, False), (False, True)])
def test_utterance(norm_means: bool, norm_vars: bool) -> None:
    out = UtteranceMvn(norm_means, norm_vars)(FEATURES, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        own = FEATURES[row, :length]
        expected = own - own.mean(0) if norm_means else own
        expected = expected / own.std(0, correction=0) if norm_vars else expected
        torch.testing.assert_close(out[row, :length], expected)
        assert out[row, length:].eq(0).all()
