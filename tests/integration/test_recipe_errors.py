"""Common failures of real commands: wrong path, incomplete corpus, full disk, port in use, no memory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_recipe import aishell, new_workplace, recipe, steps_run
from train_corpus import command, environment

pytest.importorskip("espeakng_loader", reason="the extra 'demo' makes the corpus of these tests")

DATA_ONLY = ("--stage", "-1", "--stop_stage", "0")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tympan.recipe.demo import Size, make_archives

    directory = tmp_path_factory.mktemp("archives")
    make_archives(directory, Size(train=2, dev=1, test=1, sentences=3), seed=0)
    return directory


@pytest.fixture
def workplace(archives: Path, tmp_path: Path) -> Path:
    return new_workplace(tmp_path, archives)


@pytest.fixture(scope="module")
def with_features(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which stages -1 to 2 ran."""
    directory = new_workplace(tmp_path_factory.mktemp("recipe"), archives)
    aishell(directory, "--stage", "-1", "--stop_stage", "2")
    return directory


def test_wrong_paths(workplace: Path) -> None:
    message = aishell(workplace, *DATA_ONLY, "--data_url", "/nowhere", code=2).stderr
    assert "file:///nowhere/data_aishell.tgz: no such file. --data_url must be the URL or directory" in message
    message = aishell(workplace, "--stage", "0", "--data", "/nowhere", code=2).stderr
    assert "/nowhere does not contain the unpacked corpus: give the right directory (--data), or let stage" in message
    (workplace / "file").touch()
    message = aishell(workplace, *DATA_ONLY, "--data", "file/downloads", code=2).stderr
    assert "--data: cannot create the directory file/downloads" in message


def test_wrong_checkpoints_and_directories_are_reported_before_any_work(workplace: Path) -> None:
    message = aishell(workplace, "--stage", "-1", "--resume", "a.pth", "--lm_resume", "b.pth", code=2).stderr
    assert "--resume: there is no checkpoint a.pth." in message
    assert "--lm_resume: there is no checkpoint b.pth." in message
    assert not (workplace / "downloads").exists()
    (workplace / "empty").mkdir()
    message = recipe(workplace, "custom", "--train_dir", "none", "--dev_dir", "empty", "--ngpu", "0", code=2).stderr
    assert "--train_dir: there is no directory none" in message
    assert "--dev_dir: empty has no wav.scp, text, utt2spk" in message
    given = ["--train_dir", "empty", "--dev_dir", "empty", "--test_dir", "a/test", "--test_dir", "b/test"]
    message = recipe(workplace, "custom", *given, "--ngpu", "0", code=2).stderr
    assert "--test_dir a/test and b/test: both are named 'test'" in message


def test_an_incomplete_corpus_and_its_remedy(workplace: Path) -> None:
    aishell(workplace, *DATA_ONLY)
    wavs = workplace / "downloads" / "data_aishell" / "wav"
    shutil.rmtree(wavs / "train" / "S0002")
    done = aishell(workplace, "--stage", "0", "--stop_stage", "0")
    assert "train: 3 utterances of 1 speakers" in done.stdout
    assert "warning: 3 sentences of the transcript have no recording in downloads (of S0002)" in done.stderr
    assert "--stage -1 --force" in done.stderr
    shutil.rmtree(wavs / "dev")
    message = aishell(workplace, "--stage", "0", "--stop_stage", "0", code=2).stderr
    assert "has 'train' and 'test', but training needs 'train' and 'dev'" in message
    assert "--stage -1 --force" in message
    done = aishell(workplace, *DATA_ONLY, "--force")
    assert "train: 6 utterances of 2 speakers" in done.stdout
    assert "warning" not in done.stderr


def test_another_data_directory_does_not_count_as_an_edited_file(workplace: Path) -> None:
    aishell(workplace, *DATA_ONLY)
    done = aishell(workplace, *DATA_ONLY, "--data", "elsewhere")
    assert "outdated: its output files changed" in done.stdout
    assert not (workplace / ".tympan" / "changed").exists(), "an archive is nothing that somebody edited"


