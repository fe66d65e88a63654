"""checkpoint.pth: the full state of a run. It is written atomically, and checked against the run that loads it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.files import require_file
from tympan.runtime.atomic import atomic_write
from tympan.runtime.memory import is_out_of_memory
from tympan.training.digest import digest_of
from tympan.training.reporter import Reporter

NAME = "checkpoint.pth"
PREVIOUS = "checkpoint.prev.pth"
REPLACED = "checkpoint.replaced.pth"
DAMAGED = "checkpoint.damaged.pth"
DIGEST = "sha256"
"""Key of the digest of all other entries. It is needed because a zip file has no checksum of its own directory."""

STATEFUL = ("optim_conf.", "scheduler_conf.")
"""Options whose values are part of the state of the optimizer or the scheduler."""
CUTS_BATCHES = frozenset(
    {
        "batch_bins", "batch_cut", "batch_size", "batch_size_per_device", "batch_type", "drop_last_iter", "fold_length",
        "max_batch_size", "min_batch_size", "num_buckets", "num_iters_per_epoch", "seed", "shuffle_within_batch",
        "sort_batch", "sort_in_batch", "train_data_path_and_name_and_type", "train_shape_file",
    }
)  # fmt: skip
"""Options that decide how the training data is split into batches."""


@dataclass(frozen=True)
class Identity:
    """What must be equal in a run and in a checkpoint before the run may resume from it."""

    task: str
    """Name of the task, such as asr or lm."""
    optim: str
    scheduler: str | None
    tokens: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Data name -> tokens of this text."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The configuration. Differences here are allowed and reported."""


@dataclass(frozen=True)
class Position:
    """The next batch to train on: `step` batches of `epoch` (from 1) are done."""

    epoch: int
    step: int

    def __post_init__(self) -> None:
        if not (type(self.epoch) is type(self.step) is int and self.epoch >= 1 and self.step >= 0):
            raise ValueError(f"epoch {self.epoch!r}, step {self.step!r} is no position in the training data")


