"""The layers of `decoder: s4`. Their parameters are the keys of an entry of `decoder_conf layer`.

Shapes: x (batch, length, size); memory (batch, frames, size). In steps: U utterances, B beams, x (U, B, size).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.config.registry import Registry
from tympan.errors import UserError
from tympan.nn.activation import get_activation
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.beam_state import PER_UTTERANCE, STATIC, BeamState
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32, full_precision
from tympan.nn.state_space import Recurrence, StateSpace, convolve

_LAYERS = Registry(
    "layer",
    {
        "s4": "tympan.models.decoder.s4_layers:S4Layer",
        "mha": "tympan.models.decoder.s4_layers:MemoryAttention",
        "ff": "tympan.models.decoder.s4_layers:FeedForward",
    },
    supplied=["size"],
)


class MixingLayer(Protocol):
    """A layer for whole sequences (`mix`) and for steps."""

    def mix(self, x: Tensor, memory: Tensor, memory_bias: Tensor, /) -> Tensor: ...

    def start(self, memory: Tensor, beams: int, /) -> BeamState: ...

    def step(self, x: Tensor, state: Any, memory_bias: Tensor, /) -> tuple[Tensor, BeamState]: ...


@dataclass(frozen=True)
class SpaceState(BeamState):
    """The state of a state space model: its size does not grow with the text."""

    hidden: Tensor  # (U, B, size, n), complex
    recurrence: Recurrence = field(metadata=STATIC)


@dataclass(frozen=True)
class MemoryState(BeamState):
    """Keys and values of the encoder's frames."""

    memory: tuple[Tensor, Tensor] = field(metadata=PER_UTTERANCE)


class S4Layer(nn.Module):
    """`_name_: s4`: one state space model per channel, then an activation and a gated linear layer.

    Only HiPPO-LegS with a low-rank part (`measure: legs`, `mode: nplr`). `lr` is the learning rate of the state
    space models except their output C; 0: they are not trained. As in ESPnet2, other values have an effect only with
    `--exclude_weight_decay true`, and then these parameters have no weight decay.
    """

    def __init__(
        self,
        *,
        size: int,
        d_state: Annotated[int, Range(4, 1_000)] = 64,
        l_max: None = None,
        channels: Literal[1] = 1,
        bidirectional: Literal[False] = False,
        activation: Literal["gelu", "relu", "tanh", "swish", "sigmoid"] = "gelu",
        postact: Literal["glu"] = "glu",
        hyper_act: None = None,
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        tie_dropout: Literal[False] = False,
        bottleneck: None = None,
        gate: None = None,
        transposed: Literal[False] = False,
        verbose: bool = False,
        measure: Literal["legs"] = "legs",
        rank: Literal[1] = 1,
        dt_min: Annotated[float, Range(1e-8, 1_000)] = 0.001,
        dt_max: Annotated[float, Range(1e-8, 1_000)] = 0.1,
        deterministic: Literal[False] = False,
        lr: Annotated[float | None, Range(0, 1_000)] = None,
        mode: Literal["nplr"] = "nplr",
        n_ssm: Annotated[int | None, Range(1, 1_000_000)] = None,
    ) -> None:
        super().__init__()
        copies = size if n_ssm is None else n_ssm
        if d_state % 2:
            raise UserError(f"d_state must be even, found {d_state}")
        if size % copies:
            raise UserError(f"n_ssm must divide the encoder's output size {size}, found {n_ssm}")
        if dt_min > dt_max:
            raise UserError(f"dt_min must be at most dt_max, found {dt_min} and {dt_max}")
        self.D = nn.Parameter(torch.randn(1, size))
        space = StateSpace(size, states=d_state, copies=copies, dt_min=dt_min, dt_max=dt_max, lr=lr)
        self.kernel = nn.ModuleDict({"kernel": space})
        self.activation = get_activation(activation)
        self.dropout = Dropout(dropout)
        self.output_linear = nn.Sequential(nn.Linear(size, 2 * size), nn.GLU())

    @property
    def space(self) -> StateSpace:
        space: StateSpace = self.kernel["kernel"]  # type: ignore[assignment]
        return space

    def mix(self, x: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        with full_precision(x):
            u = at_least_float32(x)
            y = convolve(u, self.space.kernel(x.size(1))) + u * self.D
        return self._transform(y.to(x.dtype))

    def start(self, memory: Tensor, beams: int) -> SpaceState:
        recurrence = self.space.recurrence()
        hidden = recurrence.plus.new_zeros(memory.size(0), beams, *recurrence.plus.shape)
        return SpaceState(hidden, recurrence)

    def step(self, x: Tensor, state: SpaceState, memory_bias: Tensor) -> tuple[Tensor, SpaceState]:
        with full_precision(x):
            u = at_least_float32(x)
            hidden = state.recurrence.advance(state.hidden, u)
            y = state.recurrence.read(hidden) + u * self.D
        return self._transform(y.to(x.dtype)), replace(state, hidden=hidden)

    def _transform(self, y: Tensor) -> Tensor:
        out: Tensor = self.output_linear(self.dropout(self.activation(y)))
        return out


class MemoryAttention(MultiHeadedAttention):
    """`_name_: mha`: attention to the encoder's frames."""

    def __init__(
        self,
        *,
        size: int,
        n_head: Annotated[int, Range(1, 10_000)],
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        transposed: Literal[False] = False,
    ) -> None:
        if size % n_head:
            raise UserError(f"n_head must divide the encoder's output size {size}, found {n_head}")
        super().__init__(n_head, size, dropout)

    def mix(self, x: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        return self.attend_to(x, memory, memory_bias)

    def start(self, memory: Tensor, beams: int) -> MemoryState:
        return MemoryState(self.project_memory(memory))

    def step(self, x: Tensor, state: MemoryState, memory_bias: Tensor) -> tuple[Tensor, MemoryState]:
        return self.attend(self.project_query(x), *state.memory, memory_bias), state


class FeedForward(nn.Module):
    """`_name_: ff`: two linear layers, the inner one with `expand` times the size."""

    def __init__(
        self,
        *,
        size: int,
        expand: Annotated[int, Range(1, 1_000)] = 2,
        d_output: None = None,
        transposed: Literal[False] = False,
        activation: Literal["gelu", "relu", "tanh", "swish", "sigmoid"] = "gelu",
        initializer: None = None,
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        tie_dropout: Literal[False] = False,
    ) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(size, expand * size), get_activation(activation))
        self.ff = nn.Sequential(inner, Dropout(dropout), nn.Linear(expand * size, size))

    def mix(self, x: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        out: Tensor = self.ff(x)
        return out

    def start(self, memory: Tensor, beams: int) -> BeamState:
        return BeamState()

    def step(self, x: Tensor, state: BeamState, memory_bias: Tensor) -> tuple[Tensor, BeamState]:
        out: Tensor = self.ff(x)
        return out, state


def build_layer(conf: Mapping[str, Any], number: int, *, size: int, dropout: float) -> MixingLayer:
    """A layer from its entry in the list `layer`; without a `dropout` of its own it has the decoder's."""
    where = f"decoder_conf layer {number}"
    kind = conf.get("_name_")
    if kind not in _LAYERS.names():  # a class outside of Tympan is not imported: models must load safely
        raise UserError(f"{where}: _name_ must be one of {', '.join(_LAYERS.names())}, found {kind}")
    options = {key: value for key, value in conf.items() if key != "_name_"}
    if options.get("dropout") is None:
        options["dropout"] = dropout
    try:
        layer: MixingLayer = _LAYERS.build(kind, options, size=size)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return layer
