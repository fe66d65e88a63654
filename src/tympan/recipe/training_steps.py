"""Stages 3 and 4: train the language models and the recognizer, each as a command in a separate process."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.command_line import split_words
from tympan.config.lm import LmTrainConfig
from tympan.config.train import TrainConfig
from tympan.data.kaldi_dir import read_table
from tympan.errors import UserError
from tympan.files import read_text
from tympan.recipe.console import run_command
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.options import RecipeOptions
from tympan.recipe.recipe import Recipe
from tympan.recipe.stage import Step
from tympan.recipe.tokens import Tokens
from tympan.runtime.atomic import atomic_write

Config = TypeVar("Config", bound=TrainConfig)

LM_TEXT = Path("data", "local", "lm_train", "train.txt")
"""The units of the n-gram."""
ALL_TEXT = Path("data", "local", "lm_train", "text")
"""The training transcripts together with --lm_text."""

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
    "save_interval_minutes",
    "max_restarts",
    "elastic",
    "dist_timeout",
    "init_param",
    "dry_run",
]
"""Options that do not affect the result, such as directories and devices."""
_EXTENSIBLE = [
    "max_epoch",
    "patience",
    "keep_nbest_models",
    "keep_last_models",
    "nbest_averaging_interval",
    "best_model_criterion",
]
"""Options that may change between an interrupted run and its continuation."""


def lm_steps(recipe: Recipe) -> list[Step]:
    """Stage 3: the neural LM on the unperturbed training text, and the n-gram on its tokens."""
    options, tokens, corpus = recipe.options, recipe.tokens, recipe.corpus
    steps = []
    train, dev = lm_text_of(recipe), DATA / corpus.dev / "text"
    if options.lm_text:
        sources = [DATA / corpus.train / "text", *map(Path, options.lm_text)]
        steps.append(Step("LM text", partial(_join_texts, sources), sources, [train]))
    if options.lm_config:
        steps.append(
            _training_step(
                "rnnlm", "lm_train", LmTrainConfig, lm_arguments(recipe), options.lm_dir, options.lm_resume,
                needs=[train, dev, tokens.token_list], model="valid.loss.best.pth",
            )
        )  # fmt: skip
    if options.n_gram:
        arpa = options.ngram_file
        needs = [train, tokens.token_list, *tokens.needs]
        steps.append(
            Step("n-gram text", partial(_write_lm_text, tokens, train, dev), needs, [LM_TEXT], tokens.ngram_settings)
        )
        arguments = ["-o", str(options.n_gram), "--discount_fallback", "--arpa", str(arpa), str(LM_TEXT)]
        run = partial(run_command, "ngram_train", arguments)
        steps.append(Step(f"n-gram {arpa.stem}", run, [LM_TEXT], [arpa], {"order": options.n_gram}))
    return steps


def asr_steps(recipe: Recipe) -> list[Step]:
    """Stage 4: the recognizer, with the steps that its features need before and after."""
    corpus, features, directory = recipe.corpus, recipe.features, recipe.asr_dir
    names = [recipe.train_set, corpus.dev]
    needs = [recipe.tokens.token_list, *(DATA / name / "text" for name in names), *recipe.tokens.needs]
    needs += [file for name in names for file in features.training_needs(name)]
    training = _training_step(
        f"train {directory.name}", "asr_train", AsrTrainConfig, asr_arguments(recipe), directory, recipe.options.resume,
        needs=needs, recordings=features.recordings(names), model="latest.pth",
    )  # fmt: skip
    return [
        *features.steps_before_training(corpus),
        training,
        *features.steps_after_training(corpus, directory),
    ]


def lm_arguments(recipe: Recipe) -> list[str]:
    """The command line of lm_train. It uses one device, as ESPnet1's recipe does."""
    options = recipe.options
    arguments = ["--config", options.lm_config, "--output_dir", str(options.lm_dir)]
    for split, text in (("train", lm_text_of(recipe)), ("valid", DATA / recipe.corpus.dev / "text")):
        arguments += [f"--{split}_data_path_and_name_and_type", f"{text},text,text"]
    arguments += recipe.tokens.training_arguments()
    arguments += ["--ngpu", str(min(options.ngpu, 1))]
    return [*arguments, *_common_arguments(options), *split_words(options.lm_args, option="lm_args")]


