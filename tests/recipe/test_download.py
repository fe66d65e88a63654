"""Downloads are complete or absent, continue after an interruption, and report every failure."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe import download
from tympan.recipe.download import fetch, join_url

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes


class Server:
    """A loopback server that can disconnect after some bytes, not support resuming, or change its file."""

    def __init__(self) -> None:
        self.content, self.etag = CONTENT, '"one"'
        self.break_after: list[int] = []  # one entry for each response that is interrupted
        self.ranges, self.statuses = [], []
        self.can_continue, self.can_head, self.code = True, True, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(
                    200 if outer.can_head and outer.code == 200 else (405 if outer.code == 200 else outer.code)
                )
                if outer.can_head:
                    self.send_header("Content-Length", str(len(outer.content)))
                    self.send_header("ETag", outer.etag)
                self.end_headers()

            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                outer.ranges.append(wanted)
                start = 0
                fits = self.headers.get("If-Range", outer.etag) == outer.etag
                if wanted and outer.can_continue and fits:
                    start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if outer.code != 200:
                    self.send_error(outer.code)
                    return
                self.send_response(206 if start else 200)
                body = outer.content[start:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.break_after:
                    body = body[: outer.break_after.pop(0)]
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/data.tgz"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def get(url: str, target: Path, tries: int = 3) -> Path:
    return fetch(url, target, tries=tries, wait_s=lambda attempt: 0.0, progress=False)


def test_whole_file(server: Server, tmp_path: Path) -> None:
    assert get(server.url, tmp_path / "deep" / "data.tgz").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["data.tgz"]


def test_broken_connection_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.break_after = [300_000, 200_000]
    assert get(server.url, tmp_path / "data.tgz").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_failed_download_is_kept_and_the_next_run_continues(server: Server, tmp_path: Path) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(UserError, match=r"interrupted 3 times.*400,000 of 1,024,000 bytes.*again to continue"):
        get(server.url, tmp_path / "data.tgz")
    assert not (tmp_path / "data.tgz").exists()
    server.ranges.clear()
    assert get(server.url, tmp_path / "data.tgz").read_bytes() == CONTENT
    assert server.ranges == ["bytes=400000-"]


def test_server_that_cannot_continue_starts_again(server: Server, tmp_path: Path) -> None:
    server.break_after, server.can_continue = [300_000], False
    assert get(server.url, tmp_path / "data.tgz").read_bytes() == CONTENT


def test_two_versions_are_never_joined(server: Server, tmp_path: Path) -> None:
    server.break_after = [300_000, 0, 0, 0]
    with pytest.raises(UserError):
        get(server.url, tmp_path / "data.tgz")
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert get(server.url, tmp_path / "data.tgz").read_bytes() == CONTENT[::-1]


def test_whole_file_is_not_fetched_again_and_a_short_one_is_continued(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.tgz"
    target.write_bytes(CONTENT)
    get(server.url, target)
    assert server.ranges == []
    target.write_bytes(CONTENT[:1000])  # an incomplete download by another tool
    assert get(server.url, target).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]
    target.write_bytes(CONTENT + b"more")
    with pytest.raises(UserError, match="a different file with this name"):
        get(server.url, target)


def test_server_without_head(server: Server, tmp_path: Path) -> None:
    server.can_head = False
    assert get(server.url, tmp_path / "data.tgz").read_bytes() == CONTENT


def test_file_url_and_its_continuation(tmp_path: Path) -> None:
    source = tmp_path / "has space" / "data.tgz"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    target = tmp_path / "out" / "data.tgz"
    assert get(join_url(str(source.parent), "data.tgz"), target).read_bytes() == CONTENT
    target.write_bytes(CONTENT[:77])
    assert get(source.as_uri(), target).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda server: setattr(server, "code", 404), "returned 404"),
        (lambda server: (server.http.shutdown(), server.http.server_close()), "no response"),
    ],
)
def test_wrong_address(server: Server, tmp_path: Path, spoil: Callable[[Server], object], message: str) -> None:
    spoil(server)
    with pytest.raises(UserError, match=message):
        get(server.url, tmp_path / "data.tgz")


def test_unknown_scheme_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot download from 'ftp'"):
        get("ftp://host/data.tgz", tmp_path / "data.tgz")
    with pytest.raises(UserError, match="no such file"):
        get((tmp_path / "nothing.tgz").as_uri(), tmp_path / "data.tgz")


def test_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_append", full)
    with pytest.raises(UserError, match="disk is full"):
        get(server.url, tmp_path / "data.tgz")


def test_too_little_space_is_reported_before_the_first_byte(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(UserError, match="must still be downloaded"):
        get(server.url, tmp_path / "data.tgz")
    assert server.ranges == []


def test_base_without_scheme_is_https() -> None:
    assert join_url("www.openslr.org/resources/33", "a.tgz") == "https://www.openslr.org/resources/33/a.tgz"
