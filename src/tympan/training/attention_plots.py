"""Plots of the attention weights of a few utterances after every epoch: att_ws/UTTERANCE/LAYER.Nep.png, as ESPnet2.

Weights are written directly as pixels, the heads side by side. Axes and titles would take a hundred times as long.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tympan.data.batch import Batch, tensors_for
from tympan.models.abilities import PlotsAttention
from tympan.runtime.atomic import atomic_write
from tympan.runtime.plotting import import_matplotlib
from tympan.training.curves import Quiet
from tympan.training.reporter import Reporter

SMALLEST = 240
"""Minimum length of the longer side in pixels. Smaller plots are enlarged."""


class AttentionPlots(Quiet):
    """Plots the result of `model.attention_weights` for a batch."""

    def __init__(self, directory: Path, batch: Batch, *, device: torch.device) -> None:
        self.directory = directory
        self.batch = batch
        self.device = device

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        if not isinstance(model, PlotsAttention):
            return
        kind = next(model.parameters()).dtype
        chosen = tensors_for(model.attention_weights, self.batch.tensors)
        tensors = {name: tensor.to(self.device) for name, tensor in chosen.items()}
        if kind == torch.float64:
            tensors["speech"] = tensors["speech"].to(kind)
        for layer, weights in model.attention_weights(**tensors).items():
            for utterance, attention in zip(self.batch.ids, weights, strict=True):
                draw_attention(self.directory / utterance / f"{layer}.{epoch}ep.png", attention)


def draw_attention(path: Path, attention: Tensor) -> None:
    """Plot attention of shape ([heads,] queries, keys), one row per query.

    Padding at the end (no weight in any head) is cut off.
    """
    heads = attention.detach().float().cpu().numpy()
    heads = heads[None] if heads.ndim == 2 else heads
    used = heads.max(axis=0) > 1e-6
    rows, columns = _extent(used.any(axis=1)), _extent(used.any(axis=0))
    picture = _side_by_side(list(heads[:, :rows, :columns]))
    factor = max(1, -(-SMALLEST // max(picture.shape)))
    import_matplotlib()
    from matplotlib import colormaps
    from matplotlib.image import imsave

    image = io.BytesIO()
    imsave(image, np.kron(picture, np.ones((factor, factor))), cmap=colormaps["viridis"], vmin=0.0, format="png")
    with atomic_write(path, "wb") as stream:
        stream.write(image.getvalue())


def _extent(used: np.ndarray) -> int:
    return int(np.flatnonzero(used).max(initial=0)) + 1


def _side_by_side(heads: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.zeros((heads[0].shape[0], 1))
    parts = [part / max(float(part.max()), 1e-9) for part in heads]
    return np.concatenate([piece for part in parts for piece in (part, gap)][:-1], axis=1)
