"""report.html: a single file that shows the errors of a recognizer and can be opened from disk."""

from __future__ import annotations

import datetime
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tympan
from tympan.runtime.atomic import atomic_write
from tympan.score.align import Counts, Step
from tympan.score.result import Pair, ScoreResult, shorten
from tympan.score.sclite_table import speakers_of
from tympan.score.significance import bootstrap_interval, compare
from tympan.score.transcripts import Unit

TEMPLATE = Path(__file__).with_name("report.html")
CONFUSIONS_SHOWN = 200
LENGTH_BINS = (1, 3, 5, 8, 11, 16, 21, 31, 51, 101)


@dataclass(frozen=True)
class Media:
    """Audio and spectrogram of an utterance."""

    audio: str | None = None
    """The audio as a relative path or a data URI."""
    picture: str | None = None
    """Spectrogram as a data URI."""
    duration_s: float | None = None


def write_report(
    path: str | os.PathLike[str],
    results: Sequence[ScoreResult],
    *,
    unit: Unit,
    title: str,
    media: Mapping[str, Media] | None = None,
) -> None:
    """Write the page for one result, or for two of the same references side by side."""
    payload = json.dumps(_page(results, unit, title, media or {}), ensure_ascii=False, separators=(",", ":"))
    # "</script>" inside a transcript would end the data early; "<\/" is the same string to JSON.
    page = TEMPLATE.read_text(encoding="utf-8").replace(
        "__DATA__", payload.replace("</", "<\\/").replace("<!--", "<\\u0021--")
    )
    with atomic_write(path) as stream:
        stream.write(page)


def _page(results: Sequence[ScoreResult], unit: Unit, title: str, media: Mapping[str, Media]) -> dict[str, object]:
    first = results[0]
    # First, because it rejects results of different utterances.
    difference = compare(*results) if len(results) == 2 else None
    speaker_of = {u.id: name for name, utterances in speakers_of(first).items() for u in utterances}
    others = [{utterance.id: utterance for utterance in result.utterances} for result in results]
    utterances = []
    for utterance in first.utterances:
        sides = [other[utterance.id] for other in others]
        entry: dict[str, object] = {
            "id": utterance.id,
            "s": speaker_of[utterance.id],
            # May differ per system: of `{ a / b }`, each alignment takes the wording that fits its hypothesis best.
            "n": [side.counts.words for side in sides],
            "e": [side.counts.errors for side in sides],
            "a": [[_step(step) for step in side.steps] for side in sides],
        }
        if utterance.id in media:
            item = media[utterance.id]
            found = {"audio": item.audio, "picture": item.picture, "t": item.duration_s}
            entry |= {key: value for key, value in found.items() if value is not None}
        utterances.append(entry)
    page: dict[str, object] = {
        "title": title,
        "unit": unit,
        "case_sensitive": first.case_sensitive,
        "made": f"Tympan {tympan.__version__}, {datetime.datetime.now():%Y-%m-%d %H:%M}.",
        "systems": [_system(result) for result in results],
        "speakers": _groups(speaker_of, results),
        "lengths": _groups({u.id: _length_bin(u.counts.words) for u in first.utterances}, results, in_order=_BIN_NAMES),
        "confusions": _confusions(results),
        "utterances": utterances,
    }
    if difference is not None:
        page["comparison"] = {
            "difference": difference.difference,
            "p": difference.p_value,
            "interval": asdict(difference.interval) if difference.interval else None,
        }
    return page


def _system(result: ScoreResult) -> dict[str, object]:
    total, interval = result.total, bootstrap_interval(result)
    return {
        "name": result.name,
        "rate": total.error_rate,
        "interval": asdict(interval) if interval else None,
        "words": total.words,
        "sub": total.substitutions,
        "del": total.deletions,
        "ins": total.insertions,
        "sentences": total.sentences,
        "wrong": total.wrong_sentences,
        "missing": _missing(result),
    }


def _missing(result: ScoreResult) -> str | None:
    """How the references without a hypothesis were counted."""
    if not result.missing:
        return None
    is_counted = not {utterance.id for utterance in result.utterances}.isdisjoint(result.missing)
    what = "counted as deletions" if is_counted else "ignored"
    return f"References without a hypothesis, {what}: {len(result.missing)} ({shorten(result.missing)})"


def _step(step: Step) -> str | list[str]:
    return (step.ref or "") if step.kind == "C" else [step.kind, step.ref or "", step.hyp or ""]


def _confusions(results: Sequence[ScoreResult]) -> list[list[str | int]]:
    """[kind, reference, hypothesis, count in each result], the most frequent first. Every kind is represented."""
    found: dict[str, list[Counter[Pair]]] = {"S": [], "D": [], "I": []}
    for result in results:
        found["S"].append(result.substitutions())
        found["D"].append(Counter({(token, ""): times for token, times in result.deletions().items()}))
        found["I"].append(Counter({("", token): times for token, times in result.insertions().items()}))
    rows: list[tuple[str, Pair, list[int]]] = []
    for kind, counters in found.items():
        pairs = sorted(set().union(*counters), key=lambda pair: (-max(counter[pair] for counter in counters), pair))
        rows += [(kind, pair, [counter[pair] for counter in counters]) for pair in pairs[:CONFUSIONS_SHOWN]]
    return [[kind, *pair, *times] for kind, pair, times in sorted(rows, key=lambda row: -max(row[2]))]


def _groups(
    group_of: Mapping[str, str], results: Sequence[ScoreResult], *, in_order: Sequence[str] | None = None
) -> list[dict[str, object]]:
    counts: list[dict[str, Counts]] = [{} for _ in results]
    for groups, result in zip(counts, results, strict=True):
        for utterance in result.utterances:
            name = group_of[utterance.id]
            groups[name] = groups.get(name, Counts()) + utterance.counts
    names = [name for name in in_order if name in counts[0]] if in_order else sorted(counts[0])
    return [
        {
            "name": name,
            "sentences": counts[0][name].sentences,
            "words": [groups[name].words for groups in counts],
            "errors": [groups[name].errors for groups in counts],
        }
        for name in names
    ]


def _bin_names() -> list[str]:
    ends = [f"{low} – {high - 1}" for low, high in itertools.pairwise(LENGTH_BINS)]
    return ["0", *ends, f"{LENGTH_BINS[-1]} and more"]


_BIN_NAMES = _bin_names()


def _length_bin(length: int) -> str:
    return _BIN_NAMES[sum(length >= low for low in LENGTH_BINS)]
