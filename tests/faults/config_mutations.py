"""Configurations with random values, run by the real commands on a few seconds of audio, and what comes of them."""

from __future__ import annotations

import json
import math
import random
import shutil
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.faults.config_families import FAMILIES, REGISTRIES, Family, Materials, Values
from tests.faults.damage import Outcome, attempt
from tests.faults.trial_server import Ended
from tympan.config.option import options_of
from tympan.config.range import Range

WEIGHTS = {
    "hybrid": 24, "several_speakers": 4, "transducer": 16, "adapters": 8, "mask_ctc": 4, "pretrained": 12, "whisper": 4,
    "translation": 10, "language_model": 8, "fine_tuning": 3, "decoding": 7,
}  # fmt: skip
"""How often a family is drawn."""
WILD: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 0.5, 1.5, -5, 1e10, 2**63, 1e30, "1_0", "", "nan", "x" * 300, None,
    [], [1], [1, -1], {}, {"a": 1}, True, "5", "'", "0x10", "\ud83d\ude00", 10**25, 1e-320, -0.0, "inf", [[]],
)  # fmt: skip
NEVER = {
    # What a trial reads and writes; other programs and machines
    "output_dir", "config", "token_list", "src_token_list", "bpemodel", "src_bpemodel", "resume", "model", "model_tag",
    "train_data_path_and_name_and_type", "valid_data_path_and_name_and_type", "data_path_and_name_and_type",
    "asr_train_config", "asr_model_file", "train_dir", "dev_dir", "device", "use_wandb", "executor", "dask_address",
    "dist_launcher", "dist_init_method", "dist_master_addr", "dist_master_port", "dist_world_size", "dist_rank",
    "local_rank", "multiprocessing_distributed", "elastic", "asr_args", "allow_import", "allow_pipes",
    # Runs that end without a model, and minutes of compiling
    "dry_run", "collect_stats", "iterator_type", "no_forward_run", "compile", "print_config", "help",
}  # fmt: skip
FILES = {
    "old": "yaml", "config": "yaml", "deepspeed_config": "json", "fbank_config": "conf", "mfcc_config": "conf",
    "pitch_config": "conf", "pitch_postprocess_config": "conf",
}  # fmt: skip
"""Options whose value is the content of a file, and the kind of the file."""
PATHS = (Path, Path | None, list[Path])
COUNTS = {"nproc", "num_workers", "max_epoch", "num_iters_per_epoch", "ngpu", "nj", "max_epochs"}
"""A legal number above 1 starts as many processes or epochs."""
ILLEGAL: tuple[Any, ...] = (math.nan, math.inf, -1, -5, 0, 1.5, 2**63, "1_0", "", "x", [], {})
LEAST_LEGAL = {"hop_length": 20}
"""Legal numbers below make a frame of almost every sample, and minutes of training."""


@dataclass(frozen=True)
class Change:
    name: str
    """The option, or `NAME_conf`."""
    key: str | None
    value: Any

    def __str__(self) -> str:
        return f"{self.name}{'' if self.key is None else f' {self.key}'}={self.value!r}"


