"""Filterbank and MFCC against Kaldi's own output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tympan.data.audio import read_audio
from tympan.data.seeds import rng_for
from tympan.errors import UserError
from tympan.features import fbank as module
from tympan.features.conf import options_from, read_conf
from tympan.features.fbank import FbankOptions, MfccOptions, fbank, mfcc

SIXTEEN_KHZ = ["BAC009S0150W0040", "BAC009S0150W0285", "an4-fbbh-an89", "silence", "synth200ms"]
FBANK80 = FbankOptions(dither=0.0)


@pytest.mark.parametrize("name", SIXTEEN_KHZ)
def test_fbank_and_mfcc_equal_kaldi(golden: Path, name: str) -> None:
    expected = np.load(golden / "kaldi" / f"{name}.npz")
    samples = read_audio(golden / "kaldi" / f"{name}.wav").samples
    for found, key in (
        (fbank(samples, FBANK80), "fbank"),
        (fbank(samples, FbankOptions(dither=0.0, snip_edges=False)), "fbank_nosnip"),
    ):
        assert found.shape == expected[key].shape
        difference = np.abs(found - expected[key])
        assert difference.max() < 2e-3
        assert difference.mean() < 1e-5
    cepstra = mfcc(samples, MfccOptions(dither=0.0))
    assert cepstra.shape == expected["mfcc"].shape
    assert np.abs(cepstra - expected["mfcc"]).mean() < 5e-5


def test_eight_khz(golden: Path) -> None:
    expected = np.load(golden / "kaldi" / "fsdd-3_jackson_5.npz")
    samples = read_audio(golden / "kaldi" / "fsdd-3_jackson_5.wav").samples
    for bins, key in ((80, "fbank"), (40, "fbank40")):
        found = fbank(samples, FbankOptions(sample_frequency=8000, num_mel_bins=bins, dither=0.0))
        assert found.shape == expected[key].shape
        assert np.abs(found - expected[key]).max() < 2e-3
        assert np.abs(found - expected[key]).mean() < 1e-5
    found = mfcc(samples, MfccOptions(sample_frequency=8000, dither=0.0))
    assert np.abs(found - expected["mfcc"]).mean() < 5e-5


@pytest.mark.parametrize(("key", "snip_edges"), [("fbank", True), ("fbank_nosnip", False)])
def test_frame_counts_and_values_at_the_edges(golden: Path, key: str, snip_edges: bool) -> None:
    header, *rows = (golden / "kaldi" / "lengths.tsv").read_text().splitlines()
    column = header.split("\t").index(key)
    edge = np.load(golden / "kaldi" / "edge.npz")
    for row in rows:
        columns = row.split("\t")
        samples = read_audio(golden / "kaldi" / "edge_wav" / f"{columns[0]}.wav").samples
        found = fbank(samples, FbankOptions(dither=0.0, snip_edges=snip_edges))
        assert found.shape == (int(columns[column]), 80), columns[0]
        if len(found):
            assert np.abs(found - edge[f"{columns[0]}/{key}"]).max() < 2e-3, columns[0]


@pytest.mark.parametrize("snip_edges", [True, False])
def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, snip_edges: bool) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 20_000).astype(np.float32)
    options = FbankOptions(dither=0.0, snip_edges=snip_edges)
    whole = fbank(samples, options)
    for size in (1000, 4321):
        monkeypatch.setattr(module, "_PIECE", size)
        np.testing.assert_array_equal(fbank(samples, options), whole)


def test_dither_is_a_function_of_its_seed() -> None:
    samples = np.zeros(16000, np.float32)
    options = FbankOptions(num_mel_bins=80)
    one, again, other = (fbank(samples, options, rng=rng_for(0, name, "dither")) for name in ("a", "a", "b"))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    # White noise of unit variance is far above the floor that digital silence has, about -15.9.
    assert one.min() > -8


def test_conf_files(tmp_path: Path) -> None:
    conf = tmp_path / "fbank.conf"
    conf.write_text(
        "# for 8 kHz\n--sample-frequency=8000  # Hz\n\n--num_mel_bins=40\n--use-energy\n--snip-edges=false\n"
    )
    assert read_conf(conf, FbankOptions) == FbankOptions(
        sample_frequency=8000.0, num_mel_bins=40, use_energy=True, snip_edges=False
    )
    assert options_from(FbankOptions, {"num-mel-bins": 80, "snip_edges": False}, place="x") == FbankOptions(
        num_mel_bins=80, snip_edges=False
    )


def test_conf_files_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_bytes(b"RIFF\xff\xfe")
    with pytest.raises(UserError, match=r"a\.conf: not UTF-8 text"):
        read_conf(tmp_path / "a.conf", FbankOptions)


def test_mistakes_in_conf_files_are_reported_together(tmp_path: Path) -> None:
    conf = tmp_path / "fbank.conf"
    conf.write_text("--num-mel-bin=80\n--dither=none\nsample-frequency=8000\n--snip-edges=maybe\n")
    with pytest.raises(UserError) as caught:
        read_conf(conf, FbankOptions)
    assert str(caught.value).splitlines() == [
        f"{conf}:3: expected '--name=value', found 'sample-frequency=8000'",
        f"{conf}:1: unknown option '--num-mel-bin'. Did you mean '--num-mel-bins'?",
        f"{conf}:2: '--dither' is 'none', expected a number",
        f"{conf}:4: '--snip-edges' is 'maybe', expected true or false",
    ]
    with pytest.raises(UserError, match="--window-type is 'hann', allowed: hamming"):
        FbankOptions(window_type="hann")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_mel_bins", 2),
        ("num_mel_bins", -3),
        ("frame_length", 0.0),
        ("frame_shift", 0.0),
        ("frame_shift", float("inf")),
        ("sample_frequency", float("nan")),
        ("low_freq", 9000.0),
        ("high_freq", 9000.0),
        ("high_freq", -7990.0),
        ("preemphasis_coefficient", 2.0),
    ],
)
def test_options_that_kaldi_refuses(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')}="):
        FbankOptions(**{option: value})


@pytest.mark.parametrize(
    "line", ["--dither=nan", "--low-freq=inf", "--num-mel-bins=8_0", "--frame-length=2_5", "--num-mel-bins=1e3"]
)
def test_numbers_that_make_no_sense_in_a_conf_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.conf").write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"a\.conf:1: '--[a-z-]+' is '.*', expected (a number|an integer)"):
        read_conf(tmp_path / "a.conf", FbankOptions)
