"""The decoding commands as a user runs them, on ESPnet2's trained model."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tympan.bin import asr_align, asr_inference, pack, transcribe
from tympan.bin.main import run
from tympan.data.audio import resample
from tympan.decode.options import BatchLimits, InferenceOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.words import words_of
from tympan.errors import UserError
from tympan.runtime.device import Found

SEARCH = ["--beam_size", "10", "--ctc_weight", "0.4", "--lm_weight", "0.3"]
BEST = {
    "an152-mwhw-b": "START",
    "an251-fash-b": "YES",
    "an253-fash-b": "GO",
    "cen8-fbbh-b": "MARCH THIRD NINETEEN TWENTY EIGHT",
    "cen8-fcaw-b": "ELEVEN TWENTY SEVEN FIFTY SEVEN",
    "cen8-mmxg-b": "OCTOBER TWENTY FOUR NINETEEN SEVENTY",
    "cen8-mwhw-b": "ELEVEN SEVENTEEN FIFTY ONE",
}


@pytest.fixture(scope="module")
def an4(golden: Path) -> Path:
    return golden / "espnet2" / "an4_trained"


@pytest.fixture(scope="module")
def packed(an4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model, moved to another directory."""
    folder = tmp_path_factory.mktemp("models")
    decode = folder / "decode.yaml"
    decode.write_text("beam-size: 10\nctc-weight: 0.4\nlm-weight: 0.3\n")  # ESPnet1's spelling
    assert pack.main([str(folder / "first"), *model_files(an4), "--decode_config", str(decode)]) == 0
    (folder / "first").rename(folder / "second")
    return folder / "second"


def model_files(an4: Path, *, lm: bool = True) -> list[str]:
    files = ["--asr_train_config", str(an4 / "asr_config.yaml"), "--asr_model_file", str(an4 / "asr_model.pth")]
    if lm:
        files += ["--lm_train_config", str(an4 / "lm_config.yaml"), "--lm_file", str(an4 / "lm_model.pth")]
    return files


def data_of(an4: Path, folder: Path, *, extra: Sequence[str] = ()) -> list[str]:
    lines = [f"{name} {an4 / 'wav' / name}.wav" for name in BEST]
    (folder / "wav.scp").write_text("\n".join([*extra, *lines]) + "\n")
    return ["--data_path_and_name_and_type", f"{folder / 'wav.scp'},speech,sound"]


def read_table(path: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in path.read_text().splitlines())