@dataclass(frozen=True)
class Trial:
    """A configuration and how it differs from a valid one."""

    family: Family
    config: Values
    changes: list[Change]
    from_file: bool
    always_runs: bool = True

    def run(self, materials: Materials) -> tuple[Outcome, str]:
        """Run the command, unless its parser rejects the options: most trials end there, 20 times as fast."""
        output = materials.folder / "out"
        arguments = self._arguments(materials.folder, output)
        if not self.always_runs:
            outcome, what = attempt(lambda: self.family.parse(arguments), lambda value: True)
            if outcome != "accepted":
                return self._judge_message(f"tympan: error: {what}") if outcome == "rejected" else (outcome, what)
        outcome: Outcome = "accepted"
        what = ""
        for fresh in (self.always_runs, True):  # a fault counts only if it occurs in a process of its own
            shutil.rmtree(output, ignore_errors=True)
            if self.family.before is not None:
                self.family.before(materials.folder, output)
            ended = materials.server.run([self.family.command, *arguments], fresh=fresh)
            outcome, what = self._judge(ended, output)
            if outcome in ("accepted", "rejected"):
                break
        return outcome, what

    def _arguments(self, folder: Path, output: Path) -> list[str]:
        config = {name: _written(folder, name, value) for name, value in self.config.items()}
        if "output_dir" in options_of(self.family.schema):
            config |= {"output_dir": str(output)}
        positional = [config.pop(name) for name in self.family.positional if name in config]
        if self.from_file and not positional and "config" not in config:
            path = folder / "trial.yaml"
            path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8", errors="replace")
            return ["--config", str(path)]
        arguments = []
        for name, value in config.items():
            text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
            arguments += [f"--{name}", text.removesuffix("\n").removesuffix("\n...")]
        return [*_flat(positional), *arguments]

    def _judge(self, ended: Ended, output: Path) -> tuple[Outcome, str]:
        tail = "\n".join(line for line in ended.output.splitlines() if " INFO " not in line)[-1500:]
        if ended.code is None:
            return "hang", tail
        if ended.code == 1 and self.family.failure is not None and self.family.failure in ended.output:
            return "rejected", tail  # the fault of each utterance, such as a channel that it does not have
        if "Traceback (most recent call last)" in ended.output or ended.code not in (0, 2):
            return "traceback", f"exit code {ended.code}: {tail}"
        if ended.code == 2:
            return self._judge_message(ended.output)
        faults = list(self.family.faults(output, ended.output, self.config))
        return ("nonsense", "; ".join(faults)) if faults else ("accepted", "")

    def _judge_message(self, output: str) -> tuple[Outcome, str]:
        """A message about the only change names the option or the key."""
        message = output.partition("tympan: error: ")[2]
        if not message.strip():
            return "nonsense", f"no message: {output[-1500:]}"
        if len(self.changes) == 1 and "out of memory" not in message:
            (change,) = self.changes
            words = message.replace("_", " ").replace("-", " ").lower()
            names = [change.name, change.key or change.name]
            if self.family.before is not None:  # weights that the earlier run did not have
                names.append("belongs to a different run")
            if self._is_path(change.name):
                names += [
                    ": no such",
                    ": there is no such",
                    ": not a",
                    "cannot be read",
                    ": is a",
                    ": File name too long",
                ]
            if change.name.endswith(("_file", "_dir", "_config", "_scp")):  # the message begins with the path
                # Options are decoded as UTF-8, so two surrogates become one character
                (value,) = _flat([change.value])[:1] or [""]
                names.append(value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
            if not any(name.replace("_", " ").replace("-", " ").lower() in words for name in names):
                return "nonsense", f"the message does not name {change.key or change.name}: {message}"
        return "rejected", message

    def _is_path(self, name: str) -> bool:
        """Whether a message about the option may name its value instead: an argument, or the path of a file."""
        given = options_of(self.family.schema).get(name)
        return given is not None and (given.extra.positional or given.type in PATHS or name in ("input", "text"))


def _written(folder: Path, name: str, value: Any) -> Any:
    """The path of a file with this content, if the option is the path of a file that is changed, too."""
    if name not in FILES or not isinstance(value, dict):
        return value
    path = folder / f"trial.{FILES[name]}"
    match FILES[name]:
        case "conf":
            text = "".join(
                f"--{key}={str(item).lower() if item in (True, False) else item}\n" for key, item in value.items()
            )
        case "json":
            text = json.dumps(value)
        case _:
            text = yaml.safe_dump(value, allow_unicode=True)
    path = path.with_stem(f"trial_{name}")
    path.write_text(text, encoding="utf-8", errors="replace")
    return str(path)


def _flat(values: list[Any]) -> list[str]:
    return [str(item) for value in values for item in (value if isinstance(value, list) and value else [value])]


def make_trial(
    number: int,
    folder: Path,
    *,
    family: str | None = None,
    most_changes: int = 3,
    families: Mapping[str, Family] = FAMILIES,
    weights: Mapping[str, float] = WEIGHTS,
) -> Trial:
    """A valid configuration with up to three other values, drawn by the number."""
    chance = random.Random(f"config {number}")
    name = family or chance.choices(list(weights), weights=list(weights.values()))[0]
    chosen = families[name]
    config = chosen.draw(chance, folder)
    changes: list[Change] = []
    for _ in range(min(most_changes, chance.choice((1, 1, 2, 3)))):
        change = (_change if families is FAMILIES else _change_of_call)(chosen, config, chance)
        changes = [item for item in changes if (item.name, item.key) != (change.name, change.key)] + [change]
        if change.key is None:
            config[change.name] = change.value
        else:
            config[change.name] = {**config[change.name], change.key: change.value}
    return Trial(chosen, config, changes, from_file=chance.random() < 0.5, always_runs=chance.random() < 0.01)


def _change(family: Family, config: Values, chance: random.Random) -> Change:
    confs = [name for name in config if name.endswith("_conf") and isinstance(config[name], dict)]
    confs = [name for name in confs if _is_known(config.get(name.removesuffix("_conf")), name.removesuffix("_conf"))]
    if not confs or chance.random() < 0.3:
        options = options_of(family.schema)
        name = chance.choice([n for n in options if n not in NEVER and not n.endswith("_conf")])
        if name in COUNTS:
            return Change(name, None, chance.choice((math.nan, math.inf, -1, -5, 1.5, 2**63, "1_0", "", "x", [], {})))
        if (registry := options[name].extra.registry) is not None and chance.random() < 0.7:
            return Change(name, None, chance.choice(registry.names()))
        return Change(name, None, _value(options[name].type, options[name].extra.range, chance))
    conf = chance.choice(confs)
    kind = conf.removesuffix("_conf")
    chosen = config.get(kind) or REGISTRIES[kind].names()[0]
    if family.command == "st_train" and kind == "model":
        from tympan.config.choices import ST_MODELS

        parameters = ST_MODELS.parameters("espnet")
    elif family.command == "lm_train" and kind == "model":
        return Change(conf, "ignore_id", chance.choice(WILD))
    else:
        parameters = REGISTRIES[kind].parameters(chosen)
    if not parameters:
        return Change(conf, "unknown", 1)
    key = chance.choice(list(parameters))
    default = parameters[key].default
    if isinstance(default, dict) and default and chance.random() < 0.8:
        inner = chance.choice(list(default))
        return Change(conf, key, {**default, inner: _value(type(default[inner]), parameters[key].range, chance)})
    value = _value(parameters[key].type, parameters[key].range, chance)
    if isinstance(value, int) and 0 < value < LEAST_LEGAL.get(key, 0):
        value = LEAST_LEGAL[key]
    return Change(conf, key, value)


def _change_of_call(family: Family, config: Values, chance: random.Random) -> Change:
    """Another value of an option, or of one of the numbers and words inside of an option."""
    inner = [name for name, value in config.items() if isinstance(value, dict) and value and name not in family.kept]
    inner = [name for name in inner if not family.inner or name in family.inner]
    if inner and chance.random() < 0.7:
        name = chance.choice(inner)
        key = chance.choice(list(config[name]))
        return Change(name, key, _inner_value(config[name][key], chance, of=key))
    options = options_of(family.schema)
    names = [name for name in options if name not in NEVER | family.kept and not name.endswith("_conf")]
    given = [name for name in names if name in config]
    name = chance.choice(given if given and chance.random() < 0.3 else names)
    if name in COUNTS:
        return Change(name, None, chance.choice(ILLEGAL))
    if options[name].type is bool and family.positional:  # another word after a switch is an argument
        return Change(name, None, chance.random() < 0.5)
    if (registry := options[name].extra.registry) is not None and chance.random() < 0.7:
        return Change(name, None, chance.choice(registry.names()))
    value = _value(options[name].type, options[name].extra.range, chance)
    return Change(name, None, str(value) if options[name].extra.positional and value in ([], [1, -1]) else value)


def _inner_value(value: Any, chance: random.Random, *, of: Any) -> Any:
    """Anything, or a value like this one. A part of a list or a mapping may change instead of the whole."""
    if of in COUNTS:
        return chance.choice(ILLEGAL)
    if isinstance(value, (list, dict)) and value and chance.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        if chance.random() < 0.1:
            rest = [other for other in keys if other != key]
            return {other: value[other] for other in rest} if isinstance(value, dict) else [value[i] for i in rest]
        changed = value.copy()
        changed[key] = _inner_value(value[key], chance, of=key)
        return changed
    if chance.random() < 0.4:
        return chance.choice(WILD)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return chance.choice(
            (value + 1, value - 1, value * 2, value / 2, -value, 0, 1, 2, 3, 17, 1000, 1e-8, 0.5, 10**9)
        )
    return chance.choice(STRINGS)


def _is_known(choice: Any, kind: str) -> bool:
    """Whether an earlier change has left a name that can be chosen."""
    return not choice or choice in REGISTRIES[kind].names() or kind == "model"


def _value(wanted: Any, bounds: Range, chance: random.Random) -> Any:
    """A value of the right type near the ends of its range, or anything."""
    if chance.random() < 0.4:
        return chance.choice(WILD)
    return _typed(wanted, bounds, chance)


def _typed(wanted: Any, bounds: Range, chance: random.Random) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Literal:
        return chance.choice(arguments)
    if origin in (typing.Union, types.UnionType):
        return _typed(chance.choice(arguments), bounds, chance)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return [_typed(item, bounds, chance) for item in arguments]
    if origin is not None and arguments and origin is not dict:
        return [_typed(arguments[0], bounds, chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    if wanted is bool:
        return chance.random() < 0.5
    if wanted in (int, float):
        return _number(bounds, chance, is_whole=wanted is int)
    if wanted is str:
        return chance.choice(STRINGS)
    return None if wanted is type(None) else chance.choice(WILD)


def _number(bounds: Range, chance: random.Random, *, is_whole: bool) -> float:
    """Mostly inside of the range, where only a run can tell whether the value makes sense."""
    low = next((bound for bound in (bounds.least, bounds.above) if bound is not None), -10)
    high = next((bound for bound in (bounds.most, bounds.below) if bound is not None), 1000)
    near = [low, low + 1, low + 2, low + 3, low + 7, low - 1, *([high, high + 1] if abs(high) <= 64 else [])]
    if is_whole:
        return int(chance.choice([*near, 16, 17, 5]))
    return float(chance.choice([*near, low + 0.5, low + 1e-3, 0.1, 0.9, 1e-8]))


STRINGS = (
    "linear", "conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "embed", "none", "rel_pos", "abs_pos", "legacy",
    "latest", "rel_selfattn", "selfattn", "legacy_rel_selfattn", "fast_selfattn", "relu", "swish", "gelu", "tanh",
    "hardtanh", "identity", "lstm", "gru", "blstm", "vgg", "vggblstm", "cos", "hann", "hamming", "nearest", "bicubic",
    "builtin", "brctc", "loss", "acc", "concat", "learned_ave", "mean", "transposed", "default", "group_norm", "text",
    "location", "dot", "add", "coverage", "noatt", "<unk>", "<blank>", "<sos/eos>", "a", "", "/", "5",
)  # fmt: skip
