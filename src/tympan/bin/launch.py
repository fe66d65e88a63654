"""Run a training command through Kaldi's run.pl or queue.pl, with the arguments of ESPnet2's launch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.config.command_line import split_words
from tympan.config.option import not_yet
from tympan.errors import UserError
from tympan.runtime.child import launched_environment


@dataclass(frozen=True, kw_only=True)
class Options:
    args: list[str] = argument(help="the command, after --, such as: -- python -m tympan.bin.asr_train --config FILE")
    cmd: str = option("utils/run.pl", help="program that runs a job: run.pl, queue.pl or slurm.pl, with its options")
    log: Path = option(Path("run.log"), help="log file of the job; earlier ones become run.1.log, run.2.log, ...")
    max_num_log_files: int = option(1000, help="number of log files to keep", least=1)
    ngpu: int = option(1, help="number of accelerators; added to the command as --ngpu", least=0)
    multiprocessing_distributed: bool = option(
        True, help="accepted as in ESPnet2; the training command starts one process per accelerator by itself"
    )
    init_file_prefix: str = option(".dist_init_", help="accepted as in ESPnet2; not needed on one machine")
    num_nodes: int = option(1, help="number of machines; only 1, see docs/distributed.md for more", least=1)
    host: str | None = not_yet(None, instead="start training on several machines with --dist_launcher or torchrun")
    envfile: str | None = option("path.sh", help="accepted as in ESPnet2; only used there with --host")
    master_port: int | None = not_yet(None, instead="give --dist_master_port to the training command")
    master_addr: str | None = not_yet(None, instead="give --dist_master_addr to the training command")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan launch", description=__doc__)
    if options.num_nodes > 1:
        raise UserError(
            "--num_nodes: only one machine is supported here; start the training command on each machine with "
            "torchrun, Slurm or MPI (docs/distributed.md)"
        )
    program, *rest = split_words(options.cmd, option="cmd")
    found = shutil.which(program)
    if found is None:
        raise UserError(f"--cmd: there is no program '{program}'; give the path of run.pl, queue.pl or slurm.pl")
    rotate(options.log, most=options.max_num_log_files)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    command = [*options.args, "--ngpu", str(options.ngpu)]
    job = [found, *rest, "--gpu", str(options.ngpu), str(options.log), *command]
    done = subprocess.run(job, check=False, env=launched_environment())
    if done.returncode != 0:
        print(f"tympan: error: the job failed; the last lines of {options.log} are:", file=sys.stderr)
        print(_last_lines(options.log), file=sys.stderr)
    return done.returncode


def rotate(log: Path, *, most: int) -> None:
    """log.txt becomes log.1.txt, which becomes log.2.txt, ...; `most` files are kept with the new one."""
    number = 1
    while log.with_name(f"{log.stem}.{number}{log.suffix}").exists():
        number += 1
    for old in range(number, 0, -1):
        source = log if old == 1 else log.with_name(f"{log.stem}.{old - 1}{log.suffix}")
        if not source.exists():
            continue
        if old >= most:
            source.unlink()
        else:
            source.replace(log.with_name(f"{log.stem}.{old}{log.suffix}"))


def _last_lines(log: Path, number: int = 20) -> str:
    if not log.exists():
        return "(it was not written)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:])


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
