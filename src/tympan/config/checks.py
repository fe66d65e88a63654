"""Training options that need or exclude each other, as far as this can be checked before data is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tympan.config.choices import ADAPTERS
from tympan.config.mistakes import Mistakes, did_you_mean
from tympan.config.registry import complete
from tympan.config.resolve import Conflict

Values = Mapping[str, Any]


def check_together(values: Values) -> Iterator[Conflict]:
    """Conflicts between the options that every training command has."""
    yield from _devices(values)
    yield from _batches(values)
    if values["use_amp"] and values["train_dtype"] in ("float64", "O0", "O1", "O2", "O3"):
        text = f"can't be used with train_dtype {values['train_dtype']}; O1 already is mixed precision"
        yield Conflict(("use_amp", "train_dtype"), text)
    if values["write_collected_feats"] and not values["collect_stats"]:
        yield Conflict(("write_collected_feats", "collect_stats"), "needs --collect_stats true")
    if values["exclude_weight_decay_conf"] and not values["exclude_weight_decay"]:
        yield Conflict(("exclude_weight_decay_conf", "exclude_weight_decay"), "needs --exclude_weight_decay true")
    if not values["keep_nbest_models"]:
        yield Conflict(("keep_nbest_models",), "needs at least one number; 1 keeps only the best model")
    yield from _weight_decay(values["exclude_weight_decay_conf"])
    yield from check_adapter(values)
    yield from _weights(values)


def _weight_decay(conf: Values) -> Iterator[Conflict]:
    kinds = {"bias_weight_decay": bool, "normalization_weight_decay": bool, "keys": list}
    for key, value in conf.items():
        if key not in kinds:
            hint = did_you_mean(key, kinds) or f" Its keys: {', '.join(kinds)}"
            yield Conflict(("exclude_weight_decay_conf",), f"there is no key '{key}'.{hint}")
        elif not isinstance(value, kinds[key]):
            wanted = "a list of parts of parameter names" if key == "keys" else "true or false"
            yield Conflict(("exclude_weight_decay_conf",), f"{key} expects {wanted}, found {value!r}")


def check_adapter(values: Values) -> Iterator[Conflict]:
    """Mistakes in `adapter_conf`. Its keys are not completed: ESPnet2 prints and saves only what was given."""
    mistakes = Mistakes()
    name = values["adapter"]
    complete(
        values["adapter_conf"],
        ADAPTERS.parameters(name),
        owner=f"adapter '{name}'",
        mistakes=mistakes,
        where=str,
    )
    yield from (Conflict(("adapter_conf",), line) for line in mistakes.found)


def _weights(values: Values) -> Iterator[Conflict]:
    if values["also_train"] and (not values["use_adapter"] or values["freeze_param"]):
        needed = "needs --use_adapter true" if not values["use_adapter"] else "can't be used with --freeze_param"
        yield Conflict(("also_train", "use_adapter", "freeze_param"), needed)
    own_rates = ["onecyclelr", "cycliclr", "piecewiselinearwarmuplr"]
    if values["scheduler_conf"].get("warmup_max_lr") is not None:
        own_rates.append("deepspeedwarmuplr")
    if values["layer_decay"] is not None and values["scheduler"] in own_rates:
        text = f"can't be used with --scheduler {values['scheduler']}, which sets the learning rates itself"
        yield Conflict(("layer_decay", "scheduler"), text)
    if values["unfreeze_interval"] is not None and values["fsdp"]:
        yield Conflict(("unfreeze_interval", "fsdp"), "can't be used with --fsdp true")
    if values["save_strategy"] != "all" and not values["use_adapter"]:
        yield Conflict(("save_strategy", "use_adapter"), "needs --use_adapter true")


def _devices(values: Values) -> Iterator[Conflict]:
    if values["device"] == "cpu" and values["ngpu"] > 0:
        text = (
            f"{values['ngpu']} asks for accelerators, but device is cpu. Use --nproc for several processes on the CPU"
        )
        yield Conflict(("ngpu", "device"), text)
    if values["ngpu"] > 0 and values["nproc"] > 1:
        yield Conflict(("nproc", "ngpu"), "is for the CPU only: with --ngpu N, one process is started per device")
    if (text := values["elastic"]) is not None:
        match = re.fullmatch(r"([1-9][0-9]*):([1-9][0-9]*)", text)
        if match is None or int(match[1]) > int(match[2]):
            yield Conflict(("elastic",), f"expects MIN:MAX with 1 <= MIN <= MAX, such as 2:4, found '{text}'")


def _batches(values: Values) -> Iterator[Conflict]:
    fold = values["fold_length"]
    for shapes in ("train_shape_file", "valid_shape_file"):
        if fold and values[shapes] and len(fold) != len(values[shapes]) and values["batch_type"] == "folded":
            text = (
                f"has {len(fold)} numbers, but there are {len(values[shapes])} of {shapes}; give one number per "
                "shape file"
            )
            yield Conflict(("fold_length", shapes, "batch_type"), text)
    most = values["max_batch_size"]
    if most is not None and most < values["min_batch_size"]:
        text = f"{most} is below min_batch_size, which is {values['min_batch_size']}"
        yield Conflict(("max_batch_size", "min_batch_size"), text)
