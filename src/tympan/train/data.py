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
from tympan.data.lengths import measure_shapes
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
        raise UserError("--token_list is needed: a file with a token a line, as `tympan tokenize_text` writes it")
    if isinstance(config.token_list, str):
        return read_token_list(config.token_list, unk_symbol=unk)
    return Vocabulary(config.token_list, unk_symbol=unk)


def build_data(config: TrainConfig, *, vocabulary: Vocabulary, comm: Comm, pin_memory: bool = False) -> TrainingData:
    """Train and validation batches. Lengths are measured where no shape files are given; else only files are opened."""
    share = comm.size if config.batch_size_per_device else 1
    train = _dataset(config, vocabulary, is_train=True)
    valid = _dataset(config, vocabulary, is_train=False)
    options = _batch_options(config)
    train_plan = _plan(train, config.train_shape_file, _multiplied(options, share), vocabulary, config.num_workers)
    valid_plan = _plan(valid, config.valid_shape_file, _valid_options(config, options), vocabulary, config.num_workers)
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
        plan = plan_batches([Shapes(dataset.names[0], np.zeros(len(dataset), dtype=np.int64))], options)
        sides.append(EpochIterFactory(dataset, plan, num_workers=config.num_workers))
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
    rate = 0 if config.allow_multi_rates else _rate(conf.get("fs") or _conf(config, "frontend_conf").get("fs"))
    dataset = UtteranceDataset(triples, keys=shape_files[0] if shape_files else None, sample_rate=rate)
    if getattr(config, "use_preprocessor", True):
        _refuse_waveform_options(config, conf)
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
        nonsplit_symbol=conf.get("nonsplit_symbol"),
    )


def _augmentation(config: Any, conf: dict[str, Any], rate: int | None) -> WaveformAugmentation | None:
    asked = (
        config.speed_perturb,
        config.volume_perturb,
        config.rir_scp,
        config.noise_scp,
        conf.get("data_aug_effects"),
    )
    if not any(asked):
        return None
    return WaveformAugmentation(
        seed=config.seed,
        rate=rate,
        speed_perturb=config.speed_perturb,
        volume_perturb=config.volume_perturb,
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


def _plan(
    dataset: UtteranceDataset, files: Sequence[str], options: BatchOptions, vocabulary: Vocabulary, num_workers: int
) -> BatchPlan:
    if files:
        return plan_batches([read_shapes(path, dataset.index.ids) for path in files], options)
    measured = measure_shapes(dataset, dataset.names, nj=max(num_workers, 1))
    # As in the shape files: an element of text is a distribution over the vocabulary, which numel counts.
    is_text = [dataset.types[shape.name] == "text" for shape in measured]
    shapes = [
        replace(shape, dim=len(vocabulary)) if text else shape for shape, text in zip(measured, is_text, strict=True)
    ]
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


def _refuse_waveform_options(config: TrainConfig, conf: dict[str, Any]) -> None:
    """Stored features would be taken for samples of many channels, and be spoilt without a word."""
    if getattr(config, "input_size", None) is None:
        return
    names = ("speed_perturb", "volume_perturb", "rir_scp", "noise_scp", "speech_volume_normalize")
    given = [name for name in names if getattr(config, name)]
    given += [f"preprocessor_conf {name}" for name in ("data_aug_effects", "force_single_channel") if conf.get(name)]
    if given:
        raise UserError(f"{', '.join(given)}: works on recordings, but input_size says that features are given")


def _rate(fs: Any) -> int | None:
    """ESPnet2 also writes `16k`."""
    text = str(fs or "").lower()
    return None if not text else int(float(text[:-1]) * 1000) if text.endswith("k") else int(float(text))


def _conf(config: TrainConfig, name: str) -> dict[str, Any]:
    return dict(getattr(config, name, None) or {})
