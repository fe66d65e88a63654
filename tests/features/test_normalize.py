"""CMVN over feature sets, through the commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tympan.bin import apply_cmvn, compute_cmvn, make_features
from tympan.data.ark import read_matrix, write_ark
from tympan.data.audio import read_audio
from tympan.data.kaldi_dir import read_table, write_table
from tympan.errors import UserError
from tympan.features.cmvn import read_stats
from tympan.features.deltas import add_deltas
from tympan.features.extractor import compute_features, load_options

NAMES = ["BAC009S0150W0040", "BAC009S0150W0285", "an4-fbbh-an89"]


@pytest.fixture
def feats(golden: Path, tmp_path: Path) -> Path:
    """Kaldi's own features of three utterances by two speakers, in an archive with a relative path."""
    folder = tmp_path / "feats"
    with write_ark(folder / "raw.ark") as ark:
        for name in NAMES:
            ark.write(name, np.load(golden / "kaldi" / f"{name}.npz")["fbank_pitch"])
    write_table(folder / "feats.scp", {key: f"raw.ark:{offset}" for key, offset in ark.offsets.items()})
    write_table(folder / "utt2spk", {name: name[:3] for name in NAMES})
    return folder


def everything(feats: Path) -> np.ndarray:
    return np.concatenate([read_matrix(place, base=feats) for place in read_table(feats / "feats.scp").values()])


@pytest.mark.parametrize("text", ["false", "true"])
def test_global_statistics_and_their_application(feats: Path, tmp_path: Path, text: str) -> None:
    assert compute_cmvn.main([str(feats), str(tmp_path / "cmvn.ark"), "--text", text]) == 0
    stats, frames = read_stats(tmp_path / "cmvn.ark"), everything(feats).astype(np.float64)
    np.testing.assert_allclose(stats[0, :-1], frames.sum(axis=0), rtol=1e-9)
    assert stats[0, -1] == len(frames)
    out = tmp_path / "out"
    assert apply_cmvn.main([str(feats / "feats.scp"), str(out), "--cmvn", str(tmp_path / "cmvn.ark")]) == 0
    normal = everything(out)
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(normal.std(axis=0), 1, atol=1e-4)
    assert read_table(out / "utt2num_frames")[NAMES[0]] == "347"


def test_the_number_of_jobs_changes_nothing(feats: Path, tmp_path: Path) -> None:
    for nj in ("1", "2"):
        compute_cmvn.main([str(feats), str(tmp_path / f"cmvn{nj}"), "--nj", nj])
    assert (tmp_path / "cmvn1").read_bytes() == (tmp_path / "cmvn2").read_bytes()


def test_global_normalisation_equals_kaldi(golden: Path, feats: Path, tmp_path: Path) -> None:
    from tympan.features.cmvn import write_stats

    write_stats(tmp_path / "cmvn.ark", np.load(golden / "kaldi" / "cmvn_global.npz")["fbank_pitch"])
    apply_cmvn.main([str(feats), str(tmp_path / "out"), "--cmvn", str(tmp_path / "cmvn.ark")])
    for name, place in read_table(tmp_path / "out" / "feats.scp").items():
        expected = np.load(golden / "kaldi" / f"{name}.npz")["fbank_pitch_cmvn"]
        np.testing.assert_allclose(read_matrix(place), expected, atol=1e-4)


def test_by_speaker_by_utterance_and_deltas(golden: Path, feats: Path, tmp_path: Path) -> None:
    stats = tmp_path / "spk.ark"
    assert compute_cmvn.main([str(feats), str(stats), "--scope", "speaker"]) == 0
    assert list(read_table(tmp_path / "spk.scp")) == ["BAC", "an4"]
    assert apply_cmvn.main([str(feats), str(tmp_path / "spk"), "--cmvn", str(tmp_path / "spk.scp")]) == 0
    places = read_table(tmp_path / "spk" / "feats.scp")
    together = np.concatenate([read_matrix(places[name]) for name in NAMES[:2]])
    np.testing.assert_allclose(together.mean(axis=0), 0, atol=1e-4)
    assert np.abs(read_matrix(places[NAMES[0]]).mean(axis=0)).max() > 0.05

    assert apply_cmvn.main([str(feats), str(tmp_path / "utt"), "--do_delta", "true"]) == 0
    for name, place in read_table(tmp_path / "utt" / "feats.scp").items():
        expected = np.load(golden / "kaldi" / f"{name}.npz")["fbank_pitch_uttcmvn"]
        np.testing.assert_allclose(read_matrix(place), add_deltas(expected), atol=1e-3)


def test_one_utterance_gives_what_the_commands_give(golden: Path, tmp_path: Path) -> None:
    """A recognizer computes the same features from audio as those that training read."""
    write_table(tmp_path / "data" / "wav.scp", {"utt": golden / "kaldi" / "synth200ms.wav"})
    raw, dump, cmvn = (str(tmp_path / name) for name in ("raw", "dump", "cmvn.ark"))
    make_features.main([str(tmp_path / "data"), raw])
    compute_cmvn.main([raw, cmvn])
    apply_cmvn.main([raw, dump, "--cmvn", cmvn, "--do_delta", "true"])
    options = replace(load_options(tmp_path / "raw" / "features.yaml"), do_delta=True)
    audio = read_audio(golden / "kaldi" / "synth200ms.wav")
    found = compute_features(audio, options, utterance="utt", stats=read_stats(cmvn))
    assert found.shape == (18, options.dim) == (18, 249)
    np.testing.assert_array_equal(found, read_matrix(read_table(tmp_path / "dump" / "feats.scp")["utt"]))


def test_mistakes_are_named(feats: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="would overwrite their source"):
        apply_cmvn.main([str(feats), str(feats)])
    write_table(tmp_path / "cmvn.scp", {"other": "x.ark:5"})
    with pytest.raises(UserError, match=r"cmvn\.scp: no statistics for 'BAC009S0150W0040'"):
        apply_cmvn.main([str(feats), str(tmp_path / "out"), "--cmvn", str(tmp_path / "cmvn.scp")])
    with pytest.raises(UserError, match="not CMVN statistics"):
        apply_cmvn.main([str(feats), str(tmp_path / "out"), "--cmvn", f"{feats}/raw.ark:17"])
