"""The options that every training command has, by theme: ESPnet2's names and defaults; ours are marked `(Tympan)`.

Each part reads its own class: the loop takes `LoopOptions`, batch planning takes `BatchOptions`. A task's configuration
is all of them together, so that every default is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tympan.config.checks import check_together
from tympan.config.choices import OPTIMIZERS, SCHEDULERS
from tympan.config.espnet2 import OPTION_ORDER
from tympan.config.option import choice, conf_of, not_yet, option
from tympan.config.resolve import Conflict

GENERAL = "run"
DISTRIBUTED = "devices and processes"
TRAINER = "training"
LOGGING = "logging"
WEIGHTS = "initial weights"
BATCHES = "batches"
DATA = "data"
OPTIMIZER = "optimizer"

Phase = Literal["train", "valid"]
Mode = Literal["min", "max"]
BatchType = Literal["unsorted", "sorted", "folded", "length", "numel", "bucket"]
BatchCut = Literal["espnet2", "padded"]
Order = Literal["descending", "ascending"]

_ONE_ITERATOR = "use 'sequence'"
_CATEGORY = dict.fromkeys(
    ("catbel", "catpow", "catpow_balance_dataset"),
    "use 'folded' or 'numel', and repeat rare data in the data directory",
)
_ESPNET1_COUNTS = {"seq": "folded", "bin": "numel", "frame": "length"}
_CHUNKS = "utterances are always taken whole"
_CATEGORIES = "it belongs to the category batch types"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run writes, what it does, and how exactly it repeats."""

    output_dir: str | None = option(None, help="where the run writes; needed to train", group=GENERAL)
    resume: bool = option(False, help="go on from the checkpoint in output_dir, if there is one", group=GENERAL)
    dry_run: bool = option(
        False, help="build everything, then stop; without data only the model and the optimizer", group=GENERAL
    )
    collect_stats: bool = option(False, help="write feature statistics and shapes, then stop", group=GENERAL)
    write_collected_feats: bool = option(False, help="with --collect_stats, the features too", group=GENERAL)
    seed: int = option(0, help="seed of everything random", group=GENERAL, least=0, most=2**32 - 1)
    deterministic: bool = option(False, help="only torch's deterministic algorithms (Tympan)", group=GENERAL)
    cudnn_enabled: bool = option(True, help="use cuDNN", group=GENERAL)
    cudnn_benchmark: bool = option(False, help="let cuDNN try algorithms", group=GENERAL)
    cudnn_deterministic: bool = option(True, help="only cuDNN's deterministic algorithms", group=GENERAL)
    use_tf32: bool = option(False, help="TensorFloat32 on CUDA", group=GENERAL)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Devices, processes and how they find each other."""

    ngpu: int = option(
        0, help="accelerators (CUDA, NPU, ...) to use on this host; 0 is the CPU", group=DISTRIBUTED, least=0
    )
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None, help="kind of device; null takes what is there (Tympan)", group=DISTRIBUTED
    )
    nproc: int = option(1, help="processes on this host without accelerators (Tympan)", group=DISTRIBUTED, least=1)
    dist_backend: str = option("nccl", help="collectives; nccl means what the device has", group=DISTRIBUTED)
    dist_init_method: str = option("env://", help="rendezvous: env://, tcp://..., file://...", group=DISTRIBUTED)
    dist_world_size: int | None = option(
        None, help="hosts, or processes without a launcher", group=DISTRIBUTED, least=1
    )
    dist_rank: int | None = option(None, help="this host's or process's number", group=DISTRIBUTED, least=0)
    local_rank: int | None = option(None, help="number on this host", group=DISTRIBUTED, least=0)
    dist_master_addr: str | None = option(None, help="address of the first host, for env://", group=DISTRIBUTED)
    dist_master_port: int | None = option(
        None, help="port of the first host, for env://", group=DISTRIBUTED, least=0, most=65535
    )
    dist_launcher: Literal["slurm", "mpi"] | None = option(
        None, help="whose environment says rank and size", group=DISTRIBUTED
    )
    multiprocessing_distributed: bool = option(False, help="start one process a device", group=DISTRIBUTED)
    max_restarts: int = option(3, help="restarts after a worker's death (Tympan)", group=DISTRIBUTED, least=0)
    elastic: str | None = option(None, help="MIN:MAX workers to go on with (Tympan)", group=DISTRIBUTED)
    dist_timeout: float = option(
        1800.0, help="seconds until a collective counts as hung (Tympan)", group=DISTRIBUTED, above=0, most=10**7
    )
    unused_parameters: bool = option(False, help="let parameters stay without gradient", group=DISTRIBUTED)
    fsdp: bool = option(False, help="shard parameters over the processes, FSDP2 (Tympan)", group=DISTRIBUTED)
    gradient_as_bucket_view: bool = option(True, help="gradients share memory with buckets", group=DISTRIBUTED)
    ddp_comm_hook: Literal["fp16", "bf16", "powersgd"] | None = option(
        None,
        help="compress gradients on their way",
        group=DISTRIBUTED,
        aliases={"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16"},
    )
    sync_batchnorm: bool = option(True, help="batch-norm statistics over all processes (Tympan)", group=DISTRIBUTED)
    sharded_ddp: bool = not_yet(False, instead="use --fsdp true")
    use_deepspeed: bool = not_yet(False, instead="use --fsdp true")
    deepspeed_config: str | None = not_yet(None, instead="use --fsdp true")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What the training loop reads."""

    max_epoch: int = option(40, help="epochs to train", group=TRAINER, least=1)
    patience: int | None = option(None, help="epochs without improvement before stopping", group=TRAINER, least=0)
    val_scheduler_criterion: tuple[Phase, str] = option(
        ("valid", "loss"), help="what a plateau scheduler watches", group=TRAINER
    )
    early_stopping_criterion: tuple[Phase, str, Mode] = option(
        ("valid", "loss", "min"), help="what --patience watches", group=TRAINER
    )
    best_model_criterion: list[tuple[Phase, str, Mode]] = option(
        [("train", "loss", "min"), ("valid", "loss", "min"), ("train", "acc", "max"), ("valid", "acc", "max")],
        help="by what the best models are kept",
        group=TRAINER,
    )
    keep_nbest_models: list[int] = option([10], help="models to keep and average", group=TRAINER, least=1)
    keep_last_models: int = option(1, help="models of the last epochs to keep besides (Tympan)", group=TRAINER, least=1)
    nbest_averaging_interval: int = option(
        0, help="epochs between averagings; 0 is only at the end", group=TRAINER, least=0
    )
    accum_grad: int = option(1, help="batches to a step", group=TRAINER, least=1)
    no_forward_run: bool = option(False, help="only iterate over the data", group=TRAINER)
    log_interval: int | None = option(
        None, help="steps between log lines; null decides by itself", group=LOGGING, least=1
    )
    save_interval_steps: int | None = option(
        None, help="steps between checkpoints in an epoch (Tympan)", group=GENERAL, least=1
    )


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What an update does besides the optimizer's own step."""

    grad_clip: float = option(
        5.0, help="norm at which gradients are clipped; inf for never", group=TRAINER, least=0, allows_inf=True
    )
    grad_clip_type: float = option(2.0, help="p of that norm; may be inf", group=TRAINER, above=0, allows_inf=True)
    grad_noise: bool = option(False, help="add noise to gradients", group=TRAINER)
    max_skipped_steps: int = option(
        20, help="non-finite steps in a row that stop the run (Tympan)", group=TRAINER, least=1
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Precision, and what is traded for memory or speed."""

    train_dtype: Literal["float16", "bfloat16", "float32", "float64", "O0", "O1", "O2", "O3"] = option(
        "float32", help="precision; O0 to O3 as apex had them", group=TRAINER
    )
    use_amp: bool = option(False, help="mixed precision", group=TRAINER)
    loss_scale: float | None = option(
        None, help="static loss scale; null is dynamic (Tympan)", group=TRAINER, above=0, most=2**60
    )
    compile: bool = option(False, help="torch.compile the model (Tympan)", group=TRAINER)
    grad_checkpointing: bool = option(False, help="recompute activations to save memory (Tympan)", group=TRAINER)
    detect_anomaly: bool = option(False, help="torch's anomaly detection", group=TRAINER)


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """What a run reports, and where."""

    log_level: Literal["ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] = option(
        "INFO", help="least level to log", group=LOGGING
    )
    num_att_plot: int = option(3, help="utterances whose attention is plotted; 0 for none", group=LOGGING, least=0)
    use_matplotlib: bool = option(True, help="draw curves to images/", group=LOGGING)
    use_tensorboard: bool = option(True, help="write TensorBoard's files", group=LOGGING)
    create_graph_in_tensorboard: bool = not_yet(False, instead="the log lists the model's layers")
    use_wandb: bool = option(False, help="log to Weights & Biases", group=LOGGING)
    wandb_project: str | None = option(None, help="its project", group=LOGGING)
    wandb_id: str | None = option(None, help="its run id", group=LOGGING)
    wandb_entity: str | None = option(None, help="its entity", group=LOGGING)
    wandb_name: str | None = option(None, help="its run name", group=LOGGING)
    wandb_model_log_interval: int = not_yet(-1, instead="the models are in output_dir")
    wandb_allow_val_change: bool = option(True, help="let a resumed run change its config there", group=LOGGING)


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """Where weights start, and which of them stay fixed."""

    init_param: list[str] = option([], help="file:source:target:exclude to start from", group=WEIGHTS)
    ignore_init_mismatch: bool = option(False, help="skip weights of another shape", group=WEIGHTS)
    freeze_param: list[str] = option([], help="prefixes of parameters that stay as they are", group=WEIGHTS)
    pretrain_path: str | None = not_yet(None, instead="use --init_param")
    use_adapter: bool = not_yet(False, instead="use --freeze_param to train a part of the model")
    adapter: str = not_yet("lora", instead="use --freeze_param to train a part of the model")
    adapter_conf: dict[str, Any] = not_yet({}, instead="use --freeze_param to train a part of the model")
    save_strategy: str = not_yet("all", instead="all parameters are saved")


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How utterances are grouped into batches. Sizes count utterances over all ranks."""

    batch_type: BatchType = option(
        "folded",
        help="how to cut batches; bucket has few fixed shapes (Tympan)",
        group=BATCHES,
        not_yet_values=_CATEGORY,
        aliases=_ESPNET1_COUNTS,
    )
    batch_size: int = option(20, help="utterances to a batch, over all devices", group=BATCHES, least=1)
    batch_bins: int = option(1000000, help="elements to a batch, for length, numel and bucket", group=BATCHES, least=1)
    fold_length: list[int] = option(
        [], help="lengths at which folded halves a batch, one a shape file", group=BATCHES, least=1
    )
    batch_cut: BatchCut = option(
        "espnet2",
        help="espnet2 makes the same batches as ESPnet2; padded counts the padded size of each batch in length and "
        "numel, and applies max_batch_size and drop_last_iter to folded, length and numel too (Tympan)",
        group=BATCHES,
    )
    min_batch_size: int = option(1, help="minimum number of utterances per batch", group=BATCHES, least=1)
    max_batch_size: int | None = option(
        None, help="maximum number of utterances per batch, for bucket and for batch_cut padded", group=BATCHES, least=1
    )
    sort_in_batch: Order = option("descending", help="order within a batch", group=BATCHES)
    sort_batch: Order = option("descending", help="order of batches before shuffling", group=BATCHES)
    drop_last_iter: bool = option(False, help="leave out the last, smaller batch", group=BATCHES)
    num_buckets: int = option(8, help="shapes of batch type bucket (Tympan)", group=BATCHES, least=1)


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """Which batches an epoch has, and how those of validation differ."""

    iterator_type: Literal["sequence", "none"] = option(
        "sequence",
        help="how utterances become batches; none makes no batches, to check a configuration with --dry_run true",
        group=BATCHES,
        not_yet_values=dict.fromkeys(("category", "chunk", "task"), _ONE_ITERATOR),
    )
    valid_iterator_type: Literal["sequence"] | None = option(
        None,
        help="the same for validation; null as training",
        group=BATCHES,
        not_yet_values=dict.fromkeys(("category", "chunk", "task"), _ONE_ITERATOR),
    )
    num_iters_per_epoch: int | None = option(
        None, help="batches to an epoch; null is all data", group=BATCHES, least=1, most=10**9
    )
    shuffle_within_batch: bool = option(False, help="shuffle utterances over all batches", group=BATCHES)
    batch_size_per_device: bool = option(
        False, help="batch_size counts for each device, as in ESPnet1 (Tympan)", group=BATCHES
    )
    valid_batch_size: int | None = option(
        None, help="the same for validation; null as training", group=BATCHES, least=1
    )
    valid_batch_bins: int | None = option(
        None, help="the same for validation; null as training", group=BATCHES, least=1
    )
    valid_batch_type: BatchType | None = option(
        None,
        help="the same for validation; null as training",
        group=BATCHES,
        not_yet_values=_CATEGORY,
        aliases=_ESPNET1_COUNTS,
    )
    train_shape_file: list[str] = option([], help="lengths of the training data", group=BATCHES)
    valid_shape_file: list[str] = option([], help="lengths of the validation data", group=BATCHES)
    multiple_iterator: bool = not_yet(False, instead="give all data in one data directory")
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
    """Which data files a run reads, and how."""

    train_data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="path,name,type of training data; may be repeated", group=DATA
    )
    valid_data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="the same for validation", group=DATA
    )
    num_workers: int = option(
        1, help="processes that prepare batches; 0 prepares them in the loop", group=DATA, least=0
    )
    allow_multi_rates: bool = option(False, help="let recordings have several rates", group=DATA)
    allow_variable_data_keys: bool = option(False, help="accept data names that the task does not know", group=DATA)
    multi_task_dataset: bool = not_yet(False, instead="give path,name,type for each kind of data")
    max_cache_size: float | str = not_yet(0.0, instead="the operating system caches files")
    max_cache_fd: int = not_yet(32, instead="open archives are managed by themselves")
    valid_max_cache_size: float | str | None = not_yet(None, instead="the operating system caches files")


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Optimizer and learning-rate schedule."""

    optim: str = choice(OPTIMIZERS, "adadelta", help="optimizer", group=OPTIMIZER)
    optim_conf: dict[str, Any] = conf_of("optim", help="its parameters", group=OPTIMIZER)
    scheduler: str | None = choice(SCHEDULERS, None, help="learning-rate scheduler", group=OPTIMIZER)
    scheduler_conf: dict[str, Any] = conf_of("scheduler", help="its parameters", group=OPTIMIZER)
    exclude_weight_decay: bool = option(False, help="no weight decay for biases and norms", group=OPTIMIZER)
    exclude_weight_decay_conf: dict[str, Any] = option(
        {},
        help="bias_weight_decay, normalization_weight_decay: true lets these decay; keys: names that don't (Tympan)",
        group=OPTIMIZER,
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    OptimizerOptions,
    DataOptions,
    EpochOptions,
    BatchOptions,
    WeightOptions,
    LoggingOptions,
    ComputeOptions,
    UpdateOptions,
    LoopOptions,
    DeviceOptions,
    RunOptions,
):
    """What every training command reads. A task adds its own options in a subclass."""

    OPTION_ORDER: ClassVar[tuple[str, ...]] = OPTION_ORDER

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        """Options that need or exclude each other, found before anything is built. A task adds its own."""
        yield from check_together(values)
        if values["iterator_type"] == "none" and not values["dry_run"]:
            yield Conflict(("iterator_type", "dry_run"), "none makes no batches; it needs --dry_run true")

    @staticmethod
    def faults(values: Mapping[str, Any]) -> Iterator[Conflict]:
        """Mistakes inside of one option, which `--print_config` finds too. A task adds its own."""
        yield from ()
