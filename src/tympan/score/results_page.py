"""RESULTS.md as recipes show it: one row for each decoded set."""

from __future__ import annotations

from collections.abc import Mapping

from tympan.score.align import Counts, percent
from tympan.score.sclite_table import tenths
from tympan.score.significance import Interval

COLUMNS = "|dataset|Snt|Wrd|Corr|Sub|Del|Ins|Err|S.Err|95 % interval|"


def results_table(rows: Mapping[str, tuple[Counts, Interval]]) -> str:
    """A Markdown table in ESPnet2's columns, with the confidence interval of Err beside it."""
    lines = [COLUMNS, "|" + "---|" * COLUMNS.strip("|").count("|") + "---|"]
    for name, (counts, interval) in rows.items():
        parts = (counts.correct, counts.substitutions, counts.deletions, counts.insertions, counts.errors)
        rates = "|".join(tenths(percent(part, counts.words)) for part in parts)
        wrong = percent(counts.wrong_sentences, counts.sentences)
        spread = f"{interval.low:.1f} – {interval.high:.1f}"
        lines.append(f"|{name}|{counts.sentences}|{counts.words}|{rates}|{tenths(wrong)}|{spread}|")
    return "\n".join(lines) + "\n"
