"""Deltas and normalization against Kaldi, and the statistics' file formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tympan.data.ark import read_matrix, write_ark
from tympan.errors import UserError
from tympan.features.cmvn import add_stats, apply_cmvn, cmvn_stats, read_stats, write_stats
from tympan.features.deltas import add_deltas

NAMES = ["BAC009S0150W0040", "an4-fbbh-an89", "silence", "synth200ms"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["fbank", "fbank_pitch", "mfcc"])
def test_deltas_and_normalisation_equal_kaldi(golden: Path, name: str, kind: str) -> None:
    stored = np.load(golden / "kaldi" / f"{name}.npz")
    features = stored[kind]
    np.testing.assert_allclose(add_deltas(features), stored[f"{kind}_delta"], atol=2e-5)
    stats = np.load(golden / "kaldi" / "cmvn_global.npz")[kind]
    np.testing.assert_allclose(
        apply_cmvn(features, stats, norm_vars=True), stored[f"{kind}_cmvn"], atol=1e-4, rtol=1e-5
    )
    np.testing.assert_allclose(apply_cmvn(features, stats), stored[f"{kind}_cmn"], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["BAC009S0150W0040", "an4-fbbh-an89", "synth200ms"])
def test_utterance_statistics_equal_kaldi(golden: Path, name: str) -> None:
    stored = np.load(golden / "kaldi" / f"{name}.npz")
    stats = cmvn_stats([stored["fbank_pitch"]])
    np.testing.assert_allclose(stats, stored["cmvn_per_utt_fbank_pitch"], rtol=1e-6, atol=1e-3)
    found = apply_cmvn(stored["fbank_pitch"], stats, norm_vars=True)
    # Kaldi scales and shifts in float32, which loses digits in bands with a small variance.
    np.testing.assert_allclose(found, stored["fbank_pitch_uttcmvn"], atol=1e-3)


def test_statistics_add_up() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    total = cmvn_stats([one, two])
    np.testing.assert_allclose(total, add_stats(cmvn_stats([one]), cmvn_stats([two])))
    both = np.concatenate([one, two])
    normal = apply_cmvn(both, total, norm_vars=True)
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(normal.std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(
        apply_cmvn(both, total, norm_means=False, norm_vars=True), both / both.std(axis=0), rtol=1e-5
    )


@pytest.mark.parametrize("text", [False, True])
def test_statistics_survive_writing(tmp_path: Path, text: bool) -> None:
    stats = cmvn_stats([np.arange(12, dtype=np.float32).reshape(4, 3)])
    write_stats(tmp_path / "cmvn", stats, text=text)
    np.testing.assert_array_equal(read_stats(tmp_path / "cmvn"), stats)
    assert (tmp_path / "cmvn").read_bytes().startswith(b" [" if text else b"\0B")


def test_what_kaldi_writes_as_text_is_read(tmp_path: Path) -> None:
    # Kaldi drops the point of whole numbers, and puts the closing bracket on the last row.
    (tmp_path / "cmvn").write_text(" [\n  18 22.5 26 4 \n  126 166.25 214 0 ]\n")
    np.testing.assert_array_equal(read_stats(tmp_path / "cmvn"), [[18, 22.5, 26, 4], [126, 166.25, 214, 0]])


def test_statistics_that_do_not_fit() -> None:
    stats = cmvn_stats([np.ones((4, 3), np.float32)])
    with pytest.raises(UserError, match="for 3 dimensions, but the features have 5"):
        apply_cmvn(np.ones((2, 5), np.float32), stats)
    with pytest.raises(UserError, match="3 and of 5 dimensions"):
        add_stats(stats, cmvn_stats([np.ones((4, 5), np.float32)]))


def test_compressed_archives_are_read(golden: Path) -> None:
    folder = golden / "kaldi"
    expected = np.load(folder / "BAC009S0150W0040.npz")["fbank_pitch"]
    for method, tolerance in ((1, 0.1), (2, 0.1), (3, 1e-3), (5, 0.1)):
        path = folder / f"BAC009S0150W0040.fbank_pitch.method{method}.ark"
        found = read_matrix(f"{path}:{path.read_bytes().index(b' ') + 1}")
        assert np.abs(found - expected).max() < tolerance
    ours = folder / "BAC009S0150W0040.fbank_pitch.method1.ark"
    theirs = folder / "BAC009S0150W0040.fbank_pitch.cm.decompressed.ark"
    offset = ours.read_bytes().index(b" ") + 1
    np.testing.assert_allclose(read_matrix(f"{ours}:{offset}"), read_matrix(f"{theirs}:{offset}"), atol=1e-5)


@pytest.mark.parametrize("method", [1, 2, 5])
def test_compressed_archives_equal_kaldis(golden: Path, tmp_path: Path, method: int) -> None:
    folder = golden / "kaldi"
    kaldis = folder / f"BAC009S0150W0040.fbank_pitch.method{method}.ark"
    with write_ark(tmp_path / "feats.ark", compression_method=method) as ark:
        ark.write("BAC009S0150W0040", np.load(folder / "BAC009S0150W0040.npz")["fbank_pitch"])
    assert (tmp_path / "feats.ark").read_bytes() == kaldis.read_bytes()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
def test_compressed_short_utterances_keep_their_values(tmp_path: Path, rows: int) -> None:
    features = np.random.default_rng(rows).normal(0, 3, (rows, 83)).astype(np.float32)
    with write_ark(tmp_path / "feats.ark", compression_method=2) as ark:
        ark.write("a", features)
    assert np.abs(read_matrix(f"{tmp_path / 'feats.ark'}:2") - features).max() < 0.1


def test_pickles_and_broken_archives_are_rejected(tmp_path: Path) -> None:
    ark = tmp_path / "a.ark"
    ark.write_bytes(b"utt PKL\x80\x04")
    with pytest.raises(UserError, match="could run code"):
        read_matrix(f"{ark}:4")
    ark.write_bytes(b"utt \0BFM \x04\x05\0\0\0\x04\x05\0\0\0abcd")
    with pytest.raises(UserError, match="damaged, or not a Kaldi matrix"):
        read_matrix(f"{ark}:4")
