"""Gradual unfreezing: train the output layers at first, then one more encoder layer after every interval."""

from __future__ import annotations

import logging

from torch import nn

from tympan.errors import UserError
from tympan.models.layers import depth_of, encoder_layers
from tympan.nn.batch_norm import keep_statistics


class Unfreezing:
    """What is trained in an epoch depends only on the number of the epoch, so that a resumed run is the same."""

    def __init__(self, model: nn.Module, interval: int) -> None:
        names = [name for name, _ in model.named_parameters()]
        self._model = model
        self.interval = interval
        self.layers = encoder_layers(names)
        if not self.layers:
            raise UserError("--unfreeze_interval: the encoder of this model has no list of layers")
        self._depths = [
            (depth_of(name, self.layers), parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        if all(depth <= len(self.layers) for depth, _ in self._depths):
            raise UserError("--unfreeze_interval: only the encoder is trained, so the first epochs would train nothing")

    def start_epoch(self, epoch: int) -> None:
        """Freeze and unfreeze the parameters for this epoch (the first is 1)."""
        lowest = len(self.layers) + 1 - (epoch - 1) // self.interval
        for depth, parameter in self._depths:
            parameter.requires_grad_(depth >= lowest)
        keep_statistics(self._model)
        number = min(len(self.layers) + 1 - max(lowest, 0), len(self.layers))
        logging.info("epoch %d: %d of %d encoder layers are trained", epoch, number, len(self.layers))
