"""DeepSpeed's JSON file, which ESPnet2's `use_deepspeed: true` names: what it becomes, and what is rejected."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tympan.config import dump_config, load_training_config, parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.errors import UserError

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.5,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "Adam", "params": {"lr": 0.002, "betas": [0.9, 0.95], "adam_w_mode": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.0001, "warmup_num_steps": 30000}},
    "steps_per_print": 1000,
}
FILE: dict[str, Any] = {
    "encoder": "transformer",
    "decoder": "transformer",
    "use_deepspeed": True,
    "deepspeed_config": "deepspeed.json",
    # ESPnet2 ignores these with DeepSpeed.
    "optim": "sgd",
    "optim_conf": {"momentum": 0.5},
    "patience": 3,
}


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AsrTrainConfig]:
    """Parse FILE and, as `deepspeed.json`, DEEPSPEED with changes; a change to None removes the key."""
    monkeypatch.chdir(tmp_path)

    def parsed(*argv: str, text: str | None = None, **changes: Any) -> AsrTrainConfig:
        content = {key: item for key, item in (copy.deepcopy(DEEPSPEED) | changes).items() if item is not None}
        (tmp_path / "deepspeed.json").write_text(json.dumps(content) if text is None else text)
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(FILE))
        return parse_training(
            AsrTrainConfig, ["--config", "a.yaml", "--token_list", "[<blank>,<unk>,a,<sos/eos>]", *argv], prog="t"
        )

    return parsed


def test_every_key_becomes_an_option(parse: Callable[..., AsrTrainConfig], capsys: pytest.CaptureFixture[str]) -> None:
    config = parse()
    assert (config.optim, config.optim_conf["lr"], config.optim_conf["betas"]) == ("adamw", 0.002, (0.9, 0.95))
    assert config.optim_conf["weight_decay"] == 0.0  # DeepSpeed's default, not torch's 0.01
    assert "momentum" not in config.optim_conf
    assert config.scheduler == "deepspeedwarmuplr"
    assert config.scheduler_conf == {
        "warmup_min_lr": 0.0, "warmup_max_lr": 0.0001, "warmup_num_steps": 30000, "warmup_type": "log",
        "total_num_steps": None, "last_epoch": -1,
    }  # fmt: skip
    assert (config.grad_clip, config.accum_grad, config.use_amp, config.fsdp) == (1.5, 2, True, True)
    assert (config.patience, config.use_deepspeed) == (None, False)
    (note,) = capsys.readouterr().err.splitlines()
    assert "optimizer became optim: adamw (lr: 0.002, betas: [0.9, 0.95], weight_decay: 0.0)" in note
    assert "zero_optimization.stage 2 became fsdp: true (without effect in one process)" in note
    assert (
        "they don't change the result: train_micro_batch_size_per_gpu, zero_optimization.overlap_comm, "
        "zero_optimization.reduce_bucket_size, steps_per_print"
    ) in note
    assert "as in ESPnet2 with DeepSpeed: optim, optim_conf, patience of the configuration file" in note


def test_the_command_line_has_precedence(
    parse: Callable[..., AsrTrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse("--grad_clip", "3", "--optim_conf", "lr=0.01", "--patience", "4", "--fsdp", "false")
    assert (config.grad_clip, config.optim_conf["lr"], config.optim_conf["betas"]) == (3.0, 0.01, (0.9, 0.95))
    assert (config.patience, config.fsdp) == (4, False)
    assert "replaced on the command line: grad_clip, optim_conf.lr, patience, fsdp" in capsys.readouterr().err
    assert parse("--use_deepspeed", "false").optim == "sgd"


def test_the_switch_may_be_given_on_the_command_line_or_from_python(
    parse: Callable[..., AsrTrainConfig], tmp_path: Path
) -> None:
    parse()
    (tmp_path / "b.yaml").write_text("encoder: transformer\ndecoder: transformer\ntoken_list: [a, b]\n")
    line = ["--config", "b.yaml", "--use_deepspeed", "true", "--deepspeed_config", "deepspeed.json"]
    assert parse_training(AsrTrainConfig, line, prog="t").optim == "adamw"
    options = {"use_deepspeed": True, "deepspeed_config": "deepspeed.json", "accum_grad": 7}
    config = make_training_config(AsrTrainConfig, ["b.yaml"], options)
    assert (config.optim, config.accum_grad, config.use_deepspeed) == ("adamw", 7, False)


def test_the_resolved_configuration_does_not_need_the_file(
    parse: Callable[..., AsrTrainConfig], tmp_path: Path
) -> None:
    config = parse("--grad_clip", "3")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    (tmp_path / "deepspeed.json").unlink()
    assert parse_training(AsrTrainConfig, ["--config", "config.yaml"], prog="t") == config
    # A model that ESPnet2 trained with DeepSpeed can be used without the file too.
    assert load_training_config(AsrTrainConfig, "a.yaml").encoder == "transformer"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"gradient_clipping": None, "gradient_accumulation_steps": None},
            {"grad_clip": float("inf"), "accum_grad": 1},
        ),
        ({"gradient_clipping": 0}, {"grad_clip": float("inf")}),
        ({"bf16": {"enabled": False}}, {"use_amp": False, "train_dtype": "float32"}),
        ({"bf16": None, "fp16": {"enabled": True, "initial_scale_power": 8}}, {"use_amp": True}),
        ({"zero_optimization": {"stage": 0}}, {"fsdp": False}),
        ({"scheduler": None}, {"scheduler": None, "scheduler_conf": {}}),
        ({"optimizer": {"type": "adam", "params": {"adam_w_mode": False}}}, {"optim": "adam"}),
        ({"optimizer": {"type": "SGD"}}, {"optim": "sgd", "optim_conf.lr": 0.001, "optim_conf.momentum": 0.0}),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, {"optim_conf.weight_decay": 0.01}),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}},
            {"scheduler_conf.total_num_steps": 9, "scheduler_conf.warmup_max_lr": 0.001},
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "warmup_type": "linear"}}},
            {"scheduler": "deepspeedwarmupcosinelr", "scheduler_conf.warmup_type": "linear"},
        ),
        ({"amp": {"enabled": False}, "curriculum_learning": {"enabled": False}}, {"use_amp": True}),
    ],
)
def test_values_and_defaults_of_deepspeed(
    parse: Callable[..., AsrTrainConfig], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = parse(**changes)
    for name, value in expected.items():
        option, _, key = name.partition(".")
        assert (getattr(config, option)[key] if key else getattr(config, option)) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"amp": {"enabled": True}}, "amp: has no translation and may change the training; remove it, or turn it off"),
        ({"gradient_cliping": 1.0}, "gradient_cliping: has no translation .* Did you mean 'gradient_clipping'"),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "zero_optimization.zero_quantized_weights: has no"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: must be 0, 1, 2 or 3, found 4"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16_master_weights_and_grads: has no"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled: must be true or false, found 'auto'"),
        ({"fp16": {"enabled": True}}, "fp16: can't be enabled together with bf16"),
        ({"optimizer": None}, "optimizer: is missing; DeepSpeed does not train without it"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type: OneBitAdam has no translation; Adam, AdamW, SGD"),
        ({"optimizer": {"type": "Adam", "params": {"bets": []}}}, "params.bets: is not a .* Did you mean 'betas'"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, "bias_correction: must be true"),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": "auto"}}},
            "json: optimizer.params.lr: optim_conf.lr: e",
        ),
        ({"optimizer": {"type": "SGD", "params": {"momentm": 1}}}, "has no key 'momentm'. Did you mean 'momentum'"),
        ({"optimizer": [1]}, "optimizer: must be an object of keys, found"),
        ({"scheduler": {"type": {}}}, "scheduler.type: {} has no translation; WarmupLR, WarmupDecayLR"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type: OneCycle has no translation; WarmupLR, WarmupDecayLR"),
        ({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5}}}, "total_num_steps: is not a parameter"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "scheduler.params: WarmupDecayLR needs total_num_steps"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cos"}}}, "scheduler.params.warmup_type: .*log"),
        ({"gradient_clipping": -1}, "deepspeed.json: gradient_clipping: grad_clip: must be above 0"),
        ({"gradient_accumulation_steps": "auto"}, "gradient_accumulation_steps: accum_grad: expects int, found 'auto'"),
        (
            {"train_batch_size": 32, "gradient_accumulation_steps": None},
            "gradient_accumulation_steps: is missing; DeepSpeed computes it from the batch sizes",
        ),
        ({"text": "{"}, "deepspeed.json: damaged, or not a JSON file of DeepSpeed"),
        ({"text": "[" * 100_000}, "deepspeed.json: damaged, or not a JSON file of DeepSpeed"),
        ({"text": "[1]"}, "deepspeed.json: must be a JSON object of DeepSpeed's keys, found list"),
        ({"text": '{"gradient_clipping": NaN}'}, "deepspeed.json: NaN is not a number of JSON"),
        ({"text": '{"bf16": {}, "bf16": {}}'}, "deepspeed.json: the key 'bf16' is given twice"),
    ],
)
def test_what_cannot_be_translated_is_named(
    parse: Callable[..., AsrTrainConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse(**changes)


def test_a_file_is_needed(parse: Callable[..., AsrTrainConfig], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^missing\.json: no such file$"):
        parse("--deepspeed_config", "missing.json")
    with pytest.raises(UserError, match=r"a\.yaml:\d+: use_deepspeed needs --deepspeed_config, the path"):
        parse("--deepspeed_config", "none")
