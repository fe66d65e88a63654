"""Translate DeepSpeed's JSON file, which ESPnet2's `use_deepspeed: true` names, into the training options.

ESPnet2 then takes optimizer, scheduler, precision, gradient clipping and accumulation from that file and ignores its
own options for them. The translated options stand above the `--config` files and below the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tympan.config.cast import CastError, cast
from tympan.config.mistakes import Mistakes, did_you_mean
from tympan.config.resolve import KeyPath, Layer
from tympan.errors import UserError
from tympan.files import explained, read_text

NOT_IN_ESPNET2 = {
    "grad_clip_type": 2.0, "grad_noise": False, "patience": None, "exclude_weight_decay": False,
    "exclude_weight_decay_conf": None, "train_dtype": "float32", "loss_scale": None,
}  # fmt: skip
"""Options that ESPnet2's DeepSpeed trainer ignores and that have no key in the file, with the value it implies."""
SAME_RESULT = frozenset((
    # Batches are those of ESPnet2's options.
    "train_batch_size", "train_micro_batch_size_per_gpu", "dataloader_drop_last",
    # Communication, memory and the order of reductions.
    "communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "sparse_gradients", "disable_allgather", "activation_checkpointing", "aio",
    "compile", "disable_python_gc", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    # Logs, measurements and checkpoints.
    "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "timers",
    "flops_profiler", "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "monitor_config",
    "autotuning", "checkpoint"
))  # fmt: skip
ZERO = frozenset((
    "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce",
    "allgather_partitions", "allgather_bucket_size", "overlap_comm", "compute_grad_norm", "load_from_fp32_weights",
    "elastic_checkpoint", "offload_param", "offload_optimizer", "sub_group_size", "cpu_offload",
    "cpu_offload_param", "cpu_offload_use_pin_memory", "prefetch_bucket_size", "stage3_prefetch_bucket_size",
    "param_persistence_threshold", "stage3_param_persistence_threshold", "model_persistence_threshold",
    "stage3_model_persistence_threshold", "max_live_parameters", "stage3_max_live_parameters", "max_reuse_distance",
    "stage3_max_reuse_distance", "gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "module_granularity_threshold",
    "stage3_module_granularity_threshold", "use_all_reduce_for_fetch_params",
    "stage3_use_all_reduce_for_fetch_params", "allgather_sequential", "stage3_allgather_sequential",
    "ignore_unused_parameters", "legacy_stage1", "round_robin_gradients", "parameter_alignment",
    "zero_hpz_partition_size", "memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply",
    "log_trace_cache_warnings", "enable_sanity_checks", "leaf_module"
))  # fmt: skip
"""Keys of `zero_optimization` that only concern memory, communication and checkpoints."""
PRECISION = {
    "bf16": frozenset(("immediate_grad_update", "check_grad_overflow")),
    "fp16": frozenset(
        ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
         "min_loss_scale")
    ),
}  # fmt: skip
"""Keys of a precision besides `enabled` that don't change the result, except by rounding or overflow."""
ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad")
ADAM_KERNEL = ("torch_adam", "adam_w_mode", "set_grad_none", "fp32_optimizer_states")
TORCH = ("SGD", "Adagrad", "Adadelta", "Adamax", "ASGD", "RMSprop", "Rprop", "RAdam", "NAdam")
"""DeepSpeed takes every other name from torch.optim, so that its parameters and defaults are those of torch."""
_WARMUP = ("warmup_num_steps", "warmup_type")
SCHEDULERS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "WarmupLR": ("deepspeedwarmuplr", ("warmup_min_lr", "warmup_max_lr", *_WARMUP), {}),
    "WarmupDecayLR": (
        "deepspeedwarmuplr",
        ("total_num_steps", "warmup_min_lr", "warmup_max_lr", *_WARMUP),
        {"warmup_max_lr": 0.001},
    ),
    "WarmupCosineLR": (
        "deepspeedwarmupcosinelr",
        ("total_num_steps", "warmup_min_ratio", "cos_min_ratio", *_WARMUP),
        {},
    ),
}
"""DeepSpeed's name -> the name here, the keys, and defaults that differ from those here."""


