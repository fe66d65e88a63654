"""Check every recipe configuration of a checkout of ESPnet: which are parsed, build a model, and train one step.

usage: python benchmarks/compat.py ESPNET [--only TEXT] [--expect] [--verbose]

ESPNET is a checkout of ESPnet's repository; nothing of it is copied. Its recipes' files are read as `asr_train`,
`lm_train`, `asr_inference` and `convert_config` read them, with the options that its `asr.sh` adds (token list,
statistics). Models are built with reduced sizes and trained for one step on noise. Published models that a file names
are replaced by small random ones (compat_stand_ins.py). compat_expected.txt lists the expected result of each file; a
worse result is an error. `--expect` writes the list again. Its lines with `# REASON` are files that ESPnet2
rejects too; `peer_compat.py` shows that, and the reasons are written by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from compat_stand_ins import make_stand_ins

from tympan.config.asr import AsrTrainConfig
from tympan.config.choices import OPTIMIZERS
from tympan.config.espnet1 import translate_espnet1, translation_of
from tympan.config.lm import LmTrainConfig
from tympan.config.option import options_of
from tympan.config.parse import read_layer
from tympan.config.read import RULES
from tympan.config.resolve import Layer, Rules, resolve
from tympan.config.train import TrainConfig
from tympan.config.yaml_text import not_a_mapping, read_yaml
from tympan.decode.options import InferenceOptions as DecodeOptions
from tympan.errors import UserError
from tympan.models.build import build_asr_model, build_lm
from tympan.models.pretrained.upstreams import find_upstream
from tympan.tasks.asr import AsrTask
from tympan.training.schedulers import build_scheduler

EXPECTED = Path(__file__).with_name("compat_expected.txt")
TOKENS = ["<blank>", "<unk>", *"abcdefghijklmnopqrstuvwxy", "<space>", "<sos/eos>"]
BART_TOKENS = ["<s>", "<pad>", "</s>", *TOKENS[1:-1]]
STATES = ("rejected", "parsed", "built", "trained")
"""Results of a file, in increasing order. Decoding files and ESPnet1's files are only parsed."""
SMALL = {"num_blocks": 2, "num_layers": 2, "nlayers": 1, "layer": 2, "linear_units": 32, "cgmlp_linear_units": 32,
         "hidden_size": 16, "unit": 16, "att_unit": 16, "embed_unit": 16, "multi_blocks": 1}  # fmt: skip
"""The largest value of each size of a part."""
SMALL_ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                 "conv_dim": [8] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip
"""Sizes of a pretrained speech encoder. Pretrained weights are not loaded."""
SMALL_WHISPER = {"n_mels": 80, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1, "n_vocab": len(TOKENS) - 1,
                 "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1}  # fmt: skip

LANGUAGE = 3
"""The token of a language, within the small vocabulary."""


@dataclass(frozen=True)
class Outcome:
    """The result of one file. `reasons` are the error messages if it was rejected, without file and line."""

    path: str
    kind: str
    state: str
    keys: int = 0
    """Keys of the file whose value was found in the resolved configuration."""
    reasons: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    """The published models that were replaced by small random ones."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("espnet", type=Path, help="checkout of ESPnet's repository")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--expect", action="store_true", help="write the results to compat_expected.txt")
    parser.add_argument("--verbose", action="store_true", help="print every rejected file with its messages")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    outcomes = [
        tried(options.espnet.resolve(), path, kind)
        for path, kind in configurations(options.espnet)
        if options.only in path
    ]
    if not outcomes:
        raise SystemExit(f"{options.espnet}: no recipe configurations (egs2/*/asr1/conf/*.yaml) were found")
    expected = read_expected()
    report(outcomes, expected, is_verbose=options.verbose)
    if options.expect:
        write_expected(outcomes, expected)
        return 0
    return check(outcomes, expected)


def configurations(root: Path) -> Iterator[tuple[str, str]]:
    """(path, kind) of every file of ASR recipes; links are skipped, so that each file is counted once."""
    for path in sorted([*root.glob("egs2/*/asr1/conf/**/*.y*ml"), *root.glob("egs/*/asr*/conf/**/*.y*ml")]):
        name = path.relative_to(root).as_posix()
        # A whole `conf` may be a link to that of another recipe.
        if not path.is_file() or path.resolve() != root.resolve() / name:
            continue
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError:
            document = {"encoder": None} if "train" in path.name else {"beam_size": None}
        keys = set(document) if isinstance(document, dict) else set()
        if not name.startswith("egs2/"):
            kind = espnet1_kind(path.name, keys)
            if kind is not None:
                yield name, kind
        elif keys & {"lm", "lm_conf"}:
            yield name, "LM training"
        elif keys & {"encoder", "encoder_conf"}:
            yield name, "ASR training"
        elif keys & {"beam_size", "ctc_weight"}:
            yield name, "decoding"


def espnet1_kind(name: str, keys: set[str]) -> str | None:
    if "process" in keys:
        return "ESPnet1 SpecAugment"
    if "beam-size" in keys:
        return "ESPnet1 decoding"
    if {"layer", "unit"} <= keys:
        return "ESPnet1 LM training"
    return "ESPnet1 ASR training" if "train" in name else None


def tried(root: Path, path: str, kind: str) -> Outcome:
    """Parse, build and train, until a step fails."""
    state, keys = "rejected", 0
    try:
        with contextlib.redirect_stderr(io.StringIO()), recipe_directory((root / path).parent):
            if kind.startswith("ESPnet1"):
                parse_espnet1(root / path)
                return Outcome(path, kind, "parsed")
            if kind == "decoding":
                config: Any = parse(DecodeOptions, root / path, Rules(translate=translate_espnet1), DECODING)
                return Outcome(path, kind, "parsed", count_keys(root / path, config))
            schema = LmTrainConfig if kind == "LM training" else AsrTrainConfig
            config = parse_training(schema, root / path)
            state, keys = "parsed", count_keys(root / path, config)
            small = reduced(config)
            stand_ins = make_stand_ins(small)
            model = build(small)
            for part in stand_ins:
                getattr(model, part).load_pretrained()
            state = "built"
            train_one_step(model, small)
        return Outcome(path, kind, "trained", keys, stand_ins=tuple(sorted(set(stand_ins.values()))))
    except UserError as error:
        return Outcome(path, kind, state, keys, messages_of(error))
    except Exception as error:  # an error without a message for users
        return Outcome(path, kind, state, keys, (f"{type(error).__name__}: {error}",))


@contextlib.contextmanager
def recipe_directory(conf: Path) -> Iterator[None]:
    """A temporary working directory with the recipe's `conf`, as configurations name files relative to the recipe."""
    before = Path.cwd()
    while conf.name != "conf":
        conf = conf.parent
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "conf").symlink_to(conf)
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


