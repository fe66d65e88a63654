"""`decoder: s4`: a list of layers, repeated: state space model, attention to the encoder, feed-forward.

Shapes: memory (batch, frames, size); ys_in (batch, length). In steps: U utterances, B beams.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.decoder.s4_layers import MixingLayer, build_layer
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.checkpointing import call_layer
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.typed_torch import ModuleList


@dataclass(frozen=True)
class S4DecoderState(BeamState):
    """The states of the layers, and the mask of the encoder's frames."""

    layers: tuple[BeamState, ...]
    memory_bias: Tensor = field(metadata=PER_UTTERANCE)


class S4Decoder(nn.Module):
    """`layer` must be given. `track_norms` has no effect on the model.

    Other values of `residual`, `norm`, `pool`, `transposed` and `tie_dropout` are not supported.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        input_layer: Literal["embed"] = "embed",
        dropinp: Annotated[float, Range(0, below=1)] = 0.0,
        dropout: Annotated[float, Range(0, below=1)] = 0.25,
        prenorm: bool = True,
        n_layers: Annotated[int, Range(1, 1_000)] = 16,
        transposed: Literal[False] = False,
        tie_dropout: Literal[False] = False,
        n_repeat: Annotated[int, Range(1, 1_000)] = 1,
        layer: list[dict[str, Any]] | dict[str, Any] | None = None,
        residual: Literal["residual"] | None = None,
        norm: Literal["layer"] | None = None,
        pool: None = None,
        track_norms: bool = True,
        drop_path: Annotated[float, Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        listed = [layer] if isinstance(layer, dict) else layer
        if not listed:
            raise UserError("decoder_conf layer: list the layers of the decoder, such as [{_name_: s4}, {_name_: ff}]")
        size = encoder_output_size
        self.embed = nn.Embedding(vocab_size, size)
        self.drop = Dropout(dropinp)
        self.decoder = S4Stack(
            [
                S4Block(
                    size,
                    build_layer(conf, number, size=size, dropout=dropout),
                    is_residual=residual is not None,
                    has_norm=norm is not None,
                    prenorm=prenorm,
                    dropout=dropout,
                    drop_path=drop_path,
                )
                for _ in range(n_layers * n_repeat)
                for number, conf in enumerate(listed, start=1)
            ],
            _norm(size) if norm is not None and prenorm else None,
        )
        self.output = nn.Linear(size, vocab_size)
        self.grad_checkpointing = False

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        x: Tensor = self.drop(self.embed(ys_in))
        memory_bias = key_bias(length_mask(memory_lengths, memory.size(1)), x.dtype)
        for block in self.decoder.layers:
            x = call_layer(block, x, memory, memory_bias, is_checkpointed=self.training and self.grad_checkpointing)
        return self._read_out(x)

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> S4DecoderState:
        """The state before any token: memory (U, frames, size)."""
        return S4DecoderState(
            layers=tuple(block.layer.start(memory, beams) for block in self.decoder.layers),
            memory_bias=key_bias(length_mask(memory_lengths, memory.size(1)), memory.dtype),
        )

    def step(self, tokens: Tensor, state: S4DecoderState) -> tuple[Tensor, S4DecoderState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        x: Tensor = self.drop(self.embed(tokens))
        layers = []
        for block, before in zip(self.decoder.layers, state.layers, strict=True):
            x, after = block.step(x, before, state.memory_bias)
            layers.append(after)
        return at_least_float32(self._read_out(x)).log_softmax(-1), replace(state, layers=tuple(layers))

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the layers in the backward pass, to save memory."""
        self.grad_checkpointing = is_on

    def _read_out(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(_normalized(self.decoder.norm, x))
        return out


class S4Stack(nn.Module):
    """The layers and the norm after them, under ESPnet2's names."""

    def __init__(self, layers: list[S4Block], norm: nn.ModuleDict | None) -> None:
        super().__init__()
        self.layers: ModuleList[S4Block] = ModuleList(layers)
        self.norm = norm


class S4Block(nn.Module):
    """A layer with its norm, before it or after the residual connection, dropout and stochastic depth."""

    def __init__(
        self,
        size: int,
        layer: MixingLayer,
        *,
        is_residual: bool,
        has_norm: bool,
        prenorm: bool,
        dropout: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.norm = _norm(size) if has_norm else None
        self.is_residual, self.prenorm = is_residual, prenorm
        self.dropout, self.drop_path = Dropout(dropout), drop_path

    def forward(self, x: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        """x (batch, length, size)."""
        return self._finish(x, self.layer.mix(self._begin(x), memory, memory_bias))

    def step(self, x: Tensor, state: BeamState, memory_bias: Tensor) -> tuple[Tensor, BeamState]:
        """The newest tokens x (U, B, size)."""
        update, state = self.layer.step(self._begin(x), state, memory_bias)
        return self._finish(x, update), state

    def _begin(self, x: Tensor) -> Tensor:
        return _normalized(self.norm, x) if self.prenorm else x

    def _finish(self, x: Tensor, update: Tensor) -> Tensor:
        if self.is_residual:
            update = x + self._drop_paths(self.dropout(update))
        return update if self.prenorm else _normalized(self.norm, update)

    def _drop_paths(self, x: Tensor) -> Tensor:
        """Zero the update of a fraction of the utterances in training, and scale the others up."""
        if not self.training or self.drop_path == 0:
            return x
        kept = torch.rand(x.size(0), 1, 1, device=x.device) >= self.drop_path
        return x * (kept / (1 - self.drop_path)).to(x.dtype)


def _norm(size: int) -> nn.ModuleDict:
    return nn.ModuleDict({"norm": nn.LayerNorm(size)})


def _normalized(norm: nn.ModuleDict | None, x: Tensor) -> Tensor:
    out: Tensor = x if norm is None else norm["norm"](x)
    return out
