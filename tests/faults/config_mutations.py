"""Configurations with random values, and what comes of them: parsed, built, and one step trained."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
import yaml

import tympan.config.choices as choices
from tests.faults.damage import Outcome, attempt
from tympan.config.asr import AsrTrainConfig
from tympan.config.option import options_of
from tympan.config.range import Range
from tympan.config.read import parse_training
from tympan.errors import UserError
from tympan.models.loss import Loss
from tympan.runtime.comm import Solo
from tympan.runtime.memory import is_out_of_memory
from tympan.runtime.precision import choose_precision
from tympan.runtime.seed import set_all_seeds
from tympan.tasks.asr import AsrTask
from tympan.training.session import build_updater

TOKENS = ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"]
REGISTRIES = {
    "frontend": choices.FRONTENDS, "specaug": choices.SPECAUGS, "normalize": choices.NORMALIZERS,
    "preencoder": choices.PREENCODERS, "encoder": choices.ENCODERS, "decoder": choices.DECODERS,
    "optim": choices.OPTIMIZERS, "scheduler": choices.SCHEDULERS, "model": choices.ASR_MODELS,
}  # fmt: skip
CHOSEN: dict[str, list[str | None]] = {
    "frontend": ["default", "default", "sliding_window"],
    "specaug": ["specaug", None],
    "normalize": ["utterance_mvn", None],
    "preencoder": [None, None, "linear"],
    "encoder": [*choices.ENCODERS.names()],
    "decoder": ["transformer", "rnn", "transformer", "lightweight_conv"],
    "optim": [*choices.OPTIMIZERS.names()],
    "scheduler": [*choices.SCHEDULERS.names(), None],
    "model": ["espnet"],
}
SMALL = {
    "output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1, "num_layers": 1, "hidden_size": 16,
    "cgmlp_linear_units": 24, "cgmlp_conv_kernel": 7, "cnn_module_kernel": 7, "fs": 8000, "n_fft": 128,
    "hop_length": 64, "n_mels": 16, "win_length": 128, "ctc_weight": 0.3, "conv_wshare": 2,
    "conv_kernel_length": "7", "max_lr": 0.01, "base_lr": 0.001, "min_lr": 0.0001, "total_steps": 100, "gamma": 0.9,
    "step_size": 10, "T_max": 10, "T_0": 10, "first_cycle_steps": 10, "milestones": [10], "warmup_steps_list": [0, 10],
    "warmup_lr_list": [0.0, 0.001], "time_mask_width_range": [0, 10], "multicgmlp_merge_conv_kernel": 7,
}  # fmt: skip
WILD: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 0.5, 1.5, -5, 1e10, 2**63, 1e30, "1_0", "", "nan", "x" * 300, None,
    [], [1], [1, -1], {}, {"a": 1}, True, "5", "'", "0x10", "\0", "\ud83d\ude00",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    arguments: list[str]
    changed: list[str]

    def run(self) -> tuple[Outcome, str]:
        return attempt(self._train, lambda loss: math.isfinite(loss))

    def _train(self) -> float:
        """The loss of the first step, after which the optimizer and the scheduler take one."""
        config = parse_training(AsrTrainConfig, self.arguments, prog="test")
        set_all_seeds(0)
        try:
            model = AsrTask().build_model(config)
            updater = build_updater(
                config,
                model,
                comm=Solo(),
                device=torch.device("cpu"),
                precision=choose_precision("float32", device_type="cpu"),
            )
            loss = _loss(model)
            loss.backward()
            updater.optimizer.step(lambda: float(loss.detach()))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise UserError("out of memory") from error
            raise
        rates = [group["lr"] for group in updater.optimizer.param_groups]
        return float(loss) if all(math.isfinite(rate) and rate >= 0 for rate in rates) else math.nan


def make_trial(number: int) -> Trial:
    """One to three options with another value, chosen by the number."""
    chance = random.Random(f"config {number}")
    config: dict[str, Any] = {"token_type": "char", "token_list": TOKENS}
    for kind, names in CHOSEN.items():
        name = chance.choice(names)
        config[kind] = name
        if name is not None:
            known = REGISTRIES[kind].parameters(name)
            config[f"{kind}_conf"] = {key: value for key, value in SMALL.items() if key in known}
    changed = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        changed.append(_change(config, chance))
    arguments = []
    for name, value in config.items():
        arguments += [f"--{name}", value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)]
    return Trial([argument.removesuffix("...\n").strip() for argument in arguments], changed)


def _change(config: dict[str, Any], chance: random.Random) -> str:
    if chance.random() < 0.25:
        names = [
            name for name, item in options_of(AsrTrainConfig).items() if name not in _LEFT_ALONE and item.extra.range
        ]
        name = chance.choice(names)
        config[name] = chance.choice(WILD)
        return f"{name}={config[name]!r}"
    kind = chance.choice([kind for kind in CHOSEN if config[kind] is not None])
    parameters = REGISTRIES[kind].parameters(config[kind])
    if not parameters:
        return "nothing"
    key = chance.choice(list(parameters))
    value = chance.choice((*WILD, *_edges(parameters[key].range)))
    config[f"{kind}_conf"] = {**config[f"{kind}_conf"], key: value}
    return f"{kind}_conf {key}={value!r}"


_LEFT_ALONE = ("token_list", "output_dir", "config")


def _edges(bounds: Range) -> list[Any]:
    """The ends of a range and what lies just outside; a legal size that only costs memory is left out."""
    found: list[Any] = []
    for bound in (bounds.least, bounds.above):
        found += [] if bound is None else [bound, bound - 1, bound + 1]
    for bound in (bounds.most, bounds.below):
        if bound is not None:
            found += [bound + 1, *([bound] if abs(bound) <= 64 else [])]
    return found


def _loss(model: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    batch = {
        "speech": torch.randn(2, 12000, generator=generator) * 0.1, "speech_lengths": torch.tensor([12000, 9000]),
        "text": torch.tensor([[2, 3, 4], [3, 2, -1]]), "text_lengths": torch.tensor([3, 2]),
    }  # fmt: skip
    found: Loss = model(**batch)
    return found.value