DECODING = {"output_dir": "decode", "data_path_and_name_and_type": ["wav.scp,speech,sound"]}


def parse_training(schema: type[Any], path: Path) -> Any:
    """Parse the file with the options that `asr.sh` adds."""
    given = read_layer(path, RULES).values
    tokens = BART_TOKENS if given.get("decoder") == "hugging_face_transformers" else TOKENS
    added: dict[str, Any] = {"token_list": tokens, "bpemodel": "bpe.model"}
    if given.get("normalize") == "global_mvn":
        added["normalize_conf"] = {"stats_file": "feats_stats.npz"}
    return parse(schema, path, replace(RULES, check=schema.conflicts), added)


def parse_espnet1(path: Path) -> None:
    """Translate the file as convert_config does, then parse the result as the command does."""
    document = read_yaml(path)
    if not isinstance(document.value, dict):
        raise UserError(not_a_mapping(document))
    translation = translation_of(document)
    if translation is None:
        raise UserError("is not recognized as ESPnet1's")
    found = translation.document.value
    schema = DecodeOptions if "beam_size" in found else LmTrainConfig if "lm" in found else AsrTrainConfig
    if schema is DecodeOptions:
        resolve(schema, [Layer(found, translation.document.where), Layer(DECODING, str)])
        return
    if set(found) <= {"specaug", "specaug_conf"}:
        found = {**found, "decoder": "rnn"}
    layers = [Layer(found, translation.document.where), Layer({"token_list": TOKENS}, str)]
    resolve(schema, layers, rules=replace(RULES, translate=None, check=schema.conflicts))


def parse(schema: type[Any], path: Path, rules: Rules, added: Mapping[str, Any]) -> Any:
    return resolve(schema, [read_layer(path, rules), Layer(added, lambda key: ".".join(key))], rules=rules)


def count_keys(path: Path, config: Any) -> int:
    """Number of keys of the file that have the same value in the configuration. UserError if a value differs."""
    found = 0
    for name, value in read_yaml(path).value.items():
        resolved = getattr(config, name, None)
        pairs = [(value, resolved)]
        if isinstance(value, dict):
            pairs = [(item, (resolved or {}).get(key, item)) for key, item in value.items()]
        for written, read in pairs:
            # An option of older files has another name in the configuration; DeepSpeed's file was translated
            known = None if name == "use_deepspeed" else options_of(type(config)).get(name)
            if known is not None and isinstance(written, str):
                written = known.extra.aliases.get(written, written)
            if not is_same(written, read) and known is not None and known.extra.not_yet is None:
                raise UserError(f"{name}: {written!r} was read as {read!r}")
            found += 1
    return found


