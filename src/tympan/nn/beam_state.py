"""State of a batched beam search step: tensors that are reordered together with the hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar, Union

import torch
from torch import Tensor

S = TypeVar("S", bound="BeamState")
Item = Union[Tensor, "BeamState"]
Value = Union[Item, None, "list[Value]", "tuple[Value, ...]"]
"""The value of a field that is reordered with utterances or beams."""

PER_UTTERANCE = {"per": "utterance"}
"""Field metadata: the tensor is (utterances, ...), shared by the beams; unmarked ones are (utterances, beams, ...)."""
STATIC = {"per": "static"}
"""Field metadata: the value does not depend on utterances or beams."""


@dataclass(frozen=True)
class BeamState:
    """Base of every scorer's state. Subclasses are frozen dataclasses whose fields are tensors, other states,
    lists/tuples of tensors, None, or (marked `field(metadata=STATIC)`) anything that does not depend on utterances or
    beams.
    """

    def reorder(self: S, parents: Tensor) -> S:
        """New hypothesis k of utterance b continues old hypothesis parents[b, k]. parents: (utterances, beams)."""

        def chosen(item: Item) -> Item:
            return item.reorder(parents) if isinstance(item, BeamState) else _gather_beams(item, parents)

        return self._map(chosen, per_utterance=None)

    def keep(self: S, utterances: Tensor) -> S:
        """Keep only these utterances (indices into the first axis)."""

        def chosen(item: Item) -> Item:
            return item.keep(utterances) if isinstance(item, BeamState) else item.index_select(0, utterances)

        return self._map(chosen, per_utterance=chosen)

    def with_fixed_shapes(self: S) -> S:
        """The same state in tensors that keep their shapes from step to step, for devices that compile every shape."""

        def fixed(item: Item) -> Item:
            return item.with_fixed_shapes() if isinstance(item, BeamState) else item

        return self._map(fixed, per_utterance=fixed)

    def _map(self: S, per_beam: Callable[[Item], Item], *, per_utterance: Callable[[Item], Item] | None) -> S:
        changes: dict[str, Value] = {}
        for f in fields(self):
            kind = f.metadata.get("per")
            function = {None: per_beam, "utterance": per_utterance, "static": None}[kind]
            if function is not None:
                changes[f.name] = _apply(function, getattr(self, f.name))
        return replace(self, **changes)


def _apply(function: Callable[[Item], Item], value: Value) -> Value:
    if value is None:
        return None
    if isinstance(value, Tensor | BeamState):
        return function(value)
    if isinstance(value, list):
        return [_apply(function, item) for item in value]
    return tuple(_apply(function, item) for item in value)


def _gather_beams(tensor: Tensor, parents: Tensor) -> Tensor:
    utterances, beams = parents.shape
    first_rows = torch.arange(utterances, device=parents.device).unsqueeze(1) * tensor.size(1)
    rows = (parents + first_rows).flatten()
    return tensor.flatten(0, 1).index_select(0, rows).view(utterances, beams, *tensor.shape[2:])
