"""The journal of a decode: its settings and one JSON line per result, so that a killed run can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tympan.data.audio import is_pipe, locate, split_ark
from tympan.data.readers import Context, value_sources
from tympan.decode.hypothesis import Hypothesis
from tympan.errors import UserError
from tympan.files import status_of
from tympan.runtime.atomic import naming


@dataclass(frozen=True)
class Utterance:
    """The source of an utterance's speech: one line of a data file."""

    id: str
    value: str
    data_type: str
    base: Path

    @property
    def context(self) -> Context:
        return Context(self.base)


@dataclass(frozen=True)
class Result:
    """The n-best list of an utterance, or why there is none."""

    id: str
    hypotheses: tuple[Hypothesis, ...] = ()
    error: str | None = None
    duration_s: float = 0.0
    origin: str | None = None
    """The input that it was decoded from; None in journals of older versions, which did not record it."""


class Journal:
    """`with Journal(path, conditions) as journal`: `journal.done` holds the results of an earlier equal run.

    Failures are not kept, so they are tried again.
    """

    def __init__(self, path: Path, conditions: Mapping[str, Any], *, resume: bool = True) -> None:
        self.path = path
        self.conditions = json.loads(json.dumps(conditions))
        self.done: dict[str, Result] = {}
        if not resume:
            path.unlink(missing_ok=True)
        if path.exists():
            self._read()
        self._stream: IO[str] | None = None

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        self._stream = self.path.open("a", encoding="utf-8")
        if is_new:
            self._write({"conditions": self.conditions})
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with naming(self.path):
                self._stream.close()

    def add(self, results: Iterable[Result]) -> None:
        for result in results:
            if result.error is None:
                self.done[result.id] = result
                hypotheses = [hypothesis.as_dict() for hypothesis in result.hypotheses]
                self._write(
                    {"id": result.id, "origin": result.origin, "duration_s": result.duration_s, "nbest": hypotheses}
                )

    def drop_changed(self, origins: Mapping[str, str]) -> int:
        """Drop the results of these ids that come from other or unknown input. Returns the number dropped."""
        changed = [name for name, result in self.done.items() if name in origins and result.origin != origins[name]]
        for name in changed:
            del self.done[name]
        return len(changed)

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._stream is not None
        with naming(self.path):
            self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._stream.flush()

    def _read(self) -> None:
        """Read the results so far. A last line that was cut short by a kill is removed from the file.

        A journal with other settings is started from scratch if it has no results.
        """
        whole, before = 0, None
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream):
                try:
                    record: Any = json.loads(line) if line.endswith(b"\n") else None
                    if number == 0:
                        before = dict(record["conditions"])
                    else:
                        self._take(record)
                except Exception:  # a damaged line: what comes behind it is decoded again
                    break
                whole += len(line)
        if before != self.conditions:
            if before is not None and self.done:
                raise self._another_decode(before)
            self.path.unlink()
        elif whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    def _take(self, record: Any) -> None:
        self.done[record["id"]] = Result(
            record["id"],
            tuple(map(Hypothesis.from_dict, record["nbest"])),
            duration_s=record["duration_s"],
            origin=record.get("origin"),
        )

    def _another_decode(self, before: Mapping[str, Any]) -> UserError:
        changed = [
            f"{name} was {before.get(name)!r}, now {self.conditions.get(name)!r}"
            for name in {**before, **self.conditions}
            if before.get(name) != self.conditions.get(name)
        ]
        return UserError(
            f"{self.path.parent.parent} holds results of a decode with other settings: {'; '.join(changed)}. "
            "Choose another --output_dir, or start from scratch with --resume false"
        )


def origin_of(utterance: Utterance) -> str:
    """The input of a result: the line of the data file, with the size and modification time of its recordings."""
    try:
        recordings = value_sources(utterance.data_type, utterance.value, utterance.context)
    except UserError:
        return utterance.value  # decoding reports what is wrong with it
    return "; ".join([utterance.value, *(_mark(recording, utterance.base) for recording in recordings)])


def _mark(recording: str, base: Path) -> str:
    """For a command, its text: its output is not known without running it."""
    if is_pipe(recording):
        return recording
    status = status_of(split_ark(locate(recording, base))[0])
    if status is None:
        return f"{recording} is missing"
    return f"{recording} {status.st_size} {status.st_mtime_ns}"
