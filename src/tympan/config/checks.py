"""Training options that need or exclude each other, and their ranges: what can be said before data is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tympan.config.mistakes import did_you_mean
from tympan.config.resolve import Conflict

Values = Mapping[str, Any]


def check_together(values: Values) -> Iterator[Conflict]:
    """Every conflict in a training configuration."""
    yield from _ranges(values)
    yield from _devices(values)
    yield from _batches(values)
    yield from _model(values)
    if values["use_amp"] and values["train_dtype"] in ("float64", "O0", "O1", "O2", "O3"):
        text = f"excludes train_dtype {values['train_dtype']}; O1 is mixed precision by itself"
        yield Conflict(("use_amp", "train_dtype"), text)
    if values["write_collected_feats"] and not values["collect_stats"]:
        yield Conflict(("write_collected_feats", "collect_stats"), "needs --collect_stats true")
    if values["exclude_weight_decay_conf"] and not values["exclude_weight_decay"]:
        yield Conflict(("exclude_weight_decay_conf", "exclude_weight_decay"), "needs --exclude_weight_decay true")
    yield from _weight_decay(values["exclude_weight_decay_conf"])


def _ranges(values: Values) -> Iterator[Conflict]:
    for name, least in _LEAST.items():
        value = values.get(name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < least:
                yield Conflict((name,), f"must be at least {least}, found {number}")
    if values["grad_clip"] < 0.0:
        # torch would turn the gradient around
        yield Conflict(("grad_clip",), f"must not be negative, found {values['grad_clip']}; inf clips nothing")
    for name in ("rir_apply_prob", "noise_apply_prob"):
        if not 0.0 <= values.get(name, 0.0) <= 1.0:
            yield Conflict((name,), f"must lie between 0 and 1, found {values[name]}")


def _weight_decay(conf: Values) -> Iterator[Conflict]:
    kinds = {"bias_weight_decay": bool, "normalization_weight_decay": bool, "keys": list}
    for key, value in conf.items():
        if key not in kinds:
            hint = did_you_mean(key, kinds) or f" Its keys: {', '.join(kinds)}"
            yield Conflict(("exclude_weight_decay_conf",), f"there is no key '{key}'.{hint}")
        elif not isinstance(value, kinds[key]):
            wanted = "a list of parts of weights' names" if key == "keys" else "true or false"
            yield Conflict(("exclude_weight_decay_conf",), f"{key} wants {wanted}, found {value!r}")


def _devices(values: Values) -> Iterator[Conflict]:
    if values["device"] == "cpu" and values["ngpu"] > 0:
        text = f"{values['ngpu']} wants accelerators, but device is cpu. Use --nproc for processes"
        yield Conflict(("ngpu", "device"), text)
    if values["ngpu"] > 0 and values["nproc"] > 1:
        yield Conflict(("nproc", "ngpu"), "is for the CPU: with --ngpu N there is one process a device")
    if (text := values["elastic"]) is not None:
        match = re.fullmatch(r"([1-9][0-9]*):([1-9][0-9]*)", text)
        if match is None or int(match[1]) > int(match[2]):
            yield Conflict(("elastic",), f"wants MIN:MAX with 1 <= MIN <= MAX, such as 2:4, found '{text}'")


def _batches(values: Values) -> Iterator[Conflict]:
    fold = values["fold_length"]
    for shapes in ("train_shape_file", "valid_shape_file"):
        if fold and values[shapes] and len(fold) != len(values[shapes]) and values["batch_type"] == "folded":
            text = f"has {len(fold)} numbers for {len(values[shapes])} of {shapes}; give one each"
            yield Conflict(("fold_length", shapes, "batch_type"), text)
    most = values["max_batch_size"]
    if most is not None and most < values["min_batch_size"]:
        text = f"{most} is below min_batch_size, which is {values['min_batch_size']}"
        yield Conflict(("max_batch_size", "min_batch_size"), text)


def _model(values: Values) -> Iterator[Conflict]:
    if values.get("frontend", "") is None and values["input_size"] is None:
        text = "is null, so --input_size must say how many values a frame of the features has"
        yield Conflict(("frontend", "input_size"), text)
    ctc_weight = values["model_conf"].get("ctc_weight", 1.0)
    if values.get("decoder", "") is None and ctc_weight != 1.0:
        text = f"is null, so CTC is alone: it needs --model_conf ctc_weight=1.0, found {ctc_weight}"
        yield Conflict(("decoder", "model", "model_conf"), text)
    # A model that is loaded has its statistics in its weights, and --collect_stats makes the file; training needs it.
    lacks_file = values.get("normalize") == "global_mvn" and values["normalize_conf"].get("stats_file") is None
    if lacks_file and not values["collect_stats"]:
        yield Conflict(("normalize", "normalize_conf"), "global_mvn needs --normalize_conf stats_file=FILE")
    reads_text = any(kind == "text" for _, _, kind in values["train_data_path_and_name_and_type"])
    needs_model = values["use_preprocessor"] and values["token_type"] == "bpe" and values["bpemodel"] is None
    if reads_text and needs_model:
        yield Conflict(("token_type", "bpemodel"), "bpe needs --bpemodel; or use --token_type char")


_LEAST = {
    "ngpu": 0,
    "nproc": 1,
    "num_workers": 0,
    "num_att_plot": 0,
    "max_restarts": 0,
    "max_epoch": 0,
    "patience": 0,
    "keep_nbest_models": 1,
    "keep_last_models": 1,
    "nbest_averaging_interval": 0,
    "accum_grad": 1,
    "save_interval_steps": 1,
    "max_skipped_steps": 1,
    "log_interval": 1,
    "num_iters_per_epoch": 1,
    "batch_size": 1,
    "valid_batch_size": 1,
    "batch_bins": 1,
    "valid_batch_bins": 1,
    "max_batch_size": 1,
    "min_batch_size": 1,
    "num_buckets": 1,
    "fold_length": 1,
    "input_size": 1,
}
