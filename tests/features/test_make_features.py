"""The command that makes features: Kaldi's values, restarts, faults in the audio."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.make_features import main
from tympan.data.ark import read_matrix, write_ark
from tympan.data.audio import Audio, read_audio
from tympan.data.kaldi_dir import DataDir, read_table, write_table
from tympan.errors import UserError
from tympan.features.extractor import FeatureOptions, compute_features, load_options
from tympan.features.fbank import FbankOptions
from tympan.features.pitch import PitchOptions

NAMES = ["BAC009S0150W0040", "BAC009S0150W0285", "an4-fbbh-an89", "silence", "synth200ms"]


@pytest.fixture
def quiet_conf(tmp_path: Path) -> list[str]:
    """Kaldi's conf files with every noise turned off, as arguments."""
    (tmp_path / "fbank.conf").write_text("--sample-frequency=16000\n--num-mel-bins=80\n")
    (tmp_path / "pitch.conf").write_text("--sample-frequency=16000\n")
    (tmp_path / "post.conf").write_text("--delta-pitch-noise-stddev=0\n")
    return [
        *("--fbank_config", str(tmp_path / "fbank.conf"), "--pitch_config", str(tmp_path / "pitch.conf")),
        *("--pitch_postprocess_config", str(tmp_path / "post.conf"), "--dither", "0"),
    ]


@pytest.fixture
def noise_data(tmp_path: Path) -> Path:
    """Twelve short recordings of noise, with text and speakers."""
    directory, rng = tmp_path / "data", np.random.default_rng(0)
    directory.mkdir()
    ids = [f"s{number % 2}-u{number:02d}" for number in range(12)]
    for key in ids:
        soundfile.write(directory / f"{key}.wav", rng.normal(0, 0.1, 4000), 16000)
    DataDir(
        directory,
        {
            "wav.scp": {key: f"{key}.wav" for key in ids},
            "text": {key: f"text of {key}" for key in ids},
            "utt2spk": {key: key[:2] for key in ids},
        },
    ).write(directory)
    return directory


