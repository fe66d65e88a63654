"""From a training config to its iterators: the data half of what `asr_train` and `lm_train` set up."""

from __future__ import annotations

from typing import Any, Literal

from tympan.data.augment import WaveformAugmentation
from tympan.data.batches import BatchOptions, plan_batches
from tympan.data.dataset import UtteranceDataset
from tympan.data.lengths import measure_shapes
from tympan.data.loader import EpochIterFactory
from tympan.data.preprocess import Preprocessor, TextPreprocessor
from tympan.data.shapes import Shapes, read_shapes
from tympan.errors import UserError

Split = Literal["train", "valid"]

WAVEFORM_OPTIONS = (
    "speech_volume_normalize",
    "speed_perturb",
    "volume_perturb",
    "rir_scp",
    "rir_apply_prob",
    "noise_scp",
    "noise_apply_prob",
    "noise_db_range",
)
WAVEFORM_CONF = (
    "force_single_channel",
    "data_aug_effects",
    "data_aug_num",
    "data_aug_prob",
    "min_sample_size",
    "audio_pad_value",
)
ALWAYS = ("speech_volume_normalize", "min_sample_size", "audio_pad_value")
"""These belong to validation too."""
AUGMENTING = frozenset({"rir_scp", "noise_scp", "speed_perturb", "volume_perturb", "data_aug_effects"})
REFUSED_FOR_FEATURES = AUGMENTING | {"speech_volume_normalize", "force_single_channel"}


def build_dataset(config: Any, split: Split) -> UtteranceDataset:
    """The utterances of `{split}_data_path_and_name_and_type`; augmented if they are for training."""
    triples = getattr(config, f"{split}_data_path_and_name_and_type")
    if not triples:
        raise UserError(f"--{split}_data_path_and_name_and_type is missing: give PATH,NAME,TYPE for each data file")
    shape_files = getattr(config, f"{split}_shape_file")
    dataset = UtteranceDataset(
        [tuple(triple) for triple in triples],
        keys=shape_files[0] if shape_files else None,
        sample_rate=0 if config.allow_multi_rates else _expected_rate(config),
    )
    dataset.preprocess = build_preprocessor(config, is_training=split == "train", rate=dataset.sample_rate)
    return dataset


def build_preprocessor(config: Any, *, is_training: bool, rate: int | None) -> Preprocessor | None:
    """ESPnet2's `use_preprocessor` and the options it takes. `rate` is that of the recordings."""
    if not config.use_preprocessor:
        return None
    conf = dict(getattr(config, "preprocessor_conf", None) or {})
    names = {name: conf[name] for name in ("speech_name", "text_name") if name in conf}
    text = None
    if config.token_type is not None:
        if config.token_list is None:
            raise UserError("--token_list is missing: a file with one token a line (`tympan tokenize_text` makes one)")
        text = TextPreprocessor(
            config.token_list,
            token_type=config.token_type,
            bpemodel=config.bpemodel,
            cleaner=config.cleaner,
            g2p=config.g2p,
            non_linguistic_symbols=config.non_linguistic_symbols,
            **{name: conf[name] for name in ("unk_symbol", "space_symbol", "delimiter") if name in conf},
        )
    waveform = {**_given(config, WAVEFORM_OPTIONS), **{name: conf[name] for name in WAVEFORM_CONF if conf.get(name)}}
    if getattr(config, "input_size", None) is not None:
        # Stored features: the options of waveforms have no meaning, and would quietly spoil them.
        changed = [name for name in waveform if name in REFUSED_FOR_FEATURES]
        if changed:
            raise UserError(f"{', '.join(changed)}: works on recordings, but input_size says that features are given")
        return Preprocessor(text=text, **names)
    always = {name: waveform.pop(name) for name in ALWAYS if name in waveform}
    always["force_single_channel"] = waveform.get("force_single_channel", False)
    augmentation = None
    if is_training and waveform.keys() & AUGMENTING:
        augmentation = WaveformAugmentation(seed=config.seed, rate=rate, **waveform)
    return Preprocessor(text=text, augmentation=augmentation, **always, **names)


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
        stretch=_stretch(dataset),
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


def _stretch(dataset: UtteranceDataset) -> float:
    preprocess = dataset.preprocess
    augmentation = preprocess.augmentation if isinstance(preprocess, Preprocessor) else None
    return 1.0 if augmentation is None else augmentation.stretch


def _given(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Options that the config has and that are set: the LM's has none of speech."""
    return {name: getattr(config, name) for name in names if getattr(config, name, None) not in (None, [])}


def _expected_rate(config: Any) -> int | None:
    """`fs` of the preprocessor, else of the frontend; ESPnet2 also writes `16k`."""
    for conf in ("preprocessor_conf", "frontend_conf"):
        value = (getattr(config, conf, None) or {}).get("fs")
        if value:
            text = str(value).lower()
            return int(float(text[:-1]) * 1000) if text.endswith("k") else int(float(text))
    return None
