"""--collect_stats: write the shapes of all data and the sums for global normalization, in ESPnet2's files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tympan.data.batch import Batch, Batches, tensors_for
from tympan.data.shapes import write_shapes
from tympan.models.abilities import CollectsFeatures
from tympan.runtime.atomic import atomic_write
from tympan.training.task import Tokens


@torch.no_grad()
def collect_stats(
    model: nn.Module,
    batches: Batches,
    directory: Path,
    *,
    tokens: Mapping[str, Tokens] | None = None,
    log_interval: int | None = None,
    writes_features: bool = False,
) -> None:
    """Write NAME_shape, feats_stats.npz, batch_keys and stats_keys into `directory`.

    The second number in `text_shape.TOKEN_TYPE` is the vocabulary size, as in ESPnet2's recipes.
    """
    model.eval()
    steps = batches.num_steps(1)
    interval = log_interval or max(steps // 20, 10)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    sums: dict[str, _Sums] = {}
    features = _FeatureFiles(directory / "collect_feats") if writes_features else None
    for number, batch in enumerate(batches.build_iter(1), 1):
        for name, lengths in _lengths(batch).items():
            rest = tuple(batch.tensors[name].shape[2:])
            rows = zip(batch.ids, lengths.tolist(), strict=True)
            shapes.setdefault(name, {}).update((utterance, (length, *rest)) for utterance, length in rows)
        collected = {}
        if isinstance(model, CollectsFeatures):
            collected = model.collect_feats(**tensors_for(model.collect_feats, batch.tensors))
        for name, rows_of in _rows(collected).items():
            for utterance, values in zip(batch.ids, rows_of, strict=True):
                sums.setdefault(name, _Sums()).add(values)
                if features is not None:
                    features.add(name, utterance, values)
        if number % interval == 0:
            logging.info("collect_stats: %d/%d batches", number, steps)
    for name, of_name in shapes.items():
        write_shapes(directory / f"{name}_shape", of_name)
    for name, item in (tokens or {}).items():
        if name in shapes:
            with_size = {utterance: (*shape, len(item.tokens)) for utterance, shape in shapes[name].items()}
            write_shapes(directory / f"{name}_shape.{item.token_type}", with_size)
    for name, total in sums.items():
        total.write(directory / f"{name}_stats.npz")
    for file, names in (("batch_keys", list(shapes)), ("stats_keys", list(sums))):
        with atomic_write(directory / file) as stream:
            stream.write("\n".join(names) + "\n")
    if features is not None:
        features.close()


class _Sums:
    """Count, sum and sum of squares, in float64: in float32, sums over an hour of frames are inaccurate."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: np.ndarray | float = 0.0
        self.sum_square: np.ndarray | float = 0.0

    def add(self, values: np.ndarray) -> None:
        wide = values.astype(np.float64)
        self.count += len(wide)
        self.sum = self.sum + wide.sum(axis=0)
        self.sum_square = self.sum_square + (wide**2).sum(axis=0)

    def write(self, path: Path) -> None:
        with atomic_write(path, "wb") as stream:
            np.savez(stream, count=self.count, sum=self.sum, sum_square=self.sum_square)


class _FeatureFiles:
    """Writes `data_NAME/UTTERANCE.npy` and `NAME.scp`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: dict[str, list[str]] = {}

    def add(self, name: str, utterance: str, values: np.ndarray) -> None:
        path = self.directory / f"data_{name}" / f"{utterance}.npy"
        with atomic_write(path, "wb") as stream:
            np.save(stream, values)
        self.lines.setdefault(name, []).append(f"{utterance} {path}\n")

    def close(self) -> None:
        for name, lines in self.lines.items():
            with atomic_write(self.directory / f"{name}.scp") as stream:
                stream.writelines(lines)


def _lengths(batch: Batch) -> dict[str, Tensor]:
    names = [name for name in batch.tensors if f"{name}_lengths" in batch.tensors]
    return {name: batch.tensors[f"{name}_lengths"] for name in names}


def _rows(collected: Mapping[str, Any]) -> dict[str, list[np.ndarray]]:
    """Yield the rows of each collected tensor, cut to their lengths."""
    return {
        name: [
            row[:length].cpu().numpy()
            for row, length in zip(tensor, collected[f"{name}_lengths"].tolist(), strict=True)
        ]
        for name, tensor in collected.items()
        if f"{name}_lengths" in collected
    }