def add_deepspeed(layers: Sequence[Layer], mistakes: Mistakes) -> Sequence[Layer]:
    """Insert the translated options above those of files, if the layers together ask for DeepSpeed."""
    try:
        is_wanted = cast(_topmost(layers, "use_deepspeed", False)[0], bool)
    except CastError:
        return layers  # reported with the other options
    if not is_wanted:
        return layers
    path, where = _topmost(layers, "deepspeed_config", None)
    if not isinstance(path, str) or not path:
        where = _topmost(layers, "use_deepspeed", False)[1]
        mistakes.add(where, "use_deepspeed needs --deepspeed_config, the path of DeepSpeed's JSON file")
        return layers
    file = _File(path)
    try:
        file.translate(_read(path))
    except UserError as error:
        mistakes.add("", str(error))
        return layers
    below = [layer for layer in layers if layer.is_file]
    above = [layer for layer in layers if not layer.is_file]
    mistakes.notes.append(file.note(_replaced(below, file.values), list(_overruled(above, file.values))))
    # Optimizer and scheduler of the files are replaced, not completed.
    resets = Layer({"optim_conf": None, "scheduler_conf": None}, str)
    # ESPnet2's switch is off in the result: the translated options would be translated again when it is read.
    translated = Layer({**file.values, "use_deepspeed": False}, file.where)
    return [*below, resets, translated, *(_without_switch(layer) for layer in above)]


def _topmost(layers: Sequence[Layer], name: str, default: Any) -> tuple[Any, str]:
    """The value of an option and where it was given."""
    for layer in reversed(layers):
        if name in layer.values:
            return layer.values[name], layer.where((name,))
    return default, f"--{name}"


def _without_switch(layer: Layer) -> Layer:
    values = {name: item for name, item in layer.values.items() if name != "use_deepspeed"}
    return Layer(values, layer.where, layer.notes, layer.is_file)


