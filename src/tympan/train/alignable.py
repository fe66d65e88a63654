"""Utterances that teach nothing: without a transcript, or with fewer encoder frames than CTC needs for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tympan.data.loader import EpochIterFactory
from tympan.errors import UserError


def without_transcript(batches: EpochIterFactory) -> list[str]:
    """Ids of utterances whose text is empty. If none has a text, that is a mistake, and told as one."""
    tokens = next((shape.lengths for shape in batches.plan.shapes if shape.name == "text"), None)
    if tokens is None:
        return []
    empty = np.flatnonzero(tokens == 0)
    if len(empty) == len(tokens):
        raise UserError(
            f"all {len(tokens)} transcripts are empty. Lines of the text file are 'UTTERANCE-ID TRANSCRIPT'"
        )
    return [batches.dataset.index.id(row) for row in empty.tolist()]


def too_short_for_ctc(model: nn.Module, batches: EpochIterFactory, *, stretch: float = 1.0) -> list[str]:
    """One line for each utterance whose tokens, and a blank between equal neighbours, outnumber its encoder frames.

    Works from the shape files; texts are read only where the lengths leave doubt. Without shape files nothing is known
    before reading the data, and the list is empty.
    """
    shapes = {shape.name: shape.lengths for shape in batches.plan.shapes}
    if getattr(model, "ctc", None) is None or "speech" not in shapes or "text" not in shapes:
        return []
    lengths = torch.from_numpy((shapes["speech"] * stretch).astype(np.int64))
    frames = model.output_lengths(lengths).numpy()  # type: ignore[operator]
    tokens = shapes["text"]
    found = []
    # n tokens need at most 2n - 1 frames (all the same), so the others are safe
    for row in np.flatnonzero(frames < 2 * tokens - 1).tolist():
        text = batches.dataset[row, 1].arrays["text"]
        needed = len(text) + int((text[1:] == text[:-1]).sum())
        if frames[row] < needed:
            name = batches.dataset.index.id(row)
            found.append(f"{name}: {int(frames[row])} encoder frames for a transcript that needs {needed}")
    return found
