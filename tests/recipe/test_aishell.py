"""AISHELL: detecting what is unpacked, and the recipe's data directories, on the real sample if it is available."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe import aishell
from tympan.recipe.aishell import AISHELL
from tympan.recipe.corpus import write_sets
from tympan.recipe.download import fetch, join_url


def make_corpus(root: Path, sets: tuple[str, ...] = ("train", "dev", "test")) -> Path:
    lines = []
    for number, name in enumerate(sets, 2):
        speaker = f"S{number:04d}"
        folder = root / "data_aishell" / "wav" / name / speaker
        folder.mkdir(parents=True)
        for sentence in (2, 1, 3):
            (folder / f"BAC009{speaker}W{sentence:04d}.wav").touch()
            if sentence != 3:  # as in AISHELL: some recordings have no transcript
                lines.append(f"BAC009{speaker}W{sentence:04d} 而 对 楼市  成交 {'甲乙'[sentence - 1]}")
    transcript = root / aishell.TRANSCRIPT
    transcript.parent.mkdir()
    transcript.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def test_data_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sets(AISHELL, make_corpus(tmp_path / "corpus"), tmp_path / "data")
    said = capsys.readouterr()
    for name in ("train", "dev", "test"):
        assert f"    {name}: 1 recordings without a transcript were skipped\n" in said.out
        assert f"    {name}: 2 utterances of 1 speakers\n" in said.out
    assert said.err == ""
    assert (tmp_path / "data" / "dev" / "text").read_text(encoding="utf-8") == (
        "BAC009S0003W0001 而对楼市成交甲\nBAC009S0003W0002 而对楼市成交乙\n"
    )
    dev = DataDir.read(tmp_path / "data" / "dev")
    assert set(dev.utt2spk.values()) == {"S0003"}
    assert all(Path(place).is_absolute() for place in dev.wav.values())
    assert (tmp_path / "data" / "dev" / "spk2utt").read_text() == "S0003 BAC009S0003W0001 BAC009S0003W0002\n"


def test_an_incomplete_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 'train', but training needs 'train' and 'dev'"):
        write_sets(AISHELL, make_corpus(tmp_path, ("train",)), tmp_path / "data")


def test_missing_recordings_are_reported_by_speaker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make_corpus(tmp_path)
    (corpus / aishell.WAVS / "test" / "S0004" / "BAC009S0004W0001.wav").unlink()
    aishell.prepare(corpus)
    assert f"1 sentences of the transcript have no recording in {corpus} (of S0004)" in capsys.readouterr().err


def test_wrong_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"aishell_transcript_v0\.8\.txt is missing: .*\(--data\)"):
        aishell.prepare(tmp_path)


def test_transcript_faults_come_with_line(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    with (corpus / aishell.TRANSCRIPT).open("a", encoding="utf-8") as stream:
        stream.write("BAC009S0002W0009\nBAC009S0002W0001 别 的\n")
    with pytest.raises(UserError) as caught:
        aishell.prepare(corpus)
    assert "v0.8.txt:7: utterance 'BAC009S0002W0009' has no text" in str(caught.value)
    assert "v0.8.txt:8: utterance 'BAC009S0002W0001' has two transcripts" in str(caught.value)


def test_recognises_what_was_unpacked(tmp_path: Path) -> None:
    assert not aishell.is_extracted("data_aishell", tmp_path)
    corpus = make_corpus(tmp_path)
    assert aishell.is_extracted("data_aishell", corpus), "unpacked by hand"
    (corpus / "data_aishell" / "wav" / "S0009.tar.gz").touch()
    assert not aishell.is_extracted("data_aishell", corpus), "a speaker is still packed"


def test_a_killed_merge_starts_from_scratch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unpacking over existing files moves one speaker at a time: some speakers do not mean that it is complete."""
    import tarfile

    make_corpus(tmp_path / "packed")
    wav = tmp_path / "packed" / "data_aishell" / "wav"
    for name, speaker in (("train", "S0002"), ("dev", "S0003"), ("test", "S0004")):
        with tarfile.open(wav / f"{speaker}.tar.gz", "w:gz") as tar:
            tar.add(wav / name, name)
        for path in sorted((wav / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (wav / name).rmdir()
    data = tmp_path / "downloads"
    data.mkdir()
    with tarfile.open(data / "data_aishell.tgz", "w:gz") as tar:
        tar.add(tmp_path / "packed" / "data_aishell", "data_aishell")
    aishell.unpack("data_aishell", data, 1)
    # The state after a kill during a second unpacking: one speaker is moved, the others are in the scratch directory.
    root = data / "data_aishell"
    for name in ("dev", "test"):
        for path in sorted((root / "wav" / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (root / "wav" / "S0002.tar.gz").write_bytes((wav / "S0002.tar.gz").read_bytes())
    (data / ".extracting-data_aishell.tgz" / "data_aishell").mkdir(parents=True)
    assert not aishell.is_extracted("data_aishell", data)
    aishell.unpack("data_aishell", data, 1)
    assert aishell.is_extracted("data_aishell", data)
    assert set(aishell.prepare(data)) == {"train", "dev", "test"}
    assert capsys.readouterr().err == "", "no recording is missing"


def test_real_sample(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for archive in AISHELL.archives:
        assert not archive.is_found(tmp_path)
        fetch(join_url((real_data / "aishell_sample").as_uri(), archive.file), tmp_path / archive.file)
        archive.unpack_in(tmp_path, nj=2)
        assert archive.is_found(tmp_path)
    write_sets(AISHELL, tmp_path, tmp_path / "data")
    said = capsys.readouterr().out
    assert "    train: 724 utterances of 2 speakers\n" in said
    assert "    dev: 91 utterances of 2 speakers\n" in said
    train = DataDir.read(tmp_path / "data" / "train")
    assert train.text["BAC009S0150W0002"] == "设定三十度"
    assert all(Path(place).is_file() for place in train.wav.values())
    assert all(aishell.speaker_of(utterance) == speaker for utterance, speaker in train.utt2spk.items())
