"""manifest.json: versions, configuration and input files of a run, so that it can be reproduced and compared."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tympan
from tympan.config.train import TrainConfig
from tympan.errors import UserError
from tympan.files import read_json
from tympan.runtime.atomic import atomic_write
from tympan.training.reporter import Reporter
from tympan.training.task import AnyTask, data_of
from tympan.training.writer import ExperimentWriter

NAME = "manifest.json"
_KINDS = {
    "directory": str,
    "device": str,
    "processes": int,
    "threads": int,
    "versions": dict,
    "data": dict,
    "weights_sha256": dict,
    "epochs": dict,
}
_KIND_NAMES: dict[type, str] = {str: "text", int: "a number", dict: "an object"}
PACKAGES = ("torch", "torch-npu", "numpy", "soundfile", "soxr", "kaldi-native-fbank", "sentencepiece", "safetensors")


def make_manifest(
    task: AnyTask, config: TrainConfig, *, config_text: str, device: str, processes: int
) -> dict[str, Any]:
    """Return the content of the manifest that is known before training."""
    return {
        "task": task.name,
        "task_class": f"{type(task).__module__}:{type(task).__qualname__}",
        "command": sys.argv,
        "directory": os.getcwd(),
        "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "seed": config.seed,
        "device": device,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "git": git_state(),
        "data": {str(path): file_fingerprint(Path(path)) for path in _files(task, config)},
    }


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    with atomic_write(directory / NAME) as stream:
        json.dump(manifest, stream, indent=2, ensure_ascii=False)
        stream.write("\n")


def read_manifest(directory: Path) -> dict[str, Any]:
    return read_json(directory / NAME, "the manifest of a run")


def check_finished(directory: Path, manifest: Mapping[str, Any]) -> None:
    """UserError unless this is the manifest of a run that has finished."""
    if "weights_sha256" not in manifest:
        raise UserError(f"{directory}: the run has not finished; there is nothing to compare with")
    for name, kind in _KINDS.items():
        if not isinstance(manifest.get(name), kind):
            found = f"found {manifest[name]!r}"[:100] if name in manifest else "found nothing"
            raise UserError(f"{directory / NAME}: damaged: '{name}' must be {_KIND_NAMES[kind]}, {found}")


def versions() -> dict[str, str]:
    found = {"tympan": tympan.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Return the git commit of the current directory, and whether files differ from it (by size and time stamps)."""
    try:
        commit = _git("rev-parse", "--verify", "HEAD")
        changed = _git("diff-index", "--raw", "--ignore-submodules", "HEAD")
        added = _git("ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.strip(), "has_changes": bool(changed.strip() or added.strip())}


def _git(*arguments: str) -> str:
    """The output of a git command that runs no program which the repository's own configuration names.

    `git status` would: core.fsmonitor, filters, hooks. Fetching the missing objects of a partial clone would, too.
    """
    safe = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **safe}, capture_output=True, encoding="utf-8", errors="replace", check=True,
        timeout=10,
    )  # fmt: skip
    return done.stdout


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Return size and digest of a list, table or model file that is named in the configuration."""
    if not path.is_file():
        return {"missing": True}
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Return a digest that is equal if names, shapes, dtypes and bits are equal."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class RecordingWriter(ExperimentWriter):
    """Adds the results to the manifest."""

    def finish(self, reporter: Reporter) -> None:
        super().finish(reporter)
        # Not every *.pth, because models of an earlier run may be in the same directory
        paths = [self.directory / f"{epoch}epoch.pth" for epoch in reporter.stats] + self.averaged
        results = {
            path.name: weights_digest(torch.load(path, map_location="cpu", weights_only=True))
            for path in sorted(paths)
            if path.is_file() and not path.is_symlink()
        }
        manifest = read_manifest(self.directory)
        write_manifest(self.directory, {**manifest, "weights_sha256": results, "epochs": reporter.stats})


def _files(task: AnyTask, config: TrainConfig) -> list[str]:
    """List the files in the configuration that affect the result."""
    named: list[str | None] = [path for _, triples in data_of(config) for path, _, _ in triples]
    named += [*config.train_shape_file, *config.valid_shape_file]
    named += [entry.partition(":")[0] for entry in config.init_param]
    named += task.files(config)
    return [name for name in named if name]
