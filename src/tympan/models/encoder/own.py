"""Build the encoder of a configuration. A user's class is checked, and may have ESPnet2's interface.

ESPnet2's encoders have a method `output_size()` and return a tuple (output, lengths, states).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config import choices
from tympan.config.registry import is_import
from tympan.errors import UserError
from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Encoder

_PROBES = (64, 128, 256, 512, 1024, 2048)
"""Numbers of frames at which the length of an ESPnet2 encoder's output is measured."""


def build_encoder(name: str | None, conf: Mapping[str, Any], *, input_size: int, option: str = "encoder") -> Encoder:
    """Return the encoder of this name; None: the features stay. UserError if a user's class lacks a member.

    `option` is the option that names the encoder, for messages.
    """
    if name is None:
        return NoEncoder(input_size)
    if is_import(name):
        return _own_encoder(name, conf, input_size)
    encoder: Encoder = choices.ENCODERS.for_option(option).build(name, conf, input_size=input_size)
    return encoder


class NoEncoder(nn.Module):
    """`encoder: null`: CTC and the decoder use the features, such as those of a pretrained frontend."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.output_size = size
        self.register_buffer("like", torch.zeros(()), persistent=False)

    like: Tensor

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """The features in the precision of the model."""
        return EncoderOutput(features.to(self.like.dtype), lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


def _own_encoder(name: str, conf: Mapping[str, Any], input_size: int) -> Encoder:
    try:
        built = choices.ENCODERS.build(name, conf, input_size=input_size)
    except TypeError as error:
        if "unexpected keyword argument 'input_size'" not in str(error):
            raise
        raise UserError(
            f"encoder {name}: __init__ must take input_size, the number of values per frame. docs/extending.md has a "
            "complete example"
        ) from None
    return _as_encoder(built, name, input_size)


def _as_encoder(built: Any, name: str, input_size: int) -> Encoder:
    has_forward = isinstance(built, nn.Module) and type(built).forward is not nn.Module.forward
    size = getattr(built, "output_size", None)
    for method, arguments in (("forward", "features, lengths"), ("output_lengths", "lengths")):
        if not _takes(getattr(built, method, None), arguments.count(",") + 1):
            raise UserError(
                f"encoder {name}: {method} must take ({arguments}). docs/extending.md has a complete example"
            )
    if has_forward and callable(size):
        kind = type(built)
        # The same object with the same parameter names, so that weights of ESPnet2 load.
        built.__class__ = type(kind.__name__, (_EspnetForm, kind), {"__module__": kind.__module__})
        built._tympan_input_size = input_size
        return built  # type: ignore[no-any-return]
    missing = [] if isinstance(built, nn.Module) else ["it is not a torch.nn.Module"]
    missing += [] if has_forward else ["it has no method forward(features, lengths)"]
    if not isinstance(size, int):
        missing.append("it has no attribute output_size, the number of values per output frame")
    if not callable(getattr(built, "output_lengths", None)):
        missing.append("it has no method output_lengths(lengths), the number of output frames for a number of frames")
    if missing:
        raise UserError(f"encoder {name}: {'; '.join(missing)}. docs/extending.md has a complete example")
    checked = type(built)
    built.__class__ = type(checked.__name__, (_Checked, checked), {"__module__": checked.__module__})
    return built  # type: ignore[no-any-return]


def _takes(method: Any, number: int) -> bool:
    """Whether a method can be called with this number of arguments. True for what is no method, or not Python."""
    try:
        inspect.signature(method).bind(*range(number))
    except ValueError:
        return True
    except TypeError:
        return not callable(method)
    return True


class _Checked(nn.Module):
    """Checks what a user's encoder returns. The values of the lengths are checked once: reading them takes time."""

    output_size: int
    output_lengths: Callable[[Tensor], Tensor]
    _tympan_knows_lengths = False

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        found = super().forward(features, lengths)
        if not isinstance(found, EncoderOutput):
            raise UserError(
                f"encoder {_name(self)}: forward must return "
                "tympan.models.encoder.output.EncoderOutput(out, lengths), or have ESPnet2's interface with a method "
                f"output_size(); it returned {type(found).__name__}"
            )
        _check(found, self, int(self.output_size))
        if not self._tympan_knows_lengths:
            _check_lengths(found, self, self.output_lengths(lengths))
            self._tympan_knows_lengths = True
        return found


