"""One file of ESPnet1 on its way: which keys are dealt with, what they became, and what has no translation."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from tympan.config.espnet1_keys import Names
from tympan.config.mistakes import Mistakes, nearest
from tympan.config.yaml_text import Document, KeyPath


class Translation:
    """Keys of an ESPnet1 file, taken one by one and put where they belong."""

    def __init__(self, document: Document) -> None:
        self.source = document
        self.left = {key.replace("-", "_"): (key, value) for key, value in document.value.items()}
        self.document = Document(document.name, {})
        self.notes: list[str] = []
        self.mistakes = Mistakes()
        self.known: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is then dealt with."""
        self.known.add(key)
        return self.left.pop(key)[1] if key in self.left else default

    def put(self, target: str, value: Any, key: str | None = None) -> None:
        """Set `option` or `option.key` of the translated file; `key` is where it came from."""
        place = self.document.value
        *outer, last = target.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
        path: KeyPath = tuple(target.split("."))
        if key is not None:
            self.document.lines[path] = self._line(key)

    def note(self, key: str, text: str) -> None:
        """Say what a key became."""
        self.notes.append(f"{self.source.name}:{self._line(key)}: {text}")

    def add(self, text: str) -> None:
        """Say what ESPnet1 implies without a key."""
        self.notes.append(f"{self.source.name}: {text}")

    def refuse(self, key: str, text: str) -> None:
        """A key that has no translation."""
        self.mistakes.add(f"{self.source.name}:{self._line(key)}", text)

    def refuse_unless(self, key: str, allowed: tuple[Any, ...]) -> None:
        """A key that is translated only where it says what is so anyway."""
        written = self.left.get(key, (key, None))[0]
        self.known.add(key)
        if key not in self.left:
            return
        if (value := self.take(key)) in allowed:
            self.note(key, f"{written}: {show(value)} became nothing: it is so anyway")
        else:
            self.refuse(key, f"{written}: {show(value)} has no translation; only {show(allowed[0])} has")

    def stop(self, key: str, text: str) -> None:
        """Nothing of this file can be translated: say why, and nothing of its other keys."""
        self.refuse(key, text)
        self.mistakes.check()

    def rename(self, names: Names, defaults: Mapping[str, Any]) -> None:
        """Keys that only change their name; ESPnet1's defaults are written out."""
        for key, targets in names.items():
            self.known.add(key)
            is_given = key in self.left
            if not is_given and key not in defaults:
                continue
            value = self.take(key, defaults.get(key))
            for target in targets:
                self.put(target, value, key if is_given else None)
            if is_given:
                became = ", ".join(f"{target}: {show(value)}" for target in targets) or "nothing: it is not needed"
                self.note(key, f"{self._written(key)}: {show(value)} became {became}")
            elif targets:
                self.add(f"{key}, ESPnet1's default {show(value)}, became {', '.join(targets)}")

    def drop(self, key: str, reason: str) -> None:
        """A key that nothing reads any more."""
        if key in self.left:
            value = self.take(key)
            self.note(key, f"{self._written(key)}: {show(value)} became nothing: {reason}")
        self.known.add(key)

    def finish(self) -> None:
        """What is left is unknown: a mistake, all of them together."""
        for key, (written, _) in self.left.items():
            near = nearest(key, self.known)
            hint = f" Did you mean '{near.replace('_', '-')}'?" if near else " Remove it, or use ESPnet2's options"
            self.refuse(key, f"'{written}' is no key of an ESPnet1 file that Tympan can translate.{hint}")
        self.mistakes.check()
        self.notes.sort(key=_line_of)

    def _written(self, key: str) -> str:
        return next((item for item in self.source.value if item.replace("-", "_") == key), key)

    def _line(self, key: str) -> int:
        return self.source.lines.get((self._written(key),), 1)


def show(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line_of(note: str) -> int:
    """Notes in the order of the file, what ESPnet1 implies after them."""
    match = re.match(r".*?:(\d+): ", note)
    return int(match[1]) if match else sys.maxsize
