"""Commands in separate processes: their failures are reported with a remedy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe import console
from tympan.recipe.console import in_bytes, in_words, run_command
from tympan.runtime.stop import EXIT_REQUEUE


def running(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run a stand-in for a command: a script whose body is `code`."""
    script = tmp_path / "fake.py"
    script.write_text(textwrap.dedent(code))
    real = subprocess.Popen
    monkeypatch.setattr(console.subprocess, "Popen", lambda line, **options: real([sys.executable, script], **options))
    run_command("asr_train", ["--x", "1"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "signal 9.*ran out of memory.*continues",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "terminated by SIGSEGV"),
        ("raise SystemExit(2)", "its message is above. The command was: tympan asr_train --x 1"),
        ("raise SystemExit(1)", "exited with code 1"),
    ],
)
def test_failures_of_commands_are_reported(
    code: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        running(code, monkeypatch, tmp_path)


def test_requeue_code_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        running(f"raise SystemExit({EXIT_REQUEUE})", monkeypatch, tmp_path)
    assert caught.value.code == EXIT_REQUEUE


@pytest.mark.parametrize(("child_code", "code"), [(EXIT_REQUEUE, EXIT_REQUEUE), (130, 130)])
def test_interrupted_at_the_terminal(tmp_path: Path, child_code: int, code: int) -> None:
    """Training saves a checkpoint and exits with 75, other commands with 130; the recipe waits for them."""
    child = f"""
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.5), sys.exit({child_code})))
        print("ready", flush=True)
        time.sleep(60)
    """
    (tmp_path / "child.py").write_text(textwrap.dedent(child))
    parent = f"""
        import subprocess, sys
        from tympan.recipe import console
        from tympan.runtime.entry import run
        real, child = subprocess.Popen, [sys.executable, {str(tmp_path / "child.py")!r}]
        console.subprocess.Popen = lambda line, **options: real(child, **options)
        sys.exit(run(lambda argv: console.run_command("asr_train", [])))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    while process.stdout.readline().strip() != "ready":
        pass
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == code, errors
    assert ("saved a checkpoint; run the same command again" in errors) is (code == EXIT_REQUEUE)


def test_a_command_does_not_outlive_a_killed_recipe(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import os, time; from tympan.runtime.child import end_with_parent; end_with_parent()\n"  # as every command
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = f"""
        import subprocess, sys
        from tympan.recipe import console
        real = subprocess.Popen
        console.subprocess.Popen = lambda line, **options: real([sys.executable, {str(child)!r}], **options)
        console.run_command("asr_train", [])
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the command is still running")


def test_times_and_sizes() -> None:
    assert [in_words(seconds) for seconds in (4.2, 200, 18_720, 792_000)] == [
        "4.2 s", "3 min 20 s", "5 h 12 min", "9 d 4 h",
    ]  # fmt: skip
    assert [in_bytes(count) for count in (812, 40_000, 3e6, 15.6e9)] == ["812 B", "40 kB", "3 MB", "15.6 GB"]
