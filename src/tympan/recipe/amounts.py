"""Times and sizes as a person reads them."""

from __future__ import annotations


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
