"""The batches of a run, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tympan.config.train import TrainConfig
from tympan.data.augment import WaveformAugmentation
from tympan.data.batches import BatchOptions, BatchPlan, plan_batches
from tympan.data.dataset import UtteranceDataset
from tympan.data.loader import EpochIterFactory
from tympan.data.preprocess import Preprocessor, TextPreprocessor
from tympan.data.shapes import Shapes, read_shapes
from tympan.errors import UserError
from tympan.runtime.comm import Comm
from tympan.text.vocabulary import Vocabulary, read_token_list


@dataclass(frozen=True)
class TrainingData:
    """Both sides of a run's data."""

    train: EpochIterFactory
    valid: EpochIterFactory


def read_vocabulary(config: TrainConfig) -> Vocabulary:
    """The tokens of `token_list`: a file, or the list itself as a saved config holds it."""
    unk = _conf(config, "preprocessor_conf").get("unk_symbol", "<unk>")
    if config.token_list is None:
        raise UserError("--token_list is needed: a file with a token a line, as `tympan make_token_list` writes it")
    if isinstance(config.token_list, str):
        return read_token_list(config.token_list, unk_symbol=unk)
    return Vocabulary(config.token_list, unk_symbol=unk)


def build_data(config: TrainConfig, *, vocabulary: Vocabulary, comm: Comm, pin_memory: bool = False) -> TrainingData:
    """Train and validation batches. Files are opened, nothing is read yet."""
    share = comm.size if config.batch_size_per_device else 1
    train = _dataset(config, vocabulary, is_train=True)
    valid = _dataset(config, vocabulary, is_train=False)
    options = _batch_options(config)
    train_plan = _plan(train, config.train_shape_file, _multiplied(options, share), option="train_shape_file")
    valid_plan = _plan(valid, config.valid_shape_file, _valid_options(config, options), option="valid_shape_file")
    common: dict[str, Any] = {
        "rank": comm.rank,
        "world_size": comm.size,
        "num_workers": config.num_workers,
        "pin_memory": pin_memory,
    }
    augmentation = getattr(train.preprocess, "augmentation", None)
    return TrainingData(
        train=EpochIterFactory(
            train,
            train_plan,
            seed=config.seed,
            shuffle=True,
            shuffle_within_batch=config.shuffle_within_batch,
            num_iters_per_epoch=config.num_iters_per_epoch,
            stretch=1.0 if augmentation is None else augmentation.stretch,
            **common,
        ),
        valid=EpochIterFactory(valid, valid_plan, **common),
    )


def build_plain_data(config: TrainConfig, *, vocabulary: Vocabulary) -> TrainingData:
    """Both sets as they lie in their files, unaugmented: for --collect_stats."""
    sides = []
    for is_train in (True, False):
        dataset = _dataset(config, vocabulary, is_train=is_train, is_plain=True)
        options = BatchOptions(batch_type="unsorted", batch_size=config.batch_size)
        sides.append(EpochIterFactory(dataset, _plan(dataset, [], options, option=""), num_workers=config.num_workers))
    return TrainingData(*sides)


def _dataset(
    config: TrainConfig, vocabulary: Vocabulary, *, is_train: bool, is_plain: bool = False
) -> UtteranceDataset:
    side = "train" if is_train else "valid"
    triples = getattr(config, f"{side}_data_path_and_name_and_type")
    if not triples:
        raise UserError(
            f"--{side}_data_path_and_name_and_type is needed: PATH,NAME,TYPE, such as dump/train/text,text,text"
        )
    shape_files = [] if is_plain else getattr(config, f"{side}_shape_file")
    conf = _conf(config, "preprocessor_conf")
    rate = 0 if config.allow_multi_rates else (conf.get("fs") or None)
    dataset = UtteranceDataset(triples, keys=shape_files[0] if shape_files else None, sample_rate=rate)
    if getattr(config, "use_preprocessor", True):
        augmentation = None
        if is_train and not is_plain and hasattr(config, "speed_perturb"):
            augmentation = _augmentation(config, conf, dataset.sample_rate)
        dataset.preprocess = Preprocessor(
            text=_text(config, conf, vocabulary),
            augmentation=augmentation,
            speech_volume_normalize=getattr(config, "speech_volume_normalize", None),
            force_single_channel=conf.get("force_single_channel", False),
            min_sample_size=conf.get("min_sample_size", -1),
            audio_pad_value=conf.get("audio_pad_value", 0.0),
            speech_name=conf.get("speech_name", "speech"),
            text_name=conf.get("text_name", "text"),
        )
    return dataset


