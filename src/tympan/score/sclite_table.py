"""sclite's summary table, byte for byte: per speaker, with sum, mean, standard deviation and median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tympan.score.align import Counts, ascii_lower
from tympan.score.result import ScoredUtterance, ScoreResult

PAGE_WIDTH = 80
TITLE = "SYSTEM SUMMARY PERCENTAGES by SPEAKER"
HEADINGS = (" SPKR", " # Snt", "# Wrd", "Corr", " Sub", " Del", " Ins", " Err", "S.Err")
NO_WORDS = (
    "* No Reference words for this/these speaker(s).  Word counts supplied\n"
    "  rather than percents.\n"
    "# No Reference words for this/these speaker(s).  NCE not computable.\n"
    "+ Speaker(s) with no reference data is ignored\n"
)

Cells = Sequence[str]


def speakers_of(result: ScoreResult) -> dict[str, list[ScoredUtterance]]:
    """Utterances by speaker, in order of first occurrence; 'S1' and 's1' are the same unless case counts."""
    speakers: dict[str, list[ScoredUtterance]] = {}
    for utterance in result.utterances:
        name = utterance.speaker if result.case_sensitive else ascii_lower(utterance.speaker)
        speakers.setdefault(name, []).append(utterance)
    return speakers


def summary_page(result: ScoreResult, *, percentages: bool) -> str:
    """The table under its heading, with sclite's notes on speakers who said nothing."""
    table = summary_table(result, percentages=percentages)
    notes = f"\n{NO_WORDS}" if percentages and not all(counts.words for counts in _counts_of(result).values()) else ""
    return f"\n\n\n{_centred(TITLE, PAGE_WIDTH)}\n\n{table}\n{notes}"


def summary_table(result: ScoreResult, *, percentages: bool) -> str:
    """Percentages of the reference's tokens, or counts."""
    speakers = _counts_of(result)
    rows: list[Cells] = [
        [f" {name} ", *_counted(counts), *_cells(counts, percentages)] for name, counts in speakers.items()
    ]
    total = [
        " Sum/Avg" if percentages else " Sum",
        *_counted(result.total),
        *([_tenths(rate) for rate in _rates(result.total)] if percentages else _cells(result.total, False)),
    ]
    return _draw(result.name, rows, total, _summaries(list(speakers.values()), percentages))


def _counts_of(result: ScoreResult) -> dict[str, Counts]:
    return {
        name: sum((utterance.counts for utterance in utterances), Counts())
        for name, utterances in speakers_of(result).items()
    }


def _summaries(speakers: Sequence[Counts], percentages: bool) -> list[Cells]:
    """Mean, deviation and median over speakers. Percentages skip speakers without words, marked by a '+'."""
    said = [counts for counts in speakers if counts.words or not percentages]
    mark = "+" if len(said) < len(speakers) else " "
    everyone = list(zip(*((counts.sentences, counts.words) for counts in speakers), strict=True))
    values = list(zip(*map(_rates if percentages else _numbers, said), strict=True)) or [()] * 6
    sentence_errors = [(_rates if percentages else _numbers)(counts)[-1] for counts in speakers]
    rows: list[Cells] = []
    for name, summary in (("Mean", statistics.fmean), ("S.D.", _deviation), ("Median", statistics.median)):
        counted = [_tenths(summary(column)) for column in everyone]
        rates = [_tenths(summary(column) if column else 0.0, mark) for column in values[:-1]]
        rows.append([name, *counted, *rates, _tenths(summary(sentence_errors))])
    return rows


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _numbers(counts: Counts) -> list[float]:
    return [
        counts.correct,
        counts.substitutions,
        counts.deletions,
        counts.insertions,
        counts.errors,
        counts.wrong_sentences,
    ]


def _rates(counts: Counts) -> list[float]:
    """sclite's percentages: 0 for a division by zero."""
    *parts, wrong = _numbers(counts)
    return [
        *(100.0 * part / max(counts.words, 1) * bool(counts.words) for part in parts),
        100 * wrong / max(counts.sentences, 1),
    ]


def _counted(counts: Counts) -> list[str]:
    return [f"{counts.sentences:5d}", f"{counts.words:5d}"]


def _cells(counts: Counts, percentages: bool) -> list[str]:
    numbers = [int(number) for number in _numbers(counts)]
    if not percentages:
        return [f"{number:5d} " for number in numbers]
    rates = [_tenths(rate) for rate in _rates(counts)]
    return rates if counts.words else [*(f"{number:5d}*" for number in numbers[:-1]), rates[-1]]


def tenths(value: float) -> str:
    """One decimal with halves rounded up, as sclite does; plain formatting would turn 43.25 into 43.2."""
    return f"{math.floor(value * 10 + 0.5) / 10:.1f}"


def _tenths(value: float, mark: str = " ") -> str:
    return f"{tenths(value):>5}{mark}"


def _draw(title: str, rows: list[Cells], total: Cells, summaries: list[Cells]) -> str:
    table = [HEADINGS, *rows, total, *summaries]
    texts = [max(_width(row[column]) for row in table) for column in range(len(HEADINGS))]
    # A system name wider than the table widens the columns evenly.
    missing = max(0, _width(title) - (sum(texts) + len(texts) - 1))
    ends = [int(missing * (column + 1) / len(texts) + 0.5) for column in range(len(texts))]
    widths = [text + end - begin for text, begin, end in zip(texts, [0, *ends], ends, strict=False)]

    def line(row: Cells, first_is_centred: bool = False) -> str:
        first = _centred(row[0], texts[0]) if first_is_centred else row[0] + " " * (texts[0] - _width(row[0]))
        cells = [first, *(_centred(cell, text) for cell, text in zip(row[1:], texts[1:], strict=True))]
        return _barred([_centred(cell, width) for cell, width in zip(cells, widths, strict=True)], "|")

    inside = sum(widths) + len(widths) - 1
    rule = _barred(["-" * width for width in widths], "+").replace(" ", "-")
    double = "=" * inside
    lines = [_centred(title, inside), "-" * inside, line(HEADINGS)]
    for row in rows:
        lines += [rule, line(row)]
    lines += [double, line(total), double, *(line(row, first_is_centred=True) for row in summaries)]
    framed = ["," + "-" * inside + ".", *(f"|{text}|" for text in lines), "`" + "-" * inside + "'"]
    margin = " " * max((PAGE_WIDTH - inside - 2) // 2, 0)
    return "\n".join(margin + text for text in framed)


def _barred(cells: Cells, bar: str) -> str:
    """Bars after the speaker and after the two counts, spaces between the others."""
    return f"{cells[0]}{bar}{' '.join(cells[1:3])}{bar}{' '.join(cells[3:])}"


def _centred(text: str, width: int) -> str:
    """Center the text; an odd space goes to the right."""
    spaces = max(0, width - _width(text))
    return " " * (spaces // 2) + text + " " * (spaces - spaces // 2)


def _width(text: str) -> int:
    """sclite counts bytes."""
    return len(text.encode("utf-8"))
