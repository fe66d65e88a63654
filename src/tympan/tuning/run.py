"""Fine-tune a model: check the data, prepare the start, decode, train, decode again, report."""

from __future__ import annotations

import logging
import os
import random
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tympan.config.asr import AsrTrainConfig
from tympan.config.command_line import split_words
from tympan.config.parse import as_yaml
from tympan.config.read import parse_training
from tympan.config.yaml_text import dump_yaml
from tympan.data.combine import combine
from tympan.data.rename import Renaming, affix, rename
from tympan.decode.model_files import find_model
from tympan.decode.options import DecodeOptions
from tympan.decode.pack import pack_model
from tympan.decode.recognizer import Recognizer
from tympan.decode.settings import merged_options, read_decode_config
from tympan.errors import UserError
from tympan.files import require_file
from tympan.runtime.atomic import atomic_write
from tympan.runtime.device import choose_kind
from tympan.runtime.lock import NAME as LOCK
from tympan.runtime.lock import directory_lock
from tympan.runtime.log import setup_logging
from tympan.runtime.stop import EXIT_REQUEUE
from tympan.score.inputs import score_files
from tympan.score.result import ScoreResult
from tympan.score.transcripts import Unit
from tympan.tasks.asr import AsrTask
from tympan.training.session import run_training
from tympan.tuning.check_data import DataSet, read_checked, warnings_about
from tympan.tuning.evaluate import decode_and_score, usual_unit
from tympan.tuning.options import FinetuneOptions
from tympan.tuning.plan import check_method, training_options
from tympan.tuning.report import SetResult, table, write_reports
from tympan.tuning.start import Start, change_tokens, pack_base, read_start
from tympan.tuning.vocabulary import Coverage, coverage

BASE, START, TRAIN, MODEL, DECODED = "base", "start", "train", "model", "decode"
"""Folders in the output directory."""
LOG = "finetune.log"
MOST_UNKNOWN = 0.5
"""Share of unknown tokens in the training text above which a run is rejected."""


@dataclass(frozen=True)
class Finetuned:
    """The result of a fine-tuning run."""

    directory: Path
    model: Path
    """The fine-tuned model, packed; `tympan.load` takes it."""
    results: dict[str, SetResult]
    """Error rates before and after, and their comparison, of dev, test and keep."""
    unit: Unit

    @property
    def summary(self) -> str:
        """The table of results, and how to use the model."""
        return f"{table(list(self.results.values()), self.unit)}\n\n{_ending(self.model)}"


def run_finetuning(options: FinetuneOptions) -> Finetuned:
    """Run everything. The output directory must be new, unless an interrupted run is resumed."""
    with directory_lock(options.output_dir, advice="or give this run another --output_dir"):
        return _run(options)


def _run(options: FinetuneOptions) -> Finetuned:
    directory = options.output_dir
    _check_files(options)
    _prepare_directory(directory, is_resumed=options.resume)
    setup_logging("INFO", directory / LOG, console=True, rank=None)
    base = _packed_base(options)
    before = _recognizer(base, options)
    data, warnings = _checked_data(options, before)
    start, found = _start(options, base, before, data)
    values = training_options(
        options,
        start,
        train=data["train"],
        dev=data["dev"],
        rate=before.rate,
        wants_features=before.loaded.input.wants_features,
        output_dir=str(directory / TRAIN),
    )
    check_method(start, values)
    training = _training_config(options, values)
    unit: Unit = options.unit or usual_unit(before)
    kept = [one for name, one in data.items() if name in ("dev", "test", "keep")]
    first = [_decoded(before, one, "before", options, unit) for one in kept]
    del before
    _train(options, *training)
    model = _packed_result(options)
    after = _recognizer(model, options)
    second = [_decoded(after, one, "after", options, unit) for one in kept]
    results = [SetResult.of(one.name, *pair) for one, *pair in zip(kept, first, second, strict=True)]
    notes = [f"model: {options.model}", f"method: {options.method}", *(str(one) for one in data.values())]
    notes += [str(found), *(f"warning: {text}" for text in warnings)]
    write_reports(
        directory, results, unit=unit, title=f"Fine-tuning: {directory.name}", notes=notes, ending=_ending(model)
    )
    return Finetuned(directory, model, {one.name: one for one in results}, unit)