def save_checkpoint(directory: Path, state: Mapping[str, Any], *, identity: Identity) -> None:
    """Write checkpoint.pth atomically. The previous checkpoint is kept as checkpoint.prev.pth."""
    newest, previous = directory / NAME, directory / PREVIOUS
    content = {
        **state,
        "task": identity.task,
        "optim": identity.optim,
        "scheduler": identity.scheduler,
        "tokens": {name: list(tokens) for name, tokens in identity.tokens.items()},
        "options": _plain(identity.options),
    }
    save_tensors(newest.with_name(f".{NAME}.new"), {**content, DIGEST: digest_of(content)})
    if newest.exists():
        # A hard link to the old file, then two renames: at any moment, a complete checkpoint has one of the two names.
        spare = directory / f".{PREVIOUS}.link"
        spare.unlink(missing_ok=True)
        os.link(newest, spare)
        os.replace(spare, previous)
    os.replace(newest.with_name(f".{NAME}.new"), newest)


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write with torch.save. Raises OSError if the disk is full."""
    with atomic_write(path, "wb") as stream:
        try:
            torch.save(content, stream)
        except RuntimeError as error:
            # After a failed write, torch tries to finish the file and raises an unrelated error about file positions.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_checkpoint(
    directory: Path,
    *,
    identity: Identity,
    model_state: Mapping[str, Tensor],
    load: Callable[[dict[str, Any]], None] = lambda content: None,
) -> dict[str, Any] | None:
    """Return the newest undamaged checkpoint, or None if there is no checkpoint. Loading runs no code from the file.

    `load` restores the state. If it fails, the file is treated as damaged and the previous checkpoint is used. The
    damaged file is then renamed.
    """
    damages = []
    for path in _candidates(directory):
        try:
            with _as_damage():
                content = _read(path)
                _check(path, content, identity=identity, model_state=model_state)
                load(content)
        except _Damaged as damage:
            damages.append(f"{path}: {damage}")
            logging.warning("%s is damaged (%s); trying the previous checkpoint", path, damage)
            continue
        if damages:
            _put_away(directory / NAME)
        return content
    if damages:
        raise UserError(
            "no checkpoint can be read:\n  "
            + "\n  ".join(damages)
            + "\nRemove these files to start from scratch, or start from the model of an epoch with --init_param FILE"
        )
    return None


def _put_away(path: Path) -> None:
    """Rename a damaged checkpoint. Otherwise the next one to be saved would make it the previous checkpoint."""
    target = path.with_name(DAMAGED)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
        os.replace(path, target)


def read_reporter(directory: Path) -> Reporter:
    """Read the statistics of all epochs from the newest undamaged checkpoint."""
    for path in _candidates(directory):
        reporter = Reporter()
        try:
            with _as_damage():
                reporter.load_state_dict(_read(path)["reporter"])
        except _Damaged:
            continue
        return reporter
    raise UserError(f"{directory} has no readable {NAME}, which contains the losses and accuracies of each epoch")


def set_aside(directory: Path) -> None:
    """Rename the checkpoint of an earlier run, so that a new run which does not resume never loads it later."""
    if (directory / NAME).exists():
        os.replace(directory / NAME, directory / REPLACED)
        logging.warning(
            "%s belongs to an earlier run and --resume is false; renamed it to %s",
            directory / NAME,
            (directory / REPLACED).name,
        )
    (directory / PREVIOUS).unlink(missing_ok=True)


def remove_links(directory: Path) -> list[str]:
    """Remove temporary files left by a run that was killed while saving. Returns their names."""
    found = [path for path in directory.glob(".*.link") if path.name.endswith(".pth.link")]
    found += [path for path in [directory / f".{NAME}.new"] if path.exists()]
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]


def report_changes(content: Mapping[str, Any], identity: Identity) -> None:
    """Log the options that changed since the checkpoint. Warn about changes that have no effect or repeat data."""
    changes = changed_options(content, identity)
    for name, (then, now) in changes.items():
        if name.startswith(STATEFUL):
            logging.warning(
                "%s is now %r, but this run keeps %r from the checkpoint; to use the new value, "
                "start a new run from the weights with --init_param",
                name, now, then,
            )  # fmt: skip
        else:
            logging.info("option changed since the checkpoint: %s: %r -> %r", name, then, now)
    recut = sorted(set(changes) & CUTS_BATCHES)
    if content["position"]["step"] > 0 and recut:
        logging.warning(
            "the checkpoint was saved within an epoch, and %s changed: the rest of this epoch is batched differently "
            "and may repeat or skip utterances",
            ", ".join(recut),
        )


def changed_options(content: Mapping[str, Any], identity: Identity) -> dict[str, tuple[Any, Any]]:
    """Return name -> (then, now) of every option that differs. Keys of a `*_conf` are named as in `optim_conf.lr`."""
    then, now = _flat(content.get("options", {})), _flat(_plain(identity.options))
    names = sorted({*then, *now} - {"resume"})
    return {name: (then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)}


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in options.items():
        flat.update(
            {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        )
    return flat


class _Damaged(Exception):
    pass


@contextmanager
def _as_damage() -> Iterator[None]:
    """Turn exceptions into _Damaged, since a damaged file can raise any of them.

    UserError and out-of-memory errors are passed on.
    """
    try:
        yield
    except (UserError, _Damaged):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        lines = str(error).splitlines()
        raise _Damaged(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__) from error


def _candidates(directory: Path) -> list[Path]:
    return [directory / name for name in (NAME, PREVIOUS) if (directory / name).exists()]


def _read(path: Path) -> dict[str, Any]:
    try:
        require_file(path)
    except UserError as error:
        raise _Damaged(str(error).removeprefix(f"{path}: ")) from error
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise _Damaged(f"the entry '{broken}' does not match its checksum")
    content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, dict) and DIGEST in content and content.pop(DIGEST) != digest_of(content):
        raise _Damaged("the content does not match its checksum")
    if not isinstance(content, dict) or "position" not in content:
        raise UserError(
            f"{path} is not a checkpoint of Tympan (a checkpoint of ESPnet2 has no position in the data). "
            "To start from the weights of an epoch, use --init_param with the model of that epoch"
        )
    return content


def _check(path: Path, content: Mapping[str, Any], *, identity: Identity, model_state: Mapping[str, Tensor]) -> None:
    pairs = {
        # Tympan 0.1 called it `kind`
        "task": (content["task"] if "task" in content else content["kind"], identity.task),
        "optim": (content["optim"], identity.optim),
        "scheduler": (content["scheduler"], identity.scheduler),
    }
    differences = [
        f"{name}: {then} in the checkpoint, {now} here" for name, (then, now) in pairs.items() if then != now
    ]
    differences += _token_differences(content["tokens"], identity.tokens)
    differences += _weight_differences(content["model"], model_state)
    if differences:
        raise UserError(
            f"{path} belongs to a different run:\n  " + "\n  ".join(differences) + "\n"
            "Use another --output_dir, or --resume false to start from scratch (--init_param loads only weights)"
        )


def _token_differences(then: Mapping[str, list[str]] | list[str], now: Mapping[str, Sequence[str]]) -> list[str]:
    if isinstance(then, list):
        then = {"text": then}  # written by Tympan 0.1
    names = sorted({*then, *now})
    return [line for name in names for line in _list_differences(name, then.get(name, []), list(now.get(name, [])))]


def _list_differences(name: str, then: list[str], now: list[str]) -> list[str]:
    if then == now:
        return []
    first = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    shown = [repr(tokens[first]) if first < len(tokens) else "nothing" for tokens in (then, now)]
    return [
        f"vocabulary of {name}: {len(then)} tokens in the checkpoint, {len(now)} here; "
        f"the first difference is at index {first}: {shown[0]} in the checkpoint, {shown[1]} here"
    ]


def _weight_differences(then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    lines = [f"weight {name}: only in the checkpoint" for name in then if name not in now]
    lines += [f"weight {name}: not in the checkpoint" for name in now if name not in then]
    lines += [
        f"weight {name}: {tuple(then[name].shape)} in the checkpoint, {tuple(now[name].shape)} here"
        for name in then
        if name in now and then[name].shape != now[name].shape
    ]
    return lines if len(lines) <= 8 else [*lines[:8], f"... and {len(lines) - 8} more weights"]


def _plain(value: Any) -> Any:
    """Convert to types that torch.load accepts with `weights_only=True`."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
