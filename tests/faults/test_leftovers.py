"""Files left by killed writers, and the message of a full disk."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from torch import nn
from train_corpus import command, environment, run

from tympan.runtime.atomic import atomic_write, remove_leftovers
from tympan.runtime.child import code_command, module_command
from tympan.runtime.log import setup_logging
from tympan.training.curves import TensorBoard
from tympan.training.reporter import Done, EpochReporter, Reporter

WRITE = (
    "import os, sys\nfrom tympan.runtime.atomic import atomic_write\n"
    "with atomic_write(sys.argv[1]) as stream:\n    stream.write('half')\n    os.kill(os.getpid(), 9)\n"
)


def leave_half(path: Path) -> Path:
    done = subprocess.run([*code_command(WRITE), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (part,) = path.parent.glob(f".{path.name}.*.part")
    return part


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    part = leave_half(tmp_path / "config.yaml")
    others = [tmp_path / name for name in (".mine.part", ".a.ffff-1-0a0b0c.part", "x.part")]
    for other in others:
        other.write_text("not ours to remove")
    assert remove_leftovers(tmp_path) == [part.name]
    with atomic_write(tmp_path / "now.txt") as stream:
        stream.write("in progress")
        assert remove_leftovers(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(p.name for p in others), "now.txt"])


def test_the_next_writer_in_the_same_directory_removes_them(tmp_path: Path) -> None:
    leave_half(tmp_path / "score.json")
    with atomic_write(tmp_path / "other.txt") as stream:
        stream.write("x")
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_the_next_run_removes_them(beeps: Path, tmp_path: Path) -> None:
    leave_half(tmp_path / "1epoch.pth")
    (tmp_path / ".latest.pth.link").symlink_to("1epoch.pth")
    (tmp_path / ".checkpoint.pth.new").write_text("half")
    done = run(beeps, tmp_path, "--max_epoch", "1")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as failure, atomic_write(tmp_path / "model.pth"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert failure.value.filename == str(tmp_path / "model.pth")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_fill_the_console_with_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO", "/dev/full", console=False)
    try:
        logging.info("a line that has no room")
    finally:
        setup_logging("WARNING", None, console=False)
    assert "Traceback" not in capfd.readouterr().err


def test_tensorboard_drops_points_that_are_written_again(tmp_path: Path) -> None:
    """Trained to batch 6, resumed at batch 4: each point occurs once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tympan.runtime.comm import Solo

    def log(board: TensorBoard, batches: range) -> None:
        for batch in batches:
            part = EpochReporter("train", 1, comm=Solo(), done=batch)
            part.last_window = {"loss": float(batch)}
            board.logged(part)
        board.close()

    log(TensorBoard(tmp_path), range(1, 7))
    log(TensorBoard(tmp_path, done=Done(epochs=0, batches=4)), range(5, 9))
    events = EventAccumulator(str(tmp_path / "train"), purge_orphaned_data=True).Reload()
    assert [event.step for event in events.Scalars("loss_by_batch")] == list(range(1, 9))
    assert Reporter().stats == {}


