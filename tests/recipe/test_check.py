"""`--check` on data of one's own: what it validates, measures and needs, before any stage ran."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from small_data import data_dir

from tympan.bin.recipe import main
from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.errors import UserError
from tympan.recipe.advice import shorten
from tympan.recipe.custom import new_recipe
from tympan.recipe.estimate import StageEstimate
from tympan.recipe.options import NewOptions
from tympan.recipe.recipe import parse_options
from tympan.recipe.timing import time_repeatedly


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new recipe, in the current directory. Its data are in ../train and ../dev."""
    sets = {f"{name}_dir": data_dir(tmp_path / name) for name in ("train", "dev")}
    new_recipe(NewOptions(name=tmp_path / "mine", **sets))
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def check(*arguments: str) -> int:
    return main(["custom", "--config", "conf/recipe.yaml", "--nj", "1", *arguments, "--check"])


def test_sets_and_estimate_before_stage_0(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 0
    said = capsys.readouterr().out
    for name in ("train", "dev"):
        line = f"  {name:<10} {mine.parent / name}: 3 utterances, 1 speakers, 0.00 h of audio at 8000 Hz: no faults"
        assert line in said
    speeds = "speed perturbation: one of 0.85 0.9 0.95 1 1.05 1.1 1.15 1.2 1.25 for each utterance"
    assert f"3.0 s of training data (counted now); {speeds}" in said
    assert "   4 train  " in said
    assert said.endswith("all checks passed\n")
    assert "archives" not in said, "own data are not in archives"


def test_faults_of_the_data_are_reported(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mine.parent / "train" / "train1.wav").unlink()
    text = mine.parent / "dev" / "text"
    text.write_bytes(text.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(UserError) as caught:
        check()
    assert str(caught.value).count("train1.wav: there is no such file") == 1, "not again as a mistake of the training"
    assert re.search(r"dev/text:1: the line ends with .*\(and 2 more like this\)\n", str(caught.value))
    assert f"`tympan validate_data {mine.parent / 'train'}` lists all faults" in str(caught.value)
    assert "all checks passed" not in capsys.readouterr().out


def test_every_kind_of_fault_is_shown(mine: Path) -> None:
    """Before, the first five faults, mostly of one kind, hid the others."""
    text = mine.parent / "dev" / "text"
    text.write_text("".join(f"{line}\r\n" for line in reversed(text.read_text().splitlines())))
    with pytest.raises(UserError) as caught:
        check()
    assert "dev/text:1: the line ends with a carriage return" in str(caught.value)
    assert "dev/text:2: 'dev1' comes after 'dev2'" in str(caught.value)
    assert "sorts the files, removes carriage returns and drops entries that can't be used" in str(caught.value)


def test_missing_recordings_of_a_large_set(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not all recordings are read, but each must exist."""
    monkeypatch.setattr("tympan.recipe.check.MOST_DECODED", 2)
    assert check("--stop_stage", "0") == 0
    assert "train: 3 utterances, 1 speakers, 0.00 h of audio at 8000 Hz (2 of the recordings read)" in (
        capsys.readouterr().out
    )
    (mine.parent / "train" / "train1.wav").unlink()
    with pytest.raises(UserError, match=r"'train1': .*train1\.wav: there is no such file"):
        check("--stop_stage", "0")


def test_channels_that_differ_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = {f"{name}_dir": data_dir(tmp_path / name, channels=2) for name in ("train", "dev")}
    new_recipe(NewOptions(name=tmp_path / "mine", **sets))
    monkeypatch.chdir(tmp_path / "mine")
    assert check("--stop_stage", "0") == 0
    said = capsys.readouterr().out
    assert "the channels of 3 of 3 multi-channel recordings differ, such as" in said
    assert "add 'channel: N' to the training configuration (in a recipe, conf/train.yaml)" in said, (
        "run.sh has no option --channel"
    )


def test_a_lexicon_of_another_language(mine: Path) -> None:
    Path("conf/lexicon.txt").write_text("go g\nstop s\n")
    with pytest.raises(
        UserError, match=r"conf/lexicon\.txt lacks 8 of the 8 words of .*, such as GO, A, STOP and 1 more:"
    ):
        check("--stop_stage", "2")


def test_a_model_that_training_would_refuse(mine: Path) -> None:
    config = Path("conf/train.yaml")
    config.write_text(config.read_text().replace("interctc_layer_idx: [3]", "interctc_layer_idx: [7]"))
    with pytest.raises(UserError, match="interctc_layer_idx"):
        check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch_type folded", "needs one fold_length for each of speech, text"),
        ("--init_param /no/such.pth", "--init_param /no/such.pth: /no/such.pth: no such weights file"),
        ("--noise_scp /no/such", "noise_scp /no/such: no such file"),
        ("--freeze_param nosuch", "--freeze_param nosuch: no weight has this name"),
        ("--best_model_criterion [[valid,acc,max]]", "the model does not report valid.acc, so no best model"),
    ],
)
def test_what_training_would_refuse_after_the_other_stages(mine: Path, arguments: str, message: str) -> None:
    """Before, `--check` said that all checks passed."""
    with pytest.raises(UserError) as caught:
        check("--stop_stage", "4", "--asr_args", arguments)
    assert message in str(caught.value)


def test_a_transducer_is_estimated_with_texts_of_a_usual_length(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An untrained transducer emits tokens at every frame up to the limit, which decoding after training does not."""
    config = yaml.safe_load(Path("conf/train.yaml").read_text())
    config.update(
        decoder="transducer", decoder_conf={"hidden_size": 32}, joint_net_conf={"joint_space_size": 32},
        model_conf={"ctc_weight": 0.3}, best_model_criterion=[["valid", "cer_transducer", "min"]],
    )  # fmt: skip
    config["encoder_conf"] = {"output_size": 16, "num_blocks": 1, "attention_heads": 2, "linear_units": 16}
    Path("conf/transducer.yaml").write_text(yaml.safe_dump(config))
    Path("conf/search.yaml").write_text("search: transducer_greedy\n")
    words = ("--token_type", "word", "--n_gram", "0")
    assert check("--train_config", "conf/transducer.yaml", "--decode_config", "conf/search.yaml", *words) == 0
    said = capsys.readouterr().out
    found = re.search(r"(\d+) ms to decode one second of speech", said)
    assert found is not None, said
    assert 0 < int(found[1]) < 800
    assert re.search(r"\d+ ms to train on one second", said)
    assert said.endswith("all checks passed\n")


def test_a_schedule_that_is_too_short(mine: Path) -> None:
    config = Path("conf/train.yaml")
    text = config.read_text()
    assert "total_steps: 100" in text, "95 epochs of one update, and 5 % to spare"
    config.write_text(text.replace("total_steps: 100", "total_steps: 50"))
    with pytest.raises(UserError, match=r"total_steps is 50, but 95 epochs have about 95 updates.*total_steps=100"):
        check()
    assert check("--asr_args", "--max_epoch 50") == 0


@pytest.mark.parametrize("option", ["asr_args", "inference_args"])
def test_a_missing_quotation_mark(mine: Path, option: str) -> None:
    with pytest.raises(UserError) as caught:
        check(f"--{option}", '"open')
    assert str(caught.value) == f"--{option}: no closing quotation in '\"open'"


def test_a_changed_data_directory_is_measured_again(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after stage 0 copied it."""
    arguments = ["custom", "--config", "conf/recipe.yaml", "--stop_stage", "0"]
    assert main(arguments) == 0
    for name in ("wav.scp", "text", "utt2spk"):
        table = mine.parent / "train" / name
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:2]))
    assert check("--stop_stage", "2") == 0
    assert "2.0 s of training data (counted now)" in capsys.readouterr().out


def test_only_what_the_stages_need(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no accelerator here, and stages up to 2 use none."""
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert check("--stage", "-1", "--stop_stage", "2", "--ngpu", "1") == 0
    assert "to train on one second" not in capsys.readouterr().out
    with pytest.raises(UserError, match="ngpu"):
        check("--ngpu", "1")


@pytest.mark.parametrize(("use_amp", "advised"), [("false", True), ("true", False)])
def test_bfloat16_is_advised_where_it_is_not_used(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], use_amp: str, advised: bool
) -> None:
    monkeypatch.setattr("tympan.runtime.cpu.has_fast_bfloat16", lambda: True)
    assert check("--stage", "4", "--stop_stage", "4", "--asr_args", f"--use_amp {use_amp}") == 0
    assert ("this CPU has bfloat16 instructions" in capsys.readouterr().out) is advised


def test_months_come_with_advice(mine: Path) -> None:
    """What takes the time, and the options that make it shorter."""
    options = parse_options(["custom", "--config", "conf/recipe.yaml", "--nj", "1"])
    config = parse_training(AsrTrainConfig, ["--config", "conf/train.yaml"], prog="asr_train")
    day = 24 * 3600.0
    stages = [StageEstimate(3, "lm", 1 * day, 0), StageEstimate(4, "train", 90 * day, 0)]
    advice = "\n".join(shorten(stages, options, config))
    assert advice.startswith("91 d 0 h is long.")
    assert "stage 4 train, 99 % of the time:" in advice
    for way in ("--ngpu 1", "max_epoch in conf/train.yaml, now 95, and total_steps", "subset_data", "num_blocks"):
        assert way in advice
    assert "stage 3" not in advice
    assert shorten(stages[:1], options, config) == []
    assert "--nj" in "".join(shorten([StageEstimate(5, "decode", 9 * day, 0)], options, config))


class Machine:
    """A processor with two cores for a computation of `work_s` that two threads share.

    Other programs multiply the elapsed time by `slowdown`, and two threads then wait for each other while they use the
    processor. The first pass is disturbed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, work_s: float, slowdown: float) -> None:
        self.work_s, self.slowdown = work_s, slowdown
        self.elapsed_s = self.used_s = 0.0
        self.threads, self.passes = 2, 0
        monkeypatch.setattr("tympan.recipe.timing._threads", lambda: 2)
        monkeypatch.setattr("tympan.recipe.timing._set_threads", self.set_threads)
        monkeypatch.setattr("tympan.recipe.timing.time.monotonic", lambda: self.elapsed_s)
        monkeypatch.setattr("tympan.recipe.timing.time.process_time", lambda: self.used_s)

    def set_threads(self, count: int) -> None:
        self.threads = count

    def compute(self) -> None:
        self.passes += 1
        used_s = self.work_s * (3 if self.passes == 1 else 1)
        if self.threads == 2 and self.slowdown > 1:
            used_s *= 12
        self.used_s += used_s
        self.elapsed_s += self.slowdown * used_s / self.threads


def test_an_idle_machine_is_timed_with_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, work_s=0.4, slowdown=1.0)
    found = time_repeatedly(machine.compute, on_cpu=True)
    assert found.seconds == pytest.approx(0.2)
    assert not found.is_busy
    assert (machine.threads, machine.passes) == (2, 5), "two measurements agreed after three and after two passes"


def test_other_programs_do_not_change_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for each other use the processor: 12 times as long as the work needs."""
    machine = Machine(monkeypatch, work_s=0.4, slowdown=3.0)
    found = time_repeatedly(machine.compute, on_cpu=True)
    assert 0.2 / 1.5 < found.seconds < 0.2 * 1.5
    assert found.is_busy
    assert found.slowdown == pytest.approx(7.2 / found.seconds)
    assert found.slowdown_alone == pytest.approx(1.2 / found.seconds)
    assert machine.threads == 2


def test_one_thread_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, work_s=0.4, slowdown=3.0)
    found = time_repeatedly(machine.compute, on_cpu=True, max_threads=1)
    assert found.seconds == pytest.approx(0.4)
    assert found.slowdown == pytest.approx(3.0)
    assert found.slowdown_alone is None
