"""Run a finished training run again and report whether the result is identical."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tympan.config import argument, option, parse_args
from tympan.errors import UserError
from tympan.runtime.child import child_environment, module_command


@dataclass(frozen=True)
class Options:
    exp_dir: Path = argument(help="directory of a finished training run")
    output_dir: Path | None = option(None, help="output directory of the new run; null: a temporary directory")
    nproc: int | None = option(
        None, help="number of training processes; null: the same number as the original run", least=1
    )
    allow_import: bool = option(
        False, help="allow runs with Python classes outside Tympan (package.module:Class), whose code is then run"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan reproduce", description=__doc__)
    from tympan.training.manifest import NAME, check_finished, file_fingerprint, read_manifest, versions

    if not (options.exp_dir / NAME).is_file():
        raise UserError(f"{options.exp_dir} has no {NAME}: not the directory of a training run of Tympan")
    manifest = read_manifest(options.exp_dir)
    check_finished(options.exp_dir, manifest)
    then = Path(manifest["directory"])
    if not then.is_dir():
        raise UserError(
            f"{options.exp_dir} was trained in {then}, which no longer exists: its relative paths can't be resolved"
        )
    for line in _changes(manifest, versions(), {path: file_fingerprint(then / path) for path in manifest["data"]}):
        print(f"differs from the original run: {line}")
    with tempfile.TemporaryDirectory(prefix="tympan-reproduce-") as temporary:
        output = options.output_dir or Path(temporary)
        _train_again(options, manifest, output)
        return _compare(manifest, read_manifest(output))


def _train_again(options: Options, manifest: dict[str, Any], output: Path) -> None:
    processes = options.nproc or manifest["processes"]
    task = _task_of(manifest, allow_import=options.allow_import)
    _check_imports(task, options)
    command = module_command("tympan.bin.train", [task, "--config", str((options.exp_dir / "config.yaml").resolve())])
    command += ["--output_dir", str(output.resolve())]
    command += ["--resume", "false", "--use_wandb", "false"]
    if manifest["device"].startswith("cpu"):
        command += ["--nproc", str(processes)]
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(manifest["threads"])}
    done = subprocess.run(command, cwd=Path(manifest["directory"]), env=child_environment(threads))
    if done.returncode != 0:
        raise UserError(f"the new training run ended with exit code {done.returncode}: see {output}/train.log")


def _task_of(manifest: dict[str, Any], *, allow_import: bool) -> str:
    """The task's name, or its class if it is a user's own task."""
    from tympan.tasks import TASKS

    names = {TASKS.target(name): name for name in TASKS.names()}
    # Tympan 0.1 wrote the name of its task as `kind`
    target = str(manifest["task_class"] if "task" in manifest else TASKS.target(str(manifest["kind"])))
    if target in names:
        return names[target]
    if target.startswith("__main__:"):
        raise UserError(
            f"the task '{manifest['task']}' was defined in the script that was run: put it into a module that can be "
            "imported, and train with `tympan train package.module:Class`"
        )
    if not allow_import:
        raise UserError(
            f"the run was trained with the task class '{target}': running it again runs its code. If you trust it, "
            f"use --allow_import true"
        )
    return target


def _check_imports(task: str, options: Options) -> None:
    """UserError if the configuration names a class outside Tympan and this is not allowed."""
    from tympan.config.read import check_imports
    from tympan.tasks import find_task

    if not options.allow_import:
        check_imports(find_task(task).config_class, options.exp_dir / "config.yaml")


def _changes(manifest: dict[str, Any], now: dict[str, str], data: dict[str, Any]) -> list[str]:
    lines = [
        f"{name}: {then} in the original run, {now.get(name)} now"
        for name, then in manifest["versions"].items()
        if now.get(name) != then
    ]
    return lines + [f"data file {path}" for path, then in manifest["data"].items() if data[path] != then]


def _compare(then: dict[str, Any], now: dict[str, Any]) -> int:
    different = [name for name, digest in then["weights_sha256"].items() if now["weights_sha256"].get(name) != digest]
    if not different:
        print(f"identical: all {len(then['weights_sha256'])} models match bit for bit")
        return 0
    print(f"not identical: {len(different)} of {len(then['weights_sha256'])} models differ ({', '.join(different)})")
    for epoch, parts in then["epochs"].items():
        again = now["epochs"].get(epoch, {})
        for phase in ("train", "valid"):
            a, b = parts.get(phase, {}).get("loss"), again.get(phase, {}).get("loss")
            if a != b:
                print(f"first difference: epoch {epoch}, {phase} loss {a} in the original run, {b} in the new one")
                return 1
    return 1


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