@pytest.mark.parametrize("cut", [0, 3, 20])
def test_tensorboard_has_each_epoch_once(tmp_path: Path, cut: int) -> None:
    """Killed after the points of the third epoch and before its checkpoint: in train/, batches are far ahead."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tympan.runtime.comm import Solo

    def log(board: TensorBoard, epochs: range) -> None:
        for epoch in epochs:
            part = EpochReporter("train", epoch, comm=Solo(), done=7, batches_before=7 * (epoch - 1))
            part.last_window = {"loss": float(epoch)}
            board.logged(part)
            reporter.stats[epoch] = {phase: {"loss": 1.0 / epoch} for phase in ("train", "valid")}
            board.epoch_done(epoch, reporter, nn.Module())
        board.close()

    reporter = Reporter()
    log(TensorBoard(tmp_path), range(1, 4))
    for path in tmp_path.rglob("events*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
        path.with_name("events.out.tfevents.damaged").write_bytes(b"\5" + bytes(11) + b"noise" + bytes(4))
    os.mkfifo(tmp_path / "train" / "events.out.tfevents.pipe")
    log(TensorBoard(tmp_path, done=Done(epochs=2, batches=14)), range(3, 5))
    (tmp_path / "train" / "events.out.tfevents.pipe").unlink()
    for phase in ("train", "valid"):
        (tmp_path / phase / "events.out.tfevents.damaged").unlink()
        events = EventAccumulator(str(tmp_path / phase), purge_orphaned_data=True).Reload()
        assert sorted(event.step for event in events.Scalars("loss_by_epoch")) == [1, 2, 3, 4]
    events = EventAccumulator(str(tmp_path / "train"), purge_orphaned_data=True).Reload()
    assert sorted(event.step for event in events.Scalars("loss_by_batch")) == [7, 14, 21, 28]


def test_no_point_is_repeated_after_a_kill(beeps: Path, tmp_path: Path) -> None:
    """Killed in the second epoch, resumed at its start: the log and TensorBoard have each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = ("--batch_size", "1", "--log_interval", "1", "--use_tensorboard", "true", "--resume", "true")
    log = tmp_path / "train.log"
    process = subprocess.Popen(
        command(beeps, tmp_path, *options), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and "2epoch:train:3-3batch" in log.read_text(encoding="utf-8"):
            break
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = run(beeps, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert "resumed at epoch 2, batch 0" in log.read_text(encoding="utf-8")
    points = re.findall(r"\d+epoch:train:\S+|\d+epoch results", log.read_text(encoding="utf-8"))
    expected = []
    for epoch in (1, 2):
        expected += [*(f"{epoch}epoch:train:{n}-{n}batch:" for n in range(1, 15)), f"{epoch}epoch results"]
    assert points == expected
    events = EventAccumulator(str(tmp_path / "tensorboard" / "train"), purge_orphaned_data=True).Reload()
    assert [event.step for event in events.Scalars("loss_by_batch")] == list(range(1, 29))
    assert [event.step for event in events.Scalars("loss_by_epoch")] == [1, 2]


@pytest.mark.parametrize("kilobytes", [0, 20])
def test_a_file_that_may_not_grow_is_named(beeps: Path, tmp_path: Path, kilobytes: int) -> None:
    """A limit of the file size fails in the write itself, as a full disk does."""
    limit = ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "limited"]
    done = subprocess.run(
        [*limit, *command(beeps, tmp_path, "--max_epoch", "1")], env=environment(), capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-1000:]
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("tympan: error: ")]
    assert re.search(rf"{tmp_path}/\S+: File too large\. The file exceeds the size limit", message), message
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_recording_that_may_not_grow_is_named(beeps: Path, tmp_path: Path) -> None:
    arguments = [str(beeps.parent / "train"), str(tmp_path / "out"), "--speeds", "0.9"]
    line = ["bash", "-c", 'ulimit -f 0; exec "$@"', "limited", *module_command("tympan.bin.perturb_data", arguments)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr[-1000:]
    (message,) = done.stderr.splitlines()
    assert re.search(r"train000\.flac: File too large\. The file exceeds the size limit", message), message


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_interrupt_stops_at_once(beeps: Path, tmp_path: Path, processes: str) -> None:
    """One to all processes of the terminal, and another before the step has ended."""
    options = ("--max_epoch", "100000", "--use_tensorboard", "true", "--num_workers", "1", "--nproc", processes)
    process = subprocess.Popen(
        command(beeps, tmp_path, *options), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "epoch results" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    process.stderr.read()  # until the last process of the run has closed it
    assert process.wait(timeout=60) != 0
    assert time.monotonic() - began < 20  # torch's agent kills workers after 30 seconds
