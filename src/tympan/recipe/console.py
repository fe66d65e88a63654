"""Console output of recipes: run commands, and print times and sizes in readable units."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tympan.errors import UserError
from tympan.runtime.child import child_environment, module_command
from tympan.runtime.stop import EXIT_REQUEUE


def run_command(name: str, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
    """Run `tympan NAME ARGUMENTS` in a separate process; its output and errors go directly to the console.

    SIGTERM is passed on, so that training can save a checkpoint and no command outlives the recipe. A terminal sends
    SIGINT (Ctrl-C) to both.
    """
    shown = f"tympan {name} {shlex.join(arguments)}"
    print(f"    $ {shown}", flush=True)
    process = subprocess.Popen(
        module_command(f"tympan.bin.{name}", arguments),
        env=child_environment(environment, ends_by=signal.SIGTERM),
    )
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(signal.SIGTERM))
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait()  # the terminal also sent it the signal
        if code != EXIT_REQUEUE:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == EXIT_REQUEUE:
        print(
            f"tympan: {name} was stopped by a signal and saved a checkpoint; run the same command again to continue.",
            file=sys.stderr,
        )
        raise SystemExit(EXIT_REQUEUE)  # a scheduler requeues the job on this code
    if code:
        raise UserError(_what_happened(name, shown, code))


def say(line: str) -> None:
    """Print a line and flush, so that it also appears immediately in a pipe."""
    print(line, flush=True)


def in_words(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `5 h 12 min`, `9 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def in_bytes(count: float) -> str:
    """`812 B`, `40 kB`, `3 MB`, `15.6 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _what_happened(name: str, shown: str, code: int) -> str:
    again = "Run the same recipe command again: it continues from there."
    if code == -signal.SIGKILL:
        return (
            f"{name} was killed (signal 9), usually because the system ran out of memory. Use a smaller batch "
            "(--asr_args '--batch_size ...' or '--batch_bins ...'), fewer processes (--nj), or free memory. "
            f"{again}"
        )
    if code < 0:
        return f"{name} was terminated by {signal.Signals(-code).name}. {again}"
    if code == 2:
        return f"{name} failed; its message is above. The command was: {shown}"
    return f"{name} exited with code {code}; its output is above. {again}"
