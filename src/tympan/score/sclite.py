"""sclite's output: the two summary tables and the alignment of every utterance."""

from __future__ import annotations

from tympan.score.align import Step, ascii_lower, ascii_upper
from tympan.score.result import ScoredUtterance, ScoreResult
from tympan.score.sclite_table import speakers_of, summary_page


def render(result: ScoreResult) -> str:
    """The output of `sclite -i rm -o all stdout`."""
    tables = [summary_page(result, percentages=percentages) for percentages in (True, False)]
    return "".join([*tables, "\n\n", alignments(result), "\n"])


def alignments(result: ScoreResult) -> str:
    """Every utterance in sclite's `pra` style, speaker by speaker."""
    speakers = speakers_of(result)
    lines = ["\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE", "", f"System name:   {result.name}", "", "Speakers: "]
    lines += [f"{n:5d}:  {name}" for n, name in enumerate(speakers)]
    for n, (name, utterances) in enumerate(speakers.items()):
        lines += ["", f"Speaker sentences {n:3d}:  {name}   #utts: {len(utterances)}"]
        lines.append("\n\n".join(alignment(utterance, fold_case=not result.case_sensitive) for utterance in utterances))
    return "\n".join([*lines, "", ""])


def alignment(utterance: ScoredUtterance, *, fold_case: bool = True) -> str:
    """One utterance: counts, reference, hypothesis and where they differ. Errors are in upper case."""
    counts = utterance.counts
    numbers = f"{counts.correct} {counts.substitutions} {counts.deletions} {counts.insertions}"
    name = ascii_lower(utterance.id) if fold_case else utterance.id
    lines = [f"id: ({name})", f"Scores: (#C #S #D #I) {numbers}"]
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
    # sclite counts bytes, so columns drift in UTF-8 text. Keep its padding: programs parse this output.
    ref_width, hyp_width = _bytes(ref), _bytes(hyp)
    width = max(ref_width, hyp_width) + 1
    mark = "" if step.kind == "C" else step.kind
    return ref + " " * (width - ref_width), hyp + " " * (width - hyp_width), mark.ljust(width)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8"))
