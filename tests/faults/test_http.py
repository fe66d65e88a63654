"""Servers that do not keep to the protocol: a download ends with the file or with one message, in limited time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe.download import fetch

BODY = b"x" * 5000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"


@contextmanager
def server(head: bytes, get: bytes) -> Iterator[str]:
    """Answers every HEAD and every GET with these bytes, then closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        is_done = threading.Event()

        def serve() -> None:
            while not is_done.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    continue
                with connection:
                    try:
                        request = connection.recv(65536)
                        connection.sendall(head if request.startswith(b"HEAD") else get)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/a.tgz"
        finally:
            is_done.set()
            thread.join()


REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n"
MISBEHAVIOUR = {
    "no answer": (b"", b""),
    "no status": (b"hello\r\n\r\n", b"hello\r\n\r\n"),
    "random bytes": (bytes(range(256)) * 20, bytes(range(256)) * 20),
    "endless header": (b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 5000 + b"\r\n", b""),
    "long header": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b""),
    "length is a word": (HEAD.replace(b"5000", b"many"), HEAD.replace(b"5000", b"many") + BODY),
    "length is negative": (HEAD.replace(b"5000", b"-5"), HEAD.replace(b"5000", b"-5") + BODY),
    "length is huge": (HEAD.replace(b"5000", b"9" * 4500), HEAD.replace(b"5000", b"9" * 4500) + BODY),
    "promises more than the disk holds": (HEAD.replace(b"5000", b"9" * 15), HEAD + BODY),
    "sends less": (HEAD, HEAD + BODY[:100]),
    "sends nothing": (HEAD, HEAD),
    "sends more": (HEAD, b"HTTP/1.1 200 OK\r\n\r\n" + BODY * 400),
    "broken chunks": (HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY),
    "huge chunk": (HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + BODY),
    "other range": (HEAD, b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 7-9/3\r\nContent-Length: 3\r\n\r\nabc"),
    "range is wrong": (HEAD, b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"),
    "redirect to a file": (REDIRECT % b"file:///etc/passwd", REDIRECT % b"file:///etc/passwd"),
    "redirect to itself": (REDIRECT % b"/a.tgz", REDIRECT % b"/a.tgz"),
    "redirect to nonsense": (REDIRECT % b"http://[::1/x", REDIRECT % b"http://[::1/x"),
    "error": (b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize(("head", "get"), MISBEHAVIOUR.values(), ids=[*MISBEHAVIOUR])
@pytest.mark.timeout(60)
def test_misbehaving_servers(tmp_path: Path, head: bytes, get: bytes) -> None:
    target, message = tmp_path / "a.tgz", None
    with server(head, get) as url:
        try:
            fetch(url, target, tries=2, wait_s=lambda attempt: 0.0, progress=False)
        except UserError as error:
            message = str(error)
    assert target.exists() is (message is None)
    assert message is None or message.startswith((url, str(tmp_path)))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) < 3_000_000
    if target.exists() and b"Content-Length: 5000" in head:
        assert target.read_bytes() == BODY


@pytest.mark.parametrize("notes", ["", "[1]", "{", "nan", '{"size": []}'])
def test_damaged_notes_of_a_partial_download(tmp_path: Path, notes: str) -> None:
    (tmp_path / "a.tgz.part").write_bytes(b"old")
    (tmp_path / "a.tgz.part.json").write_text(notes)
    with server(HEAD, HEAD + BODY) as url:
        fetch(url, tmp_path / "a.tgz", progress=False)
    assert (tmp_path / "a.tgz").read_bytes() == BODY


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://", "http:///x", "http://a b/c", "gopher://x/y", "https://\0/"]
)
def test_invalid_addresses(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError):
        fetch(url, tmp_path / "a.tgz", tries=1, progress=False)
