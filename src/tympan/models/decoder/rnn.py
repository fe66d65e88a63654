"""The RNN decoder with attention, for whole sequences and step by step.

Shapes: memory (batch, frames, size); ys_in (batch, length). In steps: U utterances, B beams; whole sequences are B = 1.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32
from tympan.nn.rnn_attention import Attended, AttentionMemory, AttentionType, DecoderAttention, build_rnn_attention
from tympan.nn.typed_torch import ModuleList


@dataclass(frozen=True)
class RnnDecoderState(BeamState):
    """Hidden and cell states of the layers, the state of the attention, and the projected encoder output."""

    hidden: Tensor  # (U, B, layers, units)
    cell: Tensor  # (U, B, layers, units)
    attention: tuple[Tensor, ...]
    values: Tensor = field(metadata=PER_UTTERANCE)
    keys: Tensor = field(metadata=PER_UTTERANCE)
    mask: Tensor = field(metadata=PER_UTTERANCE)


class RnnDecoder(nn.Module):
    """`decoder: rnn`. One encoder, one speaker: `num_encs` and `num_att` must be 1, `han_*` keys are rejected."""

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        rnn_type: Literal["lstm", "gru"] = "lstm",
        num_layers: Annotated[int, Range(1, 1_000)] = 1,
        hidden_size: Annotated[int, Range(1, 1_000_000)] = 320,
        sampling_probability: Annotated[float, Range(0, 1)] = 0.0,
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        context_residual: bool = False,
        replace_sos: bool = False,
        num_encs: Annotated[int, Range(1, 10_000)] = 1,
        att_conf: Annotated[dict[str, Any], Range(-1, 1_000_000)] = {  # noqa: B006 (never changed; --print_config shows it)
            "atype": "location",
            "num_att": 1,
            "num_encs": 1,
            "aheads": 4,
            "adim": 320,
            "awin": 5,
            "aconv_chans": 10,
            "aconv_filts": 100,
            "han_mode": False,
            "han_type": None,
            "han_heads": 4,
            "han_dim": 320,
            "han_conv_chans": -1,
            "han_conv_filts": 100,
            "han_win": 5,
        },
    ) -> None:
        super().__init__()
        if num_encs != 1 or att_conf.get("num_encs", 1) != 1 or att_conf.get("num_att", 1) != 1:
            raise UserError("decoder_conf: num_encs and num_att must be 1; several encoders are not supported")
        if replace_sos:
            raise UserError(
                "decoder_conf replace_sos: true is for multilingual translation, which Tympan does not support; "
                "use false"
            )
        self.units = hidden_size
        self.sampling_probability = sampling_probability
        self.context_residual = context_residual
        self.embed = nn.Embedding(vocab_size, hidden_size)
        cell = nn.LSTMCell if rnn_type == "lstm" else nn.GRUCell
        sizes = [hidden_size + encoder_output_size] + [hidden_size] * (num_layers - 1)
        self.decoder = nn.ModuleList(cell(size, hidden_size) for size in sizes)
        self.output = nn.Linear(hidden_size + (encoder_output_size if context_residual else 0), vocab_size)
        self.att_list: ModuleList[DecoderAttention] = ModuleList(
            [_build_attention(att_conf, encoder_output_size, hidden_size)]
        )
        self.dropout = Dropout(dropout)

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        state = self.start(memory, memory_lengths, 1)
        embedded = self.dropout(self.embed(ys_in))
        outputs: list[Tensor] = []
        weights: list[Tensor] = []
        for position in range(ys_in.size(1)):
            token = embedded[:, position : position + 1]
            if position > 0 and self.training and torch.rand(()).item() < self.sampling_probability:
                token = self.dropout(self.embed(self.output(outputs[-1]).argmax(-1)))
            out, attended, state = self._advance(token, state)
            outputs.append(out)
            weights.append(attended.weights[:, 0])
        if self.att_list[0].keep_weights:
            self.att_list[0].weights = torch.stack(weights, dim=-2).detach()
        logits: Tensor = self.output(torch.cat(outputs, dim=1))
        return logits

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> RnnDecoderState:
        """The state before any token: memory (U, frames, size)."""
        prepared = self.att_list[0].prepare(memory, memory_lengths)
        zeros = memory.new_zeros(memory.size(0), beams, len(self.decoder), self.units)
        attention = self.att_list[0].start(prepared, beams)
        return RnnDecoderState(zeros, zeros, attention, *_by_utterance(prepared))

    def step(self, tokens: Tensor, state: RnnDecoderState) -> tuple[Tensor, RnnDecoderState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        out, _, state = self._advance(self.dropout(self.embed(tokens)), state)
        return at_least_float32(self.output(out)).log_softmax(-1), state

    def _advance(self, token: Tensor, state: RnnDecoderState) -> tuple[Tensor, Attended, RnnDecoderState]:
        """token (U, B, units) -> input of the output projection, (U, B, features)."""
        utterances, beams = token.shape[:2]
        memory = _from_utterances(state)
        attended: Attended = self.att_list[0](self.dropout(state.hidden[:, :, 0]), memory, state.attention)
        x = torch.cat([token, attended.context], dim=-1).flatten(0, 1)
        hidden, cells = [], []
        for layer, cell in enumerate(self.decoder):
            before = state.hidden[:, :, layer].flatten(0, 1)
            if isinstance(cell, nn.LSTMCell):
                new_hidden, new_cell = cell(x, (before, state.cell[:, :, layer].flatten(0, 1)))
                cells.append(new_cell)
            else:
                new_hidden = cell(x, before)
                cells.append(before)
            hidden.append(new_hidden)
            x = self.dropout(new_hidden)
        shape = (utterances, beams, len(hidden), self.units)
        out = x.view(utterances, beams, -1)
        if self.context_residual:
            out = torch.cat([out, attended.context], dim=-1)
        new_state = RnnDecoderState(
            torch.stack(hidden, dim=1).view(shape),
            torch.stack(cells, dim=1).view(shape),
            attended.state,
            state.values,
            state.keys,
            state.mask,
        )
        return out, attended, new_state


def _build_attention(given: dict[str, Any], memory_size: int, units: int) -> DecoderAttention:
    defaults: dict[str, Any] = inspect.signature(RnnDecoder).parameters["att_conf"].default
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise UserError(f"decoder_conf att_conf has no key '{unknown[0]}'; its keys: {', '.join(defaults)}")
    conf = {**defaults, **given}
    if conf["atype"] not in get_args(AttentionType):
        raise UserError(
            f"decoder_conf att_conf atype '{conf['atype']}' is unknown; choose from "
            f"{', '.join(get_args(AttentionType))}"
        )
    sizes = {key: int(conf[key]) for key in ("adim", "aheads", "awin", "aconv_chans", "aconv_filts")}
    return build_rnn_attention(conf["atype"], memory_size=memory_size, units=units, **sizes)


def _by_utterance(memory: AttentionMemory) -> tuple[Tensor, Tensor, Tensor]:
    """Move utterances to the first axis, as a beam state stores them."""
    if memory.values.dim() == 4:
        return memory.values.transpose(0, 1), memory.keys.transpose(0, 1), memory.mask
    return memory.values, memory.keys, memory.mask


def _from_utterances(state: RnnDecoderState) -> AttentionMemory:
    if state.values.dim() == 4:
        return AttentionMemory(state.values.transpose(0, 1), state.keys.transpose(0, 1), state.mask)
    return AttentionMemory(state.values, state.keys, state.mask)
