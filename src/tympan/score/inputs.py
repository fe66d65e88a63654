"""From the files that a user names to a scored result: what `score` and `report` share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tympan.errors import UserError
from tympan.score.result import ScoreResult, score
from tympan.score.transcripts import Unit, read_lines, read_transcripts, read_utt2spk

DECODED = ("text", "token")
"""What every decode calls its result."""
_RANK = re.compile(r"\d+best_recog")


def default_unit(path: Path) -> Unit:
    """A .trn file is already cut into tokens; a Kaldi text is made of words."""
    return "token" if path.suffix == ".trn" else "word"


def score_files(
    ref: Path,
    hyp: Path,
    *,
    unit: Unit,
    utt2spk: Path | None = None,
    case_sensitive: bool = False,
    remove_space: bool = False,
    non_linguistic_symbols: Path | None = None,
    drop_missing: bool = False,
) -> ScoreResult:
    """Score `hyp` against `ref`. Speakers come from `utt2spk`, or from the file of that name beside `ref`."""
    beside = ref.with_name("utt2spk")
    speakers_file = utt2spk or (beside if beside.is_file() and ref.suffix != ".trn" else None)
    speakers = read_utt2spk(speakers_file) if speakers_file else None
    symbols = " ".join(read_lines(non_linguistic_symbols)).split() if non_linguistic_symbols else ()
    references, hypotheses = (
        read_transcripts(path, unit=unit, utt2spk=speakers, remove_space=remove_space, removed_symbols=symbols)
        for path in (ref, hyp)
    )
    return score(references, hypotheses, name=str(hyp), case_sensitive=case_sensitive, drop_missing=drop_missing)


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[Path | None], *, option: str) -> None:
    """Before anything is read: what would be written must not be what was given."""
    given = [path for path in inputs if path is not None and path.exists()]
    lost = [path for path in outputs if path.exists() and any(path.samefile(other) for other in given)]
    if lost:
        raise UserError(
            f"{', '.join(map(str, lost))}: would be written over, and is read here: choose another {option}"
        )


def telling_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each file that tells it from the others: exp/a/text and exp/b/text are 'a' and 'b'."""
    names = [_own_name(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [list(path.resolve().parts) for path in paths]
    for end in (0, -1):
        while all(parts) and len({names[end] for names in parts}) == 1:
            parts = [names[1:] if end == 0 else names[:-1] for names in parts]
    return ["/".join(names) or path.name for names, path in zip(parts, paths, strict=True)]


def _own_name(path: Path) -> str:
    """Of a decode's `text`, whose name tells nothing, the folder: 'decode_test', or 'decode_test/1best_recog'."""
    if path.name not in DECODED:
        return path.name
    folders = Path(os.path.abspath(path)).parts[1:-1]
    return "/".join(folders[-2:] if folders[-1:] and _RANK.fullmatch(folders[-1]) else folders[-1:]) or path.name
