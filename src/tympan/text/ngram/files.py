"""Open text files that may be compressed, or standard input."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import IO, cast

from tympan.errors import UserError
from tympan.files import open_file

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Open `path` ('-': standard input) for reading bytes. Gzip files are decompressed."""
    try:
        raw = cast(BufferedReader, open(0, "rb", closefd=False) if path == "-" else open_file(path))  # noqa: SIM115
        is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    with raw:
        if not is_gzip:
            yield raw
            return
        try:
            with gzip.open(raw, "rb") as plain:
                yield cast(IO[bytes], plain)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"{path}: damaged gzip file: {error}") from None
