"""The options about data: how utterances form batches, what an epoch is, and the files of a run.

Names and defaults are those of ESPnet2; our own options are marked `(Tympan)`. `TrainConfig` combines these classes
with the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tympan.config.option import not_yet, option

BATCHES = "batches"
DATA = "data"
MOST_PROCESSES = 1024

BatchType = Literal["unsorted", "sorted", "folded", "length", "numel", "bucket"]
BatchCut = Literal["espnet2", "padded"]
Order = Literal["descending", "ascending"]

_ONE_ITERATOR = "use 'sequence'"
_CATEGORY = dict.fromkeys(
    ("catbel", "catpow", "catpow_balance_dataset"),
    "use 'folded' or 'numel', and repeat rare data in the data directory",
)
_ESPNET1_COUNTS = {"seq": "folded", "bin": "numel", "frame": "length"}
_CHUNKS = "utterances are never cut into chunks"
_CATEGORIES = "it is an option of the batch types catbel and catpow"


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How utterances are grouped into batches. Batch sizes are totals over all ranks."""

    batch_type: BatchType = option(
        "folded",
        help="how to form batches: by a fixed number of utterances (unsorted, sorted), by a number that shrinks "
        "with the length (folded), by padded size (length, numel), or in a few fixed shapes (bucket; Tympan)",
        group=BATCHES,
        not_yet_values=_CATEGORY,
        aliases=_ESPNET1_COUNTS,
    )
    batch_size: int = option(20, help="number of utterances per batch, over all devices", group=BATCHES, least=1)
    batch_bins: int = option(
        1000000,
        help="size limit of a batch: total padded length for batch_type length, length times dimension for numel "
        "and bucket",
        group=BATCHES,
        least=1,
    )
    fold_length: list[int] = option(
        [],
        help="for batch_type folded, one length per shape file: batch_size is divided by 1 + length // fold_length, "
        "where length is that of the shortest utterance in the batch; the largest divisor over the files is used",
        group=BATCHES,
        least=1,
    )
    batch_cut: BatchCut = option(
        "espnet2",
        help="how to limit batches; espnet2: same batches as ESPnet2; padded: batch_bins limits the true padded "
        "size, and max_batch_size and drop_last_iter apply to folded, length and numel too (Tympan)",
        group=BATCHES,
    )
    min_batch_size: int = option(1, help="minimum number of utterances per batch", group=BATCHES, least=1)
    max_batch_size: int | None = option(
        None,
        help="maximum number of utterances per batch, for batch_type bucket or with batch_cut padded; null: no limit",
        group=BATCHES,
        least=1,
    )
    sort_in_batch: Order = option("descending", help="order of utterances within a batch, by length", group=BATCHES)
    sort_batch: Order = option("descending", help="order of batches before shuffling, by length", group=BATCHES)
    drop_last_iter: bool = option(False, help="drop the last batch if it is smaller than the others", group=BATCHES)
    num_buckets: int = option(
        8,
        help="maximum number of different padded batch shapes, for batch_type bucket (Tympan)",
        group=BATCHES,
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """Which batches an epoch has, and the batches of validation."""

    iterator_type: Literal["sequence", "none"] = option(
        "sequence",
        help="how to iterate over the data; none: no batches, to check a configuration with --dry_run true",
        group=BATCHES,
        not_yet_values=dict.fromkeys(("category", "chunk", "task"), _ONE_ITERATOR),
    )
    valid_iterator_type: Literal["sequence"] | None = option(
        None,
        help="iterator_type for validation; null: as in training",
        group=BATCHES,
        not_yet_values=dict.fromkeys(("category", "chunk", "task"), _ONE_ITERATOR),
    )
    num_iters_per_epoch: int | None = option(
        None, help="number of batches per epoch; null: all data once", group=BATCHES, least=1, most=10**9
    )
    shuffle_within_batch: bool = option(
        False,
        help="shuffle utterances across batches in every epoch, for batch_type unsorted and sorted",
        group=BATCHES,
    )
    batch_size_per_device: bool = option(False, help="batch_size is per device, as in ESPnet1 (Tympan)", group=BATCHES)
    valid_batch_size: int | None = option(
        None, help="batch_size for validation; null: as in training", group=BATCHES, least=1
    )
    valid_batch_bins: int | None = option(
        None, help="batch_bins for validation; null: as in training", group=BATCHES, least=1
    )
    valid_batch_type: BatchType | None = option(
        None,
        help="batch_type for validation; null: as in training",
        group=BATCHES,
        not_yet_values=_CATEGORY,
        aliases=_ESPNET1_COUNTS,
    )
    train_shape_file: list[str] = option(
        [], help="file with the length of every training utterance; may be repeated", group=BATCHES
    )
    valid_shape_file: list[str] = option(
        [], help="file with the length of every validation utterance; may be repeated", group=BATCHES
    )
    multiple_iterator: bool = option(
        False,
        help="data and shape files are directories of parts that split_scps wrote; they are read as one list",
        group=DATA,
    )
    category_sample_size: int = not_yet(10, instead=_CATEGORIES)
    upsampling_factor: float = not_yet(0.5, instead=_CATEGORIES)
    category_upsampling_factor: float = not_yet(0.5, instead=_CATEGORIES)
    dataset_upsampling_factor: float = not_yet(0.5, instead=_CATEGORIES)
    dataset_scaling_factor: float = not_yet(1.2, instead=_CATEGORIES)
    chunk_length: int | str = not_yet(500, instead=_CHUNKS)
    chunk_shift_ratio: float = not_yet(0.5, instead=_CHUNKS)
    num_cache_chunks: int = not_yet(1024, instead=_CHUNKS)
    chunk_excluded_key_prefixes: list[str] = not_yet([], instead=_CHUNKS)
    chunk_default_fs: int | None = not_yet(None, instead=_CHUNKS)
    chunk_max_abs_length: int | None = not_yet(None, instead=_CHUNKS)
    chunk_discard_short_samples: bool = not_yet(True, instead=_CHUNKS)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The data files of a run."""

    train_data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="PATH,NAME,TYPE of training data, such as data/train/wav.scp,speech,sound; may be repeated", group=DATA
    )
    valid_data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="PATH,NAME,TYPE of validation data; may be repeated", group=DATA
    )
    num_workers: int = option(
        1,
        help="number of processes that load data; 0: load in the training process",
        group=DATA,
        least=0,
        most=MOST_PROCESSES,
    )
    allow_multi_rates: bool = option(False, help="allow recordings with different sample rates", group=DATA)
    resample: bool = option(
        False,
        help="resample recordings to the sample rate of preprocessor_conf fs or frontend_conf fs; false: another rate "
        "is an error (Tympan)",
        group=DATA,
    )
    allow_variable_data_keys: bool = option(False, help="accept data names that the task does not know", group=DATA)
    multi_task_dataset: bool = not_yet(False, instead="give one PATH,NAME,TYPE per data file")
    max_cache_size: float | str = not_yet(0.0, instead="leave it out; the operating system caches files")
    max_cache_fd: int = not_yet(32, instead="leave it out; the number of open archives needs no setting")
    valid_max_cache_size: float | str | None = not_yet(None, instead="leave it out; the operating system caches files")