def asr_arguments(recipe: Recipe) -> list[str]:
    """The command line of asr_train."""
    options = recipe.options
    arguments = ["--config", options.train_config]
    arguments += ["--config", options.preprocess_config] if options.preprocess_config else []
    arguments += ["--output_dir", str(recipe.asr_dir), *recipe.tokens.training_arguments()]
    arguments += ["--ngpu", str(options.ngpu), "--nproc", str(options.nproc)]
    arguments += recipe.features.training_arguments(recipe.corpus)
    if options.n_average:
        kept = "--keep_last_models" if options.average == "last" else "--keep_nbest_models"
        arguments += [kept, str(options.n_average)]
    arguments += ["--num_iters_per_epoch", str(options.N)] if options.N else []
    return [*arguments, *_common_arguments(options), *split_words(options.asr_args, option="asr_args")]


def batch_size_of(options: RecipeOptions, corpus: Corpus) -> int:
    """Number of utterances per batch, from the training configuration."""
    return parse_quietly(AsrTrainConfig, asr_arguments(Recipe.of(options, corpus)), "asr_train").batch_size


def parse_quietly(schema: type[Config], arguments: Sequence[str], command: str) -> Config:
    """The configuration as the command will parse it. Notes on translated keys are printed by the command."""
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
    """The checkpoint file to start training from; None for true, false and empty."""
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


def _common_arguments(options: RecipeOptions) -> list[str]:
    arguments = ["--device", options.device] if options.device else []
    arguments += ["--log_level", "DEBUG"] if options.verbose > 1 else []
    if options.debugmode == 0:
        arguments += ["--cudnn_deterministic", "false"]
    elif options.debugmode > 1:
        arguments += ["--detect_anomaly", "true"]
    return arguments


def _as_settings(config: TrainConfig) -> Mapping[str, object]:
    import yaml

    from tympan.config import dump_config

    settings: dict[str, object] = yaml.safe_load(dump_config(config))
    return settings


def lm_text_of(recipe: Recipe) -> Path:
    """The table of sentences that the language models are trained on."""
    return ALL_TEXT if recipe.options.lm_text else DATA / recipe.corpus.train / "text"


def require_lm_text(options: RecipeOptions) -> None:
    """UserError for a file of --lm_text that does not exist or is not text."""
    for path in options.lm_text:
        _sentences(Path(path))


def _join_texts(sources: Sequence[Path]) -> None:
    """Write the transcripts and the sentences of the other files as one table."""
    transcripts, *others = sources
    with atomic_write(ALL_TEXT) as stream:
        stream.writelines(f"{key} {text}\n" for key, text in read_table(transcripts).items())
        for number, path in enumerate(others):
            sentences = _sentences(path)
            stream.writelines(f"lm{number}-{row:09d} {text}\n" for row, text in enumerate(sentences))
            print(f"    {path}: {len(sentences)} sentences for the language models")


def _sentences(path: Path) -> list[str]:
    lines = read_text(path, kind="file of --lm_text", encoding="utf-8-sig").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def _write_lm_text(tokens: Tokens, text: Path, dev: Path) -> None:
    split = tokens.ngram_units()
    known: set[str] = set()
    with atomic_write(LM_TEXT) as stream:
        for sentence in read_table(text).values():
            units = split(sentence)
            known.update(units)
            stream.write(" ".join(units) + "\n")
    if dev.is_file():
        units = [unit for sentence in read_table(dev).values() for unit in split(sentence)]
        unknown = Counter(unit for unit in units if unit not in known)
        if unknown:
            shown = ", ".join(unit for unit, _ in unknown.most_common(10))
            share = 100 * unknown.total() / len(units)
            print(
                f"    {unknown.total()} of {len(units)} units of {dev} ({share:.1f} %) are not in the LM text: {shown}"
            )


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as content, atomic_write(target, "wb") as stream:
        shutil.copyfileobj(content, stream)
