"""Attention of RNN decoders: content-based, location-based, with coverage, with one or several heads.

Shapes: U utterances, B hypotheses of each (1 in training), T frames; memory (U, T, size), query (U, B, units).
Keys are projected once per utterance and shared by its hypotheses. A state is a tuple of tensors (U, B, ...).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.nn.masks import MASKED, length_mask

AttentionType = Literal[
    "noatt",
    "dot",
    "add",
    "location",
    "location2d",
    "location_recurrent",
    "coverage",
    "coverage_location",
    "multi_head_dot",
    "multi_head_add",
    "multi_head_loc",
    "multi_head_multi_res_loc",
]
HeadKind = Literal["dot", "add", "loc", "multi_res_loc"]
_HEAD_KINDS: dict[str, HeadKind] = {
    "multi_head_dot": "dot",
    "multi_head_add": "add",
    "multi_head_loc": "loc",
    "multi_head_multi_res_loc": "multi_res_loc",
}
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class AttentionMemory:
    """The projected encoder output that an attention uses."""

    values: Tensor  # (U, T, size), or (heads, U, T, size)
    keys: Tensor  # (U, T, adim), or (heads, U, T, adim)
    mask: Tensor  # (U, T)

    def uniform(self, beams: int) -> Tensor:
        """(U, B, T): the same weight for every frame."""
        weights = self.mask.to(self.values.dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
        return weights.unsqueeze(1).expand(-1, beams, -1)


@dataclass(frozen=True)
class Attended:
    context: Tensor  # (U, B, size)
    weights: Tensor  # (U, B, T), or (U, B, heads, T)
    state: State


class RnnAttention(nn.Module):
    """Scores from key and query; subclasses add terms from the previous weights. Scores are scaled by 2."""

    def __init__(self, memory_size: int, units: int, adim: int) -> None:
        super().__init__()
        self.mlp_enc = nn.Linear(memory_size, adim)
        self.mlp_dec = nn.Linear(units, adim, bias=False)
        self.gvec = nn.Linear(adim, 1)
        self.keep_weights = False
        self.weights: Tensor | None = None

    def prepare(self, memory: Tensor, lengths: Tensor) -> AttentionMemory:
        """Project the memory, once per batch."""
        return AttentionMemory(memory, self.mlp_enc(memory), length_mask(lengths, memory.size(1)))

    def start(self, memory: AttentionMemory, beams: int) -> State:
        """The state before the first token."""
        return ()

    def forward(self, query: Tensor, memory: AttentionMemory, state: State) -> Attended:
        history, state = self._read(state, memory)
        hidden = memory.keys.unsqueeze(1) + self.mlp_dec(query).unsqueeze(2)
        if history is not None:
            hidden = hidden + history
        scores = self.gvec(torch.tanh(hidden)).squeeze(-1)
        weights = _normalize(2.0 * scores, memory.mask)
        return Attended(torch.bmm(weights, memory.values), weights, self._remember(state, weights))

    def _read(self, state: State, memory: AttentionMemory) -> tuple[Tensor | None, State]:
        """The term added to keys and query, (U, B, T or 1, adim), and the next state."""
        return None, state

    def _remember(self, state: State, weights: Tensor) -> State:
        return state


class NoAttention(nn.Module):
    """The mean of all frames."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_weights = False
        self.weights: Tensor | None = None

    def prepare(self, memory: Tensor, lengths: Tensor) -> AttentionMemory:
        return AttentionMemory(memory, memory[..., :0], length_mask(lengths, memory.size(1)))

    def start(self, memory: AttentionMemory, beams: int) -> State:
        return ()

    def forward(self, query: Tensor, memory: AttentionMemory, state: State) -> Attended:
        weights = memory.uniform(query.size(1))
        return Attended(torch.bmm(weights, memory.values), weights, state)


class DotAttention(nn.Module):
    """Scores are products of key and query, each after tanh."""

    def __init__(self, memory_size: int, units: int, adim: int) -> None:
        super().__init__()
        self.mlp_enc = nn.Linear(memory_size, adim)
        self.mlp_dec = nn.Linear(units, adim)
        self.keep_weights = False
        self.weights: Tensor | None = None

    def prepare(self, memory: Tensor, lengths: Tensor) -> AttentionMemory:
        return AttentionMemory(memory, torch.tanh(self.mlp_enc(memory)), length_mask(lengths, memory.size(1)))

    def start(self, memory: AttentionMemory, beams: int) -> State:
        return ()

    def forward(self, query: Tensor, memory: AttentionMemory, state: State) -> Attended:
        scores = torch.bmm(torch.tanh(self.mlp_dec(query)), memory.keys.transpose(1, 2))
        weights = _normalize(2.0 * scores, memory.mask)
        return Attended(torch.bmm(weights, memory.values), weights, state)


