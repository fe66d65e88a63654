"""Pitch against Kaldi's own output, and the compiled search against a slow one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tympan.data.audio import read_audio
from tympan.data.seeds import rng_for
from tympan.errors import UserError
from tympan.features.pitch import PitchOptions, pitch
from tympan.features.pitch_post import PitchPostOptions, process_pitch
from tympan.features.pitch_track import advance

NAMES = ["BAC009S0150W0040", "BAC009S0150W0285", "an4-fbbh-an89", "silence", "synth200ms", "fsdd-3_jackson_5"]
QUIET = PitchPostOptions(delta_pitch_noise_stddev=0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("key", "snip_edges"), [("pitch_raw", True), ("pitch_raw_nosnip", False)])
def test_pitch_equals_kaldi(golden: Path, name: str, key: str, snip_edges: bool) -> None:
    stored = np.load(golden / "kaldi" / f"{name}.npz")
    if key not in stored:
        pytest.skip(f"no {key} was stored for {name}")
    audio = read_audio(golden / "kaldi" / f"{name}.wav")
    found = pitch(audio.samples, PitchOptions(sample_frequency=audio.rate, snip_edges=snip_edges))
    expected = stored[key]
    assert found.shape == expected.shape
    distance = np.abs(found[:, 1] / expected[:, 1] - 1)
    same = distance < 1e-4
    # 90 % and 99.5 % of the frames would be acceptable. With float32 sums in the search, all frames agree.
    assert same.mean() >= 0.99
    assert (distance < 0.01).mean() >= 0.995
    assert np.abs(found[same, 0] - expected[same, 0]).max() < 1e-5


@pytest.mark.parametrize(("key", "snip_edges"), [("pitch_raw", True), ("pitch_raw_nosnip", False)])
def test_frame_counts_at_the_edges(golden: Path, key: str, snip_edges: bool) -> None:
    header, *rows = (golden / "kaldi" / "lengths.tsv").read_text().splitlines()
    column = header.split("\t").index(key)
    edge = np.load(golden / "kaldi" / "edge.npz")
    for row in rows:
        columns = row.split("\t")
        samples = read_audio(golden / "kaldi" / "edge_wav" / f"{columns[0]}.wav").samples
        found = pitch(samples, PitchOptions(snip_edges=snip_edges))
        if columns[column] != "-":  # Kaldi itself fails on these
            assert found.shape == (int(columns[column]), 2), columns[0]
            if len(found) and f"{columns[0]}/{key}" in edge:
                np.testing.assert_allclose(found, edge[f"{columns[0]}/{key}"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_processing_alone_equals_kaldi(golden: Path, name: str) -> None:
    stored = np.load(golden / "kaldi" / f"{name}.npz")
    np.testing.assert_allclose(process_pitch(stored["pitch_raw"], QUIET), stored["pitch"], atol=1e-4)
    if "pitch_all4" in stored:
        found = process_pitch(
            stored["pitch_raw"], PitchPostOptions(delta_pitch_noise_stddev=0.0, add_raw_log_pitch=True)
        )
        np.testing.assert_allclose(found, stored["pitch_all4"], atol=1e-4)


def test_the_search_equals_trying_every_predecessor() -> None:
    rng = np.random.default_rng(0)
    frames, lags, factor = 40, 60, np.float32(1e-3)
    local = rng.random((frames, lags), dtype=np.float32)
    local[10:20] = 0.5  # ties
    costs, slow = np.zeros(lags, np.float32), np.zeros(lags, np.float32)
    pointers = np.empty((frames, lags), np.int16)
    advance(costs, local, factor, pointers)
    steps = np.arange(lags)
    penalties = ((steps[:, None] - steps[None, :]) ** 2).astype(np.float32) * factor
    for frame in range(frames):
        table = slow[None, :] + penalties
        np.testing.assert_array_equal(pointers[frame], table.argmin(axis=1), err_msg=str(frame))
        slow = table.min(axis=1) + local[frame]
        slow -= slow.min()
    np.testing.assert_array_equal(costs, slow)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
def test_a_tone_has_its_pitch_at_any_rate(rate: int) -> None:
    time_s = np.arange(rate) / rate
    samples = sum(np.sin(2 * np.pi * 150 * harmonic * time_s) for harmonic in (1, 2, 3)) / 10
    found = pitch(samples.astype(np.float32), PitchOptions(sample_frequency=rate))
    assert np.abs(found[10:-10, 1] / 150 - 1).max() < 0.01
    assert found[10:-10, 0].min() > 0.99


def test_a_file_in_chunks_and_its_ballast(golden: Path) -> None:
    """Splitting the signal into chunks changes the ballast of the first frames only until it is corrected."""
    samples = read_audio(golden / "kaldi" / "BAC009S0150W0040.wav").samples
    whole = pitch(samples, PitchOptions())
    for options in (PitchOptions(frames_per_chunk=10), PitchOptions(nccf_ballast_online=True)):
        found = pitch(samples, options)
        assert found.shape == whole.shape
        voiced = whole[:, 0] > 0.8
        assert (np.abs(found[voiced, 1] / whole[voiced, 1] - 1) < 0.02).mean() > 0.95


def test_long_audio_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch, golden: Path) -> None:
    from tympan.features import pitch as module

    samples = read_audio(golden / "kaldi" / "BAC009S0150W0040.wav").samples
    whole = pitch(samples, PitchOptions(preemphasis_coefficient=0.5))
    monkeypatch.setattr(module, "_BLOCK", 50)
    np.testing.assert_array_equal(pitch(samples, PitchOptions(preemphasis_coefficient=0.5)), whole)


def test_noise_is_a_function_of_its_seed(golden: Path) -> None:
    raw = np.load(golden / "kaldi" / "synth200ms.npz")["pitch_raw"]
    one, again, other = (process_pitch(raw, PitchPostOptions(), rng=rng_for(0, name)) for name in ("a", "a", "b"))
    np.testing.assert_array_equal(one, again)
    difference = (one - other)[:, 2]
    assert 0.02 < difference.std() < 0.15  # 10 * 0.005 * sqrt(2)
    np.testing.assert_array_equal(one[:, :2], other[:, :2])


def test_delay_repeats_the_first_frame(golden: Path) -> None:
    raw = np.load(golden / "kaldi" / "synth200ms.npz")["pitch_raw"]
    plain = process_pitch(raw, QUIET)
    delayed = process_pitch(raw, PitchPostOptions(delta_pitch_noise_stddev=0.0, delay=3))
    np.testing.assert_array_equal(delayed, np.concatenate([plain[:1]] * 3 + [plain]))


def test_options_that_can_not_work() -> None:
    with pytest.raises(UserError, match="--min-f0=500 must be above 0 and below --max-f0=400"):
        PitchOptions(min_f0=500)
    with pytest.raises(UserError, match=r"--delta-pitch must be between 0\.0001 and 1, found 0"):
        PitchOptions(delta_pitch=0)
    with pytest.raises(UserError, match="--lowpass-cutoff must be above 0 and at most 1000000, found 0"):
        PitchOptions(lowpass_cutoff=0)
    with pytest.raises(UserError, match=r"--frame-shift=0\.1 ms"):
        PitchOptions(frame_shift=0.1)
    with pytest.raises(UserError, match="simulate-first-pass-online"):
        PitchOptions(simulate_first_pass_online=True)
    with pytest.raises(UserError, match="at least one of"):
        PitchPostOptions(add_pov_feature=False, add_normalized_log_pitch=False, add_delta_pitch=False)
    with pytest.raises(UserError, match="--penalty-factor must be between 1e-06 and 1000000, found 0"):
        PitchOptions(penalty_factor=0)  # a ZeroDivisionError
    with pytest.raises(UserError, match="--delta-window must be between 1 and 1000000, found 0"):
        PitchPostOptions(delta_window=0)  # NaN


def test_compiled_without_a_writable_place() -> None:
    """A read-only container must not stop the import."""
    code = (
        "import numba.core.caching as caching\n"
        "for name in {'CacheImpl', '_CacheImpl'} & set(dir(caching)): getattr(caching, name)._locator_classes = []\n"
        "import numpy as np; from tympan.features.pitch_track import trace_back\n"
        "assert trace_back(1, np.array([[0, 0], [0, 0]], np.int16)).tolist() == [0, 1]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
