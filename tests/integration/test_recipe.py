"""The recipe as a user runs it, on an AISHELL of a dozen sentences: from archive to report, repeated, with mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_recipe import DECODE, ROOT, TRAIN, aishell, new_workplace, recipe, steps_run

pytest.importorskip("espeakng_loader", reason="the extra 'demo' makes the corpus of these tests")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tympan.recipe.demo import Size, make_archives

    directory = tmp_path_factory.mktemp("archives")
    make_archives(directory, Size(train=2, dev=1, test=1, sentences=3), seed=0)
    return directory


@pytest.fixture(scope="module")
def finished(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory in which all stages ran, and their output."""
    directory = new_workplace(tmp_path_factory.mktemp("recipe"), archives)
    return directory, aishell(directory, "--stage", "-1").stdout


@pytest.fixture
def workplace(archives: Path, tmp_path: Path) -> Path:
    return new_workplace(tmp_path, archives)


def test_all_stages_leave_their_files(finished: tuple[Path, str]) -> None:
    directory, said = finished
    for line in ("stage -1: ", "stage 0: ", "stage 1: ", "stage 2: ", "stage 3: ", "stage 4: ", "stage 5: "):
        assert line in said
    experiment = directory / "exp" / "train_pytorch_train"
    decoded = experiment / "decode_test_model.last2.avg_decode_lm_4gram"
    for path in (
        directory / "data" / "lang_1char" / "train_units.txt",
        directory / "dump" / "train" / "deltafalse" / "data.json",
        directory / "exp" / "train_rnnlm_pytorch_lm" / "valid.loss.best.pth",
        directory / "exp" / "train_ngram" / "4gram.arpa",
        experiment / "model.last2.avg.pth",
        experiment / "features.yaml",
        experiment / "cmvn.ark",
        decoded / "text",
        decoded / "score_cer" / "result.txt",
        decoded / "report.html",
    ):
        assert path.is_file(), path
    assert re.search(r"^test: CER [\d.]+ %", said, re.MULTILINE)
    result = (decoded / "score_cer" / "result.txt").read_text(encoding="utf-8")
    assert "Sum/Avg" in result
    line = next(line for line in said.splitlines() if line.startswith("transcribe with it: "))
    assert (directory / line.split(" transcribe ")[1].split()[0] / "model.safetensors").is_file()
    assert json.loads((decoded / "score_cer" / "score.json").read_text())["sentences"] == 3


def test_dictionary_and_json_as_the_recipe_has_them(finished: tuple[Path, str]) -> None:
    directory, _ = finished
    units = (directory / "data" / "lang_1char" / "train_units.txt").read_text(encoding="utf-8").splitlines()
    assert units[0] == "<unk> 1"
    assert [line.split()[1] for line in units] == [str(number) for number in range(1, len(units) + 1)]
    entries = json.loads((directory / "dump" / "train" / "deltafalse" / "data.json").read_text(encoding="utf-8"))[
        "utts"
    ]
    entry = entries["BAC009S0002W0001"]
    numbers = dict(line.split() for line in units)
    assert entry["output"][0]["tokenid"].split() == [numbers[token] for token in entry["output"][0]["token"].split()]
    assert entry["input"][0]["shape"][1] == 83
    assert entry["utt2spk"] == "S0002"


def test_the_model_is_the_mean_of_the_epochs_that_the_log_names(finished: tuple[Path, str]) -> None:
    import torch

    experiment = finished[0] / "exp" / "train_pytorch_train"
    named = re.search(r"model\.last2\.avg\.pth: (?:mean of epochs|epoch) ([\d, ]+) \(the last 2", finished[1])
    assert named is not None
    epochs = named[1].split(", ")
    assert epochs in (["1", "2"], ["2"], ["1"])
    name = "encoder.encoders.0.feed_forward.w_1.weight"
    parts = [torch.load(experiment / f"{epoch}epoch.pth", weights_only=True)[name] for epoch in epochs]
    mean = torch.load(experiment / "model.last2.avg.pth", weights_only=True)[name]
    torch.testing.assert_close(mean, torch.stack(parts).mean(0))


def test_a_second_run_does_nothing_and_a_change_reruns_what_it_must(finished: tuple[Path, str], tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory, symlinks=True)
    # feats.scp has absolute paths, so the copy refers to the original archives.
    assert steps_run(aishell(directory, "--stage", "2").stdout) == []
    (directory / "conf" / "decode.yaml").write_text(DECODE.replace("beam_size: 2", "beam_size: 3"))
    redone = steps_run(aishell(directory, "--stage", "3").stdout)
    assert [step.split()[0] for step in redone if step.startswith("decode")] == ["decode", "decode"]
    assert not any(step.startswith(("train", "rnnlm", "n-gram", "average")) for step in redone)
    table = recipe(directory, "status").stdout
    rows = [line for line in table.splitlines() if " train train_pytorch_train" in line]
    assert re.search(r"4 +train +train train_pytorch_train +done +[\d.]+ (s|min).* [kM]?B", rows[0])