class LocationAttention(RnnAttention):
    """Convolution of the previous weights (Chorowski et al. 2015): the last `window`, or their sum ("coverage")."""

    def __init__(
        self,
        memory_size: int,
        units: int,
        adim: int,
        *,
        channels: int,
        filters: int,
        window: int = 1,
        is_coverage: bool = False,
    ) -> None:
        super().__init__(memory_size, units, adim)
        self.mlp_att = nn.Linear(channels, adim, bias=False)
        self.loc_conv = _location_convolution(channels, filters, window)
        self.window = window
        self.is_coverage = is_coverage

    def start(self, memory: AttentionMemory, beams: int) -> State:
        return (memory.uniform(beams).unsqueeze(2).repeat(1, 1, self.window, 1),)

    def _read(self, state: State, memory: AttentionMemory) -> tuple[Tensor, State]:
        return self.mlp_att(_convolve(self.loc_conv, state[0])), state

    def _remember(self, state: State, weights: Tensor) -> State:
        (before,) = state
        new = weights.unsqueeze(2)
        return (before + new if self.is_coverage else torch.cat([before[:, :, 1:], new], dim=2),)


class CoverageAttention(RnnAttention):
    """Adds the sum of the previous weights for every frame (See et al. 2017)."""

    def __init__(self, memory_size: int, units: int, adim: int) -> None:
        super().__init__(memory_size, units, adim)
        self.wvec = nn.Linear(1, adim)

    def start(self, memory: AttentionMemory, beams: int) -> State:
        return (memory.uniform(beams),)

    def _read(self, state: State, memory: AttentionMemory) -> tuple[Tensor, State]:
        return self.wvec(state[0].unsqueeze(-1)), state

    def _remember(self, state: State, weights: Tensor) -> State:
        return (state[0] + weights,)


class RecurrentLocationAttention(RnnAttention):
    """An LSTM over the maximum responses of a convolution of the previous weights."""

    def __init__(self, memory_size: int, units: int, adim: int, *, channels: int, filters: int) -> None:
        super().__init__(memory_size, units, adim)
        self.loc_conv = _location_convolution(channels, filters, 1)
        self.att_lstm = nn.LSTMCell(channels, adim, bias=False)

    def start(self, memory: AttentionMemory, beams: int) -> State:
        weights = memory.uniform(beams).unsqueeze(2)
        zeros = memory.keys.new_zeros(*weights.shape[:2], self.att_lstm.hidden_size)
        return weights, zeros, zeros

    def _read(self, state: State, memory: AttentionMemory) -> tuple[Tensor, State]:
        weights, hidden, cell = state
        inside = memory.mask[:, None, :, None]
        strongest = (F.relu(_convolve(self.loc_conv, weights)) * inside).amax(2)  # (U, B, channels)
        shape = hidden.shape
        flat = self.att_lstm(strongest.flatten(0, 1), (hidden.flatten(0, 1), cell.flatten(0, 1)))
        hidden, cell = (tensor.view(shape) for tensor in flat)
        return hidden.unsqueeze(2), (weights, hidden, cell)

    def _remember(self, state: State, weights: Tensor) -> State:
        return weights.unsqueeze(2), *state[1:]


