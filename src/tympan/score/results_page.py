"""RESULTS.md in the format of the recipes: one row per decoded set."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.score.align import Counts, percent
from tympan.score.sclite_table import tenths
from tympan.score.significance import Comparison, Interval
from tympan.score.transcripts import RATE_NAMES, Unit

COLUMNS = "|dataset|Snt|Wrd|Corr|Sub|Del|Ins|Err|S.Err|95 % interval|"


def results_page(
    rows: Sequence[tuple[str, Counts, Interval | None]], *, unit: Unit, comparison: Comparison | None = None
) -> str:
    """A Markdown table with ESPnet2's columns and the confidence interval of Err.

    `comparison` compares the second row with the first.
    """
    lines = [f"## {RATE_NAMES[unit]}", "", COLUMNS, "|" + "---|" * COLUMNS.strip("|").count("|") + "---|"]
    for name, counts, interval in rows:
        parts = (counts.correct, counts.substitutions, counts.deletions, counts.insertions, counts.errors)
        rates = "|".join(tenths(percent(part, counts.words)) for part in parts)
        wrong = percent(counts.wrong_sentences, counts.sentences)
        spread = f"{interval.low:.1f} – {interval.high:.1f}" if interval else ""
        lines.append(f"|{name}|{counts.sentences}|{counts.words}|{rates}|{tenths(wrong)}|{spread}|")
    if comparison is not None:
        lines += ["", f"{rows[1][0]} against {rows[0][0]}: {comparison}."]
    return "\n".join(lines) + "\n"
