"""What a result was made of: a line that differs when the recording does."""

from __future__ import annotations

import os

from tympan.data.audio import is_pipe, locate, split_ark
from tympan.data.readers import Context, value_sources
from tympan.decode.task import Source
from tympan.errors import UserError


def origin_of(source: Source) -> str:
    """The line of the data file and, of every recording it means, the size and the time of the last change."""
    try:
        recordings = value_sources(source.data_type, source.value, Context(source.base))
    except UserError:
        return source.value  # decoding says what is wrong with it
    return "; ".join([source.value, *(_mark(recording, source) for recording in recordings)])


def _mark(recording: str, source: Source) -> str:
    """A command's output can't be known without running it: its text counts."""
    if is_pipe(recording):
        return recording
    try:
        status = os.stat(split_ark(locate(recording, source.base))[0])
    except OSError:
        return f"{recording} is not there"
    return f"{recording} {status.st_size} {status.st_mtime_ns}"
