"""Encoding utterances of different lengths on a CPU without spending anything on padding.

Outside attention and convolution a block treats every frame alone. So the frames of all utterances lie behind one
another in one long sequence, and its products are as large as those of a batch; attention looks at the spans of the
utterances one by one, and convolutions put as many empty frames between them as they see to either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Packs
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.input_layer import InputLayer
from tympan.nn.position import Positioned

MAX_PADDING = 0.05
"""Of the input layer, which takes utterances of nearly the same length together: its convolutions are large."""
MAX_FRAMES = 2000
"""Of features in one call of the input layer, and of encoder frames in one sequence: the cache holds no more."""


@dataclass(frozen=True)
class _Entered:
    """An utterance behind the input layer, with the table of positions of those it went through it with."""

    x: Tensor  # (frames, size)
    table: Tensor | None


def is_packable(encoder: object) -> bool:
    """Whether an encoder has this ability, and its options allow it."""
    return isinstance(encoder, Packs) and encoder.packs_batches


@dataclass(frozen=True)
class PackableLayers:
    """The layers of an encoder that can take utterances behind one another."""

    embed: InputLayer
    blocks: Iterable[nn.Module]
    """Called with x (1, frames, size), a mask with gaps between the utterances, and a context with spans."""
    after_norm: nn.Module | None
    reach: int
    """Frames that the convolutions of a block see to either side."""


def encode_packed(layers: PackableLayers, features: Tensor, lengths: Tensor) -> EncoderOutput:
    """features (batch, time, input size). The same numbers as for each utterance alone."""
    out_lengths = layers.embed.output_lengths(lengths)
    frames = out_lengths.tolist()
    entered: dict[int, _Entered] = {}
    for group in group_by_length(lengths.tolist(), max_padding=MAX_PADDING, max_total=MAX_FRAMES):
        positioned: Positioned = layers.embed(features[group, : int(lengths[group[0]])])
        for place, x in zip(group, positioned.x, strict=True):
            entered[place] = _Entered(x[: frames[place]], positioned.table)
    encoded: dict[int, Tensor] = {}
    for places in _sequences(frames):
        outs = _run_blocks(layers, [entered[place] for place in places])
        encoded.update(zip(places, outs, strict=True))
    return EncoderOutput(_stack([encoded[place] for place in range(len(frames))]), out_lengths, ())


def group_by_length(lengths: Sequence[float], *, max_padding: float, max_total: float) -> list[list[int]]:
    """Places in `lengths`, longest first; none is padded by more than a share `max_padding` of its group's longest."""
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups:
            group, longest = groups[-1], lengths[groups[-1][0]]
            if lengths[place] >= (1 - max_padding) * longest and (len(group) + 1) * longest <= max_total:
                group.append(place)
                continue
        groups.append([place])
    return groups


def _sequences(frames: Sequence[int]) -> list[list[int]]:
    """Places of the utterances that lie in one sequence, the longest first."""
    sequences: list[list[int]] = []
    total = 0
    for place in sorted(range(len(frames)), key=lambda i: -frames[i]):
        if not sequences or total + frames[place] > MAX_FRAMES:
            sequences.append([])
            total = 0
        sequences[-1].append(place)
        total += frames[place]
    return sequences


def _run_blocks(layers: PackableLayers, utterances: Sequence[_Entered]) -> list[Tensor]:
    frames = [len(utterance.x) for utterance in utterances]
    ends = list(accumulate(frames))
    spans = tuple((end - count, end) for end, count in zip(ends, frames, strict=True) if count)
    x = torch.cat([utterance.x for utterance in utterances]).unsqueeze(0)
    mask = _mask_with_gaps(frames, layers.reach)
    table = utterances[0].table  # of the longest: the others' lie in its middle
    context = SelfAttentionContext(x.new_zeros(1, 1, 1, x.size(1)), table, spans=spans)
    for block in layers.blocks:
        x = block(x, mask, context)
    if layers.after_norm is not None:
        x = layers.after_norm(x)
    return list(torch.split(x[0], frames))


def _mask_with_gaps(frames: Sequence[int], gap: int) -> Tensor:
    """(1, places), False in the `gap` places behind each utterance but the last."""
    runs = torch.tensor([run for count in frames for run in (count, gap)][:-1])
    return (torch.arange(len(runs)) % 2 == 0).repeat_interleave(runs).unsqueeze(0)


def _stack(utterances: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
