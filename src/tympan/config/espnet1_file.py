"""The translation of one ESPnet1 file: which keys are done, what they became, and which have no translation."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from tympan.config.espnet1_keys import LISTS, MOST_LAYERS, NULLABLE, NUMBERS, REPEATS, Names
from tympan.config.mistakes import Mistakes, nearest
from tympan.config.yaml_text import Document, KeyPath


class Translation:
    """The keys of an ESPnet1 file, taken one by one and written to Tympan's options."""

    def __init__(self, document: Document) -> None:
        self.source = document
        self.left = {key.replace("-", "_"): (key, value) for key, value in document.value.items()}
        self.document = Document(document.name, {})
        self.notes: list[str] = []
        self.mistakes = Mistakes()
        self.known: set[str] = set()
        self._check_values()

    def _check_values(self) -> None:
        """Check the types of values before the translation, which computes with some of them and compares others."""
        for key, (written, value) in list(self.left.items()):
            if isinstance(value, list | dict):
                if key not in LISTS:
                    kind = "a list" if isinstance(value, list) else "a mapping"
                    self.refuse(key, f"{written}: expects one value, found {kind}")
            elif key in NUMBERS and not (value is None and key in NULLABLE):
                number = _number(value)
                if number is None or (key in REPEATS and not (0 <= number <= MOST_LAYERS and number == int(number))):
                    wanted = f"a whole number from 0 to {MOST_LAYERS}" if key in REPEATS else "a finite number"
                    self.refuse(key, f"{written}: expects {wanted}, found {show(value)}")
                else:
                    self.left[key] = (written, number)
        self.mistakes.check()

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key and mark the key as done."""
        self.known.add(key)
        return self.left.pop(key)[1] if key in self.left else default

    def put(self, target: str, value: Any, key: str | None = None) -> None:
        """Set `option` or `option.key` of the translated file; `key` is the ESPnet1 key that it comes from."""
        place = self.document.value
        *outer, last = target.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
        path: KeyPath = tuple(target.split("."))
        if key is not None:
            self.document.lines[path] = self._line(key)

    def note(self, key: str, text: str) -> None:
        """Add a note that says what a key became."""
        self.notes.append(f"{self.source.name}:{self._line(key)}: {text}")

    def add(self, text: str) -> None:
        """Add a note about something that ESPnet1 implies without a key."""
        self.notes.append(f"{self.source.name}: {text}")

    def refuse(self, key: str, text: str) -> None:
        """Report a key that has no translation."""
        self.mistakes.add(f"{self.source.name}:{self._line(key)}", text)

    def refuse_unless(self, key: str, allowed: tuple[Any, ...]) -> None:
        """Reject a key unless its value is what Tympan does anyway."""
        written = self.left.get(key, (key, None))[0]
        self.known.add(key)
        if key not in self.left:
            return
        if (value := self.take(key)) in allowed:
            self.note(key, f"{written}: {show(value)} was dropped: Tympan always does this")
        else:
            self.refuse(key, f"{written}: {show(value)} has no translation; only the value {show(allowed[0])} has one")

    def stop(self, key: str, text: str) -> None:
        """Report that this file can't be translated at all, without checking its other keys."""
        self.refuse(key, text)
        self.mistakes.check()

    def rename(self, names: Names, defaults: Mapping[str, Any]) -> None:
        """Translate keys that only change their name; write out ESPnet1's defaults."""
        for key, targets in names.items():
            self.known.add(key)
            is_given = key in self.left
            if not is_given and key not in defaults:
                continue
            value = self.take(key, defaults.get(key))
            for target in targets:
                self.put(target, value, key if is_given else None)
            if is_given:
                became = (
                    ", ".join(f"{target}: {show(value)}" for target in targets) or "nothing: Tympan does not need it"
                )
                self.note(key, f"{self._written(key)}: {show(value)} became {became}")
            elif targets:
                self.add(f"{key}, ESPnet1's default {show(value)}, became {', '.join(targets)}")

    def drop(self, key: str, reason: str) -> None:
        """Drop a key that Tympan does not need."""
        if key in self.left:
            value = self.take(key)
            self.note(key, f"{self._written(key)}: {show(value)} was dropped: {reason}")
        self.known.add(key)

    def finish(self) -> None:
        """Report the keys that are left, which are unknown, all together."""
        for key, (written, _) in self.left.items():
            near = nearest(key, self.known)
            hint = f" Did you mean '{near.replace('_', '-')}'?" if near else " Remove it, or use ESPnet2's options"
            self.refuse(key, f"'{written}' is not an ESPnet1 key that Tympan can translate.{hint}")
        self.mistakes.check()
        self.notes.sort(key=_line_of)

    def _written(self, key: str) -> str:
        return next((item for item in self.source.value if item.replace("-", "_") == key), key)

    def _line(self, key: str) -> int:
        return self.source.lines.get((self._written(key),), 1)


def _number(value: Any) -> float | None:
    """A number, also in quotes; None for anything else, nan and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    for kind in (int, float):
        try:
            number = kind(value) if isinstance(value, str) else value
            return number if math.isfinite(number) else None
        except (ValueError, OverflowError):
            continue
    return None


def show(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line_of(note: str) -> int:
    """Sort notes in the order of the file; notes on what ESPnet1 implies come last."""
    match = re.match(r".*?:(\d+): ", note)
    return int(match[1]) if match else sys.maxsize
