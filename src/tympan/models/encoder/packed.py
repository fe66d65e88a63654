"""Encode utterances of different lengths on a CPU without computing padding.

Except for attention and convolution, a block processes every frame independently. So the frames of all utterances are
concatenated into one long sequence, and matrix products are as large as those of a batch. Attention processes the
utterances one by one, and convolutions insert as many empty frames between them as they see on either side.
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
"""Maximum padding in the input layer, which groups utterances of similar length: its convolutions are large."""
MAX_FRAMES = 2000
"""Limits of features per call of the input layer and of encoder frames per sequence, set by the cache size."""


@dataclass(frozen=True)
class _Entered:
    """An utterance after the input layer, with the table of positions of its group."""

    x: Tensor  # (frames, size)
    table: Tensor | None


def is_packable(encoder: object) -> bool:
    """Whether an encoder supports this, and its options allow it."""
    return isinstance(encoder, Packs) and encoder.packs_batches


@dataclass(frozen=True)
class PackableLayers:
    """The layers of an encoder that can process concatenated utterances."""

    embed: InputLayer
    blocks: Iterable[nn.Module]
    """Called with x (1, frames, size), a mask with gaps between the utterances, and a context with spans."""
    after_norm: nn.Module | None
    reach: int
    """Number of frames that the convolutions of a block see on either side."""


def encode_packed(layers: PackableLayers, features: Tensor, lengths: Tensor) -> EncoderOutput:
    """features (batch, time, input size). The result is the same as for each utterance by itself."""
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
    """Groups of indices into `lengths`, longest first; padding is at most a fraction `max_padding` of the longest."""
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
    """Indices of the utterances of one sequence, the longest first."""
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
    table = utterances[0].table  # of the longest: the tables of the others are its middle parts
    context = SelfAttentionContext(x.new_zeros(1, 1, 1, x.size(1)), table, spans=spans)
    for block in layers.blocks:
        x = block(x, mask, context)
    if layers.after_norm is not None:
        x = layers.after_norm(x)
    return list(torch.split(x[0], frames))


def _mask_with_gaps(frames: Sequence[int], gap: int) -> Tensor:
    """(1, slots), False in the `gap` slots after each utterance except the last."""
    runs = torch.tensor([run for count in frames for run in (count, gap)][:-1])
    return (torch.arange(len(runs)) % 2 == 0).repeat_interleave(runs).unsqueeze(0)


def _stack(utterances: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
