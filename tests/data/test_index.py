"""Line tables, the utterance index and shape files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tympan.data.table as table_module
from tympan.data.index import UtteranceIndex
from tympan.data.shapes import read_shapes, write_shapes
from tympan.data.table import Table
from tympan.errors import UserError


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode("utf-8"))
    return path


@pytest.fixture
def always_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "CACHED_FROM_BYTES", 1)


def test_lines_by_number_and_id(tmp_path: Path) -> None:
    table = Table(write(tmp_path / "text", "b 今天 天气\r\na\tx  y \nccc\nd  z"))
    assert len(table) == 4
    assert [table.id(line) for line in range(4)] == ["b", "a", "ccc", "d"]
    assert [table.value(line) for line in range(4)] == ["今天 天气", "x  y", "", "z"]
    assert [table.find(key) for key in ("a", "b", "ccc", "d", "cc", "zzzzz", "")] == [1, 0, 2, 3, None, None, None]


ids = st.text(st.characters(blacklist_categories=("Zs", "Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(lines=st.dictionaries(ids, st.text("ab 今", max_size=10), min_size=1, max_size=30))
def test_any_table_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, lines: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("table") / "text"
    table = Table(write(path, "".join(f"{key} {value}\n" for key, value in lines.items())))
    assert {table.id(line): table.value(line) for line in range(len(table))} == {k: v.strip() for k, v in lines.items()}
    assert [table.find(key) for key in lines] == list(range(len(lines)))


def test_faults_name_their_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"text:3: utterance 'a' is already on line 1"):
        Table(write(tmp_path / "text", "a 1\nb 2\na 3\n"))
    with pytest.raises(UserError, match=r"text:2: the line is empty"):
        Table(write(tmp_path / "text", "a 1\n\nb 2\n"))
    with pytest.raises(UserError, match="the file is empty"):
        Table(write(tmp_path / "text", ""))
    with pytest.raises(UserError, match="no such file"):
        Table(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"a \xe9\n")
    with pytest.raises(UserError, match=r"latin:1: utterance 'a' is not UTF-8"):
        Table(tmp_path / "latin").value(0)
    (tmp_path / "latin").write_bytes(b"\xe9 a\n")
    with pytest.raises(UserError, match=r"latin:1: the utterance id is not UTF-8"):
        Table(tmp_path / "latin").id(0)
    with pytest.raises(UserError, match="byte order mark"):
        Table(write(tmp_path / "text", "\ufeffa 1\n"))


@pytest.mark.usefixtures("always_cached")
def test_the_cache_is_used_and_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "text", "b 1\na 2\n")
    Table(path)
    assert (tmp_path / ".tympan" / "text.index").is_file()
    parsed = table_module._parse
    calls: list[Path] = []
    monkeypatch.setattr(table_module, "_parse", lambda *args: calls.append(args[0]) or parsed(*args))
    again = Table(path)
    assert not calls
    assert (again.find("a"), again.value(1)) == (1, "2")
    assert isinstance(again.ids, np.memmap)
    write(path, "b 1\na 2\nc 3\n")
    os.utime(path, ns=(1, 1))
    assert Table(path).find("c") == 2
    assert calls == [path]
    (tmp_path / ".tympan" / "text.index").write_bytes(b"{broken")
    assert Table(path).find("c") == 2


@pytest.mark.usefixtures("always_cached")
def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "text", "a 1\n")
    (tmp_path / ".tympan").write_text("a file in the way")
    assert Table(path).find("a") == 0
    assert "cannot cache" in caplog.text


@pytest.mark.usefixtures("always_cached")
def test_a_read_only_folder_is_left_alone_even_by_root(tmp_path: Path) -> None:
    path = write(tmp_path / "data" / "text", "a 1\n")
    path.parent.chmod(0o555)
    try:
        assert Table(path).find("a") == 0
        assert not (path.parent / ".tympan").exists()
    finally:
        path.parent.chmod(0o755)


def test_pickling_reopens_by_path(tmp_path: Path) -> None:
    table = Table(write(tmp_path / "text", "a 1\nb 2\n"))
    data = pickle.dumps(table)
    assert len(data) < 1000
    assert pickle.loads(data).value(1) == "2"


def test_rows_follow_the_keys_and_files_may_know_more(tmp_path: Path) -> None:
    wav = write(tmp_path / "wav.scp", "c c.wav\na a.wav\nb b.wav\n")
    text = write(tmp_path / "text", "a A\nb B\nc C\nd D\n")
    index = UtteranceIndex({"speech": wav, "text": text})
    assert [index.id(row) for row in range(len(index))] == ["c", "a", "b"]
    assert [index.value(row, "text") for row in range(3)] == ["C", "A", "B"]
    assert index.row("b") == 2
    keyed = UtteranceIndex({"speech": wav, "text": text}, keys=write(tmp_path / "speech_shape", "b 1\nc 2\n"))
    assert [keyed.value(row, "speech") for row in range(len(keyed))] == ["b.wav", "c.wav"]
    with pytest.raises(UserError, match=r"text:4: utterance 'd' is not in .*wav\.scp"):
        UtteranceIndex({"text": text, "speech": wav})
    with pytest.raises(UserError, match="there is no utterance 'x'"):
        index.row("x")


def test_shape_files_round_trip(tmp_path: Path) -> None:
    write_shapes(tmp_path / "speech_shape", {"a": (100, 80), "b": (7, 80), "c": (55, 80)})
    assert (tmp_path / "speech_shape").read_text() == "a 100,80\nb 7,80\nc 55,80\n"
    shapes = read_shapes(tmp_path / "speech_shape", np.array([b"c", b"a"]))
    assert (shapes.name, shapes.lengths.tolist(), shapes.dim) == ("speech", [55, 100], 80)
    write_shapes(tmp_path / "text_shape.char", [("a", (12,)), ("b", (0,))])
    text = read_shapes(tmp_path / "text_shape.char")
    assert (text.name, text.lengths.tolist(), text.dim) == ("text", [12, 0], 1)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 10**7), min_size=1, max_size=20),
    dims=st.lists(st.integers(1, 300), max_size=3),
)
def test_any_shape_file_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], dims: list[int]
) -> None:
    path = tmp_path_factory.mktemp("shapes") / "speech_shape"
    write_shapes(path, [(f"u{number}", [length, *dims]) for number, length in enumerate(lengths)])
    shapes = read_shapes(path)
    assert shapes.lengths.tolist() == lengths
    assert shapes.dim == int(np.prod(dims, dtype=np.int64))


def test_faults_of_shape_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"s:2: expected 'UTTERANCE LENGTH"):
        read_shapes(write(tmp_path / "s", "a 1\nb x\n"))
    with pytest.raises(UserError, match=r"s:2: expected 'UTTERANCE LENGTH"):
        read_shapes(write(tmp_path / "s", "a 1\nb\n"))
    with pytest.raises(UserError, match=r"s:2: utterance 'b' has the shape 5,40, but the first one has 1,80"):
        read_shapes(write(tmp_path / "s", "a 1,80\nb 5,40\n"))
    with pytest.raises(UserError, match=r"s:2: utterance 'b' has the shape 5,80,2"):
        read_shapes(write(tmp_path / "s", "a 1,80\nb 5,80,2\n"))
    with pytest.raises(UserError, match=r"s:1: expected 'UTTERANCE LENGTH"):
        read_shapes(write(tmp_path / "s", "a 1,x\nb 5,x\n"))
    with pytest.raises(UserError, match=r"utterance 'z' is missing \(1 missing in total\)"):
        read_shapes(write(tmp_path / "s", "a 1\n"), np.array([b"a", b"z"]))


@pytest.mark.parametrize("value", ["9" * 20, "9" * 5000, "1" + "0" * 11, "10,-8", "10,0", "10,1e3", "10," + "9" * 20])
def test_lengths_that_no_recording_has_are_rejected(tmp_path: Path, value: str) -> None:
    """Twenty digits became a negative number, and a dimension of twenty an OverflowError."""
    with pytest.raises(UserError, match=r"s:1: "):
        read_shapes(write(tmp_path / "s", f"a {value}\n"))


def test_a_very_long_recording_has_a_shape(tmp_path: Path) -> None:
    shapes = read_shapes(write(tmp_path / "s", f"a {10**11 - 1},80,2\n"))
    assert (shapes.lengths.tolist(), shapes.dim) == ([10**11 - 1], 160)
