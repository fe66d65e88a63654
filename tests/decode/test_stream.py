"""Audio in pieces: the final hypothesis is that of the whole recording."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from tympan.bin import stream as stream_command
from tympan.bin import transcribe
from tympan.bin.stream import _read_pcm
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.load import LoadedModel
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.speech_input import speech_input
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.text.codec import build_codec

TOKENS = ["<blank>", "<unk>", *"abcdefgh", "<sos/eos>"]
BLOCKS = {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2}
BLOCKS |= {"block_size": 12, "hop_size": 4, "look_ahead": 4}
CTC: dict[str, Any] = {
    "encoder": "contextual_block_conformer", "encoder_conf": {**BLOCKS, "cnn_module_kernel": 5}, "normalize": None,
    "decoder": None, "model_conf": {"ctc_weight": 1.0},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "ctc": CTC,
    "hybrid": {
        **CTC, "decoder": "transformer", "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 1},
        "model_conf": {"ctc_weight": 0.5}, "preencoder": "linear", "preencoder_conf": {"output_size": 20},
    },
    "transducer": {
        **CTC, "encoder": "contextual_block_transformer", "encoder_conf": BLOCKS, "decoder": "transducer",
        "decoder_conf": {"hidden_size": 12}, "joint_net_conf": {"joint_space_size": 12},
        "model_conf": {"ctc_weight": 0.0},
    },
}  # fmt: skip


def random_model(folder: Path, values: dict[str, Any]) -> LoadedModel:
    torch.manual_seed(3)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**values, "token_list": TOKENS, "token_type": "char"}))
    config = load_training_config(AsrTrainConfig, path, allow_import=False)
    model = build_asr_model(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ctc_lo.weight" in name or "lin_out.weight" in name:
                weight.mul_(30.0)  # otherwise all frames are equally likely to be blank
    device = torch.device("cpu")
    return LoadedModel(
        model=model, codec=build_codec(config.text), input=speech_input(config, model, folder=folder, device=device),
        device=device, dtype=torch.float32,
    )  # fmt: skip


def noise(seconds: float) -> np.ndarray:
    return (0.1 * np.random.default_rng(5).standard_normal(int(16000 * seconds))).astype(np.float32)


@pytest.mark.parametrize(
    ("model", "search"),
    [
        ("ctc", "ctc_greedy"), ("ctc", "ctc_prefix"), ("hybrid", "joint"), ("hybrid", "rescore"),
        ("hybrid", "time_sync"), ("transducer", "transducer_greedy"), ("transducer", "transducer_maes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seconds", [0.2, 0.7, 2.31])
def test_the_end_of_a_stream_equals_the_whole_recording(
    tmp_path: Path, model: str, search: str, seconds: float
) -> None:
    loaded = random_model(tmp_path, MODELS[model])
    recognizer = Recognizer(loaded, DecodeOptions(search=search, beam_size=4), limits=BatchLimits(max_piece_s=0))
    samples = noise(seconds)
    whole = recognizer(samples, rate=16000)
    for size in (400, 3000, 100_000):
        stream = recognizer.stream()
        partial = [stream.accept(samples[first : first + size], rate=16000) for first in range(0, len(samples), size)]
        final = stream.finish()
        assert (final.text, final.token_ids, final.times) == (whole.text, whole.token_ids, whole.times)
        assert final.score == pytest.approx(whole.score, abs=1e-3)
        assert final.scores.keys() == whole.scores.keys()
        assert stream.duration_s == pytest.approx(seconds)
        if seconds > 2 and size < 10_000:
            assert any(partial[i].token_ids for i in range(len(partial) // 2)), "texts come before the end"
    assert seconds < 2 or len(whole.token_ids) > 3


def test_silence_and_nothing(tmp_path: Path) -> None:
    recognizer = Recognizer(random_model(tmp_path, CTC), DecodeOptions(search="ctc_greedy"))
    for samples in (np.zeros(0, np.float32), np.zeros(20000, np.int16), noise(0.01)):
        stream = recognizer.stream()
        assert stream.accept(samples, rate=16000).text == ""
        assert stream.finish().text == ""
    with pytest.raises(UserError, match=r"the stream has ended: make a new one with recognizer\.stream\(\)"):
        stream.accept(noise(0.1), rate=16000)


def test_samples_are_checked(tmp_path: Path) -> None:
    stream = Recognizer(random_model(tmp_path, CTC)).stream()
    with pytest.raises(UserError, match="needs samples at the model's rate, 16000 Hz, found 8000"):
        stream.accept(noise(0.1), rate=8000)
    with pytest.raises(UserError, match="contain nan or inf"):
        stream.accept(np.array([0.0, np.nan]), rate=16000)
    with pytest.raises(UserError, match=r"must be in \[-1, 1\]"):
        stream.accept(1000 * noise(0.1), rate=16000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalize": "utterance_mvn"}, "utterance_mvn needs the whole recording. Train with normalize: global_mvn"),
        (
            {"encoder": "conformer", "encoder_conf": {"output_size": 16, "attention_heads": 2}},
            "These encoders can: ",
        ),
        ({"encoder_conf": {**BLOCKS, "block_size": 0}}, "block_size 0"),
        ({"frontend": "sliding_window", "frontend_conf": {"fs": 16000}}, "of the frontends, only default supports it"),
        ({"frontend": None, "frontend_conf": {}, "input_size": 20}, "it was trained on stored features"),
    ],
)
def test_models_that_need_the_whole_recording(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    recognizer = Recognizer(random_model(tmp_path, {**CTC, **change}))
    with pytest.raises(UserError, match=message):
        recognizer.stream()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment directory with a recording `a.wav`."""
    loaded = random_model(tmp_path, CTC)
    assert isinstance(loaded.model, torch.nn.Module)
    torch.save(loaded.model.state_dict(), tmp_path / "valid.loss.best.pth")
    soundfile.write(tmp_path / "a.wav", noise(2.31), 16000)
    return tmp_path


