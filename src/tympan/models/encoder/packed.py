"""Encoding utterances of different lengths on a CPU without spending anything on padding.

Outside attention and convolution a block treats every frame alone. So the frames of all utterances lie behind one
another in one long sequence, and its products are as large as those of a batch; attention looks at the spans of the
utterances one by one, and convolutions put as many empty frames between them as they see to either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Packs
from tympan.nn.attention import SelfAttentionContext

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


def can_pack(encoder: Any, features: Tensor) -> bool:
    """Whether this encoder can, and this batch is better off."""
    is_inference = features.is_cpu and not encoder.training and not torch.is_grad_enabled()
    if not is_packable(encoder) or not is_inference or len(features) < 2 or torch.compiler.is_compiling():
        return False
    return not any(block.self_attn.keep_weights for block in encoder.encoders)


def encode_packed(encoder: Any, features: Tensor, lengths: Tensor) -> EncoderOutput:
    """features (batch, time, input size). The same numbers as for each utterance alone."""
    out_lengths = encoder.embed.output_lengths(lengths)
    frames = out_lengths.tolist()
    entered: dict[int, _Entered] = {}
    for group in group_by_length(lengths.tolist(), max_padding=MAX_PADDING, max_total=MAX_FRAMES):
        positioned = encoder.embed(features[group, : int(lengths[group[0]])])
        for place, x in zip(group, positioned.x, strict=True):
            entered[place] = _Entered(x[: frames[place]], positioned.table)
    encoded: dict[int, Tensor] = {}
    for places in _sequences(frames):
        outs = _run_blocks(encoder, [entered[place] for place in places])
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


def _run_blocks(encoder: Any, utterances: Sequence[_Entered]) -> list[Tensor]:
    frames = [len(utterance.x) for utterance in utterances]
    ends = list(accumulate(frames))
    spans = tuple((end - count, end) for end, count in zip(ends, frames, strict=True) if count)
    x = torch.cat([utterance.x for utterance in utterances]).unsqueeze(0)
    mask = _mask_with_gaps(frames, encoder.reach)
    table = utterances[0].table  # of the longest: the others' lie in its middle
    context = SelfAttentionContext(x.new_zeros(1, 1, 1, x.size(1)), table, spans=spans)
    for block in encoder.encoders:
        x = block(x, mask, context)
    if encoder.after_norm is not None:
        x = encoder.after_norm(x)
    return list(x[0].split(frames))


def _mask_with_gaps(frames: Sequence[int], gap: int) -> Tensor:
    """(1, places), False in the `gap` places behind each utterance but the last."""
    runs = torch.tensor([run for count in frames for run in (count, gap)][:-1])
    return (torch.arange(len(runs)) % 2 == 0).repeat_interleave(runs).unsqueeze(0)


def _stack(utterances: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
