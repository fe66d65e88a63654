"""From a training config to its iterators: the data half of what `asr_train` and `lm_train` set up."""

from __future__ import annotations

from typing import Any, Literal

from tympan.data.batches import BatchOptions, plan_batches
from tympan.data.dataset import UtteranceDataset
from tympan.data.lengths import measure_shapes
from tympan.data.loader import EpochIterFactory
from tympan.data.preprocess import Preprocessor, TextPreprocessor
from tympan.data.shapes import Shapes, read_shapes
from tympan.errors import UserError

Split = Literal["train", "valid"]


def build_dataset(config: Any, split: Split) -> UtteranceDataset:
    """The utterances of `{split}_data_path_and_name_and_type`; augmented if they are for training."""
    triples = getattr(config, f"{split}_data_path_and_name_and_type")
    if not triples:
        raise UserError(f"--{split}_data_path_and_name_and_type is missing: give PATH,NAME,TYPE for each data file")
    shape_files = getattr(config, f"{split}_shape_file")
    fs = getattr(config, "frontend_conf", None) or {}
    return UtteranceDataset(
        [tuple(triple) for triple in triples],
        preprocess=build_preprocessor(config, is_training=split == "train"),
        keys=shape_files[0] if shape_files else None,
        sample_rate=0 if config.allow_multi_rates else _whole_number(fs.get("fs")),
    )


def build_preprocessor(config: Any, *, is_training: bool) -> Preprocessor | None:
    """ESPnet2's `use_preprocessor` and the options it takes."""
    if not config.use_preprocessor:
        return None
    text = None
    if config.token_type is not None:
        if config.token_list is None:
            raise UserError("--token_list is missing: a file with one token a line (`tympan tokenize_text` makes one)")
        extra = dict(getattr(config, "preprocessor_conf", None) or {})
        text = TextPreprocessor(
            config.token_list,
            token_type=config.token_type,
            bpemodel=config.bpemodel,
            cleaner=config.cleaner,
            g2p=config.g2p,
            non_linguistic_symbols=config.non_linguistic_symbols,
            **{name: extra[name] for name in ("unk_symbol", "space_symbol", "delimiter") if name in extra},
        )
    return Preprocessor(text=text)


def build_iter_factory(
    config: Any, split: Split, *, rank: int = 0, world_size: int = 1, pin_memory: bool = False
) -> EpochIterFactory:
    """The batches of a split as the config asks for them. Training is shuffled and augmented, validation is not."""
    is_training = split == "train"
    dataset = build_dataset(config, split)
    plan = plan_batches(split_shapes(config, dataset, split), batch_options(config, split, world_size=world_size))
    return EpochIterFactory(
        dataset,
        plan,
        seed=config.seed if is_training else None,
        shuffle=is_training,
        shuffle_within_batch=is_training and config.shuffle_within_batch,
        num_iters_per_epoch=config.num_iters_per_epoch if is_training else None,
        rank=rank,
        world_size=world_size,
        num_workers=config.num_workers,
        pin_memory=pin_memory,
    )


def split_shapes(config: Any, dataset: UtteranceDataset, split: Split) -> list[Shapes]:
    """Lengths from the shape files, or measured where none are given."""
    files = getattr(config, f"{split}_shape_file")
    if files:
        return [read_shapes(path, dataset.index.ids) for path in files]
    return measure_shapes(dataset, dataset.names, nj=max(config.num_workers, 1))


def batch_options(config: Any, split: Split, *, world_size: int = 1) -> BatchOptions:
    """`valid_*` options where they are given, else those of training."""

    def chosen(name: str) -> Any:
        own = getattr(config, f"valid_{name}") if split == "valid" else None
        return getattr(config, name) if own is None else own

    each = world_size if getattr(config, "batch_size_per_device", False) else 1
    return BatchOptions(
        batch_type=chosen("batch_type"),
        batch_size=chosen("batch_size") * each,
        batch_bins=chosen("batch_bins") * each,
        fold_length=tuple(config.fold_length),
        min_batch_size=config.min_batch_size,
        max_batch_size=config.max_batch_size,
        sort_in_batch=config.sort_in_batch,
        sort_batch=config.sort_batch,
        drop_last_iter=config.drop_last_iter if split == "train" else False,
        num_buckets=getattr(config, "num_buckets", 8),
    )


def _whole_number(value: Any) -> int | None:
    """ESPnet2 also writes `16k`."""
    if isinstance(value, str):
        return int(float(value[:-1]) * 1000) if value.lower().endswith("k") else int(value)
    return value if value is None else int(value)