def test_the_command_prints_what_transcribe_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, audio = str(folder), str(folder / "a.wav")
    assert transcribe.main([model, audio]) == 0
    whole = capsys.readouterr().out
    assert len(whole) > 4
    assert stream_command.main([model, audio]) == 0
    assert capsys.readouterr().out == whole
    assert stream_command.main([model, audio, "--json", "--piece_s", "0.1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1] == {"text": whole.strip(), "audio_s": 2.31, "is_final": True}
    file = folder / "streaming.yaml"
    file.write_text("beam_size: 20\nsim_chunk_length: 1600\nstreaming: true\ndisable_repetition_detection: true\n"
                    "decoder_text_length_limit: 0\nencoded_feat_length_limit: 0\n")  # fmt: skip
    assert stream_command.main([model, audio, "--json", "--config", str(file)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows, "a decoding file of ESPnet2"
    texts = [row["text"] for row in rows[:-1]]
    assert len(texts) > 2
    assert all(after != before for before, after in itertools.pairwise(texts)), "only changes are written"
    assert rows[0]["audio_s"] < 1.2


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "tympan.bin.stream", str(folder), "-", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_samples_from_standard_input_until_ctrl_c(folder: Path) -> None:
    """The last text is that of all samples that were read, wherever Ctrl-C came."""
    samples, _ = soundfile.read(folder / "a.wav", dtype="int16")
    process = start(folder, "--json")
    assert process.stdin is not None
    assert process.stdout is not None
    sent = samples.tobytes()
    process.stdin.write(sent[:30001])  # half a sample is waited for
    process.stdin.flush()
    first = json.loads(process.stdout.readline())
    assert (first["is_final"], first["audio_s"] < 0.95) == (False, True)
    process.stdin.write(sent[30001:])
    process.stdin.flush()
    heard = first
    while heard["audio_s"] < 2.1:
        heard = json.loads(process.stdout.readline())
    os.kill(process.pid, signal.SIGINT)
    last = json.loads(process.stdout.read().splitlines()[-1])
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    stream = Recognizer.from_pretrained(folder).stream()
    stream.accept(samples[: round(16000 * last["audio_s"])], rate=16000)
    assert (last["text"], last["is_final"]) == (stream.finish().text, True)


@pytest.mark.parametrize(("suffix", "name"), [("flac", "FLAC"), ("ogg", "Ogg"), ("aiff", "AIFF")])
def test_another_file_on_standard_input(tmp_path: Path, suffix: str, name: str) -> None:
    """It was taken for noise."""
    soundfile.write(tmp_path / f"a.{suffix}", np.zeros(1600), 16000)
    content = (tmp_path / f"a.{suffix}").read_bytes()
    reader, writer = os.pipe()
    os.write(writer, content[:1000])
    os.close(writer)
    with pytest.raises(UserError, match=f"standard input is a {name} file"):
        list(read_pcm_from(reader, size=1))


@pytest.mark.parametrize("content", [b"", b"a", b"ab", b"abc", b"abcd", b"abcde"])
def test_the_first_samples_are_not_lost(content: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    found = [int(sample) for piece in read_pcm_from(reader, size=1) for sample in piece]
    assert found == np.frombuffer(content[: len(content) // 2 * 2], dtype="<i2").tolist()


def test_a_piece_of_any_size_takes_little_memory() -> None:
    """Twice 2**62 is no size that a program can read at once."""
    reader, writer = os.pipe()
    os.write(writer, b"abcd")
    os.close(writer)
    (piece,) = read_pcm_from(reader, size=2**62)
    assert len(piece) == 2


def read_pcm_from(reader: int, *, size: int) -> Iterator[np.ndarray]:
    class Pipe:
        def read(self, size: int) -> bytes:
            return os.read(reader, size)

    return _read_pcm(size, Pipe())


def test_a_wav_file_on_standard_input(folder: Path) -> None:
    said = start(folder).communicate((folder / "a.wav").read_bytes(), timeout=120)[1].decode()
    assert "standard input is a WAV file, but samples without a header are expected" in said
    assert "Traceback" not in said
