"""Run stages so that they can safely be repeated: skip finished steps, redo changed and incomplete ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict

from tympan.errors import UserError
from tympan.recipe.console import in_bytes, in_words
from tympan.recipe.fingerprint import MISSING, Fingerprints, digest_of, last_written, size_of
from tympan.recipe.stage import Stage, Step
from tympan.runtime.atomic import atomic_write
from tympan.runtime.lock import directory_lock

_EDITED_BY_HAND_BYTES = 50_000_000

_DONE_KINDS = {"settings": str, "needs": dict, "makes": dict, "seconds": float | int, "bytes": int}
"""What a record of a finished step holds, and of which type."""

State = Literal["done", "found", "to do", "interrupted", "outdated", "changed"]


@dataclass(frozen=True)
class Verdict:
    """Whether a step has to run, and why."""

    state: State
    reason: str = ""
    seconds: float | None = None
    bytes: int | None = None

    @property
    def is_done(self) -> bool:
        return self.state in ("done", "found")


class Record(TypedDict, total=False):
    """What is stored about a step, as JSON. A step that was started but not finished has only the first five."""

    state: Literal["started", "done"]
    identity: str
    audio: dict[str, str]
    began: float
    """Time of the start, in seconds since the epoch; absent once the run has ended."""
    earlier_s: float
    """Duration of the earlier runs that this one continues, in seconds."""
    settings: str
    needs: dict[str, str]
    makes: dict[str, str]
    seconds: float
    bytes: int


class Engine:
    """Runs the stages of one working directory. Its records are in `home` (`.tympan/`), one file per step."""

    def __init__(self, home: Path, *, say: Callable[[str], None] = print) -> None:
        self.home = home
        self.fingerprints = Fingerprints(home / "fingerprints.json")
        self._say = say

    def run(self, stages: Sequence[Stage], start: int, stop: int, *, force: bool = False) -> None:
        """Run stages `start` to `stop` in order. Finished steps are skipped, unless `force`."""
        with directory_lock(self.home.parent, advice="or run this recipe in another directory"):
            note = self.moved()
            if note is not None:
                self._say(note)
            for stage in stages:
                if start <= stage.number <= stop:
                    self._run_stage(stage, force=force)

    def moved(self) -> str | None:
        """A warning if this directory was copied or moved since the last run, or None."""
        place, here = self.home / "place", str(self.home.parent.resolve())
        before = place.read_text(encoding="utf-8").strip() if place.is_file() else here
        if before == here:
            return None
        deed = "copied" if Path(before).exists() else "moved"
        return (
            f"warning: this directory was {deed} from {before}. Files that name absolute paths, such as feats.scp in "
            "dump/ and fbank/, still name that directory: run stage 1 again with --force if it was changed or removed"
        )

    def judge(self, step: Step) -> Verdict:
        """Compare the step's record with the files on disk."""
        reason = step.found()
        if reason is not None:
            return Verdict("found", reason)
        record = self._record(step)
        if record is None:
            return Verdict("to do")
        if record["state"] == "started":
            seconds, stored = _time_spent(record, step), _bytes_of(step)
            return Verdict("interrupted", "an earlier run stopped here", seconds=seconds, bytes=stored)
        verdict = partial(Verdict, seconds=record["seconds"], bytes=record["bytes"])
        if record["settings"] != digest_of(step.settings):
            return verdict("outdated", "its settings changed")
        reads = _other_files((*step.needs, *step.labels), record["needs"])
        if reads is not None:
            return verdict("outdated", reads)
        changed = self._differences((*step.needs, *step.labels), record["needs"]) or self._other_audio(step, record)
        if changed:
            return verdict("outdated", f"{changed[0]} has changed")
        if record["makes"].keys() != set(map(str, step.makes)):
            return verdict("outdated", "its output files changed")
        changed = self._differences(step.makes, record["makes"])
        if changed:
            return verdict("changed", f"{changed[0]} was modified after this step wrote it")
        return verdict("done")

    def _run_stage(self, stage: Stage, *, force: bool) -> None:
        self._say(f"stage {stage.number}: {stage.purpose}")
        for step in stage.steps():
            verdict = Verdict("to do") if force else self.judge(step)
            if verdict.is_done:
                self._say(f"  {step.name}: {verdict.reason or 'already done'}")
                continue
            because = f" ({verdict.state}: {verdict.reason})" if verdict.reason else ""
            self._say(f"  {step.name} ...{because}")
            if verdict.state == "changed":
                self._keep_changed(step)
            took = self._run_step(stage, step, force=force)
            added = f" ({in_words(took.total_s)} with the earlier runs that it continued)" if took.earlier_s else ""
            self._say(f"  {step.name}: done in {in_words(took.seconds)}{added}")

    def _run_step(self, stage: Stage, step: Step, *, force: bool) -> _Took:
        for path in (*step.needs, *step.labels):
            if not path.exists():
                earlier = f"Run the earlier stages first (--stage -1, or any stage before {stage.number})."
                raise UserError(
                    f"stage {stage.number} ({stage.name}), step '{step.name}' needs {path}, which does not exist. "
                    f"{step.remedy or earlier}"
                )
        needs = {str(path): self.fingerprints.of(path) for path in (*step.needs, *step.labels)}
        audio = {str(table): self.fingerprints.of_recordings(table) for table in step.recordings}
        identity = _identity(step, needs)
        started: Record = {"state": "started", "identity": identity, "audio": audio}
        earlier_s = self._make_room(step, identity, force=force)
        self._write(step, {**started, "began": time.time(), "earlier_s": round(earlier_s, 3)})
        began = time.monotonic()
        try:
            self._run_or_note(step, started, earlier_s)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"stage {stage.number}, step '{step.name}': the disk is full "
                    f"({error.filename or step.output_dir or Path.cwd()}). Free some space and run the same "
                    "command again: "
                    "finished steps are skipped. --check shows how much space each stage needs."
                ) from error
            raise
        seconds = time.monotonic() - began
        missing = [path for path in step.makes if not path.exists()]
        if missing:
            raise RuntimeError(f"step '{step.name}' finished without creating {missing[0]}")
        self._write(
            step,
            {
                "state": "done",
                "identity": identity,
                "audio": audio,
                "settings": digest_of(step.settings),
                "needs": needs,
                "makes": {str(path): self.fingerprints.of(path) for path in step.makes},
                "seconds": round(earlier_s + seconds, 3),
                "bytes": _bytes_of(step),
            },
        )
        self.fingerprints.save()
        with atomic_write(self.home / "place") as stream:
            stream.write(f"{self.home.parent.resolve()}\n")
        return _Took(seconds, earlier_s)

    def _run_or_note(self, step: Step, started: Record, earlier_s: float) -> None:
        """Run the step. If it is interrupted, record how long it ran."""
        began = time.monotonic()
        try:
            step.run()
        except BaseException:
            self._write(step, {**started, "earlier_s": round(earlier_s + time.monotonic() - began, 3)})
            raise

    def _make_room(self, step: Step, identity: str, *, force: bool) -> float:
        """Move output of other data or another model aside. It must not be continued, and is never deleted.

        Returns the duration of the runs that will be continued, in seconds.
        """
        if step.continues is None or step.output_dir is None or not step.output_dir.exists():
            return 0.0
        record = self._record(step)
        if record is not None and record["identity"] == identity and not self._other_audio(step, record) and not force:
            return _time_spent(record, step)
        number = 1
        while (aside := step.output_dir.with_name(f"{step.output_dir.name}.old{number}")).exists():
            number += 1
        os.rename(step.output_dir, aside)
        self._say(f"  {step.output_dir} belongs to other data or settings: moved to {aside}")
        return 0.0

    def _keep_changed(self, step: Step) -> None:
        """Keep a copy of files that the user edited and this step will overwrite, unless they are large."""
        record = self._record(step)
        assert record is not None
        for name in self._differences(step.makes, record["makes"]):
            path = Path(name)
            if path.is_file() and path.stat().st_size <= _EDITED_BY_HAND_BYTES:
                copy = self.home / "changed" / name.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                self._say(
                    f"    the modified {path} is kept as {copy}; start at a later --stage to continue with your version"
                )

    def _other_audio(self, step: Step, record: Record) -> list[str]:
        """Tables whose recordings differ from those in the record."""
        recorded = record.get("audio", {})
        return [
            f"audio of {table}"
            for table in step.recordings
            if str(table) in recorded and self.fingerprints.of_recordings(table) != recorded[str(table)]
        ]

    def _differences(self, paths: Sequence[Path], recorded: dict[str, str]) -> list[str]:
        now = {str(path): self.fingerprints.of(path) for path in paths}
        names = sorted(now.keys() | recorded.keys())
        return [name for name in names if now.get(name, MISSING) != recorded.get(name, MISSING)]

    def _record(self, step: Step) -> Record | None:
        try:
            record: Record = json.loads(self._place(step).read_text(encoding="utf-8"))
            kinds = {} if record["state"] == "started" else _DONE_KINDS
            is_whole = isinstance(record["identity"], str) and isinstance(record.get("audio", {}), dict)
            is_whole = is_whole and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
        except Exception:  # a damaged record: the step runs again
            return None
        return record if is_whole else None

    def _write(self, step: Step, record: Record) -> None:
        with atomic_write(self._place(step)) as stream:
            json.dump(record, stream, indent=1, ensure_ascii=False)

    def _place(self, step: Step) -> Path:
        return self.home / "steps" / (step.name.replace("/", ".").replace(" ", "_") + ".json")


