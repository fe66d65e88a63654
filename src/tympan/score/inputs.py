"""Read the user's files and score them, for `tympan score` and `tympan report`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tympan.errors import UserError
from tympan.score.result import ScoreResult, score, shorten
from tympan.score.transcripts import Unit, read_lines, read_transcripts, read_utt2spk

logger = logging.getLogger(__name__)

DECODED = ("text", "token")
"""The name of every decoding result."""
_RANK = re.compile(r"\d+best_recog")


def default_unit(path: Path) -> Unit:
    """The default unit: a .trn file is already split into tokens; a Kaldi text consists of words."""
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
    """Score `hyp` against `ref`. Speakers come from `utt2spk`, or from the file of that name beside `ref`.

    Spaces between words are tokens only in a Kaldi text: when compared with a .trn file they do not count.
    """
    if remove_space and unit != "char":
        raise UserError(f"--remove_space works only with --unit char, but the unit is {unit}: remove it")
    beside = ref.parent / "utt2spk"
    speakers_file = utt2spk or (beside if beside.is_file() and ref.suffix != ".trn" else None)
    speakers = read_utt2spk(speakers_file) if speakers_file else None
    symbols = " ".join(read_lines(non_linguistic_symbols)).split() if non_linguistic_symbols else ()
    is_mixed = (ref.suffix == ".trn") != (hyp.suffix == ".trn")
    references, hypotheses = (
        read_transcripts(
            path,
            unit=unit,
            utt2spk=speakers,
            remove_space=remove_space or (unit == "char" and is_mixed),
            removed_symbols=symbols,
        )
        for path in (ref, hyp)
    )
    if speakers is not None:
        _check_speakers(
            speakers_file, [reference.id for reference in references if reference.id not in speakers], len(references)
        )
    return score(references, hypotheses, name=str(hyp), case_sensitive=case_sensitive, drop_missing=drop_missing)


def _check_speakers(path: Path | None, unknown: Sequence[str], utterances: int) -> None:
    if len(unknown) == utterances:
        raise UserError(
            f"{path}: has none of the {utterances} references ({shorten(unknown)}); check that it belongs to the "
            f"same data set"
        )
    if unknown:
        logger.warning(
            "%s: has no speaker for %d of %d references; the speaker is taken from the utterance id: %s",
            *(path, len(unknown), utterances, shorten(unknown)),
        )


def check_overwriting(outputs: Iterable[Path], inputs: Iterable[Path | None], *, option: str) -> None:
    """Check before anything is read that no output would overwrite an input."""
    given = [path for path in inputs if path is not None and path.exists()]
    lost = [path for path in outputs if path.exists() and any(path.samefile(other) for other in given)]
    if lost:
        raise UserError(f"{', '.join(map(str, lost))}: this input file would be overwritten; choose another {option}")


def short_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each file that distinguishes it from the others: exp/a/text and exp/b/text are 'a' and 'b'."""
    names = [_own_name(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [list(path.resolve().parts) for path in paths]
    for end in (0, -1):
        while all(parts) and len({names[end] for names in parts}) == 1:
            parts = [names[1:] if end == 0 else names[:-1] for names in parts]
    return ["/".join(names) or path.name for names, path in zip(parts, paths, strict=True)]


def _own_name(path: Path) -> str:
    """For a decoding result named `text`, its folder: 'decode_test', or 'decode_test/1best_recog'."""
    if path.name not in DECODED:
        return path.name
    folders = Path(os.path.abspath(path)).parts[1:-1]
    return "/".join(folders[-2:] if folders[-1:] and _RANK.fullmatch(folders[-1]) else folders[-1:]) or path.name
