"""benchmarks/compat.py on a made-up checkout: it counts, names what is missing, and detects regressions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compat.py"
GOOD = """\
encoder: conformer
encoder_conf: {output_size: 256, attention_heads: 4, linear_units: 2048, num_blocks: 12}
decoder: transformer
optim: adam
optim_conf: {lr: 1.0e-3}
scheduler: warmuplr
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    conf = tmp_path / "egs2" / "toy" / "asr1" / "conf"
    conf.mkdir(parents=True)
    (conf / "train_asr.yaml").write_text(GOOD)
    (conf / "train_asr_other.yaml").write_text("encoder: no_such_encoder\n")
    (conf / "decode_asr.yaml").write_text("beam_size: 10\nctc_weight: 0.3\n")
    (conf / "train_asr_link.yaml").symlink_to("train_asr.yaml")
    (tmp_path / "egs2" / "linked" / "asr1").mkdir(parents=True)
    (tmp_path / "egs2" / "linked" / "asr1" / "conf").symlink_to(conf)
    return tmp_path


def run(checkout: Path, expected: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = checkout / "compat.py"
    for name in ("compat.py", "compat_stand_ins.py"):
        (checkout / name).write_text(SCRIPT.with_name(name).read_text(encoding="utf-8"), encoding="utf-8")
    script.with_name("compat_expected.txt").write_text(expected, encoding="utf-8")
    return subprocess.run([sys.executable, script, checkout, *options], capture_output=True, text=True, check=False)


def test_files_are_counted_and_missing_parts_named(checkout: Path) -> None:
    done = run(checkout, "trained egs2/toy/asr1/conf/train_asr.yaml\n")
    assert done.returncode == 0, done.stderr
    assert "ASR training: 2 files, 1 parsed, 1 built, 1 trained one step, 9 options compared" in done.stdout
    assert "decoding: 1 files, 1 parsed" in done.stdout
    assert "no_such_encoder" in done.stdout


def test_a_file_that_comes_less_far_than_expected_is_an_error(checkout: Path) -> None:
    done = run(checkout, "parsed egs2/toy/asr1/conf/train_asr_other.yaml\n")
    assert done.returncode == 1
    assert "expected parsed, found rejected: egs2/toy/asr1/conf/train_asr_other.yaml" in done.stdout


def test_files_that_espnet2_rejects_too_are_counted_with_their_reason(checkout: Path) -> None:
    done = run(checkout, "rejected egs2/toy/asr1/conf/train_asr_other.yaml # there is no such encoder\n")
    assert done.returncode == 0, done.stderr
    assert "1 rejected by ESPnet2 too, 0 not supported" in done.stdout
    assert "train_asr_other.yaml: there is no such encoder" in done.stdout


def test_files_that_were_not_tried_stay_expected(checkout: Path) -> None:
    older = "parsed egs/older/asr1/conf/train.yaml\n"
    reason = "rejected egs2/toy/asr1/conf/train_asr_other.yaml # there is no such encoder\n"
    run(checkout, older + reason, "--expect", "--only", "decode")
    expected = (checkout / "compat_expected.txt").read_text()
    assert expected == older + "parsed egs2/toy/asr1/conf/decode_asr.yaml\n" + reason


def test_a_published_model_is_replaced_by_a_stand_in(checkout: Path) -> None:
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    conf = checkout / "egs2" / "toy" / "asr1" / "conf"
    (conf / "train_asr_other.yaml").write_text(
        GOOD.replace("decoder: transformer", "decoder: hugging_face_transformers")
        + "decoder_conf: {model_name_or_path: facebook/bart-base, overriding_architecture_config: conf/sizes.json}\n"
        + "model_conf: {ctc_weight: 0.0}\n"
    )
    (conf / "sizes.json").write_text('{"decoder_layers": 1}')
    done = run(checkout, "trained egs2/toy/asr1/conf/train_asr_other.yaml\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 built, 2 trained one step" in done.stdout
    assert "1 built with a stand-in for facebook/bart-base" in done.stdout
