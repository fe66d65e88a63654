"""The files of `tympan score --output_dir`: sclite's inputs and output, confusions, RESULTS.md and score.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict

from tympan.score import sclite
from tympan.score.result import ScoredUtterance, ScoreResult, shorten
from tympan.score.results_page import results_page
from tympan.score.significance import Comparison, Interval
from tympan.score.transcripts import Unit, is_trn_readable, trn_line

logger = logging.getLogger(__name__)


def contents(
    results: Sequence[ScoreResult],
    *,
    names: Sequence[str],
    unit: Unit,
    intervals: Sequence[Interval | None],
    comparison: Comparison | None = None,
) -> dict[str, str]:
    """File names and contents for the first result, with its comparison to a second one.

    `names` are used in RESULTS.md and score.json; sclite's output has the name of the file, as in sclite.
    """
    first = results[0]
    confusions = first.substitutions().most_common()
    rows = [(name, result.total, interval) for name, result, interval in zip(names, results, intervals, strict=True)]
    numbers = _numbers(results, names, unit, intervals[0], comparison)
    return {
        "ref.trn": _trn("ref", first.utterances),
        "hyp.trn": _trn("hyp", first.utterances),
        "result.txt": sclite.render(first),
        "confusions.txt": "".join(f"{times}\t{ref}\t{hyp}\n" for (ref, hyp), times in confusions),
        "RESULTS.md": results_page(rows, unit=unit, comparison=comparison),
        "score.json": json.dumps(numbers, ensure_ascii=False, indent=1) + "\n",
    }


def _numbers(
    results: Sequence[ScoreResult],
    names: Sequence[str],
    unit: Unit,
    interval: Interval | None,
    comparison: Comparison | None,
) -> dict[str, object]:
    total = results[0].total
    numbers = asdict(total) | {
        "name": names[0],
        "unit": unit,
        "words": total.words,
        "errors": total.errors,
        "error_rate": total.error_rate,
        "interval": asdict(interval) if interval else None,
        "missing": list(results[0].missing),
    }
    if comparison is not None:
        numbers["compare"] = {"name": names[1], "error_rate": results[1].total.error_rate, **asdict(comparison)}
    return numbers


def _trn(side: str, utterances: Sequence[ScoredUtterance]) -> str:
    lines = [
        (name, [token for step in utterance.steps if (token := getattr(step, side)) is not None])
        for name, utterance in zip(_trn_ids(utterances), utterances, strict=True)
    ]
    unlike = [name for name, tokens in lines if not is_trn_readable(name, tokens)]
    if unlike:
        logger.warning(
            "%s.trn: %d utterances change when this file is read back, by sclite or by Tympan: %s. In this format "
            "'{' begins a choice, '@' means no word, and the last parentheses contain the id. Scores of this file "
            "will differ for these utterances",
            *(side, len(unlike), shorten(unlike)),
        )
    return "".join(f"{trn_line(name, tokens)}\n" for name, tokens in lines)


def _trn_ids(utterances: Sequence[ScoredUtterance]) -> list[str]:
    """Ids prefixed with the speaker: sclite reads it from before the first '-', so no speaker may contain one."""
    speakers = [utterance.speaker.replace("-", "_") for utterance in utterances]
    whole = [f"{speaker}-{utterance.id}" for speaker, utterance in zip(speakers, utterances, strict=True)]
    short = [
        utterance.id if utterance.id.startswith(f"{speaker}-") else name
        for speaker, name, utterance in zip(speakers, whole, utterances, strict=True)
    ]
    return short if len(set(short)) == len(short) else whole
