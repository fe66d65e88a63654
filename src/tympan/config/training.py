"""The configuration of a training command, and of a trained model."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tympan.config.espnet1 import translate_espnet1
from tympan.config.espnet2 import LACKING, WRITTEN_BY_ESPNET2
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.parse import parse_args, read_layer
from tympan.config.registry import is_import
from tympan.config.resolve import Layer, Rules, Where, resolve
from tympan.config.train import TrainConfig
from tympan.errors import UserError

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=TrainConfig)


def parse_training(
    schema: type[Config], argv: Sequence[str] | None = None, *, prog: str, description: str | None = None
) -> Config:
    """The options of a training command, checked as far as they can be without reading data."""
    return parse_args(schema, argv, prog=prog, description=description, rules=RULES)


def load_training_config(schema: type[Config], path: str | Path, *, allow_import: bool = False) -> Config:
    """The configuration of a trained model: Tympan's config.yaml or ESPnet2's.

    A config that names a class by `package.module:Class` would make loading a model run code: refused unless allowed.
    How another toolkit or version trained the model does not matter for using it: training options that we do not
    have give a warning, and only what makes the model is strict.
    """
    layer = read_layer(Path(path), MODEL_RULES)
    if not allow_import:
        _refuse_imports(schema, layer)
    try:
        return resolve(schema, [layer], rules=MODEL_RULES, is_complete=False)
    except UserError as error:
        training_only = {item.name for item in dataclasses.fields(TrainConfig)} - {"token_list"}
        names = set(options_of(schema)) - training_only
        model = Layer({key: value for key, value in layer.values.items() if key in names}, layer.where)
        config = resolve(schema, [model], rules=MODEL_RULES, is_complete=False)
        logger.warning("The model is used without these training options, which stand at their defaults: %s", error)
        return config


def _refuse_imports(schema: type[Any], layer: Layer) -> None:
    mistakes = Mistakes()
    for name, option in options_of(schema).items():
        value = layer.values.get(name)
        if option.extra.registry is not None and isinstance(value, str) and is_import(value):
            where = layer.where((name,))
            mistakes.add(
                where, f"{name} names the class '{value}': loading it runs its code. If you trust it: --allow_import"
            )
    mistakes.check()


def check_together(values: Mapping[str, Any], where: Where, mistakes: Mistakes) -> None:
    """Options that need or exclude each other, and ranges."""
    for name, least in _LEAST.items():
        value = values.get(name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < least:
                mistakes.add(where(name), f"must be at least {least}, found {number}")
    for name in ("rir_apply_prob", "noise_apply_prob"):
        if not 0.0 <= values.get(name, 0.0) <= 1.0:
            mistakes.add(where(name), f"must lie between 0 and 1, found {values[name]}")
    if values["device"] == "cpu" and values["ngpu"] > 0:
        mistakes.add(
            where("ngpu"), f"{values['ngpu']} wants accelerators, but device is cpu. Use --nproc for processes"
        )
    if values["ngpu"] > 0 and values["nproc"] > 1:
        mistakes.add(where("nproc"), "is for the CPU: with --ngpu N there is one process a device")
    if values["elastic"] is not None:
        _check_elastic(values["elastic"], where, mistakes)
    if values["use_amp"] and values["train_dtype"] in ("float64", "O0", "O1", "O2", "O3"):
        mistakes.add(where("use_amp"), f"excludes train_dtype {values['train_dtype']}; O1 is mixed precision by itself")
    fold = values["fold_length"]
    for shapes in ("train_shape_file", "valid_shape_file"):
        if fold and values[shapes] and len(fold) != len(values[shapes]) and values["batch_type"] == "folded":
            mistakes.add(
                where("fold_length"), f"has {len(fold)} numbers for {len(values[shapes])} of {shapes}; give one each"
            )
    if values.get("frontend", "") is None and values["input_size"] is None:
        mistakes.add(where("frontend"), "is null, so --input_size must say how many values a frame of the features has")
    if values.get("decoder", "") is None and values["model_conf"].get("ctc_weight", 1.0) != 1.0:
        found = values["model_conf"]["ctc_weight"]
        mistakes.add(where("decoder"), f"is null, so CTC is alone: it needs --model_conf ctc_weight=1.0, found {found}")


def _check_elastic(text: str, where: Where, mistakes: Mistakes) -> None:
    match = re.fullmatch(r"([1-9][0-9]*):([1-9][0-9]*)", text)
    if match is None or int(match[1]) > int(match[2]):
        mistakes.add(where("elastic"), f"wants MIN:MAX with 1 <= MIN <= MAX, such as 2:4, found '{text}'")


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

RULES = Rules(translate=translate_espnet1, ignored=WRITTEN_BY_ESPNET2, lacking=LACKING, check=check_together)
MODEL_RULES = dataclasses.replace(RULES, translate=None, check=None)
