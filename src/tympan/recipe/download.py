"""Download an archive by http(s) or file://. Interrupted downloads continue, and the final size is checked."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, NoReturn

from tqdm import tqdm

from tympan.errors import UserError
from tympan.files import open_file
from tympan.recipe.console import in_bytes
from tympan.runtime.atomic import atomic_write, naming

CHUNK = 1 << 20
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Source:
    """A file to download. `version` (ETag or date) distinguishes two files of the same size."""

    url: str
    size: int | None
    version: str


def join_url(base: str, name: str) -> str:
    """Join a base such as `www.openslr.org/resources/33` (scheme optional; also a directory) and `data.tgz`."""
    if base.startswith(("/", "./", "../", "~")) or ("://" not in base and Path(base).is_dir()):
        base = Path(base).expanduser().resolve().as_uri()
    if "://" not in base:
        base = f"https://{base}"
    return f"{base.rstrip('/')}/{name}"


def fetch(
    url: str,
    target: Path,
    *,
    tries: int = 5,
    wait_s: Callable[[int], float] = lambda attempt: min(2.0**attempt, 30.0),
    progress: bool = True,
) -> Path:
    """Download `url` to `target`, which appears only when it is complete. Calling again continues the download.

    A lost connection is retried automatically, up to `tries` attempts in a row without a new byte.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--data: cannot create the directory {target.parent} ({error.strerror}). Use another directory for --data."
        ) from error
    try:
        source = _ask(url)
    except UserError:
        if target.is_file():
            return target  # the size is unknown: unpacking will detect a truncated file
        raise
    if target.is_file() and _is_complete(target, source):
        return target
    if target.is_file():
        os.replace(target, part)  # an incomplete download by another tool
        _remember(part, source)
    _forget_other_version(part, source)
    _require_space(part, source)
    with tqdm(
        desc=target.name, total=source.size, initial=_size(part), unit="B", unit_scale=True, disable=not progress
    ) as bar:
        _receive(source, part, bar, tries=tries, wait_s=wait_s)
    if source.size is not None and _size(part) != source.size:
        raise UserError(
            f"{part} has {_size(part):,} bytes, but {url} has {source.size:,}: remove it and run the command again."
        )
    os.replace(part, target)
    _notes(part).unlink(missing_ok=True)
    return target


def _is_complete(target: Path, source: Source) -> bool:
    """Whether a file that exists is the whole one. UserError if it is larger: then it is another file."""
    size = target.stat().st_size
    if source.size is not None and size > source.size:
        raise UserError(
            f"{target} has {size:,} bytes, but {source.url} has {source.size:,}: "
            "it is a different file with this name. Move it away, or use another directory for --data."
        )
    return source.size is None or size == source.size


def _receive(source: Source, part: Path, bar: tqdm[NoReturn], *, tries: int, wait_s: Callable[[int], float]) -> None:
    """Append the rest of the file, and connect again when a connection is lost."""
    attempt = 0
    while True:
        before = _size(part)
        try:
            _continue(source, part, bar)
            return
        except (OSError, HTTPException) as error:
            _raise_if_local(error, part)
            attempt = 0 if _size(part) > before else attempt + 1
            if attempt >= tries:
                raise UserError(
                    f"{source.url}: the download was interrupted {tries} times ({error or type(error).__name__}); "
                    f"{_size(part):,} of {source.size or 0:,} bytes are in {part}. "
                    "Run the same command again to continue."
                ) from error
            time.sleep(wait_s(attempt))


def _ask(url: str) -> Source:
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError as error:
        raise UserError(f"{url}: not a valid URL ({error}). Check --data_url.") from error
    if scheme == "file":
        path = local_path(url)
        if not path.is_file():
            raise UserError(f"{url}: no such file. --data_url must be the URL or directory that contains the archives.")
        status = path.stat()
        return Source(url, status.st_size, f"mtime {status.st_mtime_ns}")
    if scheme not in ("http", "https"):
        raise UserError(f"{url}: cannot download from '{scheme}'; allowed: http, https, file.")
    try:
        with _open(url, method="HEAD") as answer:
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            return Source(url, _content_length(answer), version)
    except urllib.error.HTTPError as error:
        if error.code in (403, 405, 501):
            return Source(url, None, "")  # no HEAD here: the size comes with the body
        raise UserError(f"{url}: the server returned {error.code} {error.reason}. Check --data_url.") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{url}: no response ({reason}). Check the network, or put the archives into a directory and pass "
            "it as --data_url file:///that/directory."
        ) from error


