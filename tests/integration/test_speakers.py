"""Mixtures of two speakers through the commands: statistics, training, resuming, decoding, transcribing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml
from train_corpus import run, same_weights, weights

import tympan
from tympan.bin import asr_align, asr_inference, transcribe
from tympan.decode.model_files import find_model
from tympan.errors import UserError
from tympan.training.checkpoint import read_reporter

RATE = 8000
VOICES = ({"a": 300.0, "b": 420.0}, {"c": 1500.0, "d": 2100.0})
"""The tones of each speaker."""


def mixture(words: tuple[str, ...], rng: np.random.Generator) -> np.ndarray:
    """Both speakers at once, each with a tone per letter."""
    time_s = np.arange(1600) / RATE
    longest = max(map(len, words))
    mixed = rng.normal(0, 0.002, longest * len(time_s))
    for word, voice in zip(words, VOICES, strict=True):
        spoken = np.concatenate([0.3 * np.sin(2 * np.pi * voice[letter] * time_s) for letter in word])
        mixed[: len(spoken)] += spoken
    return mixed


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file for asr_train on mixtures. Which speaker's text is `text` is random."""
    directory, rng = tmp_path_factory.mktemp("mixtures"), np.random.default_rng(0)
    (directory / "tokens.txt").write_text("<blank>\n<unk>\na\nb\nc\nd\n<sos/eos>\n")
    triples = {}
    for side, number in (("train", 24), ("valid", 4)):
        files: dict[str, list[str]] = {"wav.scp": [], "text_spk1": [], "text_spk2": []}
        for index in range(number):
            words = tuple("".join(rng.choice(list(voice), size=rng.integers(2, 4))) for voice in VOICES)
            name, path = f"{side}{index:03d}", directory / f"{side}{index:03d}.wav"
            soundfile.write(path, mixture(words, rng), RATE)
            files["wav.scp"].append(f"{name} {path}\n")
            for speaker, word in enumerate(rng.permutation(words), start=1):
                files[f"text_spk{speaker}"].append(f"{name} {word}\n")
        (directory / side).mkdir()
        for file, lines in files.items():
            (directory / side / file).write_text("".join(lines))
        triples[side] = [[f"{directory}/{side}/wav.scp", "speech", "sound"]]
        triples[side] += [
            [f"{directory}/{side}/text_spk1", "text", "text"],
            [f"{directory}/{side}/text_spk2", "text_spk2", "text"],
        ]
    blocks = {"attention_heads": 2, "linear_units": 32, "num_blocks": 1}
    options: dict[str, Any] = {
        "token_type": "char",
        "token_list": f"{directory}/tokens.txt",
        "frontend_conf": {"fs": RATE, "n_fft": 256, "hop_length": 100, "n_mels": 20},
        "preprocessor": "multi",
        "preprocessor_conf": {"text_name": ["text", "text_spk2"]},
        "encoder": "transformer_multispkr",
        "encoder_conf": {**blocks, "output_size": 32, "num_blocks_sd": 1, "num_inf": 2, "dropout_rate": 0.0},
        "ctc_conf": {"reduce": False},
        "decoder": "transformer",
        "decoder_conf": blocks,
        "model": "pit_espnet",
        "model_conf": {"ctc_weight": 0.5, "num_inf": 2, "num_ref": 2},
        "optim": "adam",
        "optim_conf": {"lr": 0.003},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 10},
        "batch_type": "numel",
        "batch_bins": 60000,
        "num_workers": 0,
        "max_epoch": 3,
        "num_att_plot": 1,
        "use_tensorboard": False,
        "best_model_criterion": [["valid", "acc", "max"]],
        "train_data_path_and_name_and_type": triples["train"],
        "valid_data_path_and_name_and_type": triples["valid"],
    }
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(options))
    return path


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("trained")
    done = run(config, output)
    assert done.returncode == 0, done.stderr
    return output


