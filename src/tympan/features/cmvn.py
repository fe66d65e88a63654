"""Mean and variance normalization with Kaldi's statistics: a (2, dim + 1) matrix of sums, count, sums of squares."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from tympan.data.ark import read_matrix, write_matrix
from tympan.errors import UserError
from tympan.features.arrays import Floats

_VARIANCE_FLOOR = 1e-20


def cmvn_stats(matrices: Iterable[Floats]) -> Floats:
    """Statistics of one or many (frames, dim) matrices; rows: [sums, frame count], [sums of squares, 0]."""
    total: Floats | None = None
    for matrix in matrices:
        wide = matrix.astype(np.float64)
        stats = np.zeros((2, matrix.shape[1] + 1))
        stats[0, :-1], stats[0, -1] = wide.sum(axis=0), len(wide)
        stats[1, :-1] = np.einsum("td,td->d", wide, wide)
        total = stats if total is None else add_stats(total, stats)
    if total is None:
        raise UserError("there are no features to compute statistics from")
    return total


def add_stats(one: Floats, other: Floats) -> Floats:
    if one.shape != other.shape:
        raise UserError(f"features of {one.shape[1] - 1} and of {other.shape[1] - 1} dimensions cannot be combined")
    return one + other


def apply_cmvn(features: Floats, stats: Floats, *, norm_means: bool = True, norm_vars: bool = False) -> Floats:
    """Subtract the mean from (frames, dim); optionally divide by the standard deviation. Defaults as in apply-cmvn."""
    dim = stats.shape[1] - 1
    if features.shape[1] != dim:
        raise UserError(f"the statistics are for {dim} dimensions, but the features have {features.shape[1]}")
    count = float(stats[0, -1])
    if count < 1:
        raise UserError("the statistics were computed from zero frames")
    mean = stats[0, :-1].astype(np.float64) / count
    scale = np.ones(dim)
    if norm_vars:
        variance = stats[1, :-1].astype(np.float64) / count - mean**2
        scale = 1.0 / np.sqrt(np.maximum(variance, _VARIANCE_FLOOR))
    shift = mean if norm_means else np.zeros(dim)
    return ((features - shift) * scale).astype(np.float32)


def read_stats(path: str | os.PathLike[str]) -> Floats:
    """Statistics from a Kaldi matrix (binary or text; a file or `file.ark:offset`)."""
    stats = read_matrix(path)
    if stats.ndim != 2 or stats.shape[0] != 2 or stats.shape[1] < 2:
        raise UserError(f"{path}: not CMVN statistics: expected a matrix with 2 rows, found shape {stats.shape}")
    if not np.isfinite(stats).all() or stats[0, -1] < 1 or (stats[1, :-1] < 0).any():
        raise UserError(
            f"{path}: damaged CMVN statistics: a number is not finite, the count is below 1, or a sum of squares is "
            "negative"
        )
    return stats


def write_stats(path: str | os.PathLike[str], stats: Floats, *, text: bool = False) -> None:
    write_matrix(path, stats.astype(np.float64), text=text)
