"""Remove points from TensorBoard's event files: those that a resumed run writes again."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tympan.files import read_bytes
from tympan.runtime.atomic import atomic_write
from tympan.training.reporter import Done

_HEADER = struct.Struct("<Q4x")
"""Number of bytes of an event, then a checksum of it. The event and its checksum follow."""
_CHECKSUM_BYTES = 4


def remove_later_points(directory: Path, done: Done) -> None:
    """Remove the points `NAME_by_epoch` and `NAME_by_batch` after the progress of a resumed run.

    TensorBoard's own `purge_step` is one number for all points of a directory, which has epochs and batches.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    for path in directory.glob("events.out.tfevents.*"):
        if not path.is_file():
            continue
        records = list(_records(read_bytes(path)))
        try:
            kept = [record for record in records if not _is_later(Event.FromString(_event(record)), done)]
        except Exception:  # of a library that parses damaged bytes; TensorBoard reports such a file
            continue
        if len(kept) < len(records):
            with atomic_write(path, "wb") as stream:
                stream.writelines(kept)


def _records(content: bytes) -> Iterator[bytes]:
    """The records without the last one if a killed process wrote only a part of it."""
    place = 0
    while place + _HEADER.size <= len(content):
        end = place + _HEADER.size + _HEADER.unpack_from(content, place)[0] + _CHECKSUM_BYTES
        if end > len(content):
            return
        yield content[place:end]
        place = end


def _event(record: bytes) -> bytes:
    return record[_HEADER.size : -_CHECKSUM_BYTES]


def _is_later(event: Any, done: Done) -> bool:
    tags = [value.tag for value in event.summary.value]
    return any(
        (tag.endswith("_by_epoch") and event.step > done.epochs)
        or (tag.endswith("_by_batch") and event.step > done.batches)
        for tag in tags
    )
