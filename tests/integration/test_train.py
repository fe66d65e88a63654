"""asr_train and lm_train as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from train_corpus import command, environment, run, same_weights, weights

from tympan.bin import asr_train
from tympan.training.checkpoint import read_reporter

GOLDEN = Path(__file__).with_name("golden_losses.txt")


@pytest.fixture(scope="module")
def finished(beeps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished")
    pictures = ("--use_matplotlib", "true", "--use_tensorboard", "true", "--num_att_plot", "2")
    done = run(beeps, output, *pictures, "--log_interval", "2")
    assert done.returncode == 0, done.stderr
    return output


def test_the_experiment_directory_is_espnet2s(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"1epoch.pth", "2epoch.pth", "latest.pth", "checkpoint.pth", "config.yaml", "train.log", "manifest.json",
            "images", "tensorboard", "att_ws", "valid.acc.best.pth", "valid.acc.ave_2best.pth"} <= names  # fmt: skip
    assert (finished / "images" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (finished / "att_ws").iterdir()} == {"valid000", "valid001"}
    assert any((finished / "att_ws" / "valid000").glob("*src_attn*.2ep.png"))
    assert any((finished / "tensorboard" / "train").iterdir())
    config = yaml.safe_load((finished / "config.yaml").read_text(encoding="utf-8"))
    assert config["token_list"] == ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"]
    log = (finished / "train.log").read_text(encoding="utf-8")
    assert "average batch per update: 2.0 utterances and " in log
    assert "1epoch:train:1-2batch: iter_time=" in log


def test_the_losses_are_the_golden_ones(finished: Path) -> None:
    """Equal within 3 %: other processors and torch releases round differently, and two epochs amplify this."""
    reporter = read_reporter(finished)
    found = [reporter.get(phase, "loss", epoch) for epoch in (1, 2) for phase in ("train", "valid")]
    golden = [float(line) for line in GOLDEN.read_text(encoding="utf-8").split()]
    assert found == pytest.approx(golden, rel=0.03)


def test_reproduce_finds_the_same_bits(finished: Path) -> None:
    line = [sys.executable, "-m", "tympan.bin.reproduce", str(finished)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "identical: all" in done.stdout


def test_reproduce_after_a_longer_run_and_from_elsewhere(beeps: Path, tmp_path: Path) -> None:
    """Models of an earlier run are not counted, and relative paths refer to the directory of the original run."""
    corpus = beeps.parent
    data = [f"--{side}_data_path_and_name_and_type={side}/{file},{name}" for side in ("train", "valid")
            for file, name in (("wav.scp", "speech,sound"), ("text", "text,text"))]  # fmt: skip
    options = [word for line in data for word in line.split("=")]
    for epochs in ("2", "1"):
        line = command(beeps, tmp_path, "--max_epoch", epochs, *options)
        subprocess.run(line, env=environment(), cwd=corpus, check=True, capture_output=True, timeout=200)
    assert (tmp_path / "2epoch.pth").exists()
    again = [sys.executable, "-m", "tympan.bin.reproduce", str(tmp_path)]
    done = subprocess.run(again, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["identical: all 1 models match bit for bit"]


def test_auxiliary_ctc_reads_texts_of_its_own(beeps: Path, tmp_path: Path) -> None:
    """Bayes risk CTC is used here too."""
    data = []
    for side in ("train", "valid"):
        lines = (beeps.parent / side / "text").read_text(encoding="utf-8").splitlines()
        first = tmp_path / f"{side}_first"
        first.write_text("".join(f"{line.split()[0]} {line.split()[1][0]}\n" for line in lines), encoding="utf-8")
        for path, name in (
            (beeps.parent / side / "wav.scp", "speech,sound"),
            (beeps.parent / side / "text", "text,text"),
        ):
            data += [f"--{side}_data_path_and_name_and_type", f"{path},{name}"]
        data += [f"--{side}_data_path_and_name_and_type", f"{first},first,text"]
    layers = ["--encoder_conf", "num_blocks=2", "--encoder_conf", "interctc_layer_idx=[1]"]
    model = ["--model_conf", "interctc_weight=0.3", "--model_conf", "aux_ctc={'1': first}"]
    risk = ["--ctc_conf", "ctc_type=brctc", "--ctc_conf", "brctc_risk_factor=5"]
    options = [*layers, *model, *risk, "--aux_ctc_tasks", "first", "--max_epoch", "1"]
    missing = run(beeps, tmp_path / "missing", *options)
    assert missing.returncode == 2
    assert "--train_data_path_and_name_and_type is needed for first" in missing.stderr
    done = run(beeps, tmp_path / "exp", *options, *data)
    assert done.returncode == 0, done.stderr
    assert read_reporter(tmp_path / "exp").get("train", "loss_interctc_layer1", 1) > 0


def test_split_lists_train_the_same_model(beeps: Path, finished: Path, tmp_path: Path) -> None:
    """--multiple_iterator reads the parts that split_scps wrote."""
    lists = [str(beeps.parent / "train" / name) for name in ("wav.scp", "text")]
    split = [sys.executable, "-m", "tympan.bin.split_scps", "--scps", *lists, "--num_splits", "3"]
    subprocess.run([*split, "--output_dir", str(tmp_path / "parts")], check=True, env=environment(), timeout=200)
    data = ["--train_data_path_and_name_and_type", f"{tmp_path}/parts/wav.scp,speech,sound"]
    data += ["--train_data_path_and_name_and_type", f"{tmp_path}/parts/text,text,text"]
    done = run(beeps, tmp_path / "exp", "--multiple_iterator", "true", *data)
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "exp" / "latest.pth", finished / "latest.pth")


def test_a_mistake_does_not_change_an_older_run(beeps: Path, finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.suffix in (".pth", ".yaml", ".json")}
    done = run(beeps, finished, "--best_model_criterion", "valid,accuracy,max")
    assert done.returncode == 2
    assert "does not report valid.accuracy" in done.stderr
    after = {path.name: path.read_bytes() for path in finished.iterdir() if path.suffix in (".pth", ".yaml", ".json")}
    assert after == before


def test_a_checkpoint_of_another_kind_is_rejected(beeps: Path, finished: Path, tmp_path: Path) -> None:
    options = ("--resume", "true", "--encoder_conf", "output_size=8")
    done = run(beeps, finished, *options)
    assert done.returncode == 2
    assert "belongs to a different run" in done.stderr
    assert "Traceback" not in done.stderr


def test_resuming_a_finished_run_changes_nothing(beeps: Path, finished: Path) -> None:
    before = (finished / "2epoch.pth").read_bytes()
    done = run(beeps, finished, "--resume", "true")
    assert done.returncode == 0, done.stderr
    assert (finished / "2epoch.pth").read_bytes() == before


def test_collect_stats_writes_espnet2s_files(beeps: Path, tmp_path: Path) -> None:
    options = ("--collect_stats", "true", "--normalize", "global_mvn", "--write_collected_feats", "true")
    done = run(beeps, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    train = tmp_path / "train"
    assert (train / "batch_keys").read_text() == "speech\ntext\n"
    assert (train / "stats_keys").read_text() == "feats\n"
    shapes = dict(line.split() for line in (train / "speech_shape").read_text().splitlines())
    assert len(shapes) == 14
    texts = dict(line.split() for line in (train / "text_shape.char").read_text().splitlines())
    assert texts["train000"].endswith(",6")
    features = [np.load(line.split()[1]) for line in (train / "collect_feats" / "feats.scp").read_text().splitlines()]
    stats = np.load(train / "feats_stats.npz")
    whole = np.concatenate(features).astype(np.float64)
    assert int(stats["count"]) == len(whole)
    assert stats["sum"] == pytest.approx(whole.sum(0))
    assert stats["sum_square"] == pytest.approx((whole**2).sum(0))
    again = run(
        beeps, tmp_path / "exp", "--normalize", "global_mvn", "--normalize_conf", f"stats_file={train}/feats_stats.npz",
        "--train_shape_file", f"{train}/speech_shape", "--train_shape_file", f"{train}/text_shape.char",
        "--valid_shape_file", f"{tmp_path}/valid/speech_shape",
        "--valid_shape_file", f"{tmp_path}/valid/text_shape.char",
        "--batch_type", "numel", "--batch_bins", "60000", "--max_epoch", "1",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_collect_stats_of_a_part_and_the_parts_together(beeps: Path, tmp_path: Path) -> None:
    """As asr.sh does: every job gets its share of the utterances as shape files, and the results are joined."""
    corpus = beeps.parent
    jobs: list[str] = []
    for job in (0, 1):
        shares = []
        for side in ("train", "valid"):
            lines = (corpus / side / "wav.scp").read_text(encoding="utf-8").splitlines(keepends=True)
            share = tmp_path / f"{side}.{job}.scp"
            share.write_text("".join(lines[job::2]), encoding="utf-8")
            shares += [f"--{side}_shape_file", str(share)]
        done = run(beeps, tmp_path / f"stats.{job}", "--collect_stats", "true", *shares)
        assert done.returncode == 0, done.stderr
        assert len((tmp_path / f"stats.{job}" / "train" / "speech_shape").read_text().splitlines()) == 7
        jobs += ["--input_dir", str(tmp_path / f"stats.{job}")]
    join = [sys.executable, "-m", "tympan.bin.aggregate_stats_dirs"]
    line = [*join, *jobs, "--output_dir", str(tmp_path / "joined")]
    assert subprocess.run(line, env=environment(), timeout=200).returncode == 0
    assert run(beeps, tmp_path / "whole", "--collect_stats", "true").returncode == 0
    joined, whole = (np.load(tmp_path / name / "train" / "feats_stats.npz") for name in ("joined", "whole"))
    assert int(joined["count"]) == int(whole["count"])
    assert joined["sum"] == pytest.approx(whole["sum"])
    shapes = [(tmp_path / name / "train" / "speech_shape").read_text().splitlines() for name in ("joined", "whole")]
    assert sorted(shapes[0]) == sorted(shapes[1])


@pytest.mark.parametrize(
    ("options", "advised"),
    [
        (["--dry_run", "true"], True),
        (["--dry_run", "true", "--use_amp", "true"], False),
        (["--dry_run", "true", "--train_dtype", "float64"], False),
        (["--collect_stats", "true"], False),  # recipes collect statistics without --asr_args, and nothing is trained
    ],
)
def test_bfloat16_is_advised_where_it_would_help(
    beeps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], advised: bool
) -> None:
    monkeypatch.setattr("tympan.runtime.cpu.has_fast_bfloat16", lambda: True)
    assert asr_train.main(["--config", str(beeps), "--output_dir", str(tmp_path), *options]) == 0
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert ("this CPU has bfloat16 instructions" in log) is advised


def test_dry_run_builds_and_stops(beeps: Path, tmp_path: Path) -> None:
    done = run(beeps, tmp_path, "--dry_run", "true")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "checkpoint.pth").exists()
    assert "nothing was trained" in done.stderr


def test_dry_run_checks_a_configuration_without_data(beeps: Path, tmp_path: Path) -> None:
    """The same check that ESPnet2's repository runs on its recipes."""
    none = ["--train_data_path_and_name_and_type", "[]", "--valid_data_path_and_name_and_type", "[]"]
    for options in (["--iterator_type", "none"], none):
        done = run(beeps, tmp_path, "--dry_run", "true", *options)
        assert done.returncode == 0, done.stderr
        assert "no data was read" in done.stderr
    (tmp_path / "tokens.txt").write_text("<blank>\n", encoding="utf-8")
    unknown = ["--token_list", str(tmp_path / "tokens.txt")]
    done = run(beeps, tmp_path, "--dry_run", "true", "--iterator_type", "none", *unknown)
    assert done.returncode == 0, done.stderr
    done = run(beeps, tmp_path, "--dry_run", "true", *unknown)
    assert done.returncode == 2
    assert "the unknown token '<unk>' is missing" in done.stderr
    done = run(beeps, tmp_path, "--dry_run", "true", *none, "--encoder_conf", "output_size=15")
    assert done.returncode == 2
    done = run(beeps, tmp_path, "--iterator_type", "none")
    assert done.returncode == 2
    assert "none can be used only with --dry_run true" in done.stderr


