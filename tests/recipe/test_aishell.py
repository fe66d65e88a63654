"""AISHELL: recognising what is there, and the recipe's data directories, on the real sample where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe import aishell


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


def test_data_directories(tmp_path: Path) -> None:
    made = aishell.prepare(make_corpus(tmp_path / "corpus"), tmp_path / "data")
    assert [(one.name, one.utterances, one.speakers, one.without_text) for one in made] == [
        ("train", 2, 1, 1),
        ("dev", 2, 1, 1),
        ("test", 2, 1, 1),
    ]
    assert (tmp_path / "data" / "dev" / "text").read_text(encoding="utf-8") == (
        "BAC009S0003W0001 而对楼市成交甲\nBAC009S0003W0002 而对楼市成交乙\n"
    )
    dev = DataDir.read(tmp_path / "data" / "dev")
    assert set(dev.utt2spk.values()) == {"S0003"}
    assert all(Path(place).is_absolute() for place in dev.wav.values())
    assert (tmp_path / "data" / "dev" / "spk2utt").read_text() == "S0003 BAC009S0003W0001 BAC009S0003W0002\n"


def test_half_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 'train', and training needs 'train' and 'dev'"):
        aishell.prepare(make_corpus(tmp_path, ("train",)), tmp_path / "data")


def test_wrong_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"aishell_transcript_v0\.8\.txt is missing: .*\(--data\)"):
        aishell.prepare(tmp_path, tmp_path / "data")


def test_transcript_faults_come_with_line(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    with (corpus / aishell.TRANSCRIPT).open("a", encoding="utf-8") as stream:
        stream.write("BAC009S0002W0009\nBAC009S0002W0001 别 的\n")
    with pytest.raises(UserError) as caught:
        aishell.prepare(corpus, tmp_path / "data")
    assert "v0.8.txt:7: utterance 'BAC009S0002W0009' has no text" in str(caught.value)
    assert "v0.8.txt:8: utterance 'BAC009S0002W0001' has two transcripts" in str(caught.value)


def test_recognises_what_was_unpacked(tmp_path: Path) -> None:
    assert not aishell.is_extracted(tmp_path, "data_aishell")
    corpus = make_corpus(tmp_path)
    assert aishell.is_extracted(corpus, "data_aishell"), "unpacked by hand"
    (corpus / "data_aishell" / "wav" / "S0009.tar.gz").touch()
    assert not aishell.is_extracted(corpus, "data_aishell"), "a speaker is still packed"


def test_a_killed_merge_is_begun_again(tmp_path: Path) -> None:
    """Unpacking over what is there moves speaker by speaker: some of them being there is not all of them."""
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
    aishell.unpack(data, "data_aishell", nj=1)
    # As a kill in the midst of a second unpacking leaves it: one speaker moved, the others in the scratch directory.
    root = data / "data_aishell"
    for name in ("dev", "test"):
        for path in sorted((root / "wav" / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (root / "wav" / "S0002.tar.gz").write_bytes((wav / "S0002.tar.gz").read_bytes())
    (data / ".extracting-data_aishell.tgz" / "data_aishell").mkdir(parents=True)
    assert not aishell.is_extracted(data, "data_aishell")
    aishell.unpack(data, "data_aishell", nj=1)
    assert aishell.is_extracted(data, "data_aishell")
    assert aishell.unheard(data) == []


def test_real_sample(real_data: Path, tmp_path: Path) -> None:
    for part in aishell.ARCHIVES:
        assert not aishell.is_extracted(tmp_path, part)
        aishell.download(tmp_path, (real_data / "aishell_sample").as_uri(), part)
        aishell.unpack(tmp_path, part, nj=2)
        assert aishell.is_extracted(tmp_path, part)
    made = aishell.prepare(tmp_path, tmp_path / "data")
    assert [(one.name, one.utterances, one.speakers) for one in made] == [("train", 724, 2), ("dev", 91, 2)]
    train = DataDir.read(tmp_path / "data" / "train")
    assert train.text["BAC009S0150W0002"] == "设定三十度"
    assert all(Path(place).is_file() for place in train.wav.values())
