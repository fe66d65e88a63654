"""Lists of utterances in parts: NAME/split.0, NAME/split.1, ... and NAME/num_splits, as ESPnet2's split_scps writes.

ESPnet2 reads one part after another to save memory. Here lists are indexed on disk, so the parts are joined again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from tympan.errors import UserError
from tympan.files import read_text
from tympan.runtime.atomic import atomic_write

COUNT = "num_splits"


def split_lists(files: Mapping[str, Path], output: Path, *, number: int) -> None:
    """Line n of every file goes to part n modulo `number`. All files must list the same utterances."""
    contents = {name: _lines(path) for name, path in files.items()}
    first = next(iter(files.values()))
    for line, together in enumerate(zip_longest(*contents.values()), 1):
        ids = [(row or "").split(maxsplit=1)[:1] for row in together]
        for path, found in zip(files.values(), ids, strict=True):
            if found != ids[0] or not found:
                raise UserError(
                    f"{path}:{line}: {_shown(found)}, but {first} has {_shown(ids[0])}; sort both files by utterance"
                )
    lines = len(next(iter(contents.values())))
    if lines < number:
        raise UserError(f"{first}: has {lines} lines, which is fewer than --num_splits {number}")
    for name, rows in contents.items():
        for part in range(number):
            with atomic_write(output / name / f"split.{part}") as stream:
                stream.writelines(f"{row}\n" for row in rows[part::number])
        with atomic_write(output / name / COUNT) as stream:
            stream.write(f"{number}\n")


def joined_list(path: Path, folder: Path) -> Path:
    """One file with all parts of `path`, written into `folder`; `path` itself if it is a file."""
    if not path.is_dir():
        return path
    if not (path / COUNT).is_file():
        raise UserError(f"{path}: is a directory without {COUNT} and split.0; create it with split_scps")
    try:
        number = int(read_text(path / COUNT))
    except ValueError:
        raise UserError(f"{path / COUNT}: damaged: expects a number; create {path} again with split_scps") from None
    parts = [_lines(path / f"split.{part}") for part in range(number)]
    # The order before the list was split.
    rows = [row for together in zip_longest(*parts) for row in together if row is not None]
    target = folder / path.name
    with atomic_write(target) as stream:
        stream.writelines(f"{row}\n" for row in rows)
    return target


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()


def _shown(found: list[str]) -> str:
    return f"utterance '{found[0]}'" if found else "no utterance"
