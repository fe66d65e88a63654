"""asr_inference with unusual recordings, changed files and settings without effect, on ESPnet2's trained model."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from tympan.bin import asr_align, asr_inference, transcribe
from tympan.bin.main import run
from tympan.decode.model_files import find_model
from tympan.decode.recognizer import Recognizer
from tympan.errors import UserError

RATE = 16000


@pytest.fixture(scope="module")
def model(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as an experiment directory, with the tokens in a separate file."""
    an4 = golden / "espnet2" / "an4_trained"
    folder = tmp_path_factory.mktemp("exp")
    config = yaml.safe_load((an4 / "asr_config.yaml").read_text(encoding="utf-8"))
    tokens = config["token_list"]
    (folder / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"token_list": "tokens.txt"}), encoding="utf-8")
    shutil.copy(an4 / "asr_model.pth", folder / "model.pth")
    for name in ("an253-fash-b", "an251-fash-b"):
        shutil.copy(an4 / "wav" / f"{name}.wav", folder)
    return folder


def decode(model: Path, folder: Path, lines: dict[str, Path], *options: str, kind: str = "sound") -> int:
    scp = folder / "speech.scp"
    scp.write_text("".join(f"{name} {path}\n" for name, path in lines.items()))
    data = ["--data_path_and_name_and_type", f"{scp},speech,{kind}", "--output_dir", str(folder / "out")]
    return asr_inference.main([*data, "--model_tag", str(model), "--beam_size", "2", *options])


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_unscaled_and_nan_audio_is_not_decoded(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good = model / "an253-fash-b.wav"
    samples, _ = soundfile.read(good, dtype="float32")
    one_nan = samples.copy()
    one_nan[100] = np.nan
    for name, values in {"nan": one_nan, "inf": samples + np.inf, "loud": samples * 32768}.items():
        soundfile.write(tmp_path / f"{name}.wav", values, RATE, subtype="FLOAT")
    bad = {name: tmp_path / f"{name}.wav" for name in ("nan", "inf", "loud")}
    assert decode(model, tmp_path, {"good": good, **bad}) == 1
    assert read(tmp_path / "out" / "text") == ["good GO"]
    failed = read(tmp_path / "out" / "failed")
    assert [line.split()[0] for line in failed] == ["nan", "inf", "loud"]
    assert "contains NaN or infinity" in failed[0]
    assert "in [-1, 1]" in failed[2]
    for path in bad.values():
        assert run(transcribe.main, [str(model), str(path)])
    assert "nan.wav" in capsys.readouterr().err


def test_speech_in_the_second_channel_is_heard(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    samples, rate = soundfile.read(model / "an253-fash-b.wav", dtype="float32")
    soundfile.write(tmp_path / "second.wav", np.stack([samples * 0, samples], axis=1), rate)
    soundfile.write(tmp_path / "equal.wav", np.stack([samples, samples], axis=1), rate)
    assert transcribe.main([str(model), str(tmp_path / "second.wav")]) == 0
    assert capsys.readouterr().out == "GO\n"
    assert "second.wav: its channels differ and were averaged; choose one with --channel N" in caplog.text
    caplog.clear()
    assert transcribe.main([str(model), str(tmp_path / "second.wav"), "--channel", "1"]) == 0
    assert transcribe.main([str(model), str(tmp_path / "equal.wav")]) == 0
    assert capsys.readouterr().out == "GO\nGO\n"
    assert "channels differ" not in caplog.text
    assert run(transcribe.main, [str(model), str(tmp_path / "equal.wav"), "--channel", "2"]) == 1
    assert "there is no channel 2; the number of channels is 2" in capsys.readouterr().err


def test_the_channel_of_training_is_decoded(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "exp"
    shutil.copytree(model, folder)
    with (folder / "config.yaml").open("a", encoding="utf-8") as stream:
        stream.write("channel: 1\n")
    samples, rate = soundfile.read(model / "an253-fash-b.wav", dtype="float32")
    noise = np.random.default_rng(0).normal(0, 0.1, len(samples))
    soundfile.write(tmp_path / "noisy.wav", np.stack([noise, samples], axis=1), rate)
    assert transcribe.main([str(folder), str(tmp_path / "noisy.wav"), str(model / "an253-fash-b.wav")]) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["GO", "GO"]
    assert "channels differ" not in caplog.text
    recognizer = Recognizer.from_pretrained(folder)
    np.testing.assert_array_equal(recognizer.read((np.stack([noise, samples], axis=1), rate)), samples)


def test_stored_arrays_are_audio_or_features(model: Path, tmp_path: Path) -> None:
    samples, _ = soundfile.read(model / "an253-fash-b.wav", dtype="int16")
    arrays = {
        "whole": samples,
        "stereo": np.stack([samples, samples * 0], axis=1) / np.float32(32768),
        "features": np.zeros((200, 80), np.float32),
        "nan": np.full(RATE, np.nan),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert decode(model, tmp_path, {name: tmp_path / f"{name}.npy" for name in arrays}, kind="npy") == 1
    assert read(tmp_path / "out" / "text") == ["whole GO", "stereo GO"]
    assert any("the input of this model is audio" in line for line in read(tmp_path / "out" / "failed"))


def test_a_text_file_is_rejected_as_speech(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="type text is not a type of speech"):
        decode(model, tmp_path, {"a": Path("HELLO")}, kind="text")


def test_starting_from_scratch_removes_the_other_decode(model: Path, tmp_path: Path) -> None:
    lines = {name: model / f"{name}.wav" for name in ("an253-fash-b", "an251-fash-b")}
    assert decode(model, tmp_path, lines, "--nbest", "2", "--nj", "2") == 0
    out = tmp_path / "out"
    assert len(read(out / "2best_recog" / "text")) == 2
    assert (out / "logdir" / "output.2").is_dir()
    fewer = {"an253-fash-b": lines["an253-fash-b"]}
    assert decode(model, tmp_path, fewer, "--ctc_weight", "0.3", "--resume", "false") == 0
    assert not (out / "2best_recog").exists()
    assert not (out / "logdir" / "output.2").exists()
    assert read(out / "text") == ["an253-fash-b GO"]


def test_a_model_may_move_and_may_not_change(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moved = tmp_path / "moved"
    lines = {"an253-fash-b": model / "an253-fash-b.wav"}
    assert decode(model, tmp_path, lines) == 0
    shutil.copytree(model, moved)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO):
        assert decode(Path("moved"), tmp_path, lines) == 0
    assert "continuing: 1 of 1" in caplog.text
    tokens = (moved / "tokens.txt").read_text(encoding="utf-8")
    (moved / "tokens.txt").write_text(tokens.replace("\nG\n", "\nĜ\n"), encoding="utf-8")
    with pytest.raises(UserError, match="token_list of the configuration was"):
        decode(moved, tmp_path, lines)


def test_what_decides_about_results_beside_the_weights(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    files = find_model(tmp_path / "m")
    assert set(files.companions()) == {"token_list of the configuration"}
    (tmp_path / "m" / "features.yaml").write_text("cmvn: mean.ark\n")
    (tmp_path / "m" / "mean.ark").touch()
    assert set(files.companions()) == {"token_list of the configuration", "features.yaml", "cmvn"}


def test_settings_without_effect_are_reported(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = {"an253-fash-b": model / "an253-fash-b.wav"}
    with caplog.at_level(logging.WARNING):
        assert decode(model, tmp_path, lines, "--lm_weight", "0.4", "--search", "ctc_greedy", "--penalty", "3") == 0
    assert "search ctc_greedy does not use beam_size, lm_weight, penalty" in caplog.text


def test_python_reports_what_is_wrong(model: Path) -> None:
    with pytest.raises(UserError, match="must be one of float16"):
        Recognizer.from_pretrained(model, dtype="O1")
    aligned = Recognizer.from_pretrained(model).align(str(model / "an253-fash-b.wav"), "GO")
    assert aligned.times is not None
    assert len(aligned.times) == 2


def test_alignment_reads_before_it_writes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "times.ctm"
    with pytest.raises(UserError, match=r"missing\.wav"):
        asr_align.main([str(model), "--audio", str(tmp_path / "missing.wav"), "--text", "GO", "--output", str(output)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="--text can only be used with --audio"):
        asr_align.main([str(model), "--data_dir", str(tmp_path), "--text", "GO"])
    soundfile.write(tmp_path / "nan.wav", np.full(RATE, np.nan), RATE, subtype="FLOAT")
    (tmp_path / "wav.scp").write_text(f"a {model / 'an253-fash-b.wav'}\nb {tmp_path / 'nan.wav'}\n")
    (tmp_path / "text").write_text("a GO\nb GO\n")
    assert asr_align.main([str(model), "--data_dir", str(tmp_path), "--output", str(output)]) == 1
    assert {line.split()[0] for line in read(output)} == {"a"}
    assert "contains NaN or infinity" in capsys.readouterr().err
