"""`--check`: examine the machine and the configuration of every stage, and estimate time and disk space."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config.lm import LmTrainConfig
from tympan.data.kaldi_dir import DataDir
from tympan.data.table_faults import Fault
from tympan.errors import UserError
from tympan.recipe.advice import shorten
from tympan.recipe.console import in_bytes, in_words
from tympan.recipe.corpus import describe_archives
from tympan.recipe.decode_steps import inference_arguments
from tympan.recipe.options import RecipeOptions
from tympan.recipe.recipe import Recipe
from tympan.recipe.timing import describe_load
from tympan.recipe.training_checks import check_training
from tympan.recipe.training_steps import (
    lm_arguments,
    parse_quietly,
    require_checkpoint,
    require_lm_text,
)
from tympan.runtime.memory import memory_bytes

if TYPE_CHECKING:
    from tympan.decode.options import DecodeOptions
    from tympan.recipe.estimate import Estimate


MOST_DECODED = 2000
"""Recordings of a set that are read: reading all of a large set would take minutes."""


def check_configuration(recipe: Recipe, start: int, stop: int) -> None:
    """Parse every configuration that the stages will read, and check the devices. Report all mistakes at once."""
    mistakes = [str(error) for _, error in _configurations(recipe, start, stop) if error is not None]
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(mistakes)))


def check_recipe(recipe: Recipe, start: int, stop: int) -> int:
    """`--check`: print the machine, the archives, each configuration, and the estimate of time and disk space."""
    from tympan.recipe.estimate import estimate

    print("machine")
    for name, value in machine(Path.cwd()):
        print(f"  {name:<10} {value}")
    if not recipe.corpus.directories and start <= 0:
        print("archives")
        for line in describe_archives(recipe.corpus, recipe.options, start=start):
            print(f"  {line}")
    problems = _check_data(recipe) if start <= 0 <= stop else []
    print("configuration")
    for name, error in _configurations(recipe, start, stop, builds_model=True):
        print(f"  {name:<10} {'ok' if error is None else 'has errors, see below'}")
        problems += [] if error is None else [str(error)]
    if not problems:
        found = estimate(recipe, _parse_inference(recipe), stages=range(start, stop + 1))
        problems = _print_estimate(found, recipe.options, start, stop)
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    print("all checks passed" if start <= stop else "nothing to do")
    return 0


def _check_data(recipe: Recipe) -> list[str]:
    """Validate the data directories that stage 0 reads, and print a line for each. Returns their errors."""
    from tympan.data.validate import FIXES, validate

    if not recipe.corpus.directories:
        return []
    print("data")
    problems = []
    for name, place in recipe.corpus.directories.items():
        if not (place / "wav.scp").is_file():
            continue  # reported with the configuration
        report = validate(place, nj=recipe.options.jobs, most_decoded=MOST_DECODED)
        if recipe.features.takes_any_rate:
            report = replace(report, faults=[fault for fault in report.faults if fault.kind != "sample-rate"])
        sampled = f" ({len(report.infos)} of the recordings read)" if report.is_sampled else ""
        print(f"  {name:<10} {report.describe()}{sampled}{'' if report.faults else ': no faults'}")
        for fault in _examples([fault for fault in report.faults if fault.is_warning]):
            print(f"    {fault}")
        if report.errors:
            quoted = shlex.quote(str(place))
            problems += [
                *_examples(report.errors),
                f"`tympan validate_data {quoted}` lists all faults. `tympan fix_data {quoted}` {FIXES}.",
            ]
    return problems


def _examples(faults: Sequence[Fault]) -> list[str]:
    """The first fault of each kind in each file, with the number of the others."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.file, fault.kind), []).append(fault)
    return [f"{first}{f' (and {len(others)} more like this)' if others else ''}" for first, *others in groups.values()]


def _print_estimate(found: Estimate, options: RecipeOptions, start: int, stop: int) -> list[str]:
    """Print time and disk space per stage, and advice if they take long; return what exceeds this machine."""
    print("estimate")
    for note in found.notes:
        print(f"  {note}")
    print(f"  {'stage':<14} {'time':>14} {'disk':>10}")
    chosen = [stage for stage in found.stages if start <= stage.number <= stop]
    for stage in chosen:
        print(f"  {stage.number:>2} {stage.name:<11} {in_words(stage.seconds):>14} {in_bytes(stage.bytes):>10}")
    needed, free = sum(stage.bytes for stage in chosen), shutil.disk_usage(".").free
    print(f"  {'total':<14} {in_words(sum(stage.seconds for stage in chosen)):>14} {in_bytes(needed):>10}")
    for line in [] if found.asr is None else shorten(chosen, options, found.asr):
        print(f"  {line}")
    problems = []
    if needed > free:
        problems.append(
            f"the stages need about {in_bytes(needed)} of disk space, but only {in_bytes(free)} is free: free "
            "some space."
        )
    if found.memory_bytes > memory_bytes():
        problems.append(
            f"training needs about {in_bytes(found.memory_bytes)} of memory for its largest batch, but the machine has "
            f"{in_bytes(memory_bytes())}: use a smaller batch_size or batch_bins (--asr_args)."
        )
    return problems