def test_a_dry_run_without_data_needs_no_weights_to_start_from(beeps: Path, tmp_path: Path) -> None:
    """ESPnet2 checks recipes before the models that they begin with exist."""
    options = ["--dry_run", "true", "--init_param", str(tmp_path / "first.pth")]
    done = run(beeps, tmp_path, *options, "--iterator_type", "none")
    assert done.returncode == 0, done.stderr
    assert "first.pth: no such file; a dry run without data goes on" in done.stderr
    assert run(beeps, tmp_path, *options).returncode == 2


def test_utterances_too_short_for_ctc_are_listed(beeps: Path, tmp_path: Path) -> None:
    corpus = beeps.parent
    text = (corpus / "train" / "text").read_text(encoding="utf-8").splitlines()
    text[3] = "train003 " + "a" * 60
    text[5] = "train005"
    (tmp_path / "text").write_text("\n".join(text) + "\n", encoding="utf-8")
    stats = run(beeps, tmp_path / "stats", "--collect_stats", "true", *_data(corpus, tmp_path))
    assert stats.returncode == 0, stats.stderr
    shapes = [word for side in ("train", "valid") for name in ("speech_shape", "text_shape.char")
              for word in (f"--{side}_shape_file", f"{tmp_path}/stats/{side}/{name}")]  # fmt: skip
    threshold = ["--preprocessor_conf", "text_length_warning_thres=50"]
    done = run(beeps, tmp_path / "exp", "--max_epoch", "1", *threshold, *_data(corpus, tmp_path), *shapes)
    assert done.returncode == 0, done.stderr
    assert "1 utterances have more than 50 tokens (preprocessor_conf text_length_warning_thres)" in done.stderr
    assert "1 utterances are too short for CTC" in done.stderr
    assert "train003: " in done.stderr
    assert "needs 119" in done.stderr
    assert "1 utterances have an empty transcript:\n  train005" in done.stderr


