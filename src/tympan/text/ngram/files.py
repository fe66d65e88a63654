"""Opening text that may be compressed, or standard input."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from tympan.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """The bytes of `path` ('-': standard input), decompressed if they are gzip's."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as raw:
            if raw.peek(2)[:2] != _GZIP_MAGIC:
                yield raw
            else:
                with gzip.open(raw, "rb") as plain:
                    yield cast(IO[bytes], plain)
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