def test_changed_audio_under_the_same_name_is_detected(workplace: Path) -> None:
    import soundfile

    aishell(workplace, "--stage", "-1", "--stop_stage", "2")
    path = min((workplace / "downloads").rglob("train/*/*.wav"))
    samples, rate = soundfile.read(path)
    soundfile.write(path, samples[::-1].copy(), rate, subtype="PCM_16")
    done = aishell(workplace, "--stage", "0", "--stop_stage", "2")
    assert "features train ... (outdated: audio of data/train/wav.scp has changed)" in done.stdout
    redone = steps_run(done.stdout)
    assert [step for step in redone if step.startswith("features")] == ["features train"]
    assert {"cmvn", "dump train", "dump dev"} <= set(redone), "normalisation is of the training data"
    assert steps_run(aishell(workplace, "--stage", "0", "--stop_stage", "2").stdout) == []


def test_other_transcripts_do_not_change_features(workplace: Path) -> None:
    aishell(workplace, "--stage", "-1", "--stop_stage", "2")
    transcript = next((workplace / "downloads").rglob("aishell_transcript_v0.8.txt"))
    lines = transcript.read_text(encoding="utf-8").splitlines()
    transcript.write_text("\n".join([lines[0] + "好", *lines[1:]]) + "\n", encoding="utf-8")
    done = aishell(workplace, "--stage", "0", "--stop_stage", "2")
    assert {"features train", "dictionary", "lengths train"} <= set(steps_run(done.stdout))
    assert "fbank/train/feats.scp: 6 utterances (6 already computed)" in done.stdout
    assert not (workplace / "fbank" / "train.old1").exists()
    assert (workplace / "fbank" / "train" / "text").read_text() == (workplace / "data" / "train" / "text").read_text()


FULL = """
mount -t tmpfs -o size={size}k tmpfs {place} && cp -rL conf archives {place} && cd {place} || exit 99
{python} -m tympan.bin.recipe aishell {options}; echo "code $?"
mount -o remount,size=100m {place}
{python} -m tympan.bin.recipe aishell {options}; echo "code $?"
"""


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1500, "downloads: 748 kB must still be downloaded"),
        (2100, "the disk is full while unpacking data_aishell.tgz"),
        (3700, "No space left on device. Finished results are kept: free some space, then run the same command again."),
    ],
    ids=["download", "unpack", "features"],
)
def test_full_disk_and_its_remedy(workplace: Path, size: int, message: str) -> None:
    """A small separate file system, in a separate namespace."""
    (workplace / "disk").mkdir()
    options = "--data_url archives --ngpu 0 --nj 1 --speeds 1.0 --compress false --stage -1 --stop_stage 2"
    script = FULL.format(size=size, place=workplace / "disk", python=sys.executable, options=options)
    try:
        probe = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", workplace / "disk"], check=False)
    except FileNotFoundError:
        pytest.skip("a small disk needs the program `unshare` (util-linux)")
    if probe.returncode:
        pytest.skip("a small disk can't be mounted here")
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script], cwd=workplace, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == ["code 2", "code 0"]


def test_no_memory(with_features: Path) -> None:
    """An allocation that no machine can serve."""
    huge = ["--asr_args", "--encoder_conf linear_units=1000000 output_size=100000", "--tag", "huge"]
    message = aishell(with_features, "--stage", "train", "--stop_stage", "train", *huge, code=2).stderr
    assert "tympan: error: out of memory (can't allocate memory: you tried to allocate" in message
    assert "--batch_size or --batch_bins" in message


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the child in /proc")
def test_killed_for_memory(with_features: Path) -> None:
    """The system kills a process with signal 9, without a message."""
    options = ["aishell", "--ngpu", "0", "--nj", "1", "--speeds", "1.0", "--lmtag", "killed"]
    recipe_command = [sys.executable, "-m", "tympan.bin.recipe", *options, "--stage", "3", "--stop_stage", "3"]
    process = subprocess.Popen(
        recipe_command, cwd=with_features, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    log = with_features / "exp" / "train_rnnlm_pytorch_killed" / "train.log"
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "lm_train was killed (signal 9)" in message
    assert "ran out of memory. Use a smaller batch" in message
    assert "it continues from there" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("agents", [(), ("--multiprocessing_distributed", "true")], ids=["by hand", "agents"])
def test_port_taken(beeps: Path, tmp_path: Path, agents: tuple[str, ...]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        options = ["--dist_world_size", "2", "--dist_rank", "0", "--dist_master_addr", "127.0.0.1", *agents]
        done = subprocess.run(
            command(beeps, tmp_path, *options, "--dist_master_port", port),
            env=environment(), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"tympan: error: --dist_master_port {port}: the port is in use on this host" in done.stderr
    assert "Use another port, the same on every host" in done.stderr
    assert "Traceback" not in done.stderr