def _read(path: str) -> dict[str, Any]:
    """The object in the file. A key that is given twice and NaN are mistakes."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise UserError(f"{path}: the key '{double}' is given twice; remove one")
        return dict(items)

    def constant(name: str) -> Any:
        raise UserError(f"{path}: {name} is not a number of JSON")

    with explained(path, "a JSON file of DeepSpeed"):
        content = json.loads(read_text(path), object_pairs_hook=pairs, parse_constant=constant)
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object of DeepSpeed's keys, found {type(content).__name__}")
    return content


class _File:
    """One file of DeepSpeed, the options that it becomes, and what is reported about it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, Any] = {
            **NOT_IN_ESPNET2, "accum_grad": 1, "grad_clip": float("inf"), "use_amp": False,
            "scheduler": None,
        }  # fmt: skip
        self.keys: dict[str, str] = {}
        self.became: list[str] = []
        self.ignored: list[str] = []
        self.mistakes = Mistakes()

    def where(self, path: KeyPath) -> str:
        """Where the value of an option comes from: the file, and its key there."""
        key = self.keys.get(path[0], "")
        inner = [".params", *(f".{name}" for name in path[1:])] if path[1:] else []
        return f"{self.path}: {key}{''.join(inner)}" if key else self.path

    def note(self, replaced: Sequence[str], overruled: Sequence[str]) -> str:
        """One line for the log."""
        parts = [f"{self.path}: DeepSpeed is not used; {', '.join(self.became)}"]
        if self.ignored:
            parts.append(f"ignored, because they don't change the result: {', '.join(self.ignored)}")
        if replaced:
            parts.append(f"not used, as in ESPnet2 with DeepSpeed: {', '.join(replaced)} of the configuration file")
        if overruled:
            parts.append(f"replaced on the command line: {', '.join(overruled)}")
        return "; ".join(parts)

    def translate(self, content: Mapping[str, Any]) -> None:
        translations = {
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
            "gradient_clipping": self._clipping,
            "gradient_accumulation_steps": self._accumulation,
            "zero_optimization": self._zero,
            "bf16": self._precision,
            "fp16": self._precision,
        }
        for key, value in content.items():
            if key in translations:
                translations[key](key, value)
            else:
                self._other(key, value, SAME_RESULT, [*translations, *SAME_RESULT])
        self._check_together(content)
        self.mistakes.check()

    def _check_together(self, content: Mapping[str, Any]) -> None:
        if "optimizer" not in content:
            self._refuse("optimizer", "is missing; DeepSpeed does not train without it")
        if all(self._is_on(content.get(key)) for key in PRECISION):
            self._refuse("fp16", "can't be enabled together with bf16; remove one")
        sizes = {"train_batch_size", "train_micro_batch_size_per_gpu"}
        if sizes <= set(content) and "gradient_accumulation_steps" not in content:
            self._refuse(
                "gradient_accumulation_steps",
                "is missing; DeepSpeed computes it from the batch sizes and the number of processes. Write the number "
                "of batches to accumulate per step",
            )

    def _put(self, option: str, value: Any, key: str) -> None:
        self.values[option] = value
        self.keys[option] = key

    def _refuse(self, key: str, text: str) -> None:
        self.mistakes.add(f"{self.path}: {key}", text)

    def _object(self, key: str, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self._refuse(key, f"must be an object of keys, found {value!r}")
        return {}

    def _other(self, key: str, value: Any, harmless: frozenset[str], known: Sequence[str]) -> None:
        """A key without a translation: ignored if it can't change the result."""
        if key.rpartition(".")[2] in harmless:
            self.ignored.append(key)
        elif value is None or value is False or (isinstance(value, dict) and value.get("enabled") is False):
            self.ignored.append(f"{key} (off)")
        else:
            hint = did_you_mean(key.rpartition(".")[2], known)
            self._refuse(key, f"has no translation and may change the training; remove it, or turn it off.{hint}")

    def _is_on(self, value: Any) -> bool:
        return isinstance(value, dict) and value.get("enabled") is True

    def _optimizer(self, key: str, value: Any) -> None:
        given = self._object(key, value)
        for name in sorted(set(given) - {"type", "params", "legacy_fusion"}):
            self._refuse(f"{key}.{name}", "is not a key of DeepSpeed; the keys are type and params")
        params = dict(self._object(f"{key}.params", given.get("params") or {}))
        kind = str(given.get("type"))
        if kind.lower() in ("adam", "adamw"):
            name = self._adam(kind.lower(), params)
        elif kind in TORCH or kind.lower() == "adagrad":
            name = kind.lower()
            params = {"lr": 0.001, **params} if name == "sgd" else params
        else:
            allowed = ", ".join(("Adam", "AdamW", *TORCH))
            self._refuse(f"{key}.type", f"{kind} has no translation; {allowed} have one")
            return
        self._put("optim", name, f"{key}.type")
        self._put("optim_conf", params, key)
        self.became.append(f"{key} became optim: {name} ({_shown(params)})")

    def _adam(self, kind: str, params: dict[str, Any]) -> str:
        """Keep torch's keys in `params`; return the name. DeepSpeed's Adam is AdamW unless `adam_w_mode` is false."""
        for key in sorted(set(params) - {*ADAM, *ADAM_KERNEL, "bias_correction"}):
            hint = did_you_mean(key, (*ADAM, *ADAM_KERNEL))
            self._refuse(f"optimizer.params.{key}", f"is not a parameter of DeepSpeed's Adam that is translated.{hint}")
        if params.pop("bias_correction", True) is not True:
            self._refuse("optimizer.params.bias_correction", "must be true: Adam without it has no equivalent")
        is_torch, is_adamw = params.pop("torch_adam", False) is True, params.pop("adam_w_mode", True) is not False
        for key in ADAM_KERNEL:
            params.pop(key, None)
        name = "adamw" if kind == "adamw" or is_adamw else "adam"
        params.setdefault("weight_decay", 0.01 if is_torch and name == "adamw" else 0.0)
        return name

    def _scheduler(self, key: str, value: Any) -> None:
        given = self._object(key, value)
        if given.get("type") is None:
            self.ignored.append(f"{key} (no type)")
            return
        kind = str(given["type"])
        if kind not in SCHEDULERS:
            self._refuse(f"{key}.type", f"{kind} has no translation; {', '.join(SCHEDULERS)} have one")
            return
        name, keys, defaults = SCHEDULERS[kind]
        params = {**defaults, **self._object(f"{key}.params", given.get("params") or {})}
        if params.pop("last_batch_iteration", -1) != -1:
            self._refuse(f"{key}.params.last_batch_iteration", "must be -1; use --resume true to continue a run")
        for unknown in sorted(set(params) - set(keys)):
            self._refuse(f"{key}.params.{unknown}", f"is not a parameter of {kind}.{did_you_mean(unknown, keys)}")
        if "total_num_steps" in keys and "total_num_steps" not in params:
            self._refuse(f"{key}.params", f"{kind} needs total_num_steps")
        self._put("scheduler", name, f"{key}.type")
        self._put("scheduler_conf", params, key)
        self.became.append(f"{key} {kind} became scheduler: {name} ({_shown(params)})")

    def _clipping(self, key: str, value: Any) -> None:
        self._put("grad_clip", float("inf") if value == 0 and value is not False else value, key)
        self.became.append(f"{key} became grad_clip: {self.values['grad_clip']}")

    def _accumulation(self, key: str, value: Any) -> None:
        self._put("accum_grad", value, key)
        self.became.append(f"{key} became accum_grad: {value}")

    def _zero(self, key: str, value: Any) -> None:
        given = self._object(key, value)
        stage = given.get("stage", 0)
        if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
            self._refuse(f"{key}.stage", f"must be 0, 1, 2 or 3, found {stage!r}")
            return
        for name, item in given.items():
            if name != "stage":
                self._other(f"{key}.{name}", item, ZERO, ["stage", *ZERO])
        if stage:
            self._put("fsdp", True, f"{key}.stage")
            self.became.append(f"{key}.stage {stage} became fsdp: true (without effect in one process)")

    def _precision(self, key: str, value: Any) -> None:
        given = self._object(key, value)
        is_on = given.get("enabled", False)
        if not isinstance(is_on, bool):
            self._refuse(f"{key}.enabled", f"must be true or false, found {is_on!r}")
        for name, item in given.items():
            if name != "enabled":
                self._other(f"{key}.{name}", item, PRECISION[key], ["enabled", *PRECISION[key]])
        if is_on is True:
            self._put("use_amp", True, f"{key}.enabled")
            self.became.append(f"{key} became use_amp: true (float32 weights; bfloat16 where the device has it)")


def _shown(conf: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {item}" for key, item in conf.items())


def _replaced(layers: Sequence[Layer], values: Mapping[str, Any]) -> list[str]:
    """Options of the files that have another value after the translation."""
    given = {name: item for layer in layers for name, item in layer.values.items() if name in values}
    return [name for name, item in given.items() if item not in (None, {}, values[name])]


def _overruled(layers: Sequence[Layer], values: Mapping[str, Any]) -> Iterator[str]:
    """Translated options that a layer above gives another value."""
    for layer in layers:
        for name, item in layer.values.items():
            if isinstance(item, Mapping) and isinstance(values.get(name), Mapping):
                yield from (f"{name}.{key}" for key, inner in item.items() if values[name].get(key, inner) != inner)
            elif name in values and item != values[name]:
                yield name