def is_same(written: Any, read: Any) -> bool:
    """Whether two values are equal: `1e-3` is text in YAML, and a single value may become a list of one."""
    if isinstance(read, (list, tuple)):
        items = written if isinstance(written, list) else [written]
        return len(items) == len(read) and all(is_same(*pair) for pair in zip(items, read, strict=True))
    if isinstance(written, dict) and isinstance(read, dict):
        return all(is_same(item, read.get(key)) for key, item in written.items())
    if isinstance(read, (int, float)) and not isinstance(read, bool):
        return float(written) == float(read)
    return str(written).lower() in (str(read).lower(), *(["none", "null", ""] if read is None else []))


def reduced(config: Any) -> Any:
    """The same model with small sizes: the same number of heads and branches, but narrow layers and few blocks."""
    changed = {}
    for name in ("encoder_conf", "decoder_conf", "lm_conf"):
        conf = dict(getattr(config, name, None) or {})
        for key, most in SMALL.items():
            if isinstance(conf.get(key), int):
                conf[key] = min(conf[key], most)
        blocks = conf.get("num_blocks")
        if "output_size" in conf:
            conf["output_size"] = 8 * int(conf.get("attention_heads", 2))
        if conf.get("beats_ckpt_path"):
            conf["beats_ckpt_path"] = Path(conf["beats_ckpt_path"]).name
            conf["max_layer"] = conf["max_layer"] and 1
        if conf.get("interctc_layer_idx"):
            conf["interctc_layer_idx"] = [1]
        for key, value in conf.items():
            # One value per block.
            if isinstance(value, list) and blocks and len(value) > blocks and key != "interctc_layer_idx":
                conf[key] = value[:blocks]
        changed[name] = conf
        if getattr(config, name.removesuffix("_conf"), None) == "whisper":
            changed[name] = {**conf, "architecture": SMALL_WHISPER}
    if getattr(config, "frontend", None) in ("s3prl", "fused"):
        changed |= reduced_frontend(config)
    if getattr(config, "frontend", None) == "espnet_ssl":
        # The stand-in is written to the working directory
        name = Path(config.frontend_conf["frontend_conf"]["path_or_url"]).name
        changed["frontend_conf"] = {**config.frontend_conf, "frontend_conf": {"path_or_url": name}}
    model_conf = dict(getattr(config, "model_conf", None) or {})
    if (names := model_conf.get("aux_ctc")) is not None:
        changed["model_conf"] = {**model_conf, "aux_ctc": {"1": next(iter(names.values()))}}
    if model_conf.get("lang_token_id", -1) != -1:
        changed["model_conf"] = {**model_conf, "lang_token_id": LANGUAGE}
        changed["postencoder_conf"] = {**config.postencoder_conf, "lang_token_id": LANGUAGE}
    return replace(config, **{key: item for key, item in changed.items() if hasattr(config, key)})


def reduced_frontend(config: Any) -> dict[str, Any]:
    """A pretrained frontend of the same family and normalization with small sizes, and the preencoder after it."""

    def small(conf: Mapping[str, Any]) -> dict[str, Any]:
        upstream = find_upstream((conf.get("frontend_conf") or {}).get("upstream", ""))
        architecture = upstream.architecture() if upstream is not None else {"model_type": "wavlm"}
        layer = min(conf.get("layer", -1), 1)
        return {**conf, "architecture": {**architecture, **SMALL_ENCODER}, "download_dir": None, "layer": layer}

    conf = dict(config.frontend_conf)
    if config.frontend == "s3prl":
        changed: dict[str, Any] = {"frontend_conf": small(conf)}
        if "input_size" in (config.preencoder_conf or {}):
            changed["preencoder_conf"] = {**config.preencoder_conf, "input_size": SMALL_ENCODER["hidden_size"]}
        return changed
    parts = [small(part) if part.get("frontend_type") == "s3prl" else part for part in conf["frontends"]]
    return {"frontend_conf": {**conf, "frontends": parts}}


def build(config: TrainConfig) -> torch.nn.Module:
    if isinstance(config, AsrTrainConfig):
        # As training does: multi-blank transducers have further tokens.
        return build_asr_model(AsrTask().complete(config), reads_statistics=False)
    assert isinstance(config, LmTrainConfig)
    return build_lm(config)


