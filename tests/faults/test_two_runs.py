"""Two runs in one output_dir: the second is rejected and changes nothing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from train_corpus import command, environment, run

from tympan.decode.model_files import ModelFiles
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.session import DecodeSpec, Work, decode_data
from tympan.errors import UserError
from tympan.runtime.child import code_command


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_run_is_rejected(beeps: Path, tmp_path: Path, processes: str) -> None:
    train = command(beeps, tmp_path, "--max_epoch", "100000", "--log_interval", "1", "--nproc", processes)
    first = subprocess.Popen(train, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        log = tmp_path / "train.log"
        deadline = time.monotonic() + 100
        while not (log.exists() and "1-1batch:" in log.read_text(encoding="utf-8")):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        config = (tmp_path / "config.yaml").read_bytes()
        for options in (("--max_epoch", "1"), ("--resume", "true"), ("--nproc", "2")):
            second = run(beeps, tmp_path, *options)
            assert second.returncode == 2
            assert f"another run (process {first.pid} on " in second.stderr
            assert second.stderr.strip().endswith("or give this run another --output_dir.")
        assert (tmp_path / "config.yaml").read_bytes() == config
        assert not (tmp_path / "checkpoint.replaced.pth").exists()
        assert first.poll() is None
        dry = run(beeps, tmp_path, "--dry_run", "true")
        assert dry.returncode == 0, dry.stderr
    finally:
        first.kill()
        first.wait()
    again = run(beeps, tmp_path, "--max_epoch", "1")
    assert again.returncode == 0, again.stderr
    assert "has died; taking over the lock" in again.stderr
    assert not (tmp_path / ".lock").exists()


def test_a_second_decode_into_one_directory_is_refused(tmp_path: Path) -> None:
    """While another process holds the directory nothing is written; what a killed one held is taken over."""
    hold = "import sys; from pathlib import Path; from tympan.runtime.lock import directory_lock\n"
    hold += "with directory_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    line = [*code_command(hold), str(tmp_path)]
    spec = DecodeSpec(ModelFiles(tmp_path / "config.yaml", tmp_path / "model.pth"), DecodeOptions(), BatchLimits())
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"another run \(process {other.pid} on .*another --output_dir"):
            decode_data([], spec, tmp_path, Work())
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
        other.kill()
    with pytest.raises(UserError, match=r"config\.yaml"):  # the lock is free: now the model is looked for
        decode_data([], spec, tmp_path, Work())
    assert not (tmp_path / ".lock").exists()