class MultiHeadAttention(nn.Module):
    """Several heads, each with its own projections, joined by `mlp_o`."""

    def __init__(
        self,
        kind: HeadKind,
        memory_size: int,
        units: int,
        adim: int,
        *,
        heads: int,
        channels: int,
        filters: int,
    ) -> None:
        super().__init__()
        self.kind = kind
        # ESPnet2 scales this type by 2 and divides the others by the square root of the size.
        self.scaling = 2.0 if kind == "loc" else 1.0 / math.sqrt(adim)
        self.mlp_q = nn.ModuleList(nn.Linear(units, adim) for _ in range(heads))
        self.mlp_k = nn.ModuleList(nn.Linear(memory_size, adim, bias=False) for _ in range(heads))
        self.mlp_v = nn.ModuleList(nn.Linear(memory_size, adim, bias=False) for _ in range(heads))
        self.mlp_o = nn.Linear(heads * adim, memory_size, bias=False)
        if kind != "dot":
            self.gvec = nn.ModuleList(nn.Linear(adim, 1) for _ in range(heads))
        if kind in ("loc", "multi_res_loc"):
            widths = [filters * (head + 1) // heads if kind == "multi_res_loc" else filters for head in range(heads)]
            self.loc_conv = nn.ModuleList(_location_convolution(channels, width, 1) for width in widths)
            self.mlp_att = nn.ModuleList(nn.Linear(channels, adim, bias=False) for _ in range(heads))
        self.keep_weights = False
        self.weights: Tensor | None = None

    def prepare(self, memory: Tensor, lengths: Tensor) -> AttentionMemory:
        keys = torch.stack([project(memory) for project in self.mlp_k])
        values = torch.stack([project(memory) for project in self.mlp_v])
        keys = torch.tanh(keys) if self.kind == "dot" else keys
        return AttentionMemory(values, keys, length_mask(lengths, memory.size(1)))

    def start(self, memory: AttentionMemory, beams: int) -> State:
        if self.kind in ("dot", "add"):
            return ()
        weights = memory.mask.to(memory.values.dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
        return (weights[:, None, None].repeat(1, beams, len(self.mlp_q), 1),)

    def forward(self, query: Tensor, memory: AttentionMemory, state: State) -> Attended:
        weights = torch.stack(
            [_normalize(self.scaling * self._score(head, query, memory, state), memory.mask) for head in self._heads()]
        )  # (heads, U, B, T)
        context = torch.matmul(weights, memory.values).permute(1, 2, 0, 3).flatten(2)
        weights = weights.permute(1, 2, 0, 3)
        return Attended(self.mlp_o(context), weights, (weights,) if state else ())

    def _heads(self) -> range:
        return range(len(self.mlp_q))

    def _score(self, head: int, query: Tensor, memory: AttentionMemory, state: State) -> Tensor:
        keys, query = memory.keys[head], self.mlp_q[head](query)
        if self.kind == "dot":
            return torch.bmm(torch.tanh(query), keys.transpose(1, 2))
        hidden = keys.unsqueeze(1) + query.unsqueeze(2)
        if state:
            history = _convolve(self.loc_conv[head], state[0][:, :, head : head + 1])
            hidden = hidden + self.mlp_att[head](history)
        scores: Tensor = self.gvec[head](torch.tanh(hidden)).squeeze(-1)
        return scores


DecoderAttention = NoAttention | DotAttention | RnnAttention | MultiHeadAttention


def build_rnn_attention(
    kind: AttentionType,
    *,
    memory_size: int,
    units: int,
    adim: int,
    aheads: int,
    awin: int,
    aconv_chans: int,
    aconv_filts: int,
) -> DecoderAttention:
    """The attention of ESPnet2's `atype`."""
    sizes = (memory_size, units, adim)
    if kind == "noatt":
        return NoAttention()
    if kind == "dot":
        return DotAttention(*sizes)
    if kind == "add":
        return RnnAttention(*sizes)
    if kind == "coverage":
        return CoverageAttention(*sizes)
    if kind == "location_recurrent":
        return RecurrentLocationAttention(*sizes, channels=aconv_chans, filters=aconv_filts)
    if kind in ("location", "location2d", "coverage_location"):
        window = awin if kind == "location2d" else 1
        is_coverage = kind == "coverage_location"
        return LocationAttention(
            *sizes, channels=aconv_chans, filters=aconv_filts, window=window, is_coverage=is_coverage
        )
    return MultiHeadAttention(_HEAD_KINDS[kind], *sizes, heads=aheads, channels=aconv_chans, filters=aconv_filts)


def _normalize(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the frames (U, T) of `mask`; scores (U, B, T)."""
    return scores.masked_fill(~mask.unsqueeze(1), MASKED).softmax(-1)


def _location_convolution(channels: int, filters: int, window: int) -> nn.Conv2d:
    return nn.Conv2d(1, channels, (window, 2 * filters + 1), padding=(0, filters), bias=False)


def _convolve(conv: nn.Module, weights: Tensor) -> Tensor:
    """(U, B, T, channels) from weights (U, B, window, T)."""
    utterances, beams = weights.shape[:2]
    out: Tensor = conv(weights.flatten(0, 1).unsqueeze(1)).squeeze(2)
    return torch.unflatten(out.transpose(1, 2), 0, (utterances, beams))
