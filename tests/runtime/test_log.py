"""The log has one format for console and file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LINE = re.compile(r"^(\[rank 3\] )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING) there: (hello|again)$")


def run(code: str) -> subprocess.CompletedProcess[str]:
    text = (
        "import logging, sys\nfrom tympan.runtime.log import setup_logging\nlog = logging.getLogger('there')\n" + code
    )
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)


def test_console_and_file_have_the_same_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "train.log"
    done = run(f"setup_logging('INFO', {str(path)!r})\nlog.info('hello')\nlog.debug('no')\nlog.warning('again')")
    assert done.stdout == ""
    assert done.stderr == path.read_text(encoding="utf-8")
    assert len(done.stderr.splitlines()) == 2
    assert all(LINE.match(line) for line in done.stderr.splitlines())


def test_second_call_replaces_the_first_and_appends_to_files(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n", encoding="utf-8")
    done = run(
        f"setup_logging()\nsetup_logging('WARNING', {str(path)!r}, console=False, rank=3)\n"
        "log.warning('hello')\nlog.info('no')"
    )
    assert done.stderr == ""
    before, line = path.read_text(encoding="utf-8").splitlines()
    assert before == "before"
    assert LINE.match(line)


def test_lines_are_written_once_if_stderr_is_the_log_file(tmp_path: Path) -> None:
    """run.pl and queue.pl redirect stderr to the log that the command itself writes."""
    path = tmp_path / "train.log"
    code = f"import logging\nfrom tympan.runtime.log import setup_logging\nsetup_logging('INFO', {str(path)!r})\n"
    with path.open("w", encoding="utf-8") as stream:
        subprocess.run([sys.executable, "-c", code + "logging.info('hello')"], stderr=stream, check=True)
    assert path.read_text(encoding="utf-8").count("hello") == 1


def test_lines_stand_above_a_progress_bar() -> None:
    loop = "for i in tqdm(range(2), file=sys.stderr, mininterval=0): log.info('hello')"
    code = f"from tqdm import tqdm\nsetup_logging()\n{loop}"
    parts = re.split(r"[\r\n]", run(code).stderr)
    assert sum(bool(LINE.match(part.strip())) for part in parts) == 2


def test_other_handlers_stay() -> None:
    code = (
        "other = logging.NullHandler()\nlogging.getLogger().addHandler(other)\n"
        "setup_logging()\nsetup_logging(console=False)\nprint(logging.getLogger().handlers == [other])"
    )
    assert run(code).stdout == "True\n"