def machine(directory: Path) -> list[tuple[str, str]]:
    """Versions, devices, cores, memory and free disk, as name and value."""
    import torch

    import tympan
    from tympan.runtime.device import find_accelerators

    free = shutil.disk_usage(directory).free
    load = describe_load()
    return [
        ("tympan", tympan.__version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", torch.__version__),
        ("devices", f"{find_accelerators()}, {len(os.sched_getaffinity(0))} CPU cores"),
        *([] if load is None else [("load", load)]),
        ("memory", in_bytes(memory_bytes())),
        ("disk", f"{in_bytes(free)} free in {directory}"),
    ]


def _configurations(
    recipe: Recipe, start: int, stop: int, *, builds_model: bool = False
) -> list[tuple[str, UserError | None]]:
    """(name, mistake or None) for every configuration that a stage from `start` to `stop` reads."""
    options, tokens = recipe.options, recipe.tokens
    checks: list[tuple[str, int, Callable[[], object]]] = [("data", 0, recipe.corpus.check)]
    checks.append(("features", 1, recipe.features.check))
    # The corpus may contain the lexicon, which stage -1 unpacks.
    if any(start > -1 or not file.is_relative_to(options.data) for file in tokens.needs):
        checks.append(("lexicon", 2, lambda: _check_tokens(recipe)))
    checks.append(("lm_text", 3, lambda: require_lm_text(options)))
    if options.lm_config:
        checks.append(("resume", 3, lambda: require_checkpoint(options.lm_resume, "--lm_resume")))
        checks.append(("lm", 3, lambda: parse_quietly(LmTrainConfig, lm_arguments(recipe), "lm_train")))
    checks.append(("asr", 4, lambda: check_training(recipe, builds_model=builds_model)))
    checks.append(("resume", 4, lambda: require_checkpoint(options.resume, "--resume")))
    if start <= 4 and stop >= 3:
        checks.append(("device", 4, lambda: _require_device(options)))
    checks.append(("decoding", 5, lambda: _parse_inference(recipe)))
    found = [(name, _mistake(check)) for name, stage, check in checks if start <= stage <= stop]
    return [
        (name, mistake) for name, mistake in found if mistake is not None or name not in ("data", "resume", "lm_text")
    ]


def _check_tokens(recipe: Recipe) -> None:
    """UserError for a lexicon that is missing, or that lacks most words of a training text that exists now."""
    recipe.tokens.tokenizer()
    place = recipe.corpus.directories.get(recipe.corpus.train)
    if place is None:
        return
    try:
        texts = list(DataDir.read(place).text.values())
    except UserError:
        return  # reported with the data
    recipe.tokens.check_text(texts, place / "text")


def _mistake(check: Callable[[], object]) -> UserError | None:
    try:
        check()
    except UserError as error:
        return error
    return None


def _require_device(options: RecipeOptions) -> None:
    from tympan.runtime.device import choose_kind

    choose_kind(ngpu=options.ngpu, device=options.device)


def _parse_inference(recipe: Recipe) -> DecodeOptions:
    """The search that decoding will use."""
    from tympan.decode.options import DecodeOptions, part_of
    from tympan.decode.search import find_search
    from tympan.decode.settings import check_decode_config

    options = recipe.options
    arguments = inference_arguments(recipe, recipe.corpus.dev)
    assert arguments[:2] == ["--config", options.decode_config]
    search = part_of(check_decode_config(Path(options.decode_config), arguments[2:]), DecodeOptions)
    kind = None if search.search is None else find_search(search.search)
    recipe.tokens.check_search(kind, options.decode_config)
    if kind is not None and not kind.takes_lm and options.lm_config and search.lm_weight != 0:
        raise UserError(
            f'search {kind.name} uses a word n-gram and no neural LM: set --lm_config "" (or lm_weight: 0.0).'
        )
    return search
