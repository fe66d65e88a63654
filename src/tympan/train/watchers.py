"""Who watches a run: chosen by its configuration."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import torch

from tympan.config.train import TrainConfig
from tympan.data.batch import Batches
from tympan.train.attention_plots import AttentionPlots
from tympan.train.curves import Curves, TensorBoard
from tympan.train.progress import ProgressBar
from tympan.train.weights_and_biases import WeightsAndBiases
from tympan.train.writer import Watcher

FRAMES_PER_SECOND = 100.0
"""Of stored features: the frame shift of Kaldi and of every recipe here is 10 ms."""


def build_watchers(
    config: TrainConfig,
    directory: Path,
    valid: Batches,
    *,
    device: torch.device,
    processes: int,
    is_resumed: bool,
) -> list[Watcher]:
    """The progress bar on a terminal, and what the options ask for."""
    watchers: list[Watcher] = []
    has_speech = "speech" in valid.names
    if ProgressBar.is_wanted():
        rate = (valid.sample_rate or FRAMES_PER_SECOND) if has_speech else None
        watchers.append(ProgressBar(frames_per_second=rate, processes=processes))
    if config.use_matplotlib:
        watchers.append(Curves(directory / "images"))
    if config.use_tensorboard:
        watchers.append(TensorBoard(directory / "tensorboard"))
    if config.num_att_plot > 0 and config.fsdp and processes > 1:
        logging.warning("--fsdp true: attention is not plotted, since no process holds the whole model")
    elif config.num_att_plot > 0 and has_speech:
        watchers.append(AttentionPlots(directory / "att_ws", valid.examples(config.num_att_plot), device=device))
    if config.use_wandb:
        watchers.append(
            WeightsAndBiases(
                directory=directory,
                config={item.name: getattr(config, item.name) for item in fields(config)},
                id=config.wandb_id,
                is_resumed=is_resumed,
                project=config.wandb_project or "tympan",
                entity=config.wandb_entity,
                name=config.wandb_name or directory.resolve().name,
                allow_val_change=config.wandb_allow_val_change,
            )
        )
    return watchers