def test_a_token_list_of_another_text_is_an_error(beeps: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\nx\n<sos/eos>\n", encoding="utf-8")
    done = run(beeps, tmp_path / "exp", "--dry_run", "true", "--token_list", str(tmp_path / "tokens.txt"))
    assert done.returncode == 2
    assert "tokens of the first texts are unknown" in done.stderr


def test_a_text_with_only_ids_is_an_error(beeps: Path, tmp_path: Path) -> None:
    corpus = beeps.parent
    text = (corpus / "train" / "text").read_text(encoding="utf-8").splitlines()
    (tmp_path / "text").write_text("".join(line.split()[0] + "\n" for line in text), encoding="utf-8")
    done = run(beeps, tmp_path / "exp", "--dry_run", "true", *_data(corpus, tmp_path))
    assert done.returncode == 2
    assert "transcripts are empty" in done.stderr


def _data(corpus: Path, changed: Path) -> tuple[str, ...]:
    option = "--train_data_path_and_name_and_type"
    return (option, f"{corpus}/train/wav.scp,speech,sound", option, f"{changed}/text,text,text")


def test_a_language_model_trains(beeps: Path, tmp_path: Path) -> None:
    corpus = beeps.parent
    config = {
        "token_type": "char",
        "token_list": f"{corpus}/tokens.txt",
        "lm": "transformer",
        "lm_conf": {"embed_unit": 8, "att_unit": 16, "head": 2, "unit": 32, "layer": 1},
        "optim": "adam",
        "optim_conf": {"lr": 0.01},
        "batch_type": "unsorted",
        "batch_size": 4,
        "num_workers": 0,
        "max_epoch": 3,
        "use_tensorboard": False,
        "use_matplotlib": False,
        "accum_grad": 2,
        "train_data_path_and_name_and_type": [[f"{corpus}/train/text", "text", "text"]],
        "valid_data_path_and_name_and_type": [[f"{corpus}/valid/text", "text", "text"]],
    }
    path = tmp_path / "lm.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = run(path, tmp_path / "exp", kind="lm")
    assert done.returncode == 0, done.stderr
    reporter = read_reporter(tmp_path / "exp")
    assert reporter.get("train", "loss", 3) < reporter.get("train", "loss", 1)
    refused = run(beeps, tmp_path / "exp", "--resume", "true")
    assert refused.returncode == 2
    assert "task: lm in the checkpoint, asr here" in refused.stderr


def test_recomputed_activations_change_nothing(beeps: Path, finished: Path, tmp_path: Path) -> None:
    done = run(beeps, tmp_path, "--grad_checkpointing", "true", "--max_epoch", "1")
    assert done.returncode == 0, done.stderr
    plain, recomputed = read_reporter(finished).stats[1], read_reporter(tmp_path).stats[1]
    for phase in ("train", "valid"):
        assert recomputed[phase]["loss"] == pytest.approx(plain[phase]["loss"], rel=1e-3)


def test_compiling_wants_fixed_shapes(beeps: Path, tmp_path: Path) -> None:
    done = run(beeps, tmp_path, "--compile", "true")
    assert done.returncode == 2
    assert "Use --batch_type bucket" in done.stderr


def test_averaging_by_hand(finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tympan.bin.average_model", str(finished), "--output", str(tmp_path / "mean.pth")]
    done = subprocess.run([*command, "--last", "2"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "mean.pth", finished / "valid.loss.ave_2best.pth")


@pytest.mark.slow
def test_a_few_utterances_are_memorized(beeps: Path, tmp_path: Path) -> None:
    corpus = beeps.parent
    memory = ("--valid_data_path_and_name_and_type", f"{corpus}/train/wav.scp,speech,sound",
              "--valid_data_path_and_name_and_type", f"{corpus}/train/text,text,text")  # fmt: skip
    without = "{dropout_rate: 0.0, positional_dropout_rate: 0.0}"
    options = ("--max_epoch", "90", "--encoder_conf", "output_size=32", "--encoder_conf", without, "--decoder_conf",
               without, "--optim_conf", "lr=0.005", "--scheduler_conf", "warmup_steps=50")  # fmt: skip
    done = run(beeps, tmp_path, *options, *memory)
    assert done.returncode == 0, done.stderr
    epochs = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["epochs"]
    assert min(parts["valid"]["cer"] for parts in epochs.values()) == 0.0
    assert epochs["90"]["valid"]["cer_ctc"] == 0.0


def test_adapters_train_resume_and_save_as_espnet2_does(beeps: Path, tmp_path: Path) -> None:
    targets = "{rank: 2, target_modules: [linear_q, w_1]}"
    options = ["--use_adapter", "true", "--adapter_conf", targets]
    assert run(beeps, tmp_path / "base", "--max_epoch", "1").returncode == 0
    options += ["--init_param", str(tmp_path / "base" / "1epoch.pth")]
    whole = run(beeps, tmp_path / "whole", *options)
    assert whole.returncode == 0, whole.stderr
    first = run(beeps, tmp_path / "parts", *options, "--max_epoch", "1")
    assert first.returncode == 0, first.stderr
    assert run(beeps, tmp_path / "parts", *options, "--resume", "true").returncode == 0
    assert same_weights(tmp_path / "whole" / "2epoch.pth", tmp_path / "parts" / "2epoch.pth")
    start, end = weights(tmp_path / "base" / "1epoch.pth"), weights(tmp_path / "whole" / "2epoch.pth")
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    learned = {name for name in changed if "running_" not in name and "num_batches" not in name}
    assert learned == {name.replace("lora_A", "weight") for name in end if name.endswith("lora_A")}


def test_options_of_deepspeed_train_as_the_same_options_by_hand(beeps: Path, tmp_path: Path) -> None:
    content = {
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.004, "warmup_num_steps": 4}},
        "zero_optimization": {"stage": 1},
    }
    (tmp_path / "deepspeed.json").write_text(json.dumps(content), encoding="utf-8")
    translated = ("--use_deepspeed", "true", "--deepspeed_config", str(tmp_path / "deepspeed.json"))
    schedule = "{warmup_max_lr: 0.004, warmup_num_steps: 4}"
    by_hand = ("--accum_grad", "2", "--grad_clip", "0.5", "--optim", "adamw", "--scheduler", "deepspeedwarmuplr")
    by_hand += ("--optim_conf", "null", "--scheduler_conf", "null")  # not those of the file
    by_hand += ("--optim_conf", "{lr: 0.01, betas: [0.9, 0.95], weight_decay: 0.1}", "--scheduler_conf", schedule)
    outputs = [tmp_path / "translated", tmp_path / "by_hand"]
    for output, options in zip(outputs, (translated, by_hand), strict=True):
        done = run(beeps, output, *options)
        assert done.returncode == 0, done.stderr
        assert ("tympan: note:" in done.stderr) == (options is translated)
    assert same_weights(outputs[0] / "latest.pth", outputs[1] / "latest.pth")
