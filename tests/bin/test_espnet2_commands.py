"""The commands that ESPnet2's asr.sh calls between its stages: aggregate_stats_dirs, split_scps, launch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tympan.bin.launch import rotate
from tympan.bin.main import cli
from tympan.data.splits import joined_list


def job(folder: Path, ids: list[str], total: float) -> Path:
    for mode in ("train", "valid"):
        (folder / mode).mkdir(parents=True)
        (folder / mode / "batch_keys").write_text("speech\n")
        (folder / mode / "stats_keys").write_text("feats\n")
        (folder / mode / "speech_shape").write_text("".join(f"{name} {len(name)}\n" for name in ids))
        np.savez(folder / mode / "feats_stats.npz", count=2, sum=np.full(3, total), sum_square=np.full(3, 2 * total))
    return folder


def test_aggregate_stats_dirs(tmp_path: Path) -> None:
    first, second = job(tmp_path / "1", ["b", "aa"], 1.5), job(tmp_path / "2", ["c"], 2.0)
    argv = ["aggregate_stats_dirs", "--input_dir", str(first), "--input_dir", str(second)]
    assert cli([*argv, "--output_dir", str(tmp_path / "all")]) == 0
    assert (tmp_path / "all" / "train" / "speech_shape").read_text() == "aa 2\nb 1\nc 1\n"
    stats = np.load(tmp_path / "all" / "valid" / "feats_stats.npz")
    assert int(stats["count"]) == 4
    assert stats["sum"].tolist() == [3.5] * 3
    assert stats["sum_square"].tolist() == [7.0] * 3
    assert cli([*argv, "--skip_sum_stats", "--output_dir", str(tmp_path / "shapes")]) == 0
    assert not (tmp_path / "shapes" / "train" / "feats_stats.npz").exists()


def test_jobs_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = job(tmp_path / "1", ["a"], 1.0), job(tmp_path / "2", ["b"], 1.0)
    argv = ["aggregate_stats_dirs", "--input_dir", str(first), str(second), "--output_dir", str(tmp_path / "all")]
    (second / "train" / "feats_stats.npz").unlink()
    assert cli(argv) == 2
    assert "2/train/feats_stats.npz: no such file; the job that writes it has not finished" in capsys.readouterr().err
    (second / "train" / "stats_keys").write_text("")
    assert cli(argv) == 2
    assert "2/train/stats_keys: has nothing, but" in capsys.readouterr().err


def test_split_scps_and_the_parts_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [f"u{index}" for index in range(5)]
    for name in ("wav.scp", "text"):
        (tmp_path / name).write_text("".join(f"{one} {name} {one}\n" for one in ids))
    argv = ["split_scps", "--scps", str(tmp_path / "wav.scp"), str(tmp_path / "text")]
    argv += ["--output_dir", str(tmp_path / "parts")]
    assert cli([*argv, "--num_splits", "2"]) == 0
    assert (tmp_path / "parts" / "text" / "split.1").read_text() == "u1 text u1\nu3 text u3\n"
    assert (tmp_path / "parts" / "text" / "num_splits").read_text() == "2\n"
    joined = joined_list(tmp_path / "parts" / "wav.scp", tmp_path / "joined")
    assert joined.read_text() == (tmp_path / "wav.scp").read_text()
    assert joined_list(tmp_path / "text", tmp_path / "joined") == tmp_path / "text"
    assert cli([*argv, "--num_splits", "9"]) == 2
    assert "has 5 lines, which is fewer than --num_splits 9" in capsys.readouterr().err
    (tmp_path / "text").write_text("u0 a\nu2 b\n")
    assert cli([*argv, "--num_splits", "2"]) == 2
    assert "text:2: utterance 'u2', but" in capsys.readouterr().err


def runner(path: Path) -> str:
    """A stand-in for run.pl: it shows its arguments and runs the command with its output in the log."""
    path.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nprint('given', sys.argv[1:5])\n"
        "sys.exit(subprocess.call(sys.argv[6:], stdout=open(sys.argv[5], 'w')))\n"
    )
    path.chmod(0o755)
    return str(path)


def test_launch_runs_the_command_with_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "exp" / "train.log"
    command = ["launch", "--cmd", f"{runner(tmp_path / 'run.pl')} --name exp/a", "--log", str(log), "--ngpu", "2"]
    command += ["--num_nodes", "1", "--init_file_prefix", "x", "--multiprocessing_distributed", "true", "--"]
    show = "import sys; print(sys.argv[1:]); sys.exit(sys.argv[1] == '--fail')"
    assert cli([*command, sys.executable, "-c", show, "--max_epoch", "2"]) == 0
    assert "given ['--name', 'exp/a', '--gpu', '2']" in capfd.readouterr().out
    assert log.read_text() == "['--max_epoch', '2', '--ngpu', '2']\n"
    assert cli([*command, sys.executable, "-c", show, "--fail"]) == 1
    assert "the job failed; the last lines of" in capfd.readouterr().err
    assert (tmp_path / "exp" / "train.1.log").read_text() == "['--max_epoch', '2', '--ngpu', '2']\n"


def test_mistakes_of_launch(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["launch", "--cmd", "no_such.pl", "--", "true"]) == 2
    assert "--cmd: there is no program 'no_such.pl'" in capsys.readouterr().err
    assert cli(["launch", "--num_nodes", "2", "--", "true"]) == 2
    assert "--num_nodes: only one machine is supported here" in capsys.readouterr().err


def test_old_logs_are_kept_up_to_a_number(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for number in range(5):
        rotate(log, most=3)
        log.write_text(str(number))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "train.log": "4",
        "train.1.log": "3",
        "train.2.log": "2",
    }