def test_training_learns_and_a_resumed_run_has_the_same_bits(config: Path, finished: Path, tmp_path: Path) -> None:
    reporter = read_reporter(finished)
    for name in ("loss", "loss_ctc", "loss_att"):
        assert reporter.get("train", name, 3) < reporter.get("train", name, 1)
    assert {"cer", "wer", "cer_ctc", "acc"} <= set(reporter.stats[3]["valid"])
    names = weights(finished / "3epoch.pth").keys()
    assert {"encoder.encoders_sd.1.0.norm1.weight", "pit_ctc.criterion_fn.ctc_lo.weight"} <= names
    assert list((finished / "att_ws").rglob("*.png"))
    for epochs in ("2", "3"):
        done = run(config, tmp_path, "--max_epoch", epochs, "--resume", "true")
        assert done.returncode == 0, done.stderr
    assert same_weights(finished / "3epoch.pth", tmp_path / "3epoch.pth")


def test_statistics_have_the_lengths_of_every_text(config: Path, tmp_path: Path) -> None:
    done = run(config, tmp_path, "--collect_stats", "true")
    assert done.returncode == 0, done.stderr
    for name in ("speech_shape", "text_shape", "text_spk2_shape"):
        assert len((tmp_path / "train" / name).read_text().splitlines()) == 24


def test_both_speakers_are_decoded(config: Path, finished: Path, tmp_path: Path) -> None:
    arguments = ["--output_dir", str(tmp_path), "--asr_train_config", str(finished / "config.yaml")]
    arguments += ["--asr_model_file", str(find_model(finished).asr_model_file)]
    arguments += ["--beam_size", "3", "--maxlenratio", "-5"]
    arguments += ["--data_path_and_name_and_type", f"{config.parent}/valid/wav.scp,speech,sound", "--nj", "2"]
    assert asr_inference.main(arguments) == 0
    for speaker in (1, 2):
        lines = (tmp_path / "logdir" / "output.2" / "1best_recog" / f"text_spk{speaker}").read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["valid002", "valid003"]
    recognizer = tympan.load(finished, beam_size=3, maxlenratio=-5)
    speakers = recognizer.speakers(config.parent / "valid000.wav")
    written = [(tmp_path / f"text_spk{n}").read_text().splitlines()[0].partition(" ")[2].strip() for n in (1, 2)]
    assert [hypothesis.text for hypothesis in speakers] == written
    assert [hypothesis.speaker for hypothesis in speakers] == [1, 2]
    long = np.tile(mixture(("ab", "cd"), np.random.default_rng(1)), 100)  # above max_piece_s: never cut
    recognizer = tympan.load(finished, search="ctc_greedy")
    assert len(recognizer.speakers(long, rate=RATE)) == 2
    silent = recognizer.speakers(np.zeros(RATE), rate=RATE)
    assert [(hypothesis.text, hypothesis.speaker) for hypothesis in silent] == [("", 1), ("", 2)]


def test_transcribe_prints_a_line_for_each_speaker(
    config: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audio = str(config.parent / "valid000.wav")
    options = [str(finished), audio, "--search", "ctc_greedy"]
    assert transcribe.main(options) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3
    assert transcribe.main([*options, "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["speaker"], entry["text"]) for entry in entries] == [(1, lines[0]), (2, lines[1])]
    with pytest.raises(UserError, match=r"recognizes 2 speakers of a recording: --srt can't show them"):
        transcribe.main([*options, "--srt"])
    with pytest.raises(UserError, match="alignment is for models of one speaker"):
        asr_align.main([str(finished), "--audio", audio, "--text", "ab"])
    with pytest.raises(UserError, match="decode with `tympan asr_inference`"):
        tympan.evaluate(finished, _data_with_text(config))


def _data_with_text(config: Path) -> Path:
    directory = config.parent / "scored"
    directory.mkdir()
    for name, source in (("wav.scp", "wav.scp"), ("text", "text_spk1")):
        (directory / name).write_text((config.parent / "valid" / source).read_text())
    return directory


def test_data_without_the_second_text_is_an_error(config: Path, tmp_path: Path) -> None:
    options = yaml.safe_load(config.read_text())
    options["train_data_path_and_name_and_type"] = options["train_data_path_and_name_and_type"][:2]
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(options))
    done = run(path, tmp_path / "exp")
    assert done.returncode == 2
    assert "--train_data_path_and_name_and_type is needed for text_spk2" in done.stderr