def _check_files(options: FinetuneOptions) -> None:
    """UserError for a missing file, before anything is computed."""
    for name in ("decode_config", "train_config", "token_list", "bpemodel"):
        path = getattr(options, name)
        try:
            if path is not None:
                require_file(path)
        except UserError as error:
            raise UserError(f"--{name} {error}") from None
    if options.bpemodel is not None and options.token_list is None:
        raise UserError("--bpemodel: belongs to --token_list, which is missing")
    split_words(options.asr_args, option="asr_args")


def _prepare_directory(directory: Path, *, is_resumed: bool) -> None:
    """A run that stopped before its training began leaves folders behind, which a new run replaces."""
    if is_resumed or not any(path.name != LOCK for path in directory.iterdir()):
        return
    if (directory / TRAIN).exists() or not (directory / LOG).exists():
        raise UserError(f"{directory}: not empty; choose another --output_dir, or continue the run with --resume true")
    for name in (BASE, START, DECODED):
        shutil.rmtree(directory / name, ignore_errors=True)


def _packed_base(options: FinetuneOptions) -> Path:
    folder = options.output_dir / BASE
    if (folder / "config.yaml").exists():
        return folder
    chosen = None if options.decode_config is None else read_decode_config(options.decode_config)
    return pack_base(options.model, folder, options=chosen, allow_import=options.allow_import)


def _recognizer(folder: Path, options: FinetuneOptions) -> Recognizer:
    kind = choose_kind(ngpu=min(options.ngpu, 1), device=None)
    return Recognizer.from_pretrained(folder, device=kind, allow_import=options.allow_import)


def _checked_data(options: FinetuneOptions, recognizer: Recognizer) -> tuple[dict[str, DataSet], list[str]]:
    paths = {
        "train": options.train_dir,
        "dev": options.dev_dir,
        "test": options.test_dir,
        "keep": options.keep_dir,
        "replay": options.replay_dir,
    }
    for name, path in paths.items():
        if path is not None and not os.path.isdir(path):
            raise UserError(f"--{name}_dir {path}: no such data directory")
    wants_features = recognizer.loaded.input.wants_features
    data = {
        name: read_checked(name, path, rate=recognizer.rate, wants_features=wants_features)
        for name, path in paths.items()
        if path is not None
    }
    for one in data.values():
        logging.info("%s", one)
    warnings = list(warnings_about(data["train"], data["dev"], method=options.method))
    for text in warnings:
        logging.warning("%s", text)
    if "replay" in data:
        data["train"] = _with_replay(options, data["train"], data["replay"])
        logging.info("with replay: %s", data["train"])
    return data, warnings


def _with_replay(options: FinetuneOptions, train: DataSet, old: DataSet) -> DataSet:
    """The training data with a random part of the old data, in the given ratio of utterances."""
    number = min(round(options.replay_ratio * len(train.data.utterances)), len(old.data.utterances))
    if number == 0:
        raise UserError(f"--replay_ratio {options.replay_ratio:g}: this is less than one utterance of --replay_dir")
    chosen = random.Random(options.seed).sample(sorted(old.data.utterances), number)
    named = affix("replay-")
    part = rename(old.data.keep(chosen).located(), Renaming(utterance=named, speaker=named, recording=named))
    mixed = combine([train.data, part]).data
    seconds = train.seconds + old.seconds * number / len(old.data.utterances)
    return DataSet("train", mixed.write(options.output_dir / "data" / "train"), seconds)


