"""Build the batches of a run from its configuration and task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from tympan.config.batches import BatchOptions
from tympan.config.train import TrainConfig
from tympan.data.batch import Batches
from tympan.data.batch_plan import BatchPlan, plan_batches
from tympan.data.channels import report_channels
from tympan.data.dataset import UtteranceDataset
from tympan.data.lengths import measure_shapes
from tympan.data.loader import EpochBatches
from tympan.data.preprocess import Preprocessor
from tympan.data.shapes import Shapes, read_shapes
from tympan.data.splits import joined_list
from tympan.errors import UserError
from tympan.runtime.comm import Comm
from tympan.training.task import AnyTask, Tokens

Config = TypeVar("Config", bound=TrainConfig)


@dataclass(frozen=True)
class TrainingData:
    """Training and validation data of a run."""

    train: Batches
    valid: Batches


def build_data(task: AnyTask, config: TrainConfig, *, comm: Comm, pin_memory: bool = False) -> TrainingData:
    """Build training and validation batches from a completed configuration.

    Without shape files, the length of every utterance is measured. With shape files, data files are only opened.
    """
    tokens = task.tokens(config)
    for option in ("train_shape_file", "valid_shape_file"):
        if missing := [path for path in getattr(config, option) if not os.path.exists(path)]:
            raise UserError(f"--{option} {missing[0]}: no such file; --collect_stats true writes the shape files")
    train, valid = _dataset(task, config, is_train=True), _dataset(task, config, is_train=False)
    train_plan = _plan(train, config.train_shape_file, _train_options(config, comm), tokens, config.num_workers)
    valid_plan = _plan(valid, config.valid_shape_file, _valid_options(config), tokens, config.num_workers)
    return TrainingData(
        train=EpochBatches(
            train,
            train_plan,
            seed=config.seed,
            shuffle=True,
            shuffle_within_batch=config.shuffle_within_batch,
            num_iters_per_epoch=config.num_iters_per_epoch,
            stretch=train.preprocess.stretch if isinstance(train.preprocess, Preprocessor) else 1.0,
            rank=comm.rank,
            world_size=comm.size,
            num_workers=config.num_workers,
            pin_memory=pin_memory,
        ),
        valid=EpochBatches(
            valid,
            valid_plan,
            rank=comm.rank,
            world_size=comm.size,
            num_workers=config.num_workers,
            pin_memory=pin_memory,
        ),
    )


def with_joined_lists(config: Config) -> Config:
    """The configuration with one file instead of every directory of parts (`--multiple_iterator`)."""
    if not config.multiple_iterator:
        return config
    folder = Path(config.output_dir or ".") / "joined"
    triples = [
        (str(joined_list(Path(path), folder)), name, kind)
        for path, name, kind in config.train_data_path_and_name_and_type
    ]
    shapes = [str(joined_list(Path(path), folder)) for path in config.train_shape_file]
    return replace(config, train_data_path_and_name_and_type=triples, train_shape_file=shapes)


def build_plain_data(task: AnyTask, config: TrainConfig) -> TrainingData:
    """Build both datasets without augmentation, for --collect_stats.

    Shape files that exist select the utterances of one job, as in ESPnet2's asr.sh. Those that are still to be written
    do not.
    """
    sides = []
    for is_train in (True, False):
        dataset = _dataset(task, config, is_train=is_train, is_plain=True)
        options = BatchOptions(batch_type="unsorted", batch_size=config.batch_size)
        plan = plan_batches([Shapes(dataset.names[0], np.zeros(len(dataset), dtype=np.int64))], options)
        sides.append(EpochBatches(dataset, plan, num_workers=config.num_workers))
    return TrainingData(*sides)


def _dataset(task: AnyTask, config: TrainConfig, *, is_train: bool, is_plain: bool = False) -> UtteranceDataset:
    triples = config.train_data_path_and_name_and_type if is_train else config.valid_data_path_and_name_and_type
    shape_files = config.train_shape_file if is_train else config.valid_shape_file
    selects = bool(shape_files) and not (is_plain and not Path(shape_files[0]).exists())
    dataset = UtteranceDataset(
        triples,
        keys=shape_files[0] if selects else None,
        sample_rate=0 if config.allow_multi_rates else task.sample_rate(config),
        resample=config.resample,
        channel=task.channel(config),
    )
    report_channels(dataset)
    is_augmented = is_train and not is_plain
    dataset.preprocess = task.preprocess(config, sample_rate=dataset.sample_rate, is_augmented=is_augmented)
    return dataset


def _plan(
    dataset: UtteranceDataset,
    files: list[str],
    options: BatchOptions,
    tokens: Mapping[str, Tokens],
    num_workers: int,
) -> BatchPlan:
    if files:
        return _plan_shapes([read_shapes(path, dataset.index.ids) for path in files], options)
    shapes = measure_shapes(dataset, dataset.names, nj=max(num_workers, 1))
    # As in the shape files: a token counts as a vector of the size of the vocabulary, which matters for numel.
    counted = [
        replace(shape, dim=len(tokens[shape.name].tokens))
        if shape.name in tokens and dataset.types[shape.name] == "text"
        else shape
        for shape in shapes
    ]
    return _plan_shapes(counted, options)


def _plan_shapes(shapes: list[Shapes], options: BatchOptions) -> BatchPlan:
    """Plan the batches. Raise UserError if batch_bins is smaller than the shortest utterance."""
    if options.batch_type in ("length", "numel", "bucket"):
        sizes = [shape.lengths * (shape.dim if options.batch_type == "numel" else 1) for shape in shapes]
        largest = np.max(sizes, axis=0)
        smallest = int(largest.min()) if len(largest) else 0
        if options.batch_bins < smallest:
            raise UserError(
                f"--batch_bins {options.batch_bins} is too small: the shortest utterance has {smallest} elements. "
                "--batch_bins limits the number of elements in a batch, including padding; typical values are in "
                "the millions"
            )
    return plan_batches(shapes, options)


def _train_options(config: TrainConfig, comm: Comm) -> BatchOptions:
    """Multiply batch sizes by the number of processes if batch_size is per device, as in ESPnet1."""
    share = comm.size if config.batch_size_per_device else 1
    return replace(config, batch_size=config.batch_size * share, batch_bins=config.batch_bins * share)


def _valid_options(config: TrainConfig) -> BatchOptions:
    return replace(
        config,
        batch_type=config.valid_batch_type or config.batch_type,
        batch_size=config.valid_batch_size or config.batch_size,
        batch_bins=config.valid_batch_bins or config.batch_bins,
        drop_last_iter=False,
    )