def test_mistakes_are_found_before_any_work(workplace: Path) -> None:
    (workplace / "conf" / "train.yaml").write_text(TRAIN.replace("num_blocks: 1,", "num_block: 1,", 1))
    (workplace / "conf" / "decode.yaml").write_text("{beam_sise: 2}")
    message = aishell(workplace, "--stage", "-1", code=2).stderr
    assert "num_block" in message
    assert "num_blocks" in message
    assert "beam_size" in message
    assert not (workplace / "downloads").exists()


def test_status_before_any_run(tmp_path: Path) -> None:
    assert "no recipe was run in" in recipe(tmp_path, "status", code=2).stderr


def test_wrong_stage_and_wrong_order(workplace: Path) -> None:
    assert "Did you mean 'features'?" in aishell(workplace, "--stage", "feature", code=2).stderr
    assert "comes after --stop_stage" in aishell(workplace, "--stage", "5", "--stop_stage", "3", code=2).stderr


def test_stage_without_what_it_needs(workplace: Path) -> None:
    message = aishell(workplace, "--stage", "dictionary", "--stop_stage", "2", code=2).stderr
    assert "stage 2 (dictionary), step 'dictionary' needs data/train/text" in message
    message = aishell(workplace, "--stage", "0", "--stop_stage", "0", code=2).stderr
    assert "downloads/data_aishell/transcript" in message
    assert "--stage -1" in message


def test_truncated_archive_and_its_remedy(workplace: Path) -> None:
    archive = workplace / "archives" / "data_aishell.tgz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-5000])
    message = aishell(workplace, "--stage", "-1", "--stop_stage", "-1", code=2).stderr
    assert "damaged or truncated" in message
    archive.write_bytes(whole)
    (workplace / "downloads" / "data_aishell.tgz").unlink()
    aishell(workplace, "--stage", "-1", "--stop_stage", "0")
    assert (workplace / "data" / "test" / "text").is_file()


def test_no_accelerator(workplace: Path) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here")
    message = recipe(workplace, "aishell", "--data_url", "archives", "--stage", "3", code=2).stderr
    assert "--ngpu 1 needs 1 accelerator" in message
    assert "--ngpu 0" in message


def test_check_is_one_screen(workplace: Path) -> None:
    said = aishell(workplace, "--stage", "-1", "--check").stdout
    for part in ("machine", "archives", "configuration", "estimate", "memory", "all checks passed"):
        assert part in said
    assert len(said.splitlines()) < 45
    rows = re.findall(r"^  (?:[ -]\d \w+|total) +([\d.]+ s|\d+ min \d+ s) +([\d.]+) [kMG]?B$", said, re.MULTILINE)
    assert len(rows) == 8, "each stage has its time and its disk"
    assert "times are estimates" in said
    assert not (workplace / "data").exists()