def _start(
    options: FinetuneOptions, base: Path, recognizer: Recognizer, data: dict[str, DataSet]
) -> tuple[Start, Coverage]:
    """The model to start from, with the token list of the options."""
    codec = recognizer.loaded.codec
    found = coverage(data["train"].data.text.values(), codec)
    if options.token_list is not None and options.extend_vocab:
        raise UserError("--token_list replaces the token list and --extend_vocab extends it: give only one of them")
    is_extended = options.extend_vocab and bool(found.missing)
    if options.token_list is None and not is_extended:
        if found.unknown_share > MOST_UNKNOWN:
            raise UserError(
                f"--train_dir {options.train_dir}: {found}. Check that the text is written as the model writes "
                "it (upper or lower case, kind of tokens), or use --extend_vocab true or --token_list FILE"
            )
        level = logging.WARNING if found.missing or found.unmapped else logging.INFO
        hint = ". They become <unk>; --extend_vocab true adds them" if found.missing else ""
        logging.log(level, "vocabulary: %s%s", found, hint)
        return read_start(base, changed=[], allow_import=options.allow_import), found
    logging.info("vocabulary: %s", found)
    changed = change_tokens(
        base,
        options.output_dir / START,
        codec=codec,
        added=found if is_extended else None,
        token_list=options.token_list,
        bpemodel=options.bpemodel,
        allow_import=options.allow_import,
    )
    return read_start(options.output_dir / START, changed=changed, allow_import=options.allow_import), found


def _decoded(recognizer: Recognizer, data: DataSet, when: str, options: FinetuneOptions, unit: Unit) -> ScoreResult:
    path = options.output_dir / DECODED / when / data.name / "text"
    if when == "before" and path.exists():
        return score_files(data.data.path / "text", path, unit=unit)
    result = decode_and_score(recognizer, data.data, hypotheses=path, unit=unit)
    logging.info("%s, %s: %.1f %% errors", data.name, when, result.total.error_rate)
    return result


def _training_config(options: FinetuneOptions, values: Mapping[str, Any]) -> tuple[AsrTrainConfig, list[str]]:
    """The configuration of the training, and the command line that it comes from."""
    directory = options.output_dir
    with atomic_write(directory / "train.yaml") as stream:
        stream.write(dump_yaml(as_yaml(values)))
    argv = ["--config", str(directory / "train.yaml")]
    argv += ["--config", str(options.train_config)] if options.train_config else []
    argv += split_words(options.asr_args, option="asr_args")
    return parse_training(AsrTrainConfig, argv, prog="tympan finetune"), argv


def _train(options: FinetuneOptions, config: AsrTrainConfig, argv: list[str]) -> None:
    directory = options.output_dir
    try:
        code = run_training(AsrTask(), config, argv=argv)
    except UserError as error:
        if options.batch_s is None or "--batch_bins" not in str(error):
            raise
        raise UserError(f"--batch_s {options.batch_s:g} (--batch_bins is this in samples or frames): {error}") from None
    if code == EXIT_REQUEUE:
        raise SystemExit(code)
    if code:
        raise UserError(f"training failed with exit code {code}; {directory / TRAIN / 'train.log'} says more")
    setup_logging("INFO", directory / LOG, console=True, rank=None)


def _packed_result(options: FinetuneOptions) -> Path:
    folder = options.output_dir / MODEL
    if (folder / "config.yaml").exists():
        return folder
    base = find_model(options.output_dir / BASE)
    is_same = not (options.output_dir / START).exists()
    files = replace(
        find_model(options.output_dir / TRAIN),
        lm_train_config=base.lm_train_config if is_same else None,
        lm_file=base.lm_file if is_same else None,
        ngram_file=base.ngram_file,
    )
    settings: DecodeOptions | None = None
    if base.settings:
        settings = merged_options(base.settings, {}, allow_import=options.allow_import)
    return pack_model(files, folder, options=settings, allow_import=options.allow_import)


def _ending(model: str | os.PathLike[str]) -> str:
    return f"Transcribe with the fine-tuned model: tympan transcribe {shlex.quote(os.fspath(model))} AUDIO"
