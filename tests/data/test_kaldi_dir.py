"""Data directories: reading, writing, and how relative paths resolve."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tympan.data.kaldi_dir import DataDir, Segment, read_table, split_line, write_table
from tympan.data.rename import Renaming, affix, rename
from tympan.errors import UserError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "wav.scp").write_text("r1 /audio/r1.wav\nr2 sub/r2.wav\n")
    (path / "segments").write_text("a-1 r1 0.5 2\na-2 r1 2 -1\nb-1 r2 0 1.25\n")
    (path / "text").write_text("a-1 你好　世界\na-2\nb-1  two  words\n")
    (path / "utt2spk").write_text("a-1 a\na-2 a\nb-1 b\n")
    (path / "spk2gender").write_text("a f\nb m\n")
    (path / "utt2num_frames").write_text("a-1 148\na-2 10\nb-1 123\n")
    return path


def test_reading(directory: Path) -> None:
    data = DataDir.read(directory)
    assert data.utterances == ["a-1", "a-2", "b-1"]
    assert data.text == {"a-1": "你好　世界", "a-2": "", "b-1": "two  words"}
    assert data.segments["a-2"] == Segment("r1", 2.0, None)
    assert data.spk2utt == {"a": ["a-1", "a-2"], "b": ["b-1"]}
    assert data.utt2num_frames["a-1"] == 148
    assert next(iter(data.parts())) == ("a-1", "/audio/r1.wav", Segment("r1", 0.5, 2.0))


def test_written_and_read_again_it_is_the_same(directory: Path, tmp_path: Path) -> None:
    data = DataDir.read(directory)
    data.write(tmp_path / "copy")
    again = DataDir.read(tmp_path / "copy")
    assert {name: dict(table) for name, table in again.tables.items()} == dict(data.tables)
    assert (tmp_path / "copy" / "spk2utt").read_text() == "a a-1 a-2\nb b-1\n"


def test_tables_of_an_earlier_directory_do_not_stay(directory: Path, tmp_path: Path) -> None:
    DataDir(tmp_path, {"wav.scp": {"a": "/x.wav"}, "text": {"a": "one"}}).write(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["text", "wav.scp"]
    assert DataDir.read(directory).utterances == ["a"]
    DataDir(tmp_path, {"utt2spk": {"a": "s"}}).write(directory, keeps_others=True)
    assert sorted(path.name for path in directory.iterdir()) == ["spk2utt", "text", "utt2spk", "wav.scp"]


def test_a_part_keeps_what_it_needs(directory: Path) -> None:
    part = DataDir.read(directory).keep(["b-1"])
    assert part.utterances == ["b-1"]
    assert list(part.wav) == ["r2"]
    assert part.tables["spk2gender"] == {"b": "m"}


def test_segments_may_be_separated_by_tabs(directory: Path) -> None:
    segments = directory / "segments"
    segments.write_text(segments.read_text().replace(" ", "\t"))
    data = DataDir.read(directory)
    assert list(data.keep(["b-1"]).wav) == ["r2"]
    renamed = rename(data, Renaming(utterance=affix("p-"), recording=affix("q-")))
    assert [segment.recording for segment in renamed.segments.values()] == ["q-r1", "q-r1", "q-r2"]


def test_a_byte_order_mark_is_no_part_of_an_id(directory: Path) -> None:
    (directory / "text").write_text("a-1 x\n", encoding="utf-8-sig")
    with pytest.raises(UserError, match=f"{directory / 'text'}:1: the file begins with a byte order mark"):
        DataDir.read(directory)


def test_paths_beside_the_data_hold_from_elsewhere(directory: Path, tmp_path: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "r2.wav").touch()
    DataDir.read(directory).write(tmp_path / "copy")
    assert read_table(tmp_path / "copy" / "wav.scp")["r2"] == str(directory / "sub" / "r2.wav")


def test_faults_are_named_with_their_line(directory: Path) -> None:
    (directory / "utt2spk").write_text("a-1 a\n\na-1 b\na-2\n")
    with pytest.raises(UserError) as caught:
        DataDir.read(directory)
    assert str(caught.value).splitlines()[:3] == [
        f"{directory}/utt2spk:2: the line is empty",
        f"{directory}/utt2spk:3: 'a-1' appears twice",
        f"{directory}/utt2spk:4: 'a-2' has no value",
    ]
    with pytest.raises(UserError, match="no such data directory"):
        DataDir.read(directory / "nowhere")
    (directory / "utt2spk").write_bytes(b"a-1 \xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        DataDir.read(directory)


def test_unknown_recordings_and_empty_segments(directory: Path) -> None:
    (directory / "segments").write_text("a-1 r9 0 1\n")
    with pytest.raises(UserError, match=r"recording 'r9' of 'a-1' is not in wav.scp"):
        list(DataDir.read(directory).parts())
    for times in ("2 1", "nan 1", "0 nan", "0 inf", "-2 1"):
        (directory / "segments").write_text(f"a-1 r1 {times}\n")
        with pytest.raises(UserError, match=f"the segment from {times.replace(' ', ' to ')} s is empty"):
            DataDir.read(directory).segments  # noqa: B018


WORD = st.text(
    st.characters(exclude_categories=("Zs", "Cc", "Cs", "Zl", "Zp"), exclude_characters="\ufeff"),
    min_size=1,
    max_size=8,
)


@given(st.dictionaries(WORD, st.lists(WORD, min_size=1, max_size=4).map(" ".join), max_size=8))
def test_any_table_survives(tmp_path_factory: pytest.TempPathFactory, table: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("table") / "text"
    write_table(path, table)
    assert read_table(path) == table


def test_only_blanks_separate() -> None:
    assert split_line("a\tb c\n") == ("a", "b c")
    assert split_line("  a   b　c \r\n") == ("a", "b　c")
    assert split_line("a\n") == ("a", "")
