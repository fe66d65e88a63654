"""The layers of an encoder by the names of its parameters, for learning rates and freezing by layer."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAYER = re.compile(r"^(?P<list>(?:frontend|encoder|postencoder)\.(?:.*\.)?(?P<name>[A-Za-z_]\w*))\.(?P<index>\d+)\.")
_USUAL = ("encoders", "layers", "blocks")
_BELOW = ("frontend", "preencoder", "encoder", "postencoder", "normalize", "specaug")
"""Parts between the audio and the encoder's output."""


def encoder_layers(names: Iterable[str]) -> list[str]:
    """Prefixes of the encoder's layers, such as `encoder.encoders.0`, from the input to the output.

    The layers of a pretrained frontend come first. Empty if the encoder has no list of layers.
    """
    found: dict[str, set[int]] = {}
    for name in names:
        match = _LAYER.match(name)
        if match and match["name"] in _USUAL:
            found.setdefault(match["list"], set()).add(int(match["index"]))
    ordered = sorted(found, key=lambda prefix: _BELOW.index(prefix.partition(".")[0]))
    return [f"{prefix}.{index}" for prefix in ordered for index in sorted(found[prefix])]


def depth_of(name: str, layers: list[str]) -> int:
    """Index of the layer with this parameter: 0 below the first layer, `len(layers) + 1` for decoder and output.

    Normalization after the last layer counts as part of it.
    """
    for index, prefix in enumerate(layers):
        if name.startswith(f"{prefix}."):
            return index + 1
    if name.partition(".")[0] not in _BELOW:
        return len(layers) + 1
    below = [index for index, prefix in enumerate(layers) if _order(prefix) < _order(name) + is_final_norm(name)]
    return below[-1] + 1 if below else 0


def is_final_norm(name: str) -> bool:
    """Whether this is a parameter of the normalization after the last encoder layer."""
    return ".after_norm." in name or ".ln_post." in name


def _order(name: str) -> int:
    return _BELOW.index(name.partition(".")[0])


def below_output(names: Iterable[str]) -> list[str]:
    """First components of the parameters up to the encoder's output."""
    return sorted({name.partition(".")[0] for name in names} & set(_BELOW))
