"""st_train, st_inference and st_score as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import yaml

from tests.models import st_cases

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from train_corpus import make_corpus, same_weights  # noqa: E402

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "models" / "golden_st.json").read_text(encoding="utf-8"))


def run(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", f"tympan.bin.{command}", *map(str, arguments)]
    return subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beeps whose translation is their transcript in capital letters."""
    directory = tmp_path_factory.mktemp("translated")
    path = make_corpus(directory, utterances=80)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for side in ("train", "valid"):
        text = (directory / side / "text").read_text(encoding="utf-8")
        words = dict(line.split() for line in text.splitlines())
        translated = "".join(f"{name} {word.upper()}\n" for name, word in words.items())
        (directory / side / "translation").write_text(translated, encoding="utf-8")
        config[f"{side}_data_path_and_name_and_type"] = [
            [f"{directory}/{side}/wav.scp", "speech", "sound"],
            [f"{directory}/{side}/translation", "text", "text"],
            [f"{directory}/{side}/text", "src_text", "text"],
        ]
    tokens = ["<blank>", "<unk>", "A", "B", "C", "<sos/eos>"]
    config |= {
        "token_list": tokens,
        "src_token_list": f"{directory}/tokens.txt",
        "src_token_type": "char",
        "model_conf": {"asr_weight": 0.3, "mtlalpha": 0.5, "st_mtlalpha": 0.3},
        "extra_asr_decoder": "transformer",
        "extra_asr_decoder_conf": config["decoder_conf"],
        "optim_conf": {"lr": 0.004},
        "max_epoch": 30,
        "keep_nbest_models": [1],
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_from_training_to_bleu(corpus: Path, tmp_path: Path) -> None:
    data = corpus.parent
    trained = run("st_train", "--config", corpus, "--output_dir", tmp_path / "exp")
    assert trained.returncode == 0, trained.stderr[-3000:]
    manifest = json.loads((tmp_path / "exp" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "st"
    assert {"loss_st", "loss_asr", "bleu", "acc_asr", "cer_ctc"} <= set(manifest["epochs"]["30"]["valid"])
    assert manifest["epochs"]["30"]["valid"]["acc"] > 0.8
    wavs = f"{data}/valid/wav.scp,speech,sound"
    decoded = run(
        "st_inference", "--st_model_file", tmp_path / "exp" / "valid.loss.best.pth", "--output_dir", tmp_path / "out",
        "--data_path_and_name_and_type", wavs, "--beam_size", 5, "--ctc_weight", 0.3,
    )  # fmt: skip
    assert decoded.returncode == 0, decoded.stderr[-3000:]
    found = dict(line.split() for line in (tmp_path / "out" / "text").read_text(encoding="utf-8").splitlines())
    right = dict(line.split() for line in (data / "valid" / "translation").read_text(encoding="utf-8").splitlines())
    assert sum(found.get(name) == text for name, text in right.items()) >= 3
    pytest.importorskip("sacrebleu", reason="the extra 'st' is not installed")
    scored = run("st_score", data / "valid" / "translation", tmp_path / "out", "--tokenize", "char")
    assert scored.stdout.startswith("BLEU "), scored.stderr


def test_resumed_in_two_processes_equals_uninterrupted(corpus: Path, tmp_path: Path) -> None:
    common = ["--config", corpus, "--nproc", 2, "--batch_size", 5, "--seed", 3]
    whole = run("st_train", *common, "--output_dir", tmp_path / "whole", "--max_epoch", 2)
    assert whole.returncode == 0, whole.stderr[-3000:]
    half = run("st_train", *common, "--output_dir", tmp_path / "half", "--max_epoch", 1)
    assert half.returncode == 0, half.stderr[-3000:]
    rest = run("st_train", *common, "--output_dir", tmp_path / "half", "--max_epoch", 2, "--resume", "true")
    assert rest.returncode == 0, rest.stderr[-3000:]
    assert same_weights(tmp_path / "whole" / "2epoch.pth", tmp_path / "half" / "2epoch.pth")


def test_texts_that_do_not_fit_are_listed(corpus: Path, tmp_path: Path) -> None:
    """Both languages: texts too long for CTC and for the decoder, and missing ones."""
    config = yaml.safe_load(corpus.read_text(encoding="utf-8"))
    for place, letter in ((1, "A"), (2, "b")):
        path = Path(config["train_data_path_and_name_and_type"][place][0])
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[3 + place] = f"{lines[3 + place].split()[0]} {letter * 600}"
        own = tmp_path / path.name
        own.write_text("\n".join(lines) + "\n", encoding="utf-8")
        config["train_data_path_and_name_and_type"][place][0] = str(own)
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = run("st_train", "--config", path, "--output_dir", tmp_path / "exp", "--max_epoch", 1)
    assert done.returncode == 0, done.stderr[-3000:]
    listed = done.stderr.split("1 utterances ")[1:]
    assert [part.splitlines()[0] for part in listed] == [
        "have more than 500 tokens in text, check the data:",
        "are too short for CTC and do not contribute to its loss:",
        "have more than 500 tokens in src_text, check the data:",
        "are too short for CTC of the source text and do not contribute to its loss:",
    ]
    assert [part.split()[-1] for part in (text.splitlines()[1] for text in listed)] == [
        "train004", "1199", "train005", "1199"
    ]  # fmt: skip


@pytest.mark.parametrize(("case", "search"), [("attention_only", "default"), ("st_ctc", "ctc"), ("hier", "ctc")])
def test_the_command_gives_espnet2s_nbest(case: str, search: str, tmp_path: Path) -> None:
    from tympan.config.read import make_training_config
    from tympan.config.st import StTrainConfig
    from tympan.models.st_build import build_st_model

    settings = st_cases.settings_of(case)
    model = build_st_model(make_training_config(StTrainConfig, options=settings))
    st_cases.fill(model)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    names = [f"utt{index}" for index in range(len(st_cases.SAMPLES))]
    for index, name in enumerate(names):
        soundfile.write(tmp_path / f"{name}.wav", st_cases.audio(index).numpy(), 16000, subtype="FLOAT")
    (tmp_path / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in names), encoding="utf-8")
    options = [part for key, value in st_cases.SEARCHES[search].items() for part in (f"--{key}", value)]
    done = run(
        "st_inference", "--st_train_config", tmp_path / "config.yaml", "--st_model_file", tmp_path / "model.pth",
        "--data_path_and_name_and_type", f"{tmp_path}/wav.scp,speech,sound", "--output_dir", tmp_path / "out",
        "--beam_size", st_cases.BEAM_SIZE, "--nbest", 1, *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "out" / "1best_recog" / "token_int").read_text(encoding="utf-8").splitlines()
    scores = (tmp_path / "out" / "1best_recog" / "score").read_text(encoding="utf-8").splitlines()
    for line, score, expected in zip(lines, scores, GOLDEN[case]["nbest"][search], strict=True):
        end = len(st_cases.TOKENS) - 1
        wanted = [token for token in expected[0]["yseq"][1:] if token not in (0, end)]
        assert [int(token) for token in line.split()[1:]] == wanted
        assert float(score.split()[1]) == pytest.approx(expected[0]["score"], abs=1e-3)


def test_help_names_the_task(tmp_path: Path) -> None:
    assert "usage: tympan st_inference" in run("st_inference", "--help").stdout
    missing = run(
        "st_inference", "--output_dir", tmp_path, "--data_path_and_name_and_type", "x,speech,sound",
        "--src_lm_file", "lm.pth",
    )  # fmt: skip
    assert missing.returncode == 2
    assert "is an option of the multi-decoder" in missing.stderr