def test_the_tree_of_espnet2_in_the_inputs_order(an4: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--output_dir", str(out), *data_of(an4, tmp_path), *model_files(an4), *SEARCH, "--nbest", "2"]
    assert asr_inference.main(arguments) == 0
    for path in (out / "text", out / "1best_recog" / "text"):
        assert list(read_table(path).items()) == list(BEST.items())
    expected = json.loads((an4 / "nbest.json").read_text())["results"]
    for rank in (0, 1):
        scores = read_table(out / f"{rank + 1}best_recog" / "score")
        for name, value in expected.items():
            assert float(scores[name]) == pytest.approx(value["nbest"][rank]["score"], abs=1e-3)
    assert read_table(out / "1best_recog" / "token_int")["an253-fash-b"] == "9 15"
    assert read_table(out / "1best_recog" / "token")["an253-fash-b"] == "G O"
    assert (out / "ctm").read_text().startswith("an152-mwhw-b 1 0.2")


def test_bad_utterances_are_reported_and_the_rest_continues(
    an4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "short.wav", np.zeros(40), 16000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16000)
    (tmp_path / "noise.wav").write_bytes(b"this is no recording")
    names = ["short", "noise", "empty", "missing"]  # some fail before decoding, some during it
    bad = [f"{name} {name}.wav" for name in names]
    out = tmp_path / "out"
    arguments = ["--output_dir", str(out), *data_of(an4, tmp_path, extra=bad), *model_files(an4, lm=False)]
    assert asr_inference.main([*arguments, "--search", "ctc_greedy"]) == 1
    assert list(read_table(out / "failed")) == names
    assert list(read_table(out / "text")) == list(BEST)
    assert "4 utterances were not decoded" in capsys.readouterr().err


@pytest.mark.parametrize("data_type", ["segments", "multi_columns_sound"])
def test_audio_of_any_kind_is_resampled_to_the_models_rate(an4: Path, tmp_path: Path, data_type: str) -> None:
    """Also a segment of a recording with two channels at 48 kHz, with speech in the first one."""
    samples, rate = soundfile.read(an4 / "wav" / "an253-fash-b.wav", dtype="float32")
    fast = resample(samples, rate, 48000)
    both = np.stack([fast, np.random.default_rng(0).normal(0, 0.1, len(fast))], axis=1)
    soundfile.write(tmp_path / "both.wav", np.concatenate([np.zeros((48000, 2)), both]), 48000, subtype="FLOAT")
    soundfile.write(tmp_path / "first.wav", both, 48000, subtype="FLOAT")
    (tmp_path / "wav.scp").write_text("rec both.wav\n")
    value = "rec 1.0 -1" if data_type == "segments" else "first.wav both.wav"
    (tmp_path / data_type).write_text(f"utt {value}\n")
    given = ["--data_path_and_name_and_type", f"{tmp_path / data_type},speech,{data_type}"]
    out = tmp_path / "out"
    assert asr_inference.main(["--output_dir", str(out), *given, *model_files(an4), *SEARCH, "--channel", "0"]) == 0
    assert read_table(out / "text") == {"utt": "GO"}


def test_a_killed_decode_continues(an4: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data, model = data_of(an4, tmp_path), model_files(an4)
    arguments = ["--output_dir", str(out), *data, *model, *SEARCH, "--batch_size", "1"]
    command = [sys.executable, "-m", "tympan.bin.asr_inference", *arguments]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    journal = out / "logdir" / "results.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and (not journal.exists() or len(journal.read_text().splitlines()) < 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = journal.read_text().splitlines()
    assert 3 <= len(before) < 8, "killed between the first results and the last"
    assert not (out / "text").exists()
    assert asr_inference.main([*arguments[:-1], "4"]) == 0
    assert list(read_table(out / "text").items()) == list(BEST.items())
    after = journal.read_text().splitlines()
    assert len(after) == 1 + len(BEST)
    kept = [line for line in before if line.endswith("}")]
    assert after[: len(kept)] == kept


def test_other_settings_in_the_same_directory_are_rejected(
    an4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--output_dir", str(tmp_path / "out"), *data_of(an4, tmp_path), *model_files(an4, lm=False)]
    assert run(asr_inference.main, [*common, "--search", "ctc_greedy"]) == 0
    assert run(asr_inference.main, [*common, "--search", "ctc_prefix"]) == 2
    assert "search was 'ctc_greedy', now 'ctc_prefix'" in capsys.readouterr().err
    assert run(asr_inference.main, [*common, "--search", "ctc_prefix", "--beam_size", "3", "--resume", "false"]) == 0


def test_a_recording_that_was_exchanged_is_decoded_again(
    an4: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--output_dir", str(out), *data_of(an4, tmp_path), *model_files(an4, lm=False)]
    arguments += ["--search", "ctc_greedy"]
    assert asr_inference.main(arguments) == 0
    before = read_table(out / "text")
    scp = (tmp_path / "wav.scp").read_text()
    (tmp_path / "wav.scp").write_text(scp.replace("wav/an253-fash-b.wav", "wav/an251-fash-b.wav"))
    assert asr_inference.main(arguments) == 0
    assert "decoding 1 utterances again" in capfd.readouterr().err
    assert read_table(out / "text") == {**before, "an253-fash-b": before["an251-fash-b"]}
    assert len((out / "logdir" / "results.jsonl").read_text().splitlines()) == 1 + len(BEST) + 1


def test_results_of_a_model_before_more_training_are_not_taken(
    an4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = torch.load(an4 / "asr_model.pth", weights_only=True)
    torch.save(weights, tmp_path / "model.pth")
    common = ["--output_dir", str(tmp_path / "out"), *data_of(an4, tmp_path), "--search", "ctc_greedy"]
    common += ["--asr_train_config", str(an4 / "asr_config.yaml"), "--asr_model_file", str(tmp_path / "model.pth")]
    assert run(asr_inference.main, common) == 0
    size = (tmp_path / "model.pth").stat().st_size
    weights["ctc.ctc_lo.bias"] += 0.01
    torch.save(weights, tmp_path / "model.pth")
    assert (tmp_path / "model.pth").stat().st_size == size
    assert run(asr_inference.main, common) == 2
    assert "asr_model_file was" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_change_nothing(an4: Path, tmp_path: Path) -> None:
    data, model = data_of(an4, tmp_path), model_files(an4)
    for nj, batch_size in ((1, 7), (2, 2)):
        out = tmp_path / f"out{nj}"
        arguments = ["--output_dir", str(out), *data, *model, *SEARCH, "--batch_size", str(batch_size), "--nj", str(nj)]
        assert asr_inference.main(arguments) == 0
    one, two = (read_table(tmp_path / f"out{nj}" / "score") for nj in (1, 2))
    assert list(one) == list(two)
    assert [float(v) for v in one.values()] == pytest.approx([float(v) for v in two.values()], abs=1e-4)
    shares = [tmp_path / "out2" / "logdir" / f"output.{job}" / "1best_recog" / "text" for job in (1, 2)]
    assert "".join(path.read_text() for path in shares) == (tmp_path / "out2" / "text").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--asr_model_file FILE"),
        (["--asr_model_file", "nowhere.pth"], "nowhere.pth: no such file"),
        (["--model_tag", "nowhere"], "nowhere: no such folder"),
        (["--beam_size", "0", "--model_tag", "."], "--beam_size: must be between 1 and 100000"),
        (["--beam-size", "3"], "beam_size"),
        (["--quantize_lm", "true", "--quantize_dtype", "qint4"], "--quantize_dtype: expects qint8 | float16"),
    ],
)
def test_mistakes_are_one_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    data = ["--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound"]
    assert run(asr_inference.main, ["--output_dir", str(tmp_path / "out"), *data, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_transcribe_prints_the_text(
    an4: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wav = an4 / "wav" / "cen8-fbbh-b.wav"
    assert transcribe.main([str(packed), str(wav)]) == 0
    assert capsys.readouterr().out == f"{BEST['cen8-fbbh-b']}\n"
    assert transcribe.main([str(packed), str(wav), "nowhere.wav", str(an4 / "wav" / "an253-fash-b.wav")]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{wav}\t{BEST['cen8-fbbh-b']}", f"{an4 / 'wav' / 'an253-fash-b.wav'}\tGO"]
    assert captured.err == "tympan: not transcribed: nowhere.wav: there is no such file\n"
    assert transcribe.main([str(packed), str(wav), "--json", "--srt", "--output_dir", str(tmp_path)]) == 0
    answer = json.loads((tmp_path / "cen8-fbbh-b.json").read_text())
    assert answer["text"] == BEST["cen8-fbbh-b"]
    assert len(answer["times"]) == len(answer["tokens"]) == len(answer["token_confidences"])
    assert 0.5 < answer["confidence"] <= 1.0
    assert (tmp_path / "cen8-fbbh-b.srt").read_text().startswith("1\n00:00:00,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch_size", "-1"], "--batch_size: must be at least 0, found -1"),
        (["--max_piece_s", "-1"], "--max_piece_s: must be 1 or more seconds, or 0 (never cut), found -1"),
        (["--max_piece_s", "nan"], "found nan"),
        (["--penalty", "nan"], "--penalty: must be a finite number, found nan"),
    ],
)
def test_invalid_options_of_transcribe(
    packed: Path, an4: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(transcribe.main, [str(packed), f"{an4}/wav/an253-fash-b.wav", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_accelerator_is_reported_without_advice_on_training(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tympan.runtime.device.find_accelerators", lambda: Found(None, 0))
    assert run(transcribe.main, [str(packed), "a.wav", "--ngpu", "1"]) == 2
    assert "Use the CPU with --ngpu 0" in capsys.readouterr().err


def test_files_of_any_name_are_transcribed(
    an4: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (" x.wav", "x |"):
        shutil.copy(an4 / "wav" / "an253-fash-b.wav", tmp_path / name)
        assert transcribe.main([str(packed), str(tmp_path / name)]) == 0
        assert capsys.readouterr().out == "GO\n"


def test_two_recordings_of_one_name_do_not_overwrite_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(transcribe.main, ["model", "a/1.wav", "b/1.wav", "--output_dir", "out"]) == 2
    assert "a/1.wav and b/1.wav would both be written to 1.*" in capsys.readouterr().err


def test_formats_of_several_recordings_are_distinguished(
    an4: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "x" / "a.wav", tmp_path / "y" / "a.wav"]
    for path in files:
        path.parent.mkdir()
        shutil.copy(an4 / "wav" / "an253-fash-b.wav", path)
    assert run(transcribe.main, [str(packed), *map(str, files), "--srt"]) == 2
    assert "--srt for several recordings needs --output_dir" in capsys.readouterr().err
    assert run(transcribe.main, [str(packed), *map(str, files), "--ctm"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(path.with_suffix("")) for path in files]
    assert run(transcribe.main, [str(packed), str(files[0]), "--srt"]) == 0
    assert re.fullmatch(r"1\n00:00:00,\d+ --> 00:00:00,\d+\nGO\n\n", capsys.readouterr().out)


@pytest.fixture
def folder(an4: Path, tmp_path: Path) -> Path:
    """Recordings in subdirectories, two with the same name, and a file that is not audio."""
    for path in ("talks/a.wav", "talks/day1/a.wav", "talks/day1/b.WAV"):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(an4 / "wav" / "an253-fash-b.wav", tmp_path / path)
    (tmp_path / "talks" / "notes.md").write_text("GO")
    return tmp_path / "talks"


def test_directories_and_patterns_are_transcribed(
    packed: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe.main([str(packed), str(folder)]) == 0
    said = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert said == [[str(folder / name), "GO"] for name in ("a.wav", "day1/a.wav", "day1/b.WAV")]
    assert transcribe.main([str(packed), f"{folder}/**/*.wav", str(folder / "a.wav")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    out = tmp_path / "out"
    formats = ["--text", "--json", "--srt", "--vtt"]
    assert transcribe.main([str(packed), str(folder), *formats, "--output_dir", str(out)]) == 0
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.*")} == {
        f"{name}.{kind}" for name in ("a", "day1/a", "day1/b") for kind in ("txt", "json", "srt", "vtt")
    }
    assert (out / "day1" / "b.txt").read_text() == "GO\n"
    assert (out / "a.vtt").read_text().startswith("WEBVTT\n\n00:00:0")


@pytest.mark.parametrize(
    ("name", "message"), [("*.ogg", "no file matches this pattern"), ("empty", "the directory has no audio files")]
)
def test_nothing_to_transcribe(folder: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    assert run(transcribe.main, ["model", str(folder / name)]) == 2
    assert f"{folder / name}: {message}" in capsys.readouterr().err


def test_standard_input_is_transcribed(
    an4: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for sent, code in ((an4 / "wav" / "an253-fash-b.wav").read_bytes(), 0), (b"", 1), (b"no audio", 1):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sent)))
        assert transcribe.main([str(packed), "-", "--json"]) == code
        captured = capsys.readouterr()
        if code:
            assert captured.err.startswith("tympan: not transcribed: -: standard input")
        else:
            answer = json.loads(captured.out)
            assert (answer["file"], answer["text"]) == ("-", "GO")


def test_json_has_words_and_the_n_best(an4: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wav = str(an4 / "wav" / "cen8-fbbh-b.wav")
    assert transcribe.main([str(packed), wav, "--json", "--nbest", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [word["word"] for word in answer["words"]] == BEST["cen8-fbbh-b"].split()
    times = [time for word in answer["words"] for time in (word["start_s"], word["end_s"])]
    assert times == sorted(times)
    assert all(0 <= word["confidence"] <= 1 for word in answer["words"])
    assert len({item["text"] for item in answer["nbest"]}) == 3
    assert answer["nbest"][0]["text"] == BEST["cen8-fbbh-b"]
    scores = [item["score"] for item in answer["nbest"]]
    assert scores == sorted(scores, reverse=True)
    assert transcribe.main([str(packed), wav, "--nbest", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [item["text"] for item in answer["nbest"]]


def test_python_gives_the_n_best_and_the_encoding(an4: Path, packed: Path) -> None:
    recognizer = Recognizer.from_pretrained(packed, search="joint")
    wav = an4 / "wav" / "cen8-fbbh-b.wav"
    ranked = recognizer(wav, nbest=3)
    assert len(ranked) == 3
    texts = [hypothesis.text for hypothesis in ranked]
    assert [[item.text for item in items] for items in recognizer([wav, wav], nbest=2)] == [texts[:2]] * 2
    assert recognizer(wav).text == texts[0]
    assert [word.text for word in ranked[0].word_times] == BEST["cen8-fbbh-b"].split()
    with pytest.raises(UserError, match="nbest must be at least 1, found 0"):
        recognizer(wav, nbest=0)
    encoding = recognizer.encode(wav)
    assert encoding.ctc_log_probs is not None
    assert encoding.out.shape[0] == len(encoding.ctc_log_probs)
    assert encoding.ctc_log_probs.shape[1] == len(recognizer.loaded.codec.vocabulary)
    assert encoding.ctc_log_probs.exp().sum(1).numpy() == pytest.approx(1.0, abs=1e-4)
    seconds = soundfile.info(wav).duration
    assert len(encoding.out) * encoding.frame_shift_s == pytest.approx(seconds, abs=0.15)


def test_python_takes_paths_arrays_and_lists(an4: Path, packed: Path) -> None:
    recognizer = Recognizer.from_pretrained(packed)
    wav = an4 / "wav" / "an253-fash-b.wav"
    samples, rate = soundfile.read(wav, dtype="int16")
    doubled = np.repeat(samples, 2)
    from_path = recognizer(wav)
    assert from_path.text == "GO"
    assert recognizer(samples, rate=rate).score == pytest.approx(from_path.score, abs=1e-4)
    answers = recognizer([(samples, rate), str(wav), (np.stack([doubled, doubled], axis=1), 2 * rate)])
    assert [answer.text for answer in answers] == ["GO", "GO", "GO"]


@pytest.mark.parametrize(
    ("audio", "rate", "message"),
    [
        ([0.1, 0.2], 16000, "a list must contain recordings"),
        (np.zeros(9), 0, "the rate must be a positive integer"),
        (np.zeros(9), None, "samples need their rate"),
        (np.zeros(9), "16000", "found str '16000'"),
        (np.zeros(9), float("nan"), "found float nan"),
        (np.zeros((2, 16000)), 16000, r"found shape \(2, 16000\)"),
        (np.full(16000, np.nan), 16000, "contain nan or inf"),
        (np.zeros(16000, dtype=complex), 16000, "must be floats or integers"),
        (np.zeros(16000, dtype=np.int64), 16000, r"samples of int64.*astype\(numpy.int16\)"),
        (np.full(16000, 9000.0), 16000, r"found 9000: divide 16-bit PCM by 32768"),
        ((16000, np.zeros(16000)), None, r"found \(rate, samples\), as scipy"),
        (("a.wav", "b.flac"), None, r"as a list, not as a tuple"),
        ((np.zeros(9),), None, "found 1 values"),
        (b"RIFF", 16000, "a recording must be a path.*found bytes b'RIFF'"),
        (None, None, "found NoneType"),
        (np.zeros(40), 16000, "too short"),
        ([np.zeros(16000), np.zeros(40)], 16000, r"recording \[1\] of the list: .* too short"),
        ([(np.zeros(16000), 16000), None], None, r"recording \[1\] of the list: a recording must be a path"),
    ],
)
def test_invalid_samples_are_reported(packed: Path, audio: Any, rate: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recognizer.from_pretrained(packed)(audio, rate=rate)


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:1"])
def test_a_missing_device_is_reported(packed: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tympan.runtime.device.find_accelerators", lambda: Found(None, 0))
    with pytest.raises(UserError, match=f"device '{device}': this host has no accelerator, use 'cpu'"):
        Recognizer.from_pretrained(packed, device=device)


def test_bytes_are_samples_around_128(an4: Path, packed: Path) -> None:
    recognizer = Recognizer.from_pretrained(packed)
    samples, rate = soundfile.read(an4 / "wav" / "an253-fash-b.wav", dtype="float32")
    as_bytes = np.clip(np.round(samples * 128) + 128, 0, 255).astype(np.uint8)
    np.testing.assert_allclose(recognizer.read(as_bytes, rate=rate), recognizer.read(samples, rate=rate), atol=1 / 128)


def test_a_long_recording_is_cut_and_joined_with_times(an4: Path, packed: Path) -> None:
    names = ["cen8-fcaw-b", "cen8-mwhw-b", "cen8-fcaw-b"]
    silence = np.random.default_rng(0).normal(0, 1e-4, 8000).astype(np.float32)
    parts = [
        np.concatenate([silence, soundfile.read(an4 / "wav" / f"{n}.wav", dtype="float32")[0], silence]) for n in names
    ]
    recognizer = Recognizer.from_pretrained(packed, limits=BatchLimits(max_piece_s=5.0, batch_size=2))
    whole = recognizer((np.concatenate(parts), 16000))
    words = whole.text.split()
    assert " ".join(words) == " ".join(BEST[name] for name in names)
    assert whole.times is not None
    starts = [start for start, _ in whole.times]
    assert starts == sorted(starts)
    last_part_s = (len(parts[0]) + len(parts[1])) / 16000
    said = len(BEST["cen8-fcaw-b"])
    assert starts[-said] == pytest.approx(last_part_s + 0.5, abs=0.6)


def test_alignment_of_a_given_text(an4: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asr_align.main([str(packed), "--data_dir", str(an4)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    said = {name: " ".join(line[4] for line in lines if line[0] == name) for name in BEST}
    assert said == BEST
    for name in BEST:
        starts = [float(line[2]) for line in lines if line[0] == name]
        assert starts == sorted(starts)
    assert (
        run(asr_align.main, [str(packed), "--audio", str(an4 / "wav" / "an253-fash-b.wav"), "--text", "GO" * 40]) == 1
    )
    assert "tokens, too many to align with the" in capsys.readouterr().err


def test_a_long_recording_is_aligned_in_pieces(an4: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cen8-fcaw-b", "cen8-mwhw-b", "an253-fash-b", "cen8-fcaw-b"]
    silence = np.random.default_rng(0).normal(0, 1e-4, 8000).astype(np.float32)
    said = [soundfile.read(an4 / "wav" / f"{name}.wav", dtype="float32")[0] for name in names]
    samples = np.concatenate([part for one in said for part in (silence, one, silence)])
    recognizer = Recognizer.from_pretrained(packed, limits=BatchLimits(max_piece_s=5.0))
    longest = []
    encode = recognizer.encode_batch
    monkeypatch.setattr(recognizer, "encode_batch", lambda inputs: longest.append(len(inputs[0])) or encode(inputs))
    whole = recognizer.align(samples, " ".join(BEST[name] for name in names))
    assert len(longest) > 2
    assert max(longest) <= 5.0 * recognizer.rate
    words = words_of(whole)
    assert [word.text for word in words] == [word for name in names for word in BEST[name].split()]
    offset_s = 0.0
    for name, one in zip(names, said, strict=True):
        offset_s += 0.5
        alone = words_of(recognizer.align(one, BEST[name]))
        found, words = words[: len(alone)], words[len(alone) :]
        # The first and the last word extend into the silence by an amount that depends on the model.
        for want, got in list(zip(alone, found, strict=True))[1:-1]:
            assert got.start_s == pytest.approx(offset_s + want.start_s, abs=0.03)
            assert got.end_s == pytest.approx(offset_s + want.end_s, abs=0.03)
        offset_s += len(one) / recognizer.rate + 0.5


def test_what_was_aligned_stays_after_a_kill(an4: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "test.ctm"
    arguments = [str(packed), "--data_dir", str(an4), "--output", str(out)]
    align, count = Recognizer.align, 0

    def interrupted(self: Recognizer, samples: np.ndarray, text: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return align(self, samples, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recognizer, "align", interrupted)
        assert run(asr_align.main, arguments) == 130
    assert not out.exists()
    partial = (out.parent / "test.ctm.partial").read_text()
    assert {line.split()[0] for line in partial.splitlines()} == set(list(BEST)[:2])
    assert run(asr_align.main, arguments) == 0
    assert out.read_text().startswith(partial)
    assert list(out.parent.iterdir()) == [out]


def test_out_of_memory_is_reported_with_existing_options(
    an4: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(Recognizer, "encode_batch", full)
    assert run(asr_align.main, [str(packed), "--audio", f"{an4}/wav/an253-fash-b.wav", "--text", "GO"]) == 1
    message = capsys.readouterr().err
    known = {f"--{item.name}" for item in fields(asr_align.Options)}
    assert "out of memory (" in message
    assert set(re.findall(r"--\w+", message)) <= known


def test_text_with_only_unknown_tokens_is_reported(an4: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = [str(packed), "--audio", str(an4 / "wav" / "cen8-fbbh-b.wav"), "--text"]
    assert run(asr_align.main, [*one, "march third"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the model knows no token of this text ('m', 'a', 'r', 'c', 'h', 't', 'i', 'd')" in captured.err
    assert run(asr_align.main, [*one, "MARCH thIRD"]) == 1
    captured = capsys.readouterr()
    assert [line.split()[4] for line in captured.out.splitlines()] == ["MARCH", "thIRD"]
    assert "warning: cen8-fbbh-b: the model does not know 't', 'h'" in captured.err
    assert run(asr_align.main, [*one, "   "]) == 2
    assert "--text is empty" in capsys.readouterr().err


def test_texts_without_a_recording_are_reported(
    an4: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wav.scp").write_text(f"a {an4}/wav/an253-fash-b.wav\nb {an4}/wav/an251-fash-b.wav\n")
    (tmp_path / "text").write_text("a GO\nc STOP\n")
    assert run(asr_align.main, [str(packed), "--data_dir", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert [line.split()[4] for line in captured.out.splitlines()] == ["GO"]
    assert f"not aligned: c: {tmp_path}/text has its text, but there is no recording" in captured.err
    assert "1 recordings have no text" in captured.err


def test_half_precision_gives_the_same_text(an4: Path, packed: Path) -> None:
    recognizer = Recognizer.from_pretrained(packed, dtype="bfloat16")
    assert recognizer(an4 / "wav" / "cen8-fcaw-b.wav").text == BEST["cen8-fcaw-b"]


def test_a_model_comes_from_the_hub_by_name(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("huggingface_hub")
    asked: list[str] = []
    hub.list_repo_files = lambda name: sorted(path.name for path in packed.iterdir())  # type: ignore[attr-defined]
    hub.snapshot_download = lambda name, **_: asked.append(name) or str(packed)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert Recognizer.from_pretrained("someone/something").options.beam_size == 10
    assert asked == ["someone/something"]


def test_espnet2s_options_and_defaults_are_taken(reference: Path) -> None:
    ours = {item.name: item for item in fields(InferenceOptions)}
    changed = {"config", "batch_size", "output_dir", "data_path_and_name_and_type"}
    for line in (reference / "espnet2_asr_inference_options.txt").read_text().splitlines():
        found = re.match(r"--(\w+)  default=(.+?)(  choices.*|  type.*)?$", line)
        if found is None or found[1] in changed:
            continue
        default = ours[found[1]].default
        if default is MISSING:
            default = ours[found[1]].default_factory()
        assert default == ast.literal_eval(found[2]), line


def test_a_packed_model_that_names_a_class_is_rejected(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(packed, foreign)
    config = (foreign / "config.yaml").read_text()
    (foreign / "config.yaml").write_text(config.replace("encoder: conformer", "encoder: os:system"))
    assert run(transcribe.main, [str(foreign), "a.wav"]) == 2
    assert "--allow_import" in capsys.readouterr().err


def test_a_packed_model_has_no_path_of_this_machine(packed: Path, an4: Path) -> None:
    for path in packed.rglob("*.yaml"):
        assert str(an4) not in path.read_text()
        assert "output_dir" not in path.read_text()
    assert {path.name for path in packed.iterdir()} == {"config.yaml", "decode.yaml", "lm", "model.safetensors"}


def test_weights_of_another_model_are_named(an4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.load(an4 / "asr_model.pth", weights_only=True)
    weights["extra.weight"] = weights.pop("ctc.ctc_lo.weight")
    torch.save(weights, tmp_path / "other.pth")
    arguments = ["--output_dir", str(tmp_path / "out"), *data_of(an4, tmp_path)]
    arguments += ["--asr_train_config", str(an4 / "asr_config.yaml"), "--asr_model_file", str(tmp_path / "other.pth")]
    assert run(asr_inference.main, arguments) == 2
    message = capsys.readouterr().err
    assert "missing: ctc.ctc_lo.weight" in message
    assert "unknown: extra.weight" in message
