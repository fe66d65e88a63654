"""LibriSpeech's layout, in a tiny corpus that the test packs and serves on loopback."""

from __future__ import annotations

import functools
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.recipe import main
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe.corpus import find_registered
from tympan.recipe.librispeech import LIBRISPEECH, LIBRISPEECH_100, MINI_LIBRISPEECH


def make_part(root: Path, folder: str, reader: str) -> None:
    chapter = root / "LibriSpeech" / folder / reader / "7"
    chapter.mkdir(parents=True)
    lines = []
    for number in range(2):
        name = f"{reader}-7-{number:04d}"
        soundfile.write(chapter / f"{name}.flac", np.random.default_rng(number).normal(0, 0.1, 16000), 16000)
        lines.append(f"{name} SENTENCE {'AB'[number]}\n")
    (chapter / f"{reader}-7.trans.txt").write_text("".join(lines))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    served = tmp_path / "served"
    served.mkdir()
    for folder, reader in (("train-clean-5", "19"), ("dev-clean-2", "84")):
        make_part(tmp_path / "source", folder, reader)
        with tarfile.open(served / f"{folder}.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / "source" / "LibriSpeech" / folder, f"LibriSpeech/{folder}")
            content = b"public domain"
            member = tarfile.TarInfo("LibriSpeech/README.TXT")  # every archive has it
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(served))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_mini_librispeech_is_downloaded_and_prepared(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    options = ["--data_url", url, "--stage", "-1", "--stop_stage", "0", "--ngpu", "0"]
    assert main(["mini_librispeech", *options]) == 0
    train, dev = DataDir.read("data/train"), DataDir.read("data/dev")
    assert train.text == {"19-7-0000": "SENTENCE A", "19-7-0001": "SENTENCE B"}
    assert train.utt2spk == {"19-7-0000": "19-7", "19-7-0001": "19-7"}
    assert Path(dev.wav["84-7-0001"]).is_file()
    assert "dev: 2 utterances of 1 speakers" in capsys.readouterr().out


def test_three_archives_are_one_training_set(tmp_path: Path) -> None:
    parts = {
        "train-clean-100": "1",
        "train-clean-360": "2",
        "train-other-500": "3",
        "dev-clean": "4",
        "test-other": "5",
    }
    for folder, reader in parts.items():
        make_part(tmp_path, folder, reader)
    assert LIBRISPEECH.sets(tmp_path) == ["train", "dev_clean", "test_other"]
    assert len(LIBRISPEECH.prepare(tmp_path)["train"].text) == 6
    assert len(LIBRISPEECH_100.prepare(tmp_path)["train"].text) == 2


def test_missing_recordings_are_reported_together(tmp_path: Path) -> None:
    make_part(tmp_path, "train-clean-5", "19")
    for path in (tmp_path / "LibriSpeech").rglob("*.flac"):
        path.unlink()
    with pytest.raises(UserError) as raised:
        MINI_LIBRISPEECH.prepare(tmp_path)
    assert str(raised.value).count("there is no recording") == 2
    assert "19-7.trans.txt:2:" in str(raised.value)


@pytest.mark.parametrize("name", ["librispeech", "librispeech_100", "mini_librispeech"])
def test_archives_and_hours_fit_the_sets(name: str) -> None:
    corpus = find_registered(name)
    assert not callable(corpus)
    assert set(corpus.hours) == {corpus.train, corpus.dev, *corpus.tests}
    assert all(archive.size_bytes > 1e8 for archive in corpus.archives)