def _check(found: EncoderOutput, encoder: nn.Module, size: int) -> None:
    """Check that the output has the announced number of values per frame, and integer lengths."""
    if found.out.dim() != 3 or found.out.size(-1) != size:
        raise UserError(
            f"encoder {_name(encoder)}: output_size is {size}, so forward must return an output of the shape "
            f"(batch, frames, {size}); it has the shape {tuple(found.out.shape)}"
        )
    lengths: object = found.lengths
    if isinstance(lengths, Tensor) and lengths.shape == found.out.shape[:1] and not lengths.is_floating_point():
        return
    kind = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
    raise UserError(
        f"encoder {_name(encoder)}: forward must return the lengths as a tensor of integers (batch,); it returned "
        f"{kind}"
    )


def _check_lengths(found: EncoderOutput, encoder: nn.Module, announced: Tensor | None) -> None:
    """Check the values of the lengths. `announced` are those of `output_lengths`; None: not compared."""
    longest, frames = int(found.lengths.max()), found.out.size(1)
    if longest > frames:
        raise UserError(
            f"encoder {_name(encoder)}: forward returned a length of {longest}, but an output of {frames} frames"
        )
    if announced is not None and announced.tolist() != found.lengths.tolist():
        raise UserError(
            f"encoder {_name(encoder)}: forward returned the lengths {found.lengths.tolist()}, but output_lengths "
            f"returned {announced.tolist()} for the same recordings"
        )


def _name(encoder: nn.Module) -> str:
    return f"{type(encoder).__module__}:{type(encoder).__name__}"


class _EspnetForm(nn.Module):
    """Gives an encoder with ESPnet2's interface the members of `Encoder`."""

    _tympan_input_size: int
    _tympan_knows_lengths = False

    @property
    def output_size(self) -> int:
        return int(super().output_size())  # type: ignore[misc]

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        found = super().forward(features, lengths)
        if not isinstance(found, tuple) or len(found) < 2:
            raise UserError(
                f"encoder {_name(self)}: with a method output_size(), forward must return a tuple "
                f"(output, lengths, states), as in ESPnet2; it returned {type(found).__name__}"
            )
        out, out_lengths, *_ = found
        inner: tuple[tuple[int, Tensor], ...] = ()
        if isinstance(out, tuple):  # with the outputs of inner layers
            out, layers = out
            inner = tuple((int(layer), tensor) for layer, tensor in layers)
        encoded = EncoderOutput(out, out_lengths, inner)
        _check(encoded, self, self.output_size)
        if not self._tympan_knows_lengths:
            _check_lengths(encoded, self, None)
            self._tympan_knows_lengths = True
        return encoded

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Measured: ESPnet2's encoders have no such method. The result may differ by a frame for some lengths."""
        ratio, offset = self._rule
        return (torch.floor(lengths * ratio + offset)).long().clamp(min=0) * (lengths > 0)

    @functools.cached_property
    def _rule(self) -> tuple[float, float]:
        """The largest (slope, offset) that is never more than the measured number of output frames."""
        like = next(self.parameters(), torch.zeros(()))
        was_training = self.training
        self.eval()
        found = []
        with torch.no_grad():
            for frames in _PROBES:
                features = like.new_zeros(1, frames, self._tympan_input_size)
                found.append(int(self.forward(features, torch.tensor([frames], device=like.device)).lengths))
        self.train(was_training)
        slope = (found[-1] - found[0]) / (_PROBES[-1] - _PROBES[0])
        return slope, min(number - slope * frames for number, frames in zip(found, _PROBES, strict=True))
