"""Valid training runs that differ in how they run: batches, statistics, effects, resumed runs, files of other tools."""

from __future__ import annotations

import importlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.faults.command_families import no_faults
from tests.faults.config_families import Family, Materials, Values, part, training_faults
from tympan.config.asr import AsrTrainConfig
from tympan.config.choices import EFFECTS
from tympan.config.signature import REQUIRED

EFFECT_VALUES: Values = {"cutoff_freq": 1000.0, "center_freq": 1000.0, "factor": 1.1, "n_steps": 2, "freq": 1000.0}
DEEPSPEED: Values = {
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 0.001, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.0, "adam_w_mode": True},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 100, "warmup_min_lr": 0.0, "warmup_max_lr": 0.001, "warmup_num_steps": 10},
    },
    "gradient_clipping": 1.0,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": False},
    "fp16": {"enabled": False, "loss_scale": 0},
    "zero_optimization": {"stage": 0, "contiguous_gradients": True},
    "train_micro_batch_size_per_gpu": 2,
    "wall_clock_breakdown": False,
}
LIGHTNING: Values = {
    "max_epochs": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 1.0, "log_every_n_steps": 1, "precision": "32",
    "best_model_criterion": [["valid/acc", "max", 1], ["step", "max", 1]], "accelerator": "cpu", "devices": 1,
}  # fmt: skip


def prepare_runs(materials: Materials) -> None:
    """Collect the lengths of the data."""
    folder = materials.folder
    config = {**_base(folder), "collect_stats": True, "output_dir": str(folder / "stats")}
    (folder / "stats.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    ended = materials.server.run(["asr_train", "--config", str(folder / "stats.yaml")])
    assert ended.code == 0, ended.output


def _base(folder: Path) -> Values:
    config: Values = yaml.safe_load((folder / "base.yaml").read_text(encoding="utf-8"))
    return config


def batches(chance: random.Random, folder: Path) -> Values:
    kind = chance.choice(["unsorted", "sorted", "folded", "length", "numel", "bucket"])
    config = _base(folder) | {"batch_type": kind, "batch_bins": 50_000, "fold_length": [20_000, 10]}
    for side in ("train", "valid"):
        shapes = [str(folder / "stats" / side / name) for name in ("speech_shape", "text_shape")]
        config[f"{side}_shape_file"] = shapes
    return config


def statistics(chance: random.Random, folder: Path) -> Values:
    config = _base(folder) | {"collect_stats": True, "write_collected_feats": chance.random() < 0.3}
    return config | part("frontend", chance.choice(["default", "sliding_window"]))


def _statistics_faults(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    for side in ("train", "valid"):
        for path in (output / side).glob("*_stats.npz"):
            with np.load(path) as stats:
                if not all(np.isfinite(stats[name]).all() for name in stats.files):
                    yield f"{path} has numbers that are not finite"


def effects(chance: random.Random, folder: Path) -> Values:
    entries: list[Any] = []
    for name in chance.sample(EFFECTS.names(), 2):
        keys = {k: p.default for k, p in EFFECTS.parameters(name).items()}
        options = {k: EFFECT_VALUES.get(k, 1.0) if value is REQUIRED else value for k, value in keys.items()}
        entries.append([1.0, name, options])
    if chance.random() < 0.3:
        entries = [[1.0, entries]]
    conf = {"data_aug_effects": entries, "data_aug_num": [1, 1], "data_aug_prob": 1.0}
    return _base(folder) | {"preprocessor": "default", "preprocessor_conf": conf}


def auxiliary_ctc(chance: random.Random, folder: Path) -> Values:
    config = _base(folder)
    for side in ("train", "valid"):
        config[f"{side}_data_path_and_name_and_type"].append([f"{folder}/{side}/text", "tone", "text"])
    config["encoder_conf"] |= {"interctc_layer_idx": [1], "interctc_use_conditioning": chance.random() < 0.5}
    config["model_conf"] |= {"interctc_weight": 0.3, "aux_ctc": {"1": "tone"}}
    return config | {"aux_ctc_tasks": ["tone"]}


def deepspeed(chance: random.Random, folder: Path) -> Values:
    content = json.loads(json.dumps(DEEPSPEED))
    if chance.random() < 0.5:
        name = chance.choice(["AdamW", "SGD", "Adagrad", "Adadelta", "RMSprop"])
        content["optimizer"] = {"type": name, "params": {"lr": 0.001}}
    if chance.random() < 0.3:
        params = {"total_num_steps": 100, "warmup_min_ratio": 0.0, "cos_min_ratio": 0.01, "warmup_num_steps": 10}
        content["scheduler"] = {"type": "WarmupCosineLR", "params": params}
    return _base(folder) | {"use_deepspeed": True, "deepspeed_config": content}


def lightning(chance: random.Random, folder: Path) -> Values:
    config = _base(folder)
    del config["max_epoch"]
    return {"config": {"lightning_conf": json.loads(json.dumps(LIGHTNING))}, **config}


def resumed(chance: random.Random, folder: Path) -> Values:
    return _base(folder) | {"resume": True, "max_epoch": 2}


def _copy_run(folder: Path, output: Path) -> None:
    shutil.copytree(folder / "exp", output)


def _resumed_faults(output: Path, printed: str, config: Values) -> Iterator[str]:
    yield from training_faults(output, printed, config)
    if not (output / "2epoch.pth").exists() and config.get("max_epoch") == 2:
        yield "the second epoch was not trained"


def translation(chance: random.Random, folder: Path) -> Values:
    return {"ref": str(folder / "train" / "text"), "hyp": str(folder / "hyp")}


def packing(chance: random.Random, folder: Path) -> Values:
    return {"output_dir": str(folder / "out"), "model": str(folder / "exp")}


def joined_statistics(chance: random.Random, folder: Path) -> Values:
    return {"input_dir": [str(folder / "stats"), str(folder / "stats")]}


def _family(name: str, command: str, draw: Any, faults: Any, **more: Any) -> Family:
    module = importlib.import_module(f"tympan.bin.{command}")
    return Family(name, command, getattr(module, "Options", AsrTrainConfig), draw, faults, **more)


RUNS = {
    family.name: family
    for family in (
        _family("batches", "asr_train", batches, training_faults),
        _family("statistics", "asr_train", statistics, _statistics_faults),
        _family("effects", "asr_train", effects, training_faults, inner=("preprocessor_conf",)),
        _family("auxiliary_ctc", "asr_train", auxiliary_ctc, training_faults),
        _family("deepspeed", "asr_train", deepspeed, training_faults, inner=("deepspeed_config",)),
        _family("lightning", "asr_train", lightning, training_faults, inner=("config",), kept=frozenset(["max_epoch"])),
        _family("resumed", "asr_train", resumed, _resumed_faults, before=_copy_run),
        _family("st_score", "st_score", translation, no_faults, kept=frozenset(["output"])),
        _family("packing", "pack", packing, no_faults, kept=frozenset(["output_dir", "outpath", "push_to"])),
        _family("joined", "aggregate_stats_dirs", joined_statistics, no_faults),
    )
}
_OFTEN = {"effects": 6, "deepspeed": 5, "lightning": 4, "batches": 3, "resumed": 2, "statistics": 2, "auxiliary_ctc": 2}
WEIGHTS = {name: _OFTEN.get(name, 1) for name in RUNS}
"""How often a family is drawn."""
