"""State of a batched beam search step: tensors that follow the hypotheses around."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound="BeamState")

PER_UTTERANCE = {"per": "utterance"}
"""Field metadata: the tensor is (utterances, ...), shared by the beams; unmarked ones are (utterances, beams, ...)."""
STATIC = {"per": "static"}
"""Field metadata: the value follows neither utterances nor beams."""


@dataclass(frozen=True)
class BeamState:
    """Base of every scorer's state. Subclasses are frozen dataclasses whose fields are tensors, other states,
    lists/tuples of tensors, None, or (marked `field(metadata=STATIC)`) anything that follows neither utterances nor
    beams.
    """

    def reorder(self: S, parents: Tensor) -> S:
        """New hypothesis k of utterance b continues old hypothesis parents[b, k]. parents: (utterances, beams)."""
        return self._map(
            lambda t: t.reorder(parents) if isinstance(t, BeamState) else _gather_beams(t, parents), per_utterance=None
        )

    def keep(self: S, utterances: Tensor) -> S:
        """Only these utterances go on (indices into the first axis)."""

        def chosen(item: Any) -> Any:
            return item.keep(utterances) if isinstance(item, BeamState) else item.index_select(0, utterances)

        return self._map(chosen, per_utterance=chosen)

    def _map(self: S, per_beam: Any, *, per_utterance: Any) -> S:
        changes = {}
        for f in fields(self):
            kind = f.metadata.get("per")
            function = {None: per_beam, "utterance": per_utterance, "static": None}[kind]
            if function is not None:
                changes[f.name] = _apply(function, getattr(self, f.name))
        return replace(self, **changes)


def _apply(function: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor | BeamState):
        return function(value)
    return type(value)(_apply(function, item) for item in value)


def _gather_beams(tensor: Tensor, parents: Tensor) -> Tensor:
    utterances, beams = parents.shape
    first_rows = torch.arange(utterances, device=parents.device).unsqueeze(1) * tensor.size(1)
    rows = (parents + first_rows).flatten()
    return tensor.flatten(0, 1).index_select(0, rows).view(utterances, beams, *tensor.shape[2:])
