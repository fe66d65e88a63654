"""Damage files at random, read them, and say what came of it. The same seed damages the same way."""

from __future__ import annotations

import io
import random
import resource
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tympan.errors import UserError
from tympan.runtime.entry import system_message

Outcome = Literal["rejected", "accepted", "nonsense", "traceback", "hang"]

TIME_LIMIT_S = 20
"""Processor time, which other programs do not change, for a reader that computes."""
WAIT_LIMIT_S = 300
"""For a reader that waits."""
MEMORY_LIMIT = 3 << 30
"""Bytes that a reader may take beyond what the process has: a header that lies must not fill the memory."""

WORDS = (
    b"nan", b"inf", b"-1", b"0", b"1e308", b"9" * 5000, b"9223372036854775808", b"\0", b"\xff\xfe", b"../../x",
    b"{", b"}", b"[", b"]", b":", b"- ", b"\n", b"\r\n", b"\t", b"''", b'"', b"null", b"true", b"&a *a", b"|", b"(",
    b"!!python/object:os.system", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"/dev/zero", b"\xe2\x80\xa8", b"\xed\xa0\x80",
    b"a" * 3000, b"[" * 2000,
)  # fmt: skip
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@dataclass(frozen=True)
class Reader:
    """One kind of file: `make` writes a whole one, `read` reads it, `is_sane` judges what was read."""

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    is_sane: Callable[[Any], bool] = lambda value: True
    is_text: bool = False


@dataclass
class Report:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Every outcome that must not be, with the number of its trial."""


def damaged(content: bytes, chance: random.Random, *, is_text: bool) -> bytes:
    """One to three random changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(_TEXT_CHANGES if is_text else _CHANGES)(content, chance)
    return content


def try_reader(reader: Reader, folder: Path, *, trials: range, seed: int = 0) -> Report:
    """Read a file that is damaged in another way in each trial. The same seed and number damage the same way."""
    report = Report()
    path = reader.make(folder)
    whole = path.read_bytes()
    outcome, what = attempt(lambda: reader.read(path), reader.is_sane)
    assert outcome == "accepted", f"{reader.name}: the whole file is not readable: {what}"
    for number in trials:
        path.write_bytes(
            damaged(whole, random.Random(f"{reader.name} {number + 1_000_000 * seed}"), is_text=reader.is_text)
        )
        outcome, what = attempt(lambda: reader.read(path), reader.is_sane)
        report.outcomes[outcome] += 1
        if outcome not in ("rejected", "accepted"):
            report.faults.append(f"{reader.name} trial {number}: {outcome}: {what}")
    path.write_bytes(whole)
    return report


def attempt(action: Callable[[], Any], is_sane: Callable[[Any], bool]) -> tuple[Outcome, str]:
    """What comes of an action within the time and memory that it may take."""
    try:
        with _limits(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            value = action()
            outcome: Outcome = "accepted" if is_sane(value) else "nonsense"
            return outcome, repr(value)[:200]
    except UserError as error:
        message = str(error)
        return ("rejected", message) if message.strip() else ("nonsense", "an empty message")
    except OSError as error:
        known = system_message(error)  # as the command reports it
        return ("rejected", known) if known is not None else ("traceback", traceback.format_exc(limit=-3))
    except _TookTooLongError:
        return "hang", traceback.format_exc(limit=-3)
    except Exception:
        return "traceback", traceback.format_exc(limit=-3)


class _TookTooLongError(BaseException):
    """Not an Exception: nothing but the trial may catch it."""


@contextmanager
def _limits() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _TookTooLongError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, TIME_LIMIT_S), signal.SIGALRM: (signal.ITIMER_REAL, WAIT_LIMIT_S)}
    before = {number: signal.signal(number, stop) for number in timers}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_LIMIT, hard))
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _place(content: bytes, chance: random.Random) -> int:
    """Headers are short and decide the most: every second place is among the first 100 bytes."""
    most = len(content) if chance.random() < 0.5 else min(len(content), 100)
    return chance.randrange(most) if most else 0


def _flip(content: bytes, chance: random.Random) -> bytes:
    place = _place(content, chance)
    return (
        content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :] if content else b""
    )


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: _place(content, chance)]


def _remove(content: bytes, chance: random.Random) -> bytes:
    place = _place(content, chance)
    return content[:place] + content[place + chance.randrange(1, 64) :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = _place(content, chance)
    return content[:place] + chance.randbytes(chance.randrange(1, 64)) + content[place:]


def _fill(content: bytes, chance: random.Random) -> bytes:
    """A lost block of a disk: zeros, ones or anything."""
    place, length = _place(content, chance), chance.choice((4, 16, 64, 512, 4096))
    block = chance.choice((b"\0" * length, b"\xff" * length, chance.randbytes(length)))
    return content[:place] + block[: len(content) - place] + content[place + length :]


def _number(content: bytes, chance: random.Random) -> bytes:
    place, kind = _place(content, chance), chance.choice(("<I", ">I", "<Q", "<H", "B"))
    width = struct.calcsize(kind)
    number = chance.choice(NUMBERS) % (1 << 8 * width)
    return content[:place] + struct.pack(kind, number) + content[place + width :]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    place = _place(content, chance)
    block = content[place : place + chance.randrange(1, 200)]
    return content[:place] + block + content[place:]


def _word(content: bytes, chance: random.Random) -> bytes:
    """Put a word that means trouble in the place of another."""
    words = content.split(b" ")
    words[chance.randrange(len(words))] = chance.choice(WORDS)
    return b" ".join(words)


def _value(content: bytes, chance: random.Random) -> bytes:
    """Put it behind the colon or the first space of a line."""
    lines = content.split(b"\n")
    row = chance.randrange(len(lines))
    separator = b": " if b": " in lines[row] else b" "
    lines[row] = lines[row].partition(separator)[0] + separator + chance.choice(WORDS)
    return b"\n".join(lines)


def _lines(content: bytes, chance: random.Random) -> bytes:
    """Remove, repeat or exchange lines."""
    lines = content.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(3)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


_CHANGES = (_flip, _flip, _cut, _remove, _insert, _fill, _number, _number, _repeat)
_TEXT_CHANGES = (_word, _word, _value, _value, _lines, _flip, _cut, _remove, _insert, _repeat)
