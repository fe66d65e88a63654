"""The report of a fine-tuning run: error rates before and after with a paired test, as Markdown, JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tympan.runtime.atomic import atomic_write
from tympan.score.report import write_report
from tympan.score.result import ScoreResult
from tympan.score.significance import Comparison, compare
from tympan.score.transcripts import RATE_NAMES, Unit

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class SetResult:
    """A data set decoded before and after."""

    name: str
    """dev, test or keep."""
    before: ScoreResult
    after: ScoreResult
    comparison: Comparison

    @classmethod
    def of(cls, name: str, before: ScoreResult, after: ScoreResult) -> SetResult:
        return cls(name, before, after, compare(before, after))

    @property
    def verdict(self) -> str:
        """What the test says."""
        if self.comparison.p_value >= SIGNIFICANT:
            return "no significant difference"
        is_better = self.comparison.difference < 0
        if self.name == "keep":
            return "better on the old domain" if is_better else "forgetting: worse on the old domain"
        return "better" if is_better else "worse"


def table(results: Sequence[SetResult], unit: Unit) -> str:
    """The results as a Markdown table."""
    rate = RATE_NAMES[unit]
    lines = [
        f"| set | utterances | {rate} before | {rate} after | difference (95 % interval) | p | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results:
        interval = one.comparison.interval
        spread = f" ({interval.low:+.1f} to {interval.high:+.1f})" if interval else ""
        lines.append(
            f"| {one.name} | {one.before.total.sentences} | {one.before.total.error_rate:.1f} | "
            f"{one.after.total.error_rate:.1f} | {one.comparison.difference:+.1f}{spread} | "
            f"{one.comparison.p_value:.4f} | {one.verdict} |"
        )
    return "\n".join(lines)


def write_reports(
    directory: Path, results: Sequence[SetResult], *, unit: Unit, title: str, notes: Sequence[str], ending: str
) -> None:
    """Write report.md, results.json, and an HTML page with all alignments for each data set."""
    lines = [f"# {title}", "", table(results, unit), "", *(f"- {note}" for note in notes), "", ending]
    with atomic_write(directory / "report.md") as stream:
        stream.write("\n".join(lines) + "\n")
    values = {one.name: _values(one) for one in results}
    with atomic_write(directory / "results.json") as stream:
        stream.write(json.dumps({"unit": unit, "sets": values}, indent=2) + "\n")
    for one in results:
        pair = [replace(one.before, name="before"), replace(one.after, name="after")]
        write_report(directory / f"report_{one.name}.html", pair, unit=unit, title=f"{title}: {one.name}")


def _values(one: SetResult) -> dict[str, object]:
    interval = one.comparison.interval
    return {
        "utterances": one.before.total.sentences,
        "before": one.before.total.error_rate,
        "after": one.after.total.error_rate,
        "difference": one.comparison.difference,
        "interval": None if interval is None else [interval.low, interval.high],
        "p": one.comparison.p_value,
    }