def _open(url: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> HTTPResponse:
    try:
        request = urllib.request.Request(
            url, method=method, headers={"User-Agent": "tympan", "Accept-Encoding": "identity", **(headers or {})}
        )
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except ValueError as error:  # an invalid address, also one that a server redirects to
        raise urllib.error.URLError(f"invalid address: {error}") from error
    return response


def _continue(source: Source, part: Path, bar: tqdm[NoReturn]) -> None:
    start = _size(part)
    if source.size is not None and start == source.size:
        return
    _remember(part, source)
    if source.url.startswith("file:"):
        with open_file(local_path(source.url)) as stream:
            stream.seek(start)
            _append(stream, part, bar)
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    if start and source.version and not source.version.startswith("W/"):
        headers["If-Range"] = source.version
    try:
        answer = _open(source.url, headers=headers)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # the partial file does not match the server's file
        bar.reset(total=source.size)
        raise ConnectionError("the file on the server changed") from error
    with answer:
        if start and answer.status != 206:  # the server can't resume, or the file has changed
            part.unlink()
            bar.reset(total=source.size)
        promised = _content_length(answer)
        received = _append(answer, part, bar, most=None if source.size is None else source.size - _size(part))
    if promised is not None and received < promised:
        raise ConnectionError(f"the connection closed {promised - received:,} bytes early")


def _content_length(answer: HTTPResponse) -> int | None:
    """The number of bytes that the server announces; None if it announces none, or something else than a number."""
    text = answer.headers.get("Content-Length") or ""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def _append(stream: BinaryIO, part: Path, bar: tqdm[NoReturn], *, most: int | None = None) -> int:
    """Append the stream to `part`. A server that sends more than `most` bytes could fill the disk: it is stopped."""
    received = 0
    with naming(part), part.open("ab") as output:
        for chunk in _chunks(stream):
            output.write(chunk)
            received += len(chunk)
            if most is not None and received > most:
                break  # the size is checked at the end
            bar.update(len(chunk))
    return received


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    # read1 returns what has arrived so far, so that data received before an interruption is kept.
    read = getattr(stream, "read1", stream.read)
    while chunk := read(CHUNK):
        yield chunk


def local_path(url: str) -> Path:
    """The path of a file:// URL."""
    return Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _remember(part: Path, source: Source) -> None:
    with atomic_write(_notes(part)) as stream:
        json.dump({"url": source.url, "size": source.size, "version": source.version}, stream)


def _forget_other_version(part: Path, source: Source) -> None:
    """Remove a partial download of another version of the file, so that two versions are never joined."""
    if not part.exists():
        return
    try:
        notes = json.loads(_notes(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        notes = {}
    if not isinstance(notes, dict):
        notes = {}
    same = notes.get("size") == source.size and notes.get("version") == source.version
    if not same or (source.size is not None and _size(part) > source.size):
        part.unlink()


def _require_space(part: Path, source: Source) -> None:
    missing = (source.size or 0) - _size(part)
    free = shutil.disk_usage(part.parent).free
    if missing > free:
        raise UserError(
            f"{part.parent}: {in_bytes(missing)} must still be downloaded, but only {in_bytes(free)} is free. "
            "Free some space, or set --data to a directory on a larger disk; the partial download is kept."
        )


def _raise_if_local(error: BaseException, part: Path) -> None:
    """UserError for failures that a retry can't fix: a full or write-protected disk, a client error."""
    code = getattr(error, "errno", None)
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 416, 429):
        raise UserError(f"{error.url}: the server returned {error.code} {error.reason}.") from error
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"{part.parent}: the disk is full after {_size(part):,} bytes. Free some space and run the command "
            "again to continue."
        ) from error
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        raise UserError(
            f"{part.parent}: cannot write to this directory ({os.strerror(code)}). Use another directory for --data."
        ) from error
