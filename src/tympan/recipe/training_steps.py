"""Stages 3 and 4: the language models and the recogniser, each a command in a process of its own."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.train import TrainConfig
from tympan.config.yaml_text import read_yaml
from tympan.data.kaldi_dir import read_table
from tympan.errors import UserError
from tympan.recipe.command import run_command
from tympan.recipe.corpus import DATA, Corpus, sound_files, sound_triple
from tympan.recipe.feature_steps import cmvn_file, feature_options, feature_size, write_description
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.recipe.token_steps import bpe_model, lexicon_files, shape_files, token_list, tokenizer_for
from tympan.runtime.atomic import atomic_write
from tympan.text.lexicon import read_lexicon

LM_TEXT = Path("data", "local", "lm_train", "train.txt")

_ELSEWHERE = [
    "output_dir",
    "ngpu",
    "device",
    "nproc",
    "num_workers",
    "log_level",
    "log_interval",
    "num_att_plot",
    "use_matplotlib",
    "use_tensorboard",
    "use_wandb",
    "resume",
    "save_interval_steps",
    "max_restarts",
    "elastic",
    "dist_timeout",
    "init_param",
    "dry_run",
]
"""Options that say where and how to work, not what comes out."""
_EXTENSIBLE = [
    "max_epoch",
    "patience",
    "keep_nbest_models",
    "keep_last_models",
    "nbest_averaging_interval",
    "best_model_criterion",
]
"""Options that may change between a broken-off run and its continuation."""


def lm_steps(options: RecipeOptions, corpus: Corpus) -> list[Step]:
    """Stage 3: the neural LM on the unperturbed training text, and the n-gram on its tokens."""
    steps = []
    train, dev = DATA / corpus.train / "text", DATA / corpus.dev / "text"
    if options.lm_config:
        steps.append(
            _training_step(
                "rnnlm", "lm_train", LmTrainConfig, lm_arguments(options, corpus), options.lm_dir, options.lm_resume,
                needs=[train, dev, token_list(options)], model="valid.loss.best.pth",
            )
        )  # fmt: skip
    if options.n_gram:
        arpa = options.ngram_file
        steps.append(
            Step(
                "n-gram text", partial(_write_lm_text, options, train),
                [train, token_list(options), *lexicon_files(options)], [LM_TEXT],
                {"unit": "word"} if options.token_type == "phn" else {},
            )
        )  # fmt: skip
        arguments = ["-o", str(options.n_gram), "--discount_fallback", "--arpa", str(arpa), str(LM_TEXT)]
        steps.append(
            Step(
                f"n-gram {arpa.stem}", partial(run_command, "ngram_train", arguments), [LM_TEXT], [arpa],
                {"order": options.n_gram},
            )
        )  # fmt: skip
    return steps


def asr_steps(options: RecipeOptions, corpus: Corpus) -> list[Step]:
    """Stage 4: the recogniser, and beside it how its features are made."""
    train = options.train_set(corpus.train)
    directory = options.asr_dir(train)
    needs = [token_list(options), DATA / train / "text", DATA / corpus.dev / "text", *lexicon_files(options)]
    steps = []
    recordings: list[Path] = []  # else they are in the features
    if options.feats_type == "raw":
        needs += [*sound_files(DATA / train), *sound_files(DATA / corpus.dev)]
        recordings = [DATA / train / "wav.scp", DATA / corpus.dev / "wav.scp"]
        steps.append(_stats_step(options, corpus))
    else:
        for name in (train, corpus.dev):
            dump = options.dump_dir(name)
            needs += [*shape_files(options, name), dump / "feats.scp", dump / "archive"]
    steps.append(
        _training_step(
            f"train {directory.name}", "asr_train", AsrTrainConfig, asr_arguments(options, corpus), directory,
            options.resume, needs=needs, recordings=recordings, model="latest.pth",
        )
    )  # fmt: skip
    if options.feats_type != "raw":
        steps.append(
            Step(
                f"features of {directory.name}",
                partial(_describe_features, options, cmvn_file(train), directory),
                [cmvn_file(train), directory / "config.yaml"],
                [directory / "features.yaml", directory / "cmvn.ark"],
                {"features": repr(feature_options(options)), "do_delta": options.do_delta},
            )
        )
    return steps


def lm_arguments(options: RecipeOptions, corpus: Corpus) -> list[str]:
    """The command line of lm_train. It has one device: the recipe never trained LMs on several."""
    arguments = ["--config", options.lm_config, "--output_dir", str(options.lm_dir)]
    for split, name in (("train", corpus.train), ("valid", corpus.dev)):
        arguments += [f"--{split}_data_path_and_name_and_type", f"{DATA / name / 'text'},text,text"]
    arguments += _token_arguments(options)
    arguments += ["--ngpu", str(min(options.ngpu, 1))]
    return [*arguments, *_common_arguments(options), *shlex.split(options.lm_args)]


def asr_arguments(options: RecipeOptions, corpus: Corpus) -> list[str]:
    """The command line of asr_train."""
    train = options.train_set(corpus.train)
    arguments = ["--config", options.train_config]
    arguments += ["--config", options.preprocess_config] if options.preprocess_config else []
    arguments += ["--output_dir", str(options.asr_dir(train)), *_token_arguments(options)]
    arguments += ["--ngpu", str(options.ngpu), "--nproc", str(options.nproc)]
    for split, name in (("train", train), ("valid", corpus.dev)):
        arguments += _data_arguments(options, split, name)
    if options.feats_type == "raw":
        stats = _stats_dir(options)
        for split in ("train", "valid"):
            for shape in ("speech_shape", f"text_shape.{options.token_type}"):
                arguments += [f"--{split}_shape_file", str(stats / split / shape)]
        if _written(options).get("normalize") == "global_mvn":
            arguments += ["--normalize_conf", f"stats_file={stats / 'train' / 'feats_stats.npz'}"]
        if options.speed_factors != [1.0]:
            arguments += ["--speed_perturb", *map(str, options.speed_factors)]
    else:
        arguments += ["--input_size", str(feature_size(options)), "--frontend", "null", "--normalize", "null"]
    if options.n_average:
        kept = "--keep_last_models" if options.average == "last" else "--keep_nbest_models"
        arguments += [kept, str(options.n_average)]
    arguments += ["--num_iters_per_epoch", str(options.N)] if options.N else []
    return [*arguments, *_common_arguments(options), *shlex.split(options.asr_args)]


def batch_size_of(options: RecipeOptions, corpus: Corpus) -> int:
    """Utterances to a batch, as the training configuration says."""
    return int(parse_quietly(AsrTrainConfig, asr_arguments(options, corpus), "asr_train").batch_size)


def parse_quietly(schema: type[Any], arguments: Sequence[str], command: str) -> Any:
    """The configuration that a command would see; notes on translated keys belong to its own run."""
    with contextlib.redirect_stderr(io.StringIO()):
        return parse_training(schema, list(arguments), prog=f"tympan {command}")


def _training_step(
    name: str,
    command: str,
    schema: type[TrainConfig],
    arguments: Sequence[str],
    directory: Path,
    resume: str,
    *,
    needs: Sequence[Path],
    model: str,
    recordings: Sequence[Path] = (),
) -> Step:
    config = _as_settings(parse_quietly(schema, arguments, command))
    settings = {key: value for key, value in config.items() if key not in _ELSEWHERE}
    fixed = {key: value for key, value in settings.items() if key not in _EXTENSIBLE}
    return Step(
        name,
        partial(_train, command, arguments, directory, resume),
        needs,
        [directory / "config.yaml", directory / model],
        settings,
        continues=fixed,
        output_dir=directory,
        recordings=recordings,
    )


def require_checkpoint(resume: str, option: str) -> Path | None:
    """The file that training is to begin from; None for true, false and nothing."""
    if resume.lower() in ("", "true", "false"):
        return None
    if not Path(resume).is_file():
        raise UserError(f"{option}: there is no checkpoint {resume}.")
    return Path(resume)


def _train(command: str, arguments: Sequence[str], directory: Path, resume: str) -> None:
    checkpoint = require_checkpoint(resume, "--resume")
    if checkpoint is not None and not (directory / "checkpoint.pth").exists():
        _copy(checkpoint, directory / "checkpoint.pth")
    run_command(command, [*arguments, "--resume", "false" if resume.lower() == "false" else "true"])


def _stats_step(options: RecipeOptions, corpus: Corpus) -> Step:
    stats = _stats_dir(options)
    arguments = ["--config", options.train_config, "--collect_stats", "true", "--output_dir", str(stats)]
    arguments += ["--normalize", "null"]  # what normalisation needs is being gathered
    arguments += _token_arguments(options)
    needs = [token_list(options)]
    for split, name in (("train", corpus.train), ("valid", corpus.dev)):
        arguments += _data_arguments(options, split, name)
        needs += [*sound_files(DATA / name), DATA / name / "text"]
    makes = [stats / split / "speech_shape" for split in ("train", "valid")]
    settings = {key: _written(options).get(key) for key in ("frontend", "frontend_conf", "input_size")}
    tables = [DATA / name / "wav.scp" for name in (corpus.train, corpus.dev)]
    return Step("statistics", partial(run_command, "asr_train", arguments), needs, makes, settings, recordings=tables)


def _written(options: RecipeOptions) -> dict[str, Any]:
    """What the training configuration itself says, before defaults."""
    path = Path(options.train_config)
    if not path.is_file():
        raise UserError(f"--train_config: there is no file {path}.")
    document = read_yaml(path).value
    return document if isinstance(document, dict) else {}


def _stats_dir(options: RecipeOptions) -> Path:
    return Path("exp", f"asr_stats_{options.feats_type}_{options.token_type}_{Path(options.train_config).stem}")


def _data_arguments(options: RecipeOptions, split: str, name: str) -> list[str]:
    flag = f"--{split}_data_path_and_name_and_type"
    if options.feats_type == "raw":
        return [flag, sound_triple(DATA / name), flag, f"{DATA / name / 'text'},text,text"]
    arguments = [flag, f"{options.dump_dir(name) / 'feats.scp'},speech,kaldi_ark"]
    arguments += [flag, f"{DATA / name / 'text'},text,text"]
    for shape in shape_files(options, name):
        arguments += [f"--{split}_shape_file", str(shape)]
    return arguments


def _token_arguments(options: RecipeOptions) -> list[str]:
    model = bpe_model(options)
    arguments = ["--token_type", options.token_type, "--token_list", str(token_list(options))]
    arguments += ["--g2p", options.lexicon] if options.token_type == "phn" else []
    return arguments + (["--bpemodel", str(model)] if model else [])


def _common_arguments(options: RecipeOptions) -> list[str]:
    arguments = ["--device", options.device] if options.device else []
    arguments += ["--log_level", "DEBUG"] if options.verbose > 1 else []
    if options.debugmode == 0:
        arguments += ["--cudnn_deterministic", "false"]
    elif options.debugmode > 1:
        arguments += ["--detect_anomaly", "true"]
    return arguments


def _as_settings(config: TrainConfig) -> dict[str, Any]:
    import yaml

    from tympan.config import dump_config

    settings: dict[str, Any] = yaml.safe_load(dump_config(config))
    return settings


def _write_lm_text(options: RecipeOptions, text: Path) -> None:
    # Where tokens are phones, the search looks for words.
    is_phones = options.token_type == "phn"
    split = read_lexicon(options.lexicon).text2units if is_phones else tokenizer_for(options).text2tokens
    with atomic_write(LM_TEXT) as stream:
        stream.writelines(" ".join(split(sentence)) + "\n" for sentence in read_table(text).values())


def _describe_features(options: RecipeOptions, stats: Path, directory: Path) -> None:
    _copy(stats, directory / "cmvn.ark")
    write_description(options, directory / "features.yaml")


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as content, atomic_write(target, "wb") as stream:
        shutil.copyfileobj(content, stream)