def status_table(engine: Engine, stages: Sequence[Stage]) -> str:
    """A table of every step of every stage with its state, time and size, below a warning if there is one."""
    rows = [("stage", "name", "step", "state", "time", "size")]
    for stage in stages:
        for step in stage.steps():
            verdict = engine.judge(step)
            state = f"{verdict.state} ({verdict.reason})" if verdict.reason else verdict.state
            took = "" if verdict.seconds is None else in_words(verdict.seconds)
            size = "" if verdict.bytes is None else in_bytes(verdict.bytes)
            rows.append((str(stage.number), stage.name, step.name, state, took, size))
    engine.fingerprints.save()
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    note = engine.moved()
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*([] if note is None else [note]), *lines])


@dataclass(frozen=True)
class _Took:
    """Duration of a step: of this run, and of the earlier runs that it continued."""

    seconds: float
    earlier_s: float

    @property
    def total_s(self) -> float:
        return self.seconds + self.earlier_s


def _time_spent(record: Record, step: Step) -> float:
    """Seconds that a recorded step ran. A run that was killed counts until it last wrote to its output directory."""
    if record["state"] == "done":
        return record["seconds"]
    earlier_s = record.get("earlier_s", 0.0)
    if "began" in record and step.output_dir is not None:
        earlier_s += max(0.0, last_written(step.output_dir) - record["began"])
    return earlier_s


def _other_files(paths: Sequence[Path], recorded: dict[str, str]) -> str | None:
    """Describe how the list of input files differs from the recorded one, or None if it is the same."""
    now = set(map(str, paths))
    for changed, how in ((now - recorded.keys(), "now"), (recorded.keys() - now, "no longer")):
        if changed:
            return f"it {how} reads {min(changed)}"
    return None


def _bytes_of(step: Step) -> int:
    """Disk space of what a step wrote: of its output directory, if it has one."""
    outside = [path for path in step.makes if step.output_dir is None or not path.is_relative_to(step.output_dir)]
    return sum(size_of(path) for path in outside) + (0 if step.output_dir is None else size_of(step.output_dir))


def _identity(step: Step, needs: dict[str, str]) -> str:
    labels = set(map(str, step.labels))
    decisive = {name: digest for name, digest in needs.items() if name not in labels}
    return digest_of({"needs": decisive, "continues": step.continues})
