"""sclite's own page: the two summary tables and the alignment of every utterance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from tympan.score.align import Counts, Step, ascii_lower, ascii_upper, percent
from tympan.score.result import ScoredUtterance, ScoreResult

PAGE_WIDTH = 80
TITLE = "SYSTEM SUMMARY PERCENTAGES by SPEAKER"
HEADINGS = ("SPKR", "# Snt", "# Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")

Row = tuple[float, ...]
Cells = list[str]


def render(result: ScoreResult) -> str:
    """The page of `sclite -i rm -o all stdout`: its tables (its digits, our column widths) and its alignments."""
    return "\n".join(
        [
            "\n\n",
            TITLE.center(PAGE_WIDTH),
            "",
            summary_table(result, percentages=True),
            "\n\n",
            TITLE.center(PAGE_WIDTH),
            "",
            summary_table(result, percentages=False),
            "",
            "",
            alignments(result),
        ]
    )


def summary_table(result: ScoreResult, *, percentages: bool) -> str:
    """The table by speaker with its sum, mean, standard deviation and median."""
    to_row: Callable[[Counts], Row] = _percentages if percentages else _numbers
    digits = 1 if percentages else 0
    speakers = {ascii_lower(name): to_row(counts) for name, counts in result.by_speaker().items()}
    body = [_cells(name, row, digits) for name, row in speakers.items()]
    total = _cells("Sum/Avg" if percentages else "Sum", to_row(result.total), digits)
    columns = list(zip(*speakers.values(), strict=True))
    summaries = [
        _cells("Mean", [statistics.fmean(column) for column in columns], 1, count_digits=1),
        _cells("S.D.", [statistics.stdev(c) if len(c) > 1 else 0.0 for c in columns], 1, count_digits=1),
        _cells("Median", [statistics.median(column) for column in columns], 1, count_digits=1),
    ]
    return _draw(result.name, body, total, summaries)


def alignments(result: ScoreResult) -> str:
    """Every utterance in sclite's `pra` style, speaker by speaker."""
    speakers: dict[str, list[ScoredUtterance]] = {}
    for utterance in result.utterances:
        speakers.setdefault(utterance.speaker, []).append(utterance)
    names = [ascii_lower(name) for name in speakers]
    lines = ["\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE", "", f"System name:   {result.name}", "", "Speakers: "]
    lines += [f"{n:5d}:  {name}" for n, name in enumerate(names)]
    for n, (name, utterances) in enumerate(zip(names, speakers.values(), strict=True)):
        lines += ["", f"Speaker sentences {n:3d}:  {name}   #utts: {len(utterances)}"]
        lines.append("\n\n".join(alignment(utterance, fold_case=not result.case_sensitive) for utterance in utterances))
    return "\n".join([*lines, "", ""])


def alignment(utterance: ScoredUtterance, *, fold_case: bool = True) -> str:
    """One utterance: counts, reference, hypothesis and where they differ. Errors stand in capitals."""
    counts = utterance.counts
    numbers = f"{counts.correct} {counts.substitutions} {counts.deletions} {counts.insertions}"
    lines = [f"id: ({ascii_lower(utterance.id)})", f"Scores: (#C #S #D #I) {numbers}"]
    if not fold_case:
        lines.append("Attributes: Case_sensitve ")
    if utterance.steps:
        columns = [_column(step, fold_case) for step in utterance.steps]
        for label, row in zip(("REF:  ", "HYP:  ", "Eval: "), zip(*columns, strict=True), strict=True):
            lines.append(label + "".join(row))
    return "\n".join(lines)


def _column(step: Step, fold_case: bool) -> tuple[str, str, str]:
    def shown(token: str | None, other: str | None) -> str:
        if token is None:
            return "*" * len((other or "").encode("utf-8"))
        if not fold_case:
            return token
        return ascii_lower(token) if step.kind == "C" else ascii_upper(token)

    ref, hyp = shown(step.ref, step.hyp), shown(step.hyp, step.ref)
    # sclite counts bytes, so that its columns drift in UTF-8 text; the padding is kept, it is what its readers parse.
    width = max(len(ref.encode("utf-8")), len(hyp.encode("utf-8")))
    mark = "" if step.kind == "C" else step.kind
    return tuple(text + " " * (width - len(text.encode("utf-8")) + 1) for text in (ref, hyp, mark))  # type: ignore[return-value]


def _numbers(counts: Counts) -> Row:
    return (
        counts.sentences,
        counts.words,
        counts.correct,
        counts.substitutions,
        counts.deletions,
        counts.insertions,
        counts.errors,
        counts.wrong_sentences,
    )


def _percentages(counts: Counts) -> Row:
    sentences, words, *parts, wrong = _numbers(counts)
    rates = [percent(int(part), counts.words) for part in parts]
    return (sentences, words, *rates, percent(int(wrong), counts.sentences))


def _cells(name: str, row: Sequence[float], digits: int, *, count_digits: int = 0) -> Cells:
    counts = [f"{_round(value):.{count_digits}f}" for value in row[:2]]
    return [name, *counts, *(f"{_round(value):.{digits}f}" for value in row[2:])]


def _round(value: float) -> float:
    """To one digit with halves going up, as sclite rounds; formatting alone would turn 43.25 into 43.2."""
    return math.floor(value * 10 + 0.5) / 10


def _draw(title: str, body: list[Cells], total: Cells, summaries: list[Cells]) -> str:
    rows = [list(HEADINGS), *body, total, *summaries]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEADINGS))]

    def line(row: Cells) -> str:
        name = row[0].center(widths[0]) if row in summaries else row[0].ljust(widths[0])
        numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {name} | {numbers[0]}  {numbers[1]} | {'  '.join(numbers[2:])} |"

    width = len(line(rows[0]))
    separator = "|" + "+".join("-" * len(part) for part in line(rows[0])[1:-1].split("|")) + "|"
    double, single = "|" + "=" * (width - 2) + "|", "|" + "-" * (width - 2) + "|"
    lines = ["," + "-" * (width - 2) + ".", f"|{title:^{width - 2}}|", single, line(rows[0])]
    for row in body:
        lines += [separator, line(row)]
    lines += [double, line(total), double, *(line(row) for row in summaries), "`" + "-" * (width - 2) + "'"]
    margin = " " * max((PAGE_WIDTH - width) // 2, 0)
    return "\n".join(margin + text for text in lines)