def _text(config: Any, conf: dict[str, Any], vocabulary: Vocabulary) -> TextPreprocessor:
    return TextPreprocessor(
        vocabulary,
        token_type=config.token_type,
        bpemodel=config.bpemodel,
        cleaner=config.cleaner,
        g2p=config.g2p,
        non_linguistic_symbols=config.non_linguistic_symbols,
        unk_symbol=conf.get("unk_symbol", "<unk>"),
        space_symbol=conf.get("space_symbol", "<space>"),
        delimiter=conf.get("delimiter"),
    )


def _augmentation(config: Any, conf: dict[str, Any], rate: int | None) -> WaveformAugmentation | None:
    if not (config.speed_perturb or config.rir_scp or config.noise_scp or conf.get("data_aug_effects")):
        return None
    return WaveformAugmentation(
        seed=config.seed,
        rate=rate,
        speed_perturb=config.speed_perturb,
        rir_scp=config.rir_scp,
        rir_apply_prob=config.rir_apply_prob,
        noise_scp=config.noise_scp,
        noise_apply_prob=config.noise_apply_prob,
        noise_db_range=config.noise_db_range,
        data_aug_effects=conf.get("data_aug_effects"),
        data_aug_num=tuple(conf.get("data_aug_num", (1, 1))),
        data_aug_prob=conf.get("data_aug_prob", 0.0),
        force_single_channel=conf.get("force_single_channel", False),
    )


def _plan(dataset: UtteranceDataset, files: Sequence[str], options: BatchOptions, *, option: str) -> BatchPlan:
    if files:
        shapes = [read_shapes(path, dataset.index.ids) for path in files]
    elif options.batch_type == "unsorted":
        shapes = [Shapes(dataset.names[0], np.zeros(len(dataset), dtype=np.int64))]
    else:
        raise UserError(
            f"--batch_type {options.batch_type} needs --{option}, which --collect_stats true makes; "
            "--batch_type unsorted does without"
        )
    return plan_batches(shapes, options)


def _batch_options(config: TrainConfig) -> BatchOptions:
    return BatchOptions(
        batch_type=config.batch_type,
        batch_size=config.batch_size,
        batch_bins=config.batch_bins,
        fold_length=tuple(config.fold_length),
        min_batch_size=config.min_batch_size,
        max_batch_size=config.max_batch_size,
        sort_in_batch=config.sort_in_batch,
        sort_batch=config.sort_batch,
        drop_last_iter=config.drop_last_iter,
        num_buckets=config.num_buckets,
    )


def _multiplied(options: BatchOptions, share: int) -> BatchOptions:
    """ESPnet1's counting: each device takes a whole batch."""
    return replace(options, batch_size=options.batch_size * share, batch_bins=options.batch_bins * share)


def _valid_options(config: TrainConfig, options: BatchOptions) -> BatchOptions:
    return replace(
        options,
        batch_type=config.valid_batch_type or config.batch_type,
        batch_size=config.valid_batch_size or config.batch_size,
        batch_bins=config.valid_batch_bins or config.batch_bins,
        drop_last_iter=False,
    )


def _conf(config: TrainConfig, name: str) -> dict[str, Any]:
    return dict(getattr(config, name, None) or {})