def train_one_step(model: torch.nn.Module, config: Any) -> None:
    """Forward, backward and one update with the configured optimizer and scheduler."""
    text, text_lengths = torch.randint(2, 20, (2, 4)), torch.tensor([4, 3])
    text[1, 3:] = -1
    if getattr(config, "decoder", None) == "linear_decoder":  # one class per utterance
        text, text_lengths = text[:, :1], torch.ones_like(text_lengths)
    batch = {"text": text, "text_lengths": text_lengths}
    if isinstance(config, AsrTrainConfig):
        lengths = torch.tensor([16000, 15000]) if config.takes_audio else torch.tensor([100, 90])
        shape = (2, int(lengths[0])) if config.takes_audio else (2, int(lengths[0]), config.input_size)
        for name in config.aux_ctc_tasks:
            batch |= {name: text[:, :1], f"{name}_lengths": torch.ones_like(text_lengths)}
        for name in config.text_names[1:]:
            batch |= {name: text.flip(0), f"{name}_lengths": text_lengths.flip(0)}
        batch |= {"speech": torch.randn(shape) * 0.1, "speech_lengths": lengths}
    loss = model(**batch).value
    loss.backward()
    if not torch.isfinite(loss):
        raise ValueError(f"the loss is {loss.item()}")
    parameters = [item for item in model.parameters() if item.requires_grad]
    optimizer = OPTIMIZERS.build(config.optim, config.optim_conf, parameters)
    if config.scheduler is not None:
        build_scheduler(config.scheduler, config.scheduler_conf, optimizer)
    optimizer.step()


def messages_of(error: UserError) -> tuple[str, ...]:
    """The messages without file and line, so that equal messages can be counted."""
    lines = [line.strip() for line in str(error).splitlines()]
    return tuple(
        re.sub(r"^\S+\.ya?ml(:\d+)?: ", "", line) for line in lines if not re.fullmatch(r"|\d+ mistakes:", line)
    )


@dataclass(frozen=True)
class Expected:
    state: str
    reason: str = ""
    """Why ESPnet2 rejects the file too."""


def read_expected() -> dict[str, Expected]:
    """By path."""
    found = {}
    for line in EXPECTED.read_text(encoding="utf-8").splitlines():
        state, _, rest = line.partition(" ")
        path, _, reason = rest.partition(" # ")
        found[path] = Expected(state, reason)
    return found


def write_expected(outcomes: Sequence[Outcome], expected: Mapping[str, Expected]) -> None:
    """Files that were not tried, such as ESPnet1's, which newer checkouts lack, keep their lines."""
    found = {item.path: item.state for item in outcomes}
    states = {**{path: item.state for path, item in expected.items()}, **found}
    lines = []
    for path, state in sorted(states.items()):
        reason = expected.get(path, Expected(state)).reason
        if state != "rejected" or reason:
            lines.append(f"{state} {path}" + (f" # {reason}" if reason else ""))
    EXPECTED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(outcomes: Sequence[Outcome], expected: Mapping[str, Expected], *, is_verbose: bool) -> None:
    for kind in dict.fromkeys(item.kind for item in outcomes):
        these = [item for item in outcomes if item.kind == kind]
        reached = [sum(STATES.index(item.state) >= level for item in these) for level in (1, 2, 3)]
        counts = f"{reached[0]} parsed"
        if kind in ("ASR training", "LM training"):
            counts += f", {reached[1]} built, {reached[2]} trained one step"
        keys = sum(item.keys for item in these)
        print(f"{kind}: {len(these)} files, {counts}" + (f", {keys} options compared" if keys else ""))
        faulty = [item for item in these if item.reasons and expected.get(item.path, Expected("")).reason]
        lacking = [item for item in these if item.reasons and item not in faulty]
        if faulty:
            print(f"  {len(faulty)} rejected by ESPnet2 too, {len(lacking)} not supported")
        reasons = Counter(reason for item in lacking for reason in set(item.reasons))
        for reason, number in reasons.most_common():
            print(f"  {number:4} {reason[:200]}")
        for item in faulty:
            print(f"  rejected by ESPnet2 too: {item.path}: {expected[item.path].reason}")
        for name, number in Counter(name for item in these for name in item.stand_ins).items():
            print(f"  {number:4} built with a stand-in for {name}")
    if is_verbose:
        for item in outcomes:
            if item.reasons:
                print(f"{item.state} {item.path}", *item.reasons, sep="\n    ")


def check(outcomes: Sequence[Outcome], expected: Mapping[str, Expected]) -> int:
    """1 if the result of a file is worse than expected."""
    levels = {item.path: STATES.index(expected.get(item.path, Expected(STATES[0])).state) for item in outcomes}
    worse = [item for item in outcomes if STATES.index(item.state) < levels[item.path]]
    for item in worse:
        print(f"expected {expected[item.path].state}, found {item.state}: {item.path}", *item.reasons, sep="\n  ")
    better = sum(STATES.index(item.state) > levels[item.path] for item in outcomes)
    if better:
        print(f"{better} files have a better result than in {EXPECTED.name}; update it with --expect")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
