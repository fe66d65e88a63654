"""One screen of truth before hours of work: the configuration of every stage, the machine, and an estimate."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.errors import UserError
from tympan.recipe.amounts import in_bytes, in_words
from tympan.recipe.corpus import Corpus
from tympan.recipe.decode_steps import inference_arguments
from tympan.recipe.feature_steps import feature_options
from tympan.recipe.options import RecipeOptions
from tympan.recipe.token_steps import tokenizer_for
from tympan.recipe.training_steps import asr_arguments, lm_arguments, parse_quietly, require_checkpoint
from tympan.runtime.memory import memory_bytes


def check_configuration(options: RecipeOptions, corpus: Corpus, start: int, stop: int) -> None:
    """Parse what every stage in the range will read, and look for the devices; all mistakes in one message."""
    mistakes = [str(error) for _, error in _configurations(options, corpus, start, stop) if error is not None]
    if mistakes:
        raise UserError("\n".join(mistakes))


def check_recipe(options: RecipeOptions, corpus: Corpus, start: int, stop: int) -> int:
    """`--check`: print the machine, the archives, each configuration, and what the stages will take."""
    from tympan.recipe.estimate import estimate

    problems = []
    print("machine")
    for name, value in machine(Path.cwd()):
        print(f"  {name:<10} {value}")
    print("archives")
    for line in _archives(options, start):
        print(f"  {line}")
    print("configuration")
    for name, error in _configurations(options, corpus, start, stop):
        print(f"  {name:<10} {'fine' if error is None else 'not fine, see below'}")
        problems += [] if error is None else [str(error)]
    if not problems:
        found = estimate(options, corpus, _parse_inference(options, corpus))
        print("estimate")
        for note in found.notes:
            print(f"  {note}")
        print(f"  {'stage':<14} {'time':>14} {'disk':>10}")
        chosen = [stage for stage in found.stages if start <= stage.number <= stop]
        for stage in chosen:
            print(f"  {stage.number:>2} {stage.name:<11} {in_words(stage.seconds):>14} {in_bytes(stage.bytes):>10}")
        needed, free = sum(stage.bytes for stage in chosen), shutil.disk_usage(".").free
        together = in_words(sum(stage.seconds for stage in chosen))
        print(f"  {'together':<14} {together:>14} {in_bytes(needed):>10}")
        if needed > free:
            problems.append(
                f"the disk has {in_bytes(free)} free and the stages need about {in_bytes(needed)}: make room."
            )
        if found.memory_bytes > memory_bytes():
            problems.append(
                f"training needs about {in_bytes(found.memory_bytes)} of memory for its largest batch, and there are "
                f"{in_bytes(memory_bytes())}: use a smaller batch_size or batch_bins (--asr_args)."
            )
    if problems:
        raise UserError("\n".join(problems))
    print("all is well" if start <= stop else "nothing to do")
    return 0


def machine(directory: Path) -> list[tuple[str, str]]:
    """Versions, devices, cores, memory and free disk, as name and value."""
    import torch

    import tympan
    from tympan.runtime.device import find_accelerators

    free = shutil.disk_usage(directory).free
    return [
        ("tympan", tympan.__version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", torch.__version__),
        ("devices", f"{find_accelerators()}, {len(os.sched_getaffinity(0))} CPU cores"),
        ("memory", in_bytes(memory_bytes())),
        ("disk", f"{in_bytes(free)} free in {directory}"),
    ]


def _configurations(
    options: RecipeOptions, corpus: Corpus, start: int, stop: int
) -> list[tuple[str, UserError | None]]:
    """(name, mistake or None) of everything that a stage from `start` to `stop` reads."""
    checks: list[tuple[str, int, Callable[[], object]]] = [("data", 0, corpus.check)]
    if options.feats_type != "raw":
        checks.append(("features", 1, lambda: feature_options(options)))
    # The corpus may bring its lexicon, which stage -1 unpacks.
    if options.token_type == "phn" and (start > -1 or not Path(options.lexicon).is_relative_to(options.data)):
        checks.append(("lexicon", 2, lambda: tokenizer_for(options)))
    if options.lm_config:
        checks.append(("resume", 3, lambda: require_checkpoint(options.lm_resume, "--lm_resume")))
        checks.append(("lm", 3, lambda: parse_quietly(LmTrainConfig, lm_arguments(options, corpus), "lm_train")))
    checks.append(("asr", 4, lambda: parse_quietly(AsrTrainConfig, asr_arguments(options, corpus), "asr_train")))
    checks.append(("resume", 4, lambda: require_checkpoint(options.resume, "--resume")))
    if start <= 4 and stop >= 3:
        checks.append(("device", 4, lambda: _require_device(options)))
    checks.append(("decoding", 5, lambda: _parse_inference(options, corpus)))
    found = [(name, _mistake(check)) for name, stage, check in checks if start <= stage <= stop]
    return [(name, mistake) for name, mistake in found if mistake is not None or name not in ("data", "resume")]


def _mistake(check: Callable[[], object]) -> UserError | None:
    try:
        check()
    except UserError as error:
        return error
    return None


def _require_device(options: RecipeOptions) -> None:
    from tympan.runtime.device import choose_kind

    choose_kind(ngpu=options.ngpu, device=options.device)


def _parse_inference(options: RecipeOptions, corpus: Corpus) -> dict[str, Any]:
    """What decoding will be told. The command itself parses: its options are not this room's to know."""
    arguments = inference_arguments(options, options.train_set(corpus.train), corpus.dev)
    command = [sys.executable, "-m", "tympan.bin.asr_inference", *arguments, "--print_config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = done.stderr.strip().splitlines()
        raise UserError(
            "\n".join(line for line in message if not line.startswith("tympan: note")).removeprefix("tympan: error: ")
        )
    import yaml

    parsed: dict[str, Any] = yaml.safe_load(done.stdout)
    if options.token_type == "phn" and parsed["search"] != "lexicon":
        raise UserError(
            f"--decode_config {options.decode_config}: with token_type phn the words are found by 'search: lexicon', "
            f"not by {parsed['search']}."
        )
    if parsed["search"] == "lexicon" and options.lm_config and parsed["lm_weight"] != 0:
        raise UserError(
            'search lexicon uses the n-gram of words and no neural LM: say --lm_config "" (or lm_weight: 0.0).'
        )
    return parsed


def _archives(options: RecipeOptions, start: int) -> list[str]:
    data = Path(options.data)
    if options.corpus == "custom":
        return [f"{name}: {place}" for name, place in (("train", options.train_dir), ("dev", options.dev_dir))]
    found = sorted(data.glob("*.tgz")) + sorted(data.glob("*.tar.gz"))
    lines = [f"{path}: {in_bytes(path.stat().st_size)}" for path in found]
    from tympan.recipe import aishell, an4

    if options.corpus == "aishell":
        unpacked = [str(data / part) for part in aishell.ARCHIVES if aishell.is_extracted(data, part)]
    else:
        unpacked = [str(data)] if an4.is_extracted(data) else []
    lines += [f"{place}: unpacked" for place in unpacked]
    if not lines:
        source = options.data_url or (aishell.DATA_URL if options.corpus == "aishell" else an4.DATA_URL)
        lines = [
            f"none in {data}: stage -1 downloads them from {source}" + ("" if start <= -1 else " (add --stage -1)")
        ]
    return lines
