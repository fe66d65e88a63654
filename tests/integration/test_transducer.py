"""A transducer without CTC through the commands: training, resuming, several processes, half precision, decoding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from train_corpus import run, same_weights, weights

from tympan.bin import asr_align, asr_inference, pack, transcribe
from tympan.decode.recognizer import Recognizer
from tympan.decode.search import run_search
from tympan.training.checkpoint import read_reporter

PRUNED = "{ctc_weight: 0.0, rnnt_type: pruned, prune_range: 3, fastemit_lambda: 0.01}"
OPTIONS = (
    "--model", "transducer", "--decoder", "transducer", "--model_conf", PRUNED,
    "--decoder_conf", "{hidden_size: 12, dropout: 0.1}", "--joint_net_conf", "joint_space_size=14",
    "--best_model_criterion", "valid,cer_transducer,min",
)  # fmt: skip


@pytest.fixture(scope="module")
def config(beeps: Path) -> Path:
    """Without the options of the attention decoder."""
    import yaml

    values = yaml.safe_load(beeps.read_text(encoding="utf-8"))
    values.pop("decoder_conf")
    path = beeps.parent / "transducer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("transducer")
    done = run(config, output, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return output


def test_a_resumed_run_has_the_same_bits(config: Path, finished: Path, tmp_path: Path) -> None:
    for epochs in ("1", "2"):
        done = run(config, tmp_path, *OPTIONS, "--max_epoch", epochs, "--resume", "true")
        assert done.returncode == 0, done.stderr
    assert same_weights(finished / "2epoch.pth", tmp_path / "2epoch.pth")


def test_two_processes_learn_what_one_learns(config: Path, tmp_path: Path) -> None:
    """To the rounding of float32, with SGD: its updates are proportional to the gradients.

    With Adam the training losses agree as well (6e-8), but the gradient of a bias before a batch norm is only rounding
    noise, which Adam scales to the learning rate. The running mean follows that bias late, and so the validation losses
    differed by 2e-4. The CTC/attention model does the same.
    """
    still = [*OPTIONS, "--decoder_conf", "{hidden_size: 12, dropout: 0.0}", "--max_epoch", "1", "--encoder_conf"]
    still += ["{dropout_rate: 0.0, positional_dropout_rate: 0.0, attention_dropout_rate: 0.0}"]
    still += ["--optim", "sgd", "--optim_conf", "lr=0.003"]
    for processes in ("1", "2"):
        done = run(config, tmp_path / processes, *still, "--ngpu", "0", "--nproc", processes)
        assert done.returncode == 0, done.stderr
    one, two = (read_reporter(tmp_path / name) for name in ("1", "2"))
    for phase in ("train", "valid"):
        for name in ("loss", "loss_transducer", "loss_simple"):
            assert two.get(phase, name, 1) == pytest.approx(one.get(phase, name, 1), rel=1e-6)
    first, second = (weights(tmp_path / name / "1epoch.pth") for name in ("1", "2"))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-6)


def test_half_precision_trains(config: Path, tmp_path: Path) -> None:
    done = run(config, tmp_path, *OPTIONS, "--max_epoch", "1", "--use_amp", "true")
    assert done.returncode == 0, done.stderr
    assert np.isfinite(read_reporter(tmp_path).get("train", "loss_transducer", 1))


def test_the_configuration_is_checked_and_the_run_estimated(config: Path, tmp_path: Path) -> None:
    done = run(config, tmp_path, *OPTIONS, "--dry_run", "true")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def packed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    decode = folder / "decode.yaml"
    decode.write_text("beam_size: 4\ntransducer_conf:\n  search_type: maes\n  nstep: 2\n  nbest: 2\n", encoding="utf-8")
    files = ["--asr_train_config", str(finished / "config.yaml"), "--asr_model_file", str(finished / "2epoch.pth")]
    assert pack.main([str(folder / "model"), *files, "--decode_config", str(decode)]) == 0
    return folder / "model"


def test_a_packed_model_is_decoded_with_its_transducer_conf(packed: Path, beeps: Path) -> None:
    recognizer = Recognizer.from_pretrained(packed)
    assert recognizer.kind.name == "transducer_maes"
    assert recognizer.options.nbest == 2
    audio = [str(beeps.parent / "valid" / f"valid00{number}.wav") for number in range(4)]
    together = recognizer(audio)
    for path, hypothesis in zip(audio, together, strict=True):
        alone = recognizer(path)
        assert alone.text == hypothesis.text
        assert alone.score == pytest.approx(hypothesis.score, abs=1e-4)
        assert alone.times is not None
        assert len(alone.times) == len(alone.tokens)
        seconds = soundfile.info(path).duration
        assert all(0 <= start < end <= seconds + 0.1 for start, end in alone.times)


@pytest.mark.parametrize("search", ["greedy", "default", "tsd", "alsd", "nsc", "maes"])
def test_every_search_decodes_in_half_precision_too(packed: Path, beeps: Path, search: str) -> None:
    audio = str(beeps.parent / "valid" / "valid000.wav")
    for dtype in ("float32", "bfloat16"):
        recognizer = Recognizer.from_pretrained(
            packed, dtype=dtype, search=f"transducer_{search}", search_conf={}, beam_size=3
        )
        assert np.isfinite(recognizer(audio).score)


def test_commands_decode_transcribe_and_align(
    packed: Path, beeps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wav_scp, text = beeps.parent / "valid" / "wav.scp", beeps.parent / "valid" / "text"
    data = ["--data_path_and_name_and_type", f"{wav_scp},speech,sound"]
    assert asr_inference.main(["--output_dir", str(tmp_path / "out"), *data, "--model_tag", str(packed)]) == 0
    assert len((tmp_path / "out" / "text").read_text().splitlines()) == 4
    assert transcribe.main([str(packed), str(beeps.parent / "valid" / "valid000.wav")]) == 0
    capsys.readouterr()
    given = text.read_text(encoding="utf-8").splitlines()[0].split()[1]
    aligned = Recognizer.from_pretrained(packed).align(str(beeps.parent / "valid" / "valid000.wav"), given)
    assert aligned.text == given
    assert len(aligned.times) == len(given)
    starts = [start for start, _ in aligned.times]
    assert starts == sorted(starts)
    assert set(aligned.scores) == {"transducer"}
    audio = str(beeps.parent / "valid" / "valid000.wav")
    assert asr_align.main([str(packed), "--audio", audio, "--text", given]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 1


def test_json_has_the_frames_of_emission_as_times(packed: Path, beeps: Path, tmp_path: Path) -> None:
    audio = str(beeps.parent / "valid" / "valid001.wav")
    recognizer = Recognizer.from_pretrained(packed)
    shift = recognizer.loaded.input.frame_shift_s
    encoded = recognizer.encode_batch([recognizer.read(audio)])
    ((best, *_),) = run_search(recognizer.search, encoded)
    assert transcribe.main([str(packed), audio, "--json", "true", "--output_dir", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    expected = [[start * shift, end * shift] for start, end, _ in best.spans]
    assert len(expected) == len(best.token_ids) > 0
    assert best.token_ids == tuple(found["token_ids"])
    np.testing.assert_allclose(found["times"], expected, atol=2e-3)
    np.testing.assert_allclose(found["token_confidences"], [span[2] for span in best.spans], atol=1e-4)