def test_check_install() -> None:
    command = [sys.executable, "-m", "tympan.bin.check_install"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "everything that Tympan needs works on this machine" in done.stdout
    done = subprocess.run([*command, "--ngpu", "99"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: device" in done.stdout


def test_own_data_without_shell(finished: tuple[Path, str], tmp_path: Path) -> None:
    data = finished[0] / "data"
    arguments = ["--train_dir", f"{data / 'train'}", "--dev_dir", f"{data / 'dev'}", "--test_dir", f"{data / 'test'}"]
    recipe(tmp_path, "new", "mine/asr1", *arguments)
    made = tmp_path / "mine" / "asr1"
    assert os.access(made / "run.sh", os.X_OK)
    assert "is already a recipe" in recipe(tmp_path, "new", "mine/asr1", *arguments, code=2).stderr
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [made / "run.sh", "--stop_stage", "dictionary", "--speeds", "1.0", "--nj", "1"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (made / "data" / "lang_1char" / "tokens.txt").is_file()


def test_own_data_with_a_lexicon(finished: tuple[Path, str], tmp_path: Path) -> None:
    data = finished[0] / "data"
    lexicon = finished[0] / "downloads" / "resource_aishell" / "lexicon.txt"
    arguments = ["--train_dir", f"{data / 'train'}", "--dev_dir", f"{data / 'dev'}", "--lexicon", str(lexicon)]
    recipe(tmp_path, "new", "mine", *arguments)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for arguments in (["--stop_stage", "lm"], ["--check"]):
        done = subprocess.run(
            [tmp_path / "mine" / "run.sh", *arguments], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
    assert "all checks passed" in done.stdout
    tokens = (tmp_path / "mine" / "data" / "lang_phn" / "tokens.txt").read_text(encoding="utf-8").split()
    spoken = {phone for line in lexicon.read_text(encoding="utf-8").splitlines() for phone in line.split()[1:]}
    assert set(tokens[2:-1]) <= spoken
    # espeak's phones have no tones at their ends, so the words are not split.
    words = (tmp_path / "mine" / "data" / "local" / "lm_train" / "train.txt").read_text(encoding="utf-8").split()
    assert set(words) <= {line.split()[0] for line in lexicon.read_text(encoding="utf-8").splitlines()}


@pytest.mark.slow
def test_own_recordings_with_segments(finished: tuple[Path, str], tmp_path: Path) -> None:
    """Segments of recordings, with features computed by the model: nothing is cut or stored before training."""
    from tympan.data.kaldi_dir import DataDir

    arguments = []
    for name in ("train", "dev", "test"):
        whole = DataDir.read(finished[0] / "data" / name)
        tables = {
            "wav.scp": {f"{key}-r": source for key, source in whole.wav.items()},
            "segments": {key: f"{key}-r 0.05 -1" for key in whole.utterances},
            "text": whole.text,
            "utt2spk": whole.utt2spk,
        }
        DataDir(tmp_path, tables).write(tmp_path / "data" / name)
        arguments += [f"--{name}_dir", str(tmp_path / "data" / name)]
    recipe(tmp_path, "new", "mine", *arguments)
    for name, content in (("train", TRAIN), ("decode", DECODE)):
        (tmp_path / "mine" / "conf" / f"{name}.yaml").write_text(content)
    options = ["custom", "--config", "conf/recipe.yaml", "--feats_type", "raw", "--speeds", "1.0", "--nj", "1"]
    options += ["--lm_config", "", "--n_gram", "0", "--n_average", "1"]
    said = recipe(tmp_path / "mine", *options).stdout
    assert "data/train/segments,speech,segments" in said
    assert re.search(r"^test: CER [\d.]+ %", said, re.MULTILINE)
    assert steps_run(recipe(tmp_path / "mine", *options).stdout) == []


def test_own_data_that_lacks(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = recipe(tmp_path, "new", "mine", "--train_dir", "empty", "--dev_dir", "empty", code=2).stderr
    assert "empty" in message
    assert "needs --train_dir and --dev_dir" in recipe(tmp_path, "custom", "--ngpu", "0", code=2).stderr


@pytest.mark.parametrize("script", ["train_full_1p", "train_full_8p", "train_performance_1p", "train_performance_8p"])
def test_ascend_scripts_want_a_data_path(script: str) -> None:
    path = ROOT / "egs" / "aishell" / "asr1" / "test" / f"{script}.sh"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", path, "--stage=3"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "--data_path=DIRECTORY is required" in done.stderr


@pytest.mark.parametrize("script", ["train_full_1p", "train_full_8p"])
def test_ascend_scripts_without_a_card_name_the_remedy(script: str, tmp_path: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    path = ROOT / "egs" / "aishell" / "asr1" / "test" / f"{script}.sh"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", path, "--stage=-1", f"--data_path={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2, done.stderr
    assert f"--ngpu {script[-2]}" in done.stderr
    assert "Use the CPU with --device cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ascend_closing_lines_and_logs(finished: tuple[Path, str], tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory, symlinks=True)
    command = [sys.executable, "-m", "tympan.bin.ascend_test", "--data_path=downloads", "--stage=4", "--device", "cpu"]
    command += ["--n_average", "2", "--speeds", "1.0", "--nj", "1"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tail = done.stdout.splitlines()[-4:]
    assert "Final result" in tail[0]
    assert re.fullmatch(r"Final Performance iters/sec : [\d.]+", tail[1])
    assert re.fullmatch(r"Final Train Accuracy : [\d.]+ [\d.]+", tail[2])
    assert re.fullmatch(r"E2E Training Duration sec : \d+", tail[3])
    log = (directory / "test" / "output" / "0" / "Tympan_bs4_1p_acc.log").read_text()
    assert [line.split(" = ")[0] for line in log.splitlines()] == [
        "Network", "RankSize", "BatchSize", "DeviceType", "CaseName", "ActualFPS", "TrainingTime", "TrainAccuracy",
        "ActualLoss", "E2ETrainingTime",
    ]  # fmt: skip
    assert "Network = Tympan\nRankSize = 1\nBatchSize = 4\nDeviceType = cpu" in log
    assert (directory / "test" / "output" / "0" / "train_Tympan_bs4_1p_loss.txt").read_text().strip()


@pytest.mark.slow
def test_performance_script_on_two_processes(finished: tuple[Path, str], tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory, symlinks=True)
    command = [sys.executable, "-m", "tympan.bin.ascend_test", "--performance", "true", "--cards", "2"]
    command += ["--data_path=downloads", "--device", "cpu", "--speeds", "1.0"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Final Performance iters/sec" in done.stdout
    assert "Final Train Accuracy" not in done.stdout
    assert (directory / "test" / "output" / "0" / "Tympan_bs4_2p_perf.log").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_in_every_step_the_recipe_still_ends_the_same(finished: tuple[Path, str], workplace: Path) -> None:
    """kill -9 during each step, of only the recipe or also of its command. The result equals an uninterrupted run."""
    options = ["aishell", "--data_url", "archives", "--ngpu", "0", "--nj", "1", "--speeds", "1.0", "--n_average", "2"]
    command = [sys.executable, "-m", "tympan.bin.recipe", *options, "--stage", "-1"]
    times = re.findall(r"^  (\S.*): done in ([\d.]+) s$", finished[1], re.MULTILINE)
    assert len(times) > 15
    for number, (step, seconds) in enumerate(times):
        process = subprocess.Popen(
            command, cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert process.stdout is not None
        begun = next(line for line in process.stdout if line.startswith((f"  {step} ...", f"  {step}: ")))
        if begun.startswith(f"  {step} ..."):  # otherwise the step was faster than expected, and the kill came too late
            time.sleep(float(seconds) * (0.1, 0.4, 0.7)[number % 3])
        if number % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1.0)  # a command ends with its recipe
    aishell(workplace, "--stage", "-1")
    for name in ("data/train/text", "dump/train/deltafalse/utt2num_frames", "data/lang_1char/tokens.txt"):
        assert (workplace / name).read_bytes() == (finished[0] / name).read_bytes()
    import torch

    weights = [
        torch.load(place / "exp" / "train_pytorch_train" / "model.last2.avg.pth", weights_only=True)
        for place in (workplace, finished[0])
    ]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_phones_of_a_lexicon(finished: tuple[Path, str], tmp_path: Path) -> None:
    """The corpus's own lexicon: the model predicts phones, and decoding gives characters, also when packed."""
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory, symlinks=True)
    arguments = ["--stage", "2", "--tag", "phones", "--token_type", "phn", "--lm_config", ""]
    arguments += ["--lexicon", "downloads/resource_aishell/lexicon.txt"]
    refused = aishell(directory, *arguments, code=2)
    assert "'search: lexicon'" in refused.stderr
    (directory / "conf" / "decode.yaml").write_text("{search: lexicon, beam_size: 8, ngram_weight: 0.1}")
    said = aishell(directory, *arguments).stdout
    assert re.search(r"^test: CER [\d.]+ %", said, re.MULTILINE)
    line = next(line for line in said.splitlines() if line.startswith("transcribe with it: "))
    model, recording = line.split(" transcribe ")[1].split()
    (directory / model).rename(tmp_path / "moved")
    heard = transcribe(tmp_path, "moved", str(directory / recording), "--json")
    (answer,) = json.loads(heard) if heard.lstrip().startswith("[") else [json.loads(heard)]
    assert "".join(word["word"] for word in answer["words"]) == answer["text"].replace(" ", "")
    assert not set(answer["text"]) & set("0123456789")
    # The settings in the folder are those of the recipe.
    command = ["--model_tag", "../moved", "--output_dir", "again"]
    command += ["--data_path_and_name_and_type", "dump/test/deltafalse/feats.scp,speech,kaldi_ark"]
    subprocess.run([sys.executable, "-m", "tympan.bin.asr_inference", *command], cwd=directory, check=True)
    (decoded,) = directory.glob("exp/*phones/decode_test*/text")
    assert (directory / "again" / "text").read_bytes() == decoded.read_bytes()


def transcribe(directory: Path, *arguments: str) -> str:
    heard = subprocess.run(
        [sys.executable, "-m", "tympan.bin.transcribe", *arguments],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert heard.returncode == 0, heard.stderr
    return heard.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        (["--feats_type", "raw", "--token_type", "bpe", "--nbpe", "50", "--lm_config", "", "--n_gram", "0"], None),
        (["--do_delta", "true"], 249),
        (["--feats_type", "fbank", "--average", "best"], 80),
    ],
    ids=["raw-bpe-alone", "deltas", "fbank-best"],
)
def test_other_ways(finished: tuple[Path, str], tmp_path: Path, arguments: list[str], size: int | None) -> None:
    """Other features and tokens, no language models, the best epochs: from data to transcribing a file."""
    import yaml

    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory, symlinks=True)
    said = aishell(directory, "--stage", "0", "--tag", "other", *arguments).stdout
    config = yaml.safe_load((directory / "exp" / "train_pytorch_other" / "config.yaml").read_text(encoding="utf-8"))
    assert config["input_size"] == size
    line = next(line for line in said.splitlines() if line.startswith("transcribe with it: "))
    model, recording = line.split(" transcribe ")[1].split()
    transcribe(directory, model, recording)
