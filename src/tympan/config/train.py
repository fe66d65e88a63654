"""The options of all training commands, by theme, with ESPnet2's names and defaults; our own are marked `(Tympan)`.

Each part reads its own class: the loop takes `LoopOptions`, batch planning takes `BatchOptions`. A task's configuration
combines all of them, so that every default is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tympan.config.batches import MOST_PROCESSES, BatchOptions, DataOptions, EpochOptions
from tympan.config.checks import check_together
from tympan.config.choices import ADAPTERS, OPTIMIZERS, SCHEDULERS
from tympan.config.espnet2 import OPTION_ORDER
from tympan.config.option import choice, conf_of, not_yet, option
from tympan.config.resolve import Conflict

GENERAL = "run"
DISTRIBUTED = "devices and processes"
TRAINER = "training"
LOGGING = "logging"
WEIGHTS = "initial weights"
OPTIMIZER = "optimizer"

Phase = Literal["train", "valid"]
Mode = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Output directory, kind of run, and reproducibility."""

    output_dir: str | None = option(None, help="output directory of the run; required for training", group=GENERAL)
    resume: bool = option(False, help="continue from the checkpoint in output_dir, if there is one", group=GENERAL)
    dry_run: bool = option(
        False,
        help="build everything, then exit without training; without data, build only the model and the optimizer",
        group=GENERAL,
    )
    collect_stats: bool = option(False, help="write feature statistics and shape files, then exit", group=GENERAL)
    write_collected_feats: bool = option(False, help="with --collect_stats, also write the features", group=GENERAL)
    seed: int = option(0, help="random seed", group=GENERAL, least=0, most=2**32 - 1)
    deterministic: bool = option(False, help="use only deterministic algorithms of torch (Tympan)", group=GENERAL)
    cudnn_enabled: bool = option(True, help="use cuDNN", group=GENERAL)
    cudnn_benchmark: bool = option(
        False, help="let cuDNN benchmark its algorithms and choose the fastest", group=GENERAL
    )
    cudnn_deterministic: bool = option(True, help="use only deterministic algorithms of cuDNN", group=GENERAL)
    use_tf32: bool = option(False, help="allow TensorFloat32 on CUDA", group=GENERAL)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Devices, processes and how the processes connect."""

    ngpu: int = option(
        0, help="number of accelerators (CUDA, NPU, ...) to use on this host; 0: CPU", group=DISTRIBUTED, least=0
    )
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None,
        help="device type; null: the CPU with --ngpu 0, else the available accelerator (Tympan)",
        group=DISTRIBUTED,
    )
    npu_jit_compile: bool | None = option(
        None,
        help="on Ascend cards: compile operators for every shape (true) or use operators for any shape (false); null: "
        "the default of torch-npu (Tympan)",
        group=DISTRIBUTED,
    )
    cpu_affinity: bool = option(
        False, help="bind each process to its share of the CPU cores of the host (Tympan)", group=DISTRIBUTED
    )
    nproc: int = option(
        1, help="number of processes on this host, on the CPU (Tympan)", group=DISTRIBUTED, least=1, most=MOST_PROCESSES
    )
    dist_backend: str = option(
        "nccl",
        help="backend of torch.distributed; the default nccl means hccl on NPUs and gloo on the CPU",
        group=DISTRIBUTED,
    )
    dist_init_method: str = option(
        "env://", help="how processes connect: env://, tcp://HOST:PORT or file://PATH", group=DISTRIBUTED
    )
    dist_world_size: int | None = option(
        None,
        help="number of hosts with --multiprocessing_distributed, else number of processes",
        group=DISTRIBUTED,
        least=1,
    )
    dist_rank: int | None = option(
        None,
        help="index of this host with --multiprocessing_distributed, else index of this process; starts at 0",
        group=DISTRIBUTED,
        least=0,
    )
    local_rank: int | None = option(
        None, help="index of this process on its host; starts at 0", group=DISTRIBUTED, least=0
    )
    dist_master_addr: str | None = option(
        None, help="address of the first host, for --dist_init_method env://", group=DISTRIBUTED
    )
    dist_master_port: int | None = option(
        None, help="port on the first host, for --dist_init_method env://", group=DISTRIBUTED, least=0, most=65535
    )
    dist_launcher: Literal["slurm", "mpi"] | None = option(
        None, help="launcher whose environment variables give rank and world size; null: none", group=DISTRIBUTED
    )
    multiprocessing_distributed: bool = option(
        False, help="start one process per device on this host", group=DISTRIBUTED
    )
    max_restarts: int = option(
        3, help="number of times to restart the run after a process died (Tympan)", group=DISTRIBUTED, least=0
    )
    elastic: str | None = option(
        None,
        help="MIN:MAX, the allowed number of processes: start with MAX, and continue with fewer after a failure, "
        "down to MIN; null: a fixed number (Tympan)",
        group=DISTRIBUTED,
    )
    dist_timeout: float = option(
        1800.0,
        help="timeout of communication between processes, in seconds (Tympan)",
        group=DISTRIBUTED,
        above=0,
        most=10**7,
    )
    unused_parameters: bool = option(False, help="allow parameters that get no gradient in a step", group=DISTRIBUTED)
    fsdp: bool = option(False, help="shard parameters over the processes with FSDP2 (Tympan)", group=DISTRIBUTED)
    gradient_as_bucket_view: bool = option(
        True, help="let gradients share memory with DDP's buckets", group=DISTRIBUTED
    )
    ddp_comm_hook: Literal["fp16", "bf16", "powersgd"] | None = option(
        None,
        help="compress gradients for communication; null: no compression",
        group=DISTRIBUTED,
        aliases={"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16"},
    )
    sync_batchnorm: bool = option(
        True, help="compute batch-norm statistics over all processes (Tympan)", group=DISTRIBUTED
    )
    sharded_ddp: bool = not_yet(False, instead="use --fsdp true")
    use_deepspeed: bool = option(
        False,
        help="translate --deepspeed_config into options of Tympan, such as --optim and --fsdp; DeepSpeed itself is "
        "not used",
        group=DISTRIBUTED,
    )
    deepspeed_config: str | None = option(
        None, help="DeepSpeed's JSON file, for --use_deepspeed true", group=DISTRIBUTED
    )


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of the training loop."""

    max_epoch: int = option(40, help="number of epochs to train", group=TRAINER, least=1)
    patience: int | None = option(
        None, help="stop after this number of epochs without improvement; null: never", group=TRAINER, least=0
    )
    val_scheduler_criterion: tuple[Phase, str] = option(
        ("valid", "loss"),
        help="PHASE,NAME of the value that reducelronplateau and warmupreducelronplateau monitor",
        group=TRAINER,
    )
    early_stopping_criterion: tuple[Phase, str, Mode] = option(
        ("valid", "loss", "min"), help="PHASE,NAME,min|max of the value that --patience monitors", group=TRAINER
    )
    best_model_criterion: list[tuple[Phase, str, Mode]] = option(
        [("train", "loss", "min"), ("valid", "loss", "min"), ("train", "acc", "max"), ("valid", "acc", "max")],
        help="PHASE,NAME,min|max of the values by which the best models are chosen",
        group=TRAINER,
    )
    keep_nbest_models: list[int] = option(
        [10],
        help="number of best models to keep per criterion and to average at the end; with several numbers, the "
        "largest is kept and each one gives an average",
        group=TRAINER,
        least=1,
    )
    keep_last_models: int = option(1, help="number of latest models to keep as well (Tympan)", group=TRAINER, least=1)
    nbest_averaging_interval: int = option(
        0,
        help="number of epochs between averages of the best models; 0: average only at the end",
        group=TRAINER,
        least=0,
    )
    accum_grad: int = option(1, help="number of batches to accumulate per optimizer step", group=TRAINER, least=1)
    no_forward_run: bool = option(False, help="only read the data, without computing anything", group=TRAINER)
    log_interval: int | None = option(
        None,
        help="number of steps between log lines; null: a twentieth of the epoch, at least 10",
        group=LOGGING,
        least=1,
    )
    save_interval_steps: int | None = option(
        None, help="number of steps between checkpoints within an epoch; null: none (Tympan)", group=GENERAL, least=1
    )
    save_interval_minutes: float | None = option(
        5.0,
        help="number of minutes between checkpoints within an epoch; null: none (Tympan)",
        group=GENERAL,
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What happens in an update besides the optimizer's step."""

    grad_clip: float = option(
        5.0, help="maximum norm of the gradients; inf: no clipping", group=TRAINER, above=0, allows_inf=True
    )
    grad_clip_type: float = option(
        2.0, help="p of the p-norm for --grad_clip", group=TRAINER, least=0.5, most=10, allows_inf=True
    )
    grad_noise: bool = option(False, help="add Gaussian noise to the gradients", group=TRAINER)
    max_skipped_steps: int = option(
        20,
        help="stop after this number of consecutive updates with non-finite gradients (Tympan)",
        group=TRAINER,
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Precision, memory and speed."""

    train_dtype: Literal["float16", "bfloat16", "float32", "float64", "O0", "O1", "O2", "O3"] = option(
        "float32", help="data type of weights and computation; O0 to O3: the optimization levels of apex", group=TRAINER
    )
    use_amp: bool = option(
        False,
        help="mixed precision: float32 weights, computation in bfloat16, or float16 if the device lacks it",
        group=TRAINER,
    )
    loss_scale: float | None = option(
        None,
        help="fixed loss scale; null: dynamic loss scaling for float16, else none (Tympan)",
        group=TRAINER,
        above=0,
        most=2**60,
    )
    compile: bool = option(False, help="compile the model with torch.compile (Tympan)", group=TRAINER)
    grad_checkpointing: bool = option(
        False, help="recompute activations in the backward pass to save memory (Tympan)", group=TRAINER
    )
    detect_anomaly: bool = option(
        False,
        help="turn on torch's anomaly detection, which finds the operation that produced a NaN; slow",
        group=TRAINER,
    )


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Logs, plots and experiment tracking."""

    log_level: Literal["ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] = option(
        "INFO", help="logging level", group=LOGGING
    )
    num_att_plot: int = option(
        3, help="number of utterances whose attention weights are plotted; 0: none", group=LOGGING, least=0
    )
    use_matplotlib: bool = option(True, help="plot training curves to images/", group=LOGGING)
    use_tensorboard: bool = option(True, help="write TensorBoard event files", group=LOGGING)
    create_graph_in_tensorboard: bool = not_yet(False, instead="leave it out; the log lists the layers of the model")
    use_wandb: bool = option(False, help="log to Weights & Biases", group=LOGGING)
    wandb_project: str | None = option(None, help="Weights & Biases project; null: tympan", group=LOGGING)
    wandb_id: str | None = option(
        None, help="Weights & Biases run id; null: a new one, or that of the resumed run", group=LOGGING
    )
    wandb_entity: str | None = option(
        None, help="Weights & Biases entity; null: the default entity of the account", group=LOGGING
    )
    wandb_name: str | None = option(None, help="Weights & Biases run name; null: the name of output_dir", group=LOGGING)
    wandb_model_log_interval: int = not_yet(-1, instead="leave it out; the models are in output_dir")
    wandb_allow_val_change: bool = option(
        True, help="allow a resumed run to change its config on Weights & Biases", group=LOGGING
    )


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """Initial and frozen weights."""

    init_param: list[str] = option(
        [],
        help="FILE[:SOURCE[:TARGET[:EXCLUDE]]]: load the weights of the module SOURCE in FILE into the module "
        "TARGET of the model, except those of EXCLUDE",
        group=WEIGHTS,
    )
    ignore_init_mismatch: bool = option(
        False, help="skip weights of --init_param whose name or shape does not match the model", group=WEIGHTS
    )
    freeze_param: list[str] = option(
        [], help="name prefixes of the parameters to freeze, such as encoder", group=WEIGHTS
    )
    unfreeze_interval: int | None = option(
        None,
        help="train only decoder and output layers in the first so many epochs, then one more encoder layer after each "
        "interval, from the last layer; null: train all layers from the start (Tympan)",
        group=WEIGHTS,
        least=1,
    )
    pretrain_path: str | None = not_yet(None, instead="use --init_param")
    use_adapter: bool = option(
        False,
        help="add adapters to the model, and train only the adapters unless --freeze_param is given",
        group=WEIGHTS,
    )
    adapter: str = choice(ADAPTERS, "lora", help="kind of adapter", group=WEIGHTS)
    adapter_conf: dict[str, Any] = option(
        {},
        help="parameters of --adapter, for lora: rank, alpha, dropout_rate, target_modules, bias_type; for houlsby: "
        "bottleneck, target_layers, target_modules",
        group=WEIGHTS,
    )
    also_train: list[str] = option(
        [],
        help="prefixes of parameters to train besides the adapters, such as ctc or encoder.encoders.*.norm_* (Tympan)",
        group=WEIGHTS,
    )
    save_strategy: Literal["all", "adapter_only", "required_grad_only"] = option(
        "all",
        help="which weights of a model with adapters to save: all, those of the adapters, or those that are trained",
        group=WEIGHTS,
        aliases={"adapter": "adapter_only"},
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Optimizer and learning-rate schedule."""

    optim: str = choice(OPTIMIZERS, "adadelta", help="optimizer", group=OPTIMIZER)
    optim_conf: dict[str, Any] = conf_of("optim", help="parameters of --optim", group=OPTIMIZER)
    scheduler: str | None = choice(
        SCHEDULERS, None, help="learning-rate scheduler; null: constant learning rate", group=OPTIMIZER
    )
    scheduler_conf: dict[str, Any] = conf_of("scheduler", help="parameters of --scheduler", group=OPTIMIZER)
    layer_decay: float | None = option(
        None,
        help="factor of the learning rate from one encoder layer to the one below; null: the same learning rate for "
        "all layers (Tympan)",
        group=OPTIMIZER,
        above=0,
        most=1,
    )
    exclude_weight_decay: bool = option(
        False,
        help="no weight decay for biases, normalization layers, embeddings and state space models; the latter (decoder "
        "s4) get the lr of their layer",
        group=OPTIMIZER,
    )
    exclude_weight_decay_conf: dict[str, Any] = option(
        {},
        help="bias_weight_decay=true and normalization_weight_decay=true apply weight decay to these parameters "
        "too; keys lists parts of the names of more parameters without weight decay (Tympan)",
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
    """The options of every training command. A task adds its own options in a subclass."""

    OPTION_ORDER: ClassVar[tuple[str, ...]] = OPTION_ORDER

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        """Find options that need or exclude each other, before anything is built. A task adds its own checks."""
        yield from check_together(values)
        if values["iterator_type"] == "none" and not values["dry_run"]:
            yield Conflict(
                ("iterator_type", "dry_run"),
                "none can be used only with --dry_run true, because there are no batches to train on",
            )

    @staticmethod
    def faults(values: Mapping[str, Any]) -> Iterator[Conflict]:
        """Find mistakes within one option, which `--print_config` reports too. A task adds its own checks."""
        yield from ()
