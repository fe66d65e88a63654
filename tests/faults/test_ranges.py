"""Invalid numbers are rejected before anything is built, with one message that names them."""

from __future__ import annotations

import importlib
import random
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

import tympan.config.choices as choices
from tympan.config.asr import AsrTrainConfig
from tympan.config.cast import members_of
from tympan.config.lm import LmTrainConfig
from tympan.config.option import options_of
from tympan.config.range import Range
from tympan.config.read import parse_training
from tympan.config.registry import Registry
from tympan.config.signature import REQUIRED, signature_from_class, signature_from_source
from tympan.config.st import StTrainConfig
from tympan.decode.espnet2_options import STREAMING
from tympan.errors import UserError

REGISTRIES = {name: item for name, item in vars(choices).items() if isinstance(item, Registry)}
CLASSES = [(name, choice) for name, registry in REGISTRIES.items() for choice in registry.names()]
CTC_ONLY = ["--token_type", "char", "--model_conf", "ctc_weight=1.0"]
HYBRID = ["--token_type", "char", "--encoder", "conformer", "--decoder", "transformer", "--specaug", "specaug"]


def parse(*arguments: str, schema: type[Any] = AsrTrainConfig, base: list[str] = HYBRID) -> Any:
    return parse_training(schema, [*base, *arguments], prog="test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--grad_clip 0", "--grad_clip: must be above 0, found 0"),
        ("--encoder_conf dropout_rate=1", "--encoder_conf dropout_rate: must be at least 0 and below 1, found 1"),
        ("--model_conf lsm_weight=1", "--model_conf lsm_weight: must be at least 0 and below 1, found 1"),
        ("--grad_clip nan", "--grad_clip: must be above 0, found nan"),
        ("--grad_clip -inf", "--grad_clip: must be above 0, found -inf"),
        ("--grad_clip_type 1e25", "--grad_clip_type: must be between 0.5 and 10, or inf, found 1e+25"),
        ("--grad_clip_type 0", "--grad_clip_type: must be between 0.5 and 10, or inf, found 0"),
        ("--optim adam --optim_conf lr=.inf", "--optim_conf lr: must be between 0 and 1000, found inf"),
        ("--optim adam --optim_conf lr=1e-320", "--optim_conf lr: must be 0 or at least 1e-37 away from 0 (too small"),
        ("--optim adam --optim_conf lr=1e10", "--optim_conf lr: must be between 0 and 1000, found 1e+10"),
        ("--optim adam --optim_conf weight_decay=.inf", "--optim_conf weight_decay: must be between 0 and 1000"),
        ("--optim adam --optim_conf eps=-5", "--optim_conf eps: must be above 0 and at most 1, found -5"),
        ("--optim adam --optim_conf eps=0", "--optim_conf eps: must be above 0 and at most 1, found 0"),
        ("--optim adam --optim_conf betas=[0.9,1.0]", "--optim_conf betas: must be at least 0 and below 1, found 1"),
        ("--optim lbfgs --optim_conf max_iter=1e10", "--optim_conf max_iter: must be between 1 and 1000, found 10000"),
        ("--frontend_conf fs=0", "--frontend_conf fs: must be between 100 and 1000000, found 0"),
        ("--frontend_conf fmax=1e-320", "--frontend_conf fmax: must be between 1 and 500000, found 1e-320"),
        ("--frontend_conf fmax=-1", "--frontend_conf fmax: must be between 1 and 500000, found -1"),
        ("--frontend_conf hop_length=0", "--frontend_conf hop_length: must be between 1 and 1000000, found 0"),
        ("--frontend_conf hop_length=-160", "--frontend_conf hop_length: must be between 1 and 1000000, found -160"),
        ("--frontend_conf n_mels=0", "--frontend_conf n_mels: must be between 1 and 100000, found 0"),
        ("--frontend_conf n_mels=1e30", "--frontend_conf n_mels: expects int, found 1e+30"),
        ("--model_conf lsm_weight=.nan", "--model_conf lsm_weight: must be at least 0 and below 1, found nan"),
        ("--model_conf lsm_weight=1.5", "--model_conf lsm_weight: must be at least 0 and below 1, found 1.5"),
        ("--model_conf lsm_weight=-1", "--model_conf lsm_weight: must be at least 0 and below 1, found -1"),
        ("--loss_scale 0", "--loss_scale: must be above 0 and at most"),
        ("--loss_scale nan", "--loss_scale: must be above 0 and at most"),
        ("--scheduler warmuplr --scheduler_conf warmup_steps=-.inf", "--scheduler_conf warmup_steps: must be at least"),
        ("--scheduler noamlr --scheduler_conf warmup_steps=0", "--scheduler_conf warmup_steps: must be at least 1"),
        ("--encoder_conf num_blocks=0", "--encoder_conf num_blocks: must be between 1 and 1000, found 0"),
        ("--encoder_conf linear_units=0", "--encoder_conf linear_units: must be between 1 and 1000000, found 0"),
        ("--encoder_conf linear_units=9223372036854775808", "--encoder_conf linear_units: must be between 1 and"),
        ("--encoder_conf layer_drop_rate=2", "--encoder_conf layer_drop_rate: must be at least 0 and below 1, found 2"),
        ("--encoder_conf stochastic_depth_rate=1.5", "--encoder_conf stochastic_depth_rate: must be at least 0 and"),
        ("--encoder_conf dropout_rate=-0.1", "--encoder_conf dropout_rate: must be at least 0 and below 1, found -0.1"),
        ("--encoder_conf attention_heads=0", "--encoder_conf attention_heads: must be between 1 and 10000, found 0"),
        ("--specaug_conf num_time_mask=-3", "--specaug_conf num_time_mask: must be between 0 and 10000, found -3"),
        ("--volume_perturb -2,-1", "--volume_perturb: must be above 0 and at most 1000, found -2"),
        ("--volume_perturb nan,nan", "--volume_perturb: must be above 0 and at most 1000, found nan"),
        ("--volume_perturb 2,1", "--volume_perturb: expects LOWEST,HIGHEST, found 2,1"),
        ("--speed_perturb 1e9", "--speed_perturb: must be between 0.1 and 10, found 1e+09"),
        ("--speed_perturb nan", "--speed_perturb: must be between 0.1 and 10, found nan"),
        ("--dist_timeout nan", "--dist_timeout: must be above 0 and at most 10000000, found nan"),
        ("--dist_timeout -5", "--dist_timeout: must be above 0 and at most 10000000, found -5"),
        ("--seed -1", "--seed: must be between 0 and 4294967295, found -1"),
        ("--seed 99999999999999999999", "--seed: must be between 0 and 4294967295, found a number of"),
        ("--max_epoch 0", "--max_epoch: must be at least 1, found 0"),
        ("--num_iters_per_epoch 999999999999", "--num_iters_per_epoch: must be between 1 and 1000000000, found"),
        ("--num_workers 1000000", "--num_workers: must be between 0 and 1024, found 1000000"),
        ("--nproc 1000000", "--nproc: must be between 1 and 1024, found 1000000"),
        ("--batch_size 5_12", "--batch_size: expects int, found '5_12'"),
        ("--optim_conf lr=1_0.5", "--optim_conf lr: expects float, found '1_0.5'"),
    ],
)
def test_nonsense_is_rejected(arguments: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(*arguments.split())
    assert message in str(refusal.value)


@pytest.mark.parametrize("arguments", ["--grad_clip inf", "--grad_clip_type inf", "--scheduler warmuplr", "--seed 7"])
def test_sense_is_accepted(arguments: str) -> None:
    parse(*arguments.split())


def test_the_range_is_checked_for_files_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("max_epoch: 0\nencoder_conf:\n    num_blocks: 0\n    dropout_rate: .nan\n")
    with pytest.raises(UserError) as refusal:
        parse("--config", str(tmp_path / "train.yaml"))
    assert "train.yaml:1: max_epoch: must be at least 1, found 0" in str(refusal.value)
    assert "train.yaml:3: encoder_conf.num_blocks: must be between 1 and 1000, found 0" in str(refusal.value)
    assert "train.yaml:4: encoder_conf.dropout_rate: must be at least 0 and below 1, found nan" in str(refusal.value)


def test_help_shows_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "number of epochs to train (at least 1) [40]" in text
    assert "random seed (between 0 and 4294967295) [0]" in text


def numeric(annotation: Any) -> bool:
    """Whether a value of this type can hold a number."""
    if typing.get_origin(annotation) is typing.Literal:
        return False
    inner = typing.get_args(annotation)
    return annotation in (int, float) or any(numeric(item) for item in (*members_of(annotation)[1:], *inner))


@pytest.mark.parametrize(("registry", "choice"), CLASSES)
def test_every_number_of_a_class_has_a_range(registry: str, choice: str) -> None:
    for key, parameter in REGISTRIES[registry].parameters(choice).items():
        if numeric(parameter.type):
            assert parameter.range, f"{registry} {choice}: {key} has no range"
        if parameter.default is not REQUIRED:
            assert parameter.range.fault(parameter.default) is None, f"{registry} {choice}: {key}"


@pytest.mark.parametrize("schema", [AsrTrainConfig, LmTrainConfig, StTrainConfig])
def test_every_number_of_a_training_option_has_a_range(schema: type[Any]) -> None:
    for name, option in options_of(schema).items():
        if numeric(option.type) and not option.is_conf and option.extra.not_yet is None:
            assert option.extra.range, f"{name} has no range"


COMMANDS = sorted(path.stem for path in Path("src/tympan/bin").glob("*.py"))
CHECKED_ELSEWHERE = ("max_batch_s", "max_piece_s", *STREAMING)


@pytest.mark.parametrize("command", [*COMMANDS, "recipe.options"])
def test_every_number_of_a_command_has_a_range(command: str) -> None:
    module = importlib.import_module(f"tympan.{command}" if "." in command else f"tympan.bin.{command}")
    for schema in [item for item in vars(module).values() if isinstance(item, type) and is_dataclass(item)]:
        for name, option in options_of(schema).items():
            if numeric(option.type) and not option.is_conf and option.extra.not_yet is None:
                assert option.extra.range or name in CHECKED_ELSEWHERE, f"{command} --{name} has no range"


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_of_every_command_lie_in_their_ranges(command: str) -> None:
    module = importlib.import_module(f"tympan.bin.{command}")
    for schema in [
        item for item in vars(module).values() if isinstance(item, type) and hasattr(item, "__dataclass_fields__")
    ]:
        for name, option in options_of(schema).items():
            if option.default is not REQUIRED:
                assert option.extra.range.fault(option.default) is None, f"{command} --{name}"


class Declared:
    def __init__(
        self,
        size: int,
        rate: Annotated[float, Range(0, 1)] = 0.5,
        widths: Annotated[list[int] | None, Range(least=1, below=9)] = None,
        conf: Annotated[dict[str, Any], Range(-1, 5)] = {"a": 1},  # noqa: B006
    ) -> None: ...


def test_source_and_inspection_read_the_same_ranges() -> None:
    read = signature_from_source(f"{__name__}:Declared")
    assert read == signature_from_class(Declared)
    assert read["rate"].range == Range(0, 1)
    assert read["widths"].range == Range(least=1, below=9)
    assert read["widths"].type == list[int] | None


BASES: dict[str, list[str]] = {
    "optim": ["adam", "sgd", "rprop", "lbfgs"],
    "scheduler": ["warmuplr", "noamlr", "tristagelr", "onecyclelr", "cosineannealingwarmuprestarts"],
    "encoder": ["conformer", "transformer", "e_branchformer", "branchformer", "rnn", "vgg_rnn"],
    "decoder": ["transformer", "rnn"],
}
WILD = [
    ".nan",
    ".inf",
    "-.inf",
    "-1",
    "0",
    "0.5",
    "1",
    "1.5",
    "2",
    "3",
    "1e10",
    "-5",
    "9223372036854775808",
    "1e30",
    "1_0",
]


def test_mutated_configurations_are_parsed_or_one_message() -> None:
    """Any numbers give either a configuration or a UserError."""
    chance = random.Random(7)
    options = [name for name, item in options_of(AsrTrainConfig).items() if numeric(item.type) and not item.is_conf]
    kept = 0
    for _ in range(400):
        arguments = ["--token_type", "char"]
        for kind, names in BASES.items():
            name = chance.choice(names)
            arguments += [f"--{kind}", name]
            keys = list(REGISTRIES[{"optim": "OPTIMIZERS", "scheduler": "SCHEDULERS"}.get(kind, f"{kind}s".upper())]
                        .parameters(name))  # fmt: skip
            for key in chance.sample(keys, min(2, len(keys))):
                arguments += [f"--{kind}_conf", f"{key}={chance.choice(WILD)}"]
        for name in chance.sample(options, 2):
            arguments += [f"--{name}", chance.choice(WILD).replace(".nan", "nan").replace(".inf", "inf")]
        try:
            config = parse_training(AsrTrainConfig, arguments, prog="test")
        except UserError:
            continue
        kept += 1
        for item in fields(config):
            option = options_of(AsrTrainConfig)[item.name]
            assert option.is_conf or option.extra.range.fault(getattr(config, item.name)) is None
    assert kept < 400


def test_large_numbers_in_messages_are_short() -> None:
    assert str(Range(above=0, most=2**60)) == "above 0 and at most 1.15292e+18"
    assert Range(1).fault(10**25) == "must be a number of at most 18 digits, found a number of about 25 digits"
    assert Range(1).fault(0) == "must be at least 1, found 0"
    assert Range().fault(float("inf")) == "must be a finite number, found inf"
