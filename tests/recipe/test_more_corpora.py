"""THCHS-30, AISHELL-2 and Common Voice, in tiny corpora of their layout."""

from __future__ import annotations

import functools
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.recipe import main
from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe.common_voice import COMMON_VOICE
from tympan.recipe.corpus import write_sets
from tympan.recipe.librispeech import MINI_LIBRISPEECH
from tympan.recipe.mandarin import AISHELL2, THCHS30


def write_audio(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 1600), 16000)


def make_thchs30(root: Path) -> None:
    for name, speaker in (("train", "A11"), ("dev", "B02"), ("test", "D04")):
        for number in range(2):
            write_audio(root / "data_thchs30" / name / f"{speaker}_{number}.wav")
            transcript = root / "data_thchs30" / "data" / f"{speaker}_{number}.wav.trn"
            transcript.parent.mkdir(exist_ok=True)
            transcript.write_text("绿 是 阳春\nlv4 shi4 yang2 chun1\nl v4 sh ix4\n", encoding="utf-8")


def make_aishell2(root: Path) -> None:
    for name, speaker in (("data", "C0001"), ("dev", "D0012"), ("test", "T0003")):
        folder = root / "iOS" / name
        write_audio(folder / "wav" / speaker / f"I{speaker}W0001.wav")
        (folder / "wav.scp").write_text(f"I{speaker}W0001\twav/{speaker}/I{speaker}W0001.wav\n")
        (folder / "trans.txt").write_text(f"I{speaker}W0001\t打开 wifi\n", encoding="utf-8")


def make_common_voice(folder: Path) -> None:
    for name in ("train", "dev", "test"):
        write_audio(folder / "clips" / f"{name}_1.mp3.wav")
        rows = f'client_id\tpath\tsentence\tup_votes\n{name}speaker\t{name}_1.mp3.wav\tA "quoted" word\t2\n'
        (folder / f"{name}.tsv").write_text(rows, encoding="utf-8")


def test_thchs30_is_downloaded_and_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_thchs30(tmp_path / "source")
    (tmp_path / "served").mkdir()
    with tarfile.open(tmp_path / "served" / "data_thchs30.tgz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "data_thchs30", "data_thchs30")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    options = ["--data_url", f"http://127.0.0.1:{server.server_port}", "--stage", "-1", "--stop_stage", "0"]
    try:
        assert main(["thchs30", *options, "--ngpu", "0"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    train = DataDir.read("data/train")
    assert train.text == {"A11_0": "绿是阳春", "A11_1": "绿是阳春"}
    assert train.utt2spk == {"A11_0": "A11", "A11_1": "A11"}
    assert len(DataDir.read("data/test").text) == 2


def test_thchs30_without_a_transcript(tmp_path: Path) -> None:
    make_thchs30(tmp_path)
    (tmp_path / "data_thchs30" / "data" / "A11_1.wav.trn").unlink()
    with pytest.raises(UserError, match=r"A11_1\.wav\.trn: there is no sentence for A11_1\.wav"):
        THCHS30.prepare(tmp_path)


def test_aishell2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_aishell2(tmp_path / "corpus")
    assert AISHELL2.sets(tmp_path / "corpus") == ["train", "dev", "test"]
    monkeypatch.chdir(tmp_path)
    assert main(["aishell2", "--data", "corpus", "--stage", "0", "--stop_stage", "0", "--ngpu", "0"]) == 0
    train = DataDir.read("data/train")
    assert train.text == {"IC0001W0001": "打开WIFI"}
    assert train.utt2spk == {"IC0001W0001": "C0001"}
    assert Path(train.wav["IC0001W0001"]).is_file()
    next((tmp_path / "corpus" / "iOS" / "dev").rglob("*.wav")).unlink()
    with pytest.raises(UserError, match=r"dev/wav\.scp:1: there is no recording"):
        AISHELL2.prepare(tmp_path / "corpus")


def test_common_voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_common_voice(tmp_path / "cv-corpus-22.0" / "iba")
    monkeypatch.chdir(tmp_path)
    data = ["--data", "cv-corpus-22.0", "--stage", "0", "--stop_stage", "0", "--ngpu", "0"]
    assert main(["commonvoice", *data]) == 0
    train = DataDir.read("data/train")
    assert list(train.text.values()) == ['A "quoted" word']
    assert list(train.utt2spk.values()) == ["trainspeaker"]
    with pytest.raises(UserError, match=r"has no train\.tsv"):
        COMMON_VOICE.prepare(tmp_path / "none")
    make_common_voice(tmp_path / "cv-corpus-22.0" / "cy")
    with pytest.raises(UserError, match="several languages"):
        COMMON_VOICE.prepare(tmp_path / "cv-corpus-22.0")


def test_common_voice_resamples_its_clips() -> None:
    """They are mp3 files of 48 kHz, and some of 32 or 44.1 kHz, for a model of 16 kHz."""
    conf = Path(__file__).parents[2] / "egs" / "commonvoice" / "asr1" / "conf" / "train.yaml"
    config = parse_training(AsrTrainConfig, ["--config", str(conf)], prog="asr_train")
    assert (config.resample, config.frontend_conf["fs"]) == (True, 16000)


def test_a_corpus_without_download_says_where_its_data_come_from(tmp_path: Path) -> None:
    """Before, `--check` found no mistake, and stage 0 advised to unpack an archive again."""
    with pytest.raises(UserError, match=r"has none of iOS/data/trans\.txt, .*aishelltech.*pass .* as --data"):
        AISHELL2.sets(tmp_path)


def test_an_empty_download_directory_is_not_called_incomplete(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not contain the unpacked corpus: .*let stage -1 download"):
        write_sets(MINI_LIBRISPEECH, tmp_path, tmp_path / "out")
