"""The demo corpus: AISHELL's layout, disjoint sets, and the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.recipe.demo import Size, make_archives, plan, sentences

pytest.importorskip("espeakng_loader", reason="the extra 'demo' is not installed")


def test_sets_share_neither_sentences_nor_speakers() -> None:
    speakers = plan(Size(), seed=0)
    said = {
        name: {text.replace(" ", "") for speaker in speakers if speaker.set == name for text in speaker.sentences}
        for name in ("train", "dev", "test")
    }
    assert not said["train"] & said["dev"]
    assert not said["train"] & said["test"]
    assert not said["dev"] & said["test"]
    assert len({speaker.id for speaker in speakers}) == len(speakers)
    assert set("".join(said["test"])) <= set("".join(said["train"])), "every character is heard in training"
    assert plan(Size(), seed=0) == speakers
    assert plan(Size(), seed=1) != speakers


def test_vocabulary_is_small() -> None:
    characters = set("".join(sentences(1000, seed=0))) - {" "}
    assert 60 <= len(characters) <= 120


def test_grammar_that_is_used_up() -> None:
    with pytest.raises(ValueError, match="were asked for"):
        sentences(100_000, seed=0)


def test_archives_have_aishells_layout_and_repeat_to_the_byte(tmp_path: Path) -> None:
    size = Size(train=2, dev=1, test=1, sentences=2)
    first = make_archives(tmp_path / "a", size, seed=0, nj=2)
    second = make_archives(tmp_path / "b", size, seed=0, nj=1)
    for one, other in zip(first, second, strict=True):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()
    with tarfile.open(first[0]) as outer:
        names = outer.getnames()
        assert names[0] == "data_aishell/transcript/aishell_transcript_v0.8.txt"
        assert names[1:] == [f"data_aishell/wav/S{number:04d}.tar.gz" for number in (2, 3, 4, 5)]
        packed = io.BytesIO(outer.extractfile(names[4]).read())
    with tarfile.open(fileobj=packed) as inner:
        assert inner.getnames() == ["test/S0005/BAC009S0005W0001.wav", "test/S0005/BAC009S0005W0002.wav"]
        samples, rate = soundfile.read(io.BytesIO(inner.extractfile(inner.getnames()[0]).read()), dtype="int16")
    assert rate == 16_000
    assert 0.8 < len(samples) / rate < 6
    assert 3000 < np.abs(samples).max() < 32767
