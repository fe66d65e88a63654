"""A manifest becomes a data directory, or a list of its mistakes with their lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.main import run
from tympan.bin.manifest_data import main
from tympan.data.kaldi_dir import DataDir
from tympan.data.validate import validate


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "wav").mkdir()
    for name in ("1.wav", "my talk.wav"):
        soundfile.write(tmp_path / "wav" / name, np.random.default_rng(0).normal(0, 0.1, 16000), 16000)
    return tmp_path


ROWS = [("wav/1.wav", "GO, NOW", "anna"), ("wav/my talk.wav", 'HE SAID "NO"', "ben")]


def write(here: Path, kind: str) -> Path:
    path = here / f"train.{kind}"
    if kind == "jsonl":
        names = ("audio_filepath", "text", "speaker")
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS))
    elif kind == "tsv":  # Common Voice's names
        path.write_text("client_id\tpath\tsentence\tage\n" + "".join(f"{s}\t{p}\t{t}\t\n" for p, t, s in ROWS))
    else:
        path.write_text(
            '\ufeffpath,text,speaker\r\nwav/1.wav,"GO, NOW",anna\r\nwav/my talk.wav,"HE SAID ""NO""",ben\r\n'
        )
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_manifest_becomes_a_data_directory(here: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(here, kind)), str(here / "data")]) == 0
    assert capsys.readouterr().out == f"{here / 'data'}: 2 utterances of 2 speakers\n"
    data = DataDir.read(here / "data")
    assert data.text == {"anna-wav_1": "GO, NOW", "ben-wav_my_talk": 'HE SAID "NO"'}
    assert data.utt2spk == {"anna-wav_1": "anna", "ben-wav_my_talk": "ben"}
    assert data.wav["ben-wav_my_talk"] == str(here / "wav" / "my talk.wav")


def test_paths_from_another_directory_and_no_speaker(here: Path) -> None:
    (here / "lists").mkdir()
    (here / "lists" / "a.csv").write_text("id,path,text\nu1,1.wav,GO\n")
    assert main([str(here / "lists" / "a.csv"), str(here / "data"), "--audio_dir", str(here / "wav")]) == 0
    assert DataDir.read(here / "data").utt2spk == {"u1": "u1"}


def test_all_mistakes_are_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.csv").write_text("path,text\nwav/1.wav,GO\nwav/1.wav,ON\nwav/2.wav,GO\nwav/1.wav,\n")
    assert run(main, [str(here / "a.csv"), str(here / "data")]) == 2
    said = capsys.readouterr().err
    assert f"{here / 'a.csv'}:3: the id 'wav_1' occurs twice" in said
    assert f"{here / 'a.csv'}:4: there is no file '{here / 'wav' / '2.wav'}'" in said
    assert f"{here / 'a.csv'}:5: there is no text" in said
    assert not (here / "data").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "recording,text\nx,y\n", "a.csv:1: the first line must name the columns; there is no 'path'"),
        ("a.csv", "path,text\n", "the manifest has no recordings"),
        ("a.jsonl", "{\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: each line must be an object"),
        ("a.jsonl", '{"path": "wav/1.wav", "text": "GO", "offset": 2.5}\n', "parts of recordings"),
        ("a.jsonl", '{"path": "wav/1.wav", "text": "\\ud800"}\n', "a.jsonl:1: 'utf-8' codec can't encode"),
        ("a.jsonl", '{"path": "a\\u0000b", "text": "GO"}\n', "a.jsonl:1: there is no file '"),
        ("a.csv", "path,text\nwav/loop,GO\n", "a.csv:2: there is no file '"),
        ("a.csv", f"path,text\n{'d/' * 3000},GO\n", "a.csv:2: there is no file '"),
        ("a.csv", f"path,text\n{'a' * 200_000},GO\n", "a.csv:2: field larger than field limit"),
        ("a.csv", f"path,{'a' * 200_000}\nx,GO\n", "a.csv:1: field larger than field limit"),
    ],
)
def test_manifests_that_can_not_be_read(
    here: Path, name: str, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "wav" / "loop").symlink_to("loop")
    (here / name).write_text(content)
    assert run(main, [str(here / name), str(here / "data")]) == 2
    assert message in capsys.readouterr().err


def test_the_result_is_valid(here: Path) -> None:
    main([str(write(here, "csv")), str(here / "data")])
    assert validate(here / "data").faults == []


def test_a_dataset_of_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recordings inside of the tables, and recordings that the tables name."""
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    stored = io.BytesIO()
    soundfile.write(stored, np.zeros(800), 8000, format="FLAC")
    soundfile.write(tmp_path / "b.wav", np.zeros(800), 8000)
    rows = {
        "audio": [{"bytes": stored.getvalue(), "path": None}, {"bytes": None, "path": str(tmp_path / "b.wav")}],
        "sentence": ["ONE", "TWO  WORDS"],
        "speaker_id": [7, 8],
    }
    table = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio(decode=False))
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "saved"))
    assert run(main, [str(tmp_path / "saved"), str(tmp_path / "data")]) == 2
    assert "has splits, so --split is needed: train" in capsys.readouterr().err
    assert run(main, [str(tmp_path / "saved"), str(tmp_path / "data"), "--split", "train"]) == 0
    data = DataDir.read(tmp_path / "data")
    assert data.text == {"7-00000000": "ONE", "8-00000001": "TWO WORDS"}
    assert data.utt2spk == {"7-00000000": "7", "8-00000001": "8"}
    assert soundfile.info(data.wav["7-00000000"]).frames == 800
    assert Path(data.wav["7-00000000"]).parent == tmp_path / "data" / "audio"
    assert soundfile.info(data.wav["8-00000001"]).samplerate == 8000