@pytest.mark.parametrize("nj", ["1", "2"])
def test_all_83_dimensions_equal_kaldi(golden: Path, tmp_path: Path, quiet_conf: list[str], nj: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_table(data / "wav.scp", {name: golden / "kaldi" / f"{name}.wav" for name in NAMES})
    assert main([str(data), str(out), "--feats_type", "fbank_pitch", "--nj", nj, *quiet_conf]) == 0
    places = read_table(out / "feats.scp")
    assert list(places) == sorted(NAMES)
    for name in NAMES:
        stored = np.load(golden / "kaldi" / f"{name}.npz")
        found, expected = read_matrix(places[name]), stored["fbank_pitch"]
        assert found.shape == expected.shape
        assert np.abs(found - expected)[:, :80].mean() < 1e-5
        assert np.abs(found - expected)[:, :80].max() < 2e-3
        np.testing.assert_allclose(found[:, 80:], expected[:, 80:], atol=2e-3)
        assert read_table(out / "utt2num_frames")[name] == str(len(expected))


def test_segments_are_parts_of_recordings(golden: Path, tmp_path: Path, quiet_conf: list[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    recording = golden / "kaldi" / "an4-fbbh-an89.wav"
    samples, _ = soundfile.read(recording, dtype="float32")
    write_table(data / "wav.scp", {"rec": recording})
    write_table(data / "segments", {"utt-a": "rec 0.5 1.5", "utt-b": "rec 2 -1"})
    assert main([str(data), str(out), "--feats_type", "fbank", *quiet_conf]) == 0
    places = read_table(out / "feats.scp")
    options = load_options(out / "features.yaml")
    for key, part in (("utt-a", samples[8000:24000]), ("utt-b", samples[32000:])):
        expected = compute_features(Audio(part, 16000), options, utterance=key)
        np.testing.assert_array_equal(read_matrix(places[key]), expected)


def test_a_second_run_makes_only_what_is_missing(
    noise_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = [str(noise_data), str(out), "--feats_type", "fbank", "--utterances_per_archive", "4"]
    assert main(arguments) == 0
    before = {key: read_matrix(place) for key, place in read_table(out / "feats.scp").items()}
    stamps = {path: path.stat().st_mtime_ns for path in (out / "archive").glob("*.ark")}
    assert len(stamps) == 3
    (out / "archive" / "feats.00002.ark").unlink()
    # What an interrupted run leaves behind: an archive without its index, and one that was being written.
    (out / "archive" / "feats.00003.index").unlink()
    (out / "archive" / ".feats.00009.ark.x.part").write_bytes(b"half")
    capsys.readouterr()
    assert main(arguments) == 0
    assert "12 utterances (4 already computed)" in capsys.readouterr().out
    assert not list((out / "archive").glob(".*.part"))
    after = read_table(out / "feats.scp")
    assert list(after) == list(before)
    for key, matrix in before.items():
        np.testing.assert_array_equal(read_matrix(after[key]), matrix)
    first = out / "archive" / "feats.00001.ark"
    assert first.stat().st_mtime_ns == stamps[first]


def test_other_audio_under_the_same_id_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (8000, 2))
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", noise if name == "a" else noise[:4000], 16000)
    data, out = tmp_path / "data", tmp_path / "out"
    arguments = [str(data), str(out), "--feats_type", "fbank", "--dither", "0"]

    def made(*, audio: str, channel: str) -> np.ndarray:
        write_table(data / "wav.scp", {"u": tmp_path / f"{audio}.wav", "v": tmp_path / "a.wav"})
        main([*arguments, "--channel", channel])
        return read_matrix(read_table(out / "feats.scp")["u"])

    first = made(audio="a", channel="0")
    assert np.abs(made(audio="a", channel="1") - first).max() > 0.1
    assert len(made(audio="b", channel="1")) < len(first)
    assert "2 utterances (1 already computed)" in capsys.readouterr().out
    np.testing.assert_array_equal(made(audio="a", channel="0"), first)


def test_the_result_does_not_depend_on_the_number_of_jobs(noise_data: Path, tmp_path: Path) -> None:
    for nj in ("1", "3"):
        main([str(noise_data), str(tmp_path / nj), "--nj", nj])
    one, three = (read_table(tmp_path / nj / "feats.scp") for nj in ("1", "3"))
    for key in one:
        np.testing.assert_array_equal(read_matrix(one[key]), read_matrix(three[key]))


def test_an_interrupted_run_can_be_continued(noise_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ids = [f"u{number:04d}" for number in range(3000)]
    write_table(
        tmp_path / "many" / "wav.scp", {key: noise_data / f"s{i % 2}-u{i % 12:02d}.wav" for i, key in enumerate(ids)}
    )
    command = [sys.executable, "-m", "tympan.bin.make_features", str(tmp_path / "many"), str(out)]
    arguments = ["--feats_type", "fbank", "--dither", "0", "--utterances_per_archive", "50"]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((out / "archive").glob("*.index")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "feats.scp").exists()
    started = len(list((out / "archive").glob("*.index")))
    assert 0 < started < 60
    assert main([str(tmp_path / "many"), str(out), *arguments]) == 0
    places = read_table(out / "feats.scp")
    assert list(places) == ids
    assert read_matrix(places["u0000"]).shape == read_matrix(places["u2999"]).shape == (23, 80)


def test_short_files_are_listed_and_skipped(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = golden / "kaldi" / "edge_wav"
    write_table(tmp_path / "data" / "wav.scp", {path.stem: path for path in sorted(folder.glob("*.wav"))})
    assert main([str(tmp_path / "data"), str(tmp_path / "out"), "--dither", "0"]) == 0
    expected = {}
    header, *rows = (golden / "kaldi" / "lengths.tsv").read_text().splitlines()
    column = header.split("\t").index("fbank_pitch")
    for row in rows:
        columns = row.split("\t")
        expected[columns[0]] = columns[column]
    counts = read_table(tmp_path / "out" / "utt2num_frames")
    assert counts == {key: count for key, count in expected.items() if count != "-"}
    skipped = read_table(tmp_path / "out" / "skipped")
    assert sorted(skipped) == sorted(key for key, count in expected.items() if count == "-")
    assert skipped["n00001"] == "0.0001 s is shorter than one frame (--frame-length is 25 ms)"
    assert "5 shorter than one frame, 0 unreadable" in capsys.readouterr().out


@pytest.mark.parametrize(("key", "snip_edges"), [("fbank_pitch", True), ("fbank_pitch_nosnip", False)])
def test_pasted_frame_counts_equal_kaldi(golden: Path, key: str, snip_edges: bool) -> None:
    header, *rows = (golden / "kaldi" / "lengths.tsv").read_text().splitlines()
    names = header.split("\t")
    options = FeatureOptions(
        fbank=FbankOptions(dither=0.0, snip_edges=snip_edges), pitch=PitchOptions(snip_edges=snip_edges)
    )
    compared = 0
    for row in rows:
        columns = dict(zip(names, row.split("\t"), strict=True))
        audio = read_audio(golden / "kaldi" / "edge_wav" / f"{columns['utt']}.wav")
        found = compute_features(audio, options, utterance=columns["utt"])
        assert found.shape[1] == 83
        if columns[key] != "-":  # Kaldi fails on the others
            assert len(found) == int(columns[key]), columns["utt"]
            compared += 1
    assert compared > 10


def test_unreadable_audio_fails_at_the_end_and_names_itself(noise_data: Path, tmp_path: Path) -> None:
    broken = noise_data / "s0-u02.wav"
    broken.write_bytes(broken.read_bytes()[:500])
    arguments = [str(noise_data), str(tmp_path / "out"), "--feats_type", "fbank"]
    with pytest.raises(
        UserError, match=r"1 recordings can't be read. The first error: .*s0-u02.wav: truncated"
    ) as caught:
        main(arguments)
    assert "tympan fix_data" in str(caught.value)
    assert main([*arguments, "--skip_broken", "true"]) == 0
    assert len(read_table(tmp_path / "out" / "feats.scp")) == 11
    assert "s0-u02" not in read_table(tmp_path / "out" / "text")


def test_other_options_do_not_mix(noise_data: Path, tmp_path: Path) -> None:
    arguments = [str(noise_data), str(tmp_path / "out"), "--feats_type", "fbank"]
    main(arguments)
    with pytest.raises(UserError, match=r"computed with other options \(earlier / now: --dither 1.0 / 0.0\)"):
        main([*arguments, "--dither", "0"])
    assert main([*arguments, "--dither", "0", "--overwrite", "true"]) == 0
    assert load_options(tmp_path / "out" / "features.yaml").fbank.dither == 0


def test_a_conf_file_that_is_not_used_is_told(
    noise_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fbank.conf").write_text("--num-mel-bins=40\n")
    config = ["--fbank_config", str(tmp_path / "fbank.conf")]
    main([str(noise_data), str(tmp_path / "out"), "--feats_type", "mfcc", *config])
    assert "warning: --fbank_config is not used by --feats_type mfcc" in capsys.readouterr().err


def test_compressed_archives(noise_data: Path, tmp_path: Path) -> None:
    for name, more in (("plain", []), ("small", ["--compression_method", "2"])):
        main([str(noise_data), str(tmp_path / name), "--feats_type", "fbank", "--dither", "0", *more])
    plain, small = (read_table(tmp_path / name / "feats.scp") for name in ("plain", "small"))
    sizes = [sum(path.stat().st_size for path in (tmp_path / n / "archive").glob("*.ark")) for n in ("plain", "small")]
    assert sizes[1] < 0.4 * sizes[0]
    for key in plain:
        assert np.abs(read_matrix(plain[key]) - read_matrix(small[key])).max() < 0.1


def test_wrong_rate_and_channels_say_what_to_do(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    write_table(tmp_path / "data" / "wav.scp", {"a": tmp_path / "a.wav"})
    with pytest.raises(UserError, match=r"8000 Hz.*--sample-frequency=16000.*--allow-upsample=true"):
        main([str(tmp_path / "data"), str(tmp_path / "out")])
    soundfile.write(tmp_path / "a.wav", np.zeros((16000, 2)), 16000)
    with pytest.raises(UserError, match=r"'a' has 2 channels; choose one with --channel"):
        main([str(tmp_path / "data"), str(tmp_path / "out")])
    assert main([str(tmp_path / "data"), str(tmp_path / "out"), "--channel", "1"]) == 0


def test_pipes_need_leave(noise_data: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "data" / "wav.scp", {"rec": f"cat {noise_data / 's0-u00.wav'} |"})
    write_table(tmp_path / "data" / "segments", {"a": "rec 0 0.1", "b": "rec 0.1 0.25"})
    with pytest.raises(UserError, match="--allow_pipes true"):
        main([str(tmp_path / "data"), str(tmp_path / "out")])
    assert main([str(tmp_path / "data"), str(tmp_path / "out"), "--allow_pipes", "true"]) == 0
    assert read_table(tmp_path / "out" / "utt2num_frames") == {"a": "8", "b": "13"}


def test_stored_options_make_the_same_features(noise_data: Path, tmp_path: Path) -> None:
    main([str(noise_data), str(tmp_path / "out"), "--feats_type", "mfcc"])
    assert load_options(tmp_path / "out" / "features.yaml") == FeatureOptions("mfcc")
    (tmp_path / "features.yaml").write_text("feats_type: fbank_pitch\nfs: 8000\nfbank: {}\npitch: {}\ndo_delta: true\n")
    options = load_options(tmp_path / "features.yaml")
    assert options.pitch.sample_frequency == options.fbank.sample_frequency == 8000
    assert options.dim == 249


def test_real_recordings(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AN4's wav.scp has paths relative to its own directory."""
    monkeypatch.chdir(tmp_path)
    source = DataDir.read(real_data / "an4" / "train_dev")
    source.keep(source.utterances[:5]).write(tmp_path / "data")
    assert main(["data", "out"]) == 0
    matrices = [read_matrix(place) for place in read_table(tmp_path / "out" / "feats.scp").values()]
    assert len(matrices) == 5
    assert all(matrix.shape[1] == 83 and np.isfinite(matrix).all() for matrix in matrices)


@pytest.mark.parametrize("method", [1, 2, 5])
def test_compressed_archives_equal_kaldi(golden: Path, tmp_path: Path, method: int) -> None:
    """Method 2 is the one of Kaldi's recipes, and of `tympan recipe --compress true`."""
    name = "BAC009S0150W0040"
    with write_ark(tmp_path / "own.ark", compression_method=method) as ark:
        ark.write(name, np.load(golden / "kaldi" / f"{name}.npz")["fbank_pitch"])
    expected = golden / "kaldi" / f"{name}.fbank_pitch.method{method}.ark"
    assert (tmp_path / "own.ark").read_bytes() == expected.read_bytes()
