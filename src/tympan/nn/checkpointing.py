"""Activation checkpointing: recompute a layer's activations in the backward pass, to save memory."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from tympan.nn.batch_norm import frozen_statistics


def call_layer(layer: nn.Module, *args: object, is_checkpointed: bool) -> Any:
    """`layer(*args)`. If checkpointed, the recomputation uses the same random numbers and updates no statistics."""
    if not is_checkpointed:
        return layer(*args)
    return checkpoint(layer, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), frozen_statistics(layer)))
