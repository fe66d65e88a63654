"""A scored hypothesis file: every utterance aligned, with the statistics that a report needs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tympan.errors import UserError
from tympan.score.align import Counts, Kind, Step, align, ascii_lower, count
from tympan.score.alternatives import Token, align_choices
from tympan.score.transcripts import Transcript

logger = logging.getLogger(__name__)

Pair = tuple[str, str]


@dataclass(frozen=True)
class ScoredUtterance:
    id: str
    speaker: str
    steps: tuple[Step, ...]
    counts: Counts


@dataclass(frozen=True)
class ScoreResult:
    """All utterances of a hypothesis file against their references."""

    name: str
    utterances: tuple[ScoredUtterance, ...]
    missing: tuple[str, ...]
    """References without a hypothesis. They count as deletions, unless they were ignored as sclite does."""
    case_sensitive: bool

    @cached_property
    def total(self) -> Counts:
        return sum((utterance.counts for utterance in self.utterances), Counts())

    def by_speaker(self) -> dict[str, Counts]:
        """Counts of each speaker, in the order in which they first appear."""
        speakers: dict[str, Counts] = {}
        for utterance in self.utterances:
            speakers[utterance.speaker] = speakers.get(utterance.speaker, Counts()) + utterance.counts
        return speakers

    def substitutions(self) -> Counter[Pair]:
        """(reference, hypothesis) pairs that were confused."""
        return Counter(self._pairs("S"))

    def deletions(self) -> Counter[str]:
        return Counter(pair[0] for pair in self._pairs("D"))

    def insertions(self) -> Counter[str]:
        return Counter(pair[1] for pair in self._pairs("I"))

    def _pairs(self, kind: Kind) -> Iterable[Pair]:
        fold = str if self.case_sensitive else ascii_lower
        for utterance in self.utterances:
            for step in utterance.steps:
                if step.kind == kind:
                    yield fold(step.ref or ""), fold(step.hyp or "")


def score(
    references: Sequence[Transcript],
    hypotheses: Sequence[Transcript],
    *,
    name: str,
    case_sensitive: bool = False,
    drop_missing: bool = False,
) -> ScoreResult:
    """Align every hypothesis with its reference, in the order of the hypotheses (as sclite does).

    A reference without a hypothesis counts as deletions, with a warning; `drop_missing` ignores it, as sclite does.
    """
    by_id = _by_id(references, hypotheses, case_sensitive=case_sensitive)
    extra = [hypothesis.id for hypothesis in hypotheses if hypothesis.id not in by_id]
    if extra:
        raise UserError(
            f"{name}: {len(extra)} of {len(hypotheses)} utterances have no reference: {shorten(extra)}\n"
            "check that both files are for the same data set"
        )
    heard = Counter(by_id[hypothesis.id].id for hypothesis in hypotheses)
    twice = [utterance for utterance, times in heard.items() if times > 1]
    if twice:
        raise UserError(
            f"{name}: {len(twice)} references have several hypotheses, whose ids differ only in case: "
            f"{shorten(twice)}\nuse --case_sensitive true to distinguish them"
        )
    missing = tuple(reference.id for reference in references if reference.id not in heard)
    pairs = [(by_id[hypothesis.id], hypothesis.tokens) for hypothesis in hypotheses]
    if missing:
        what = "ignored" if drop_missing else "counted as deletions"
        logger.warning(
            "%s: %d references have no hypothesis and are %s: %s", name, len(missing), what, shorten(missing)
        )
        if not drop_missing:
            pairs += [(by_id[utterance], ()) for utterance in missing]
    scored = []
    for reference, tokens in pairs:
        steps = tuple(_aligned(reference.tokens, tokens, case_sensitive=case_sensitive))
        scored.append(ScoredUtterance(reference.id, reference.speaker, steps, count(steps)))
    return ScoreResult(Path(name).name, tuple(scored), missing, case_sensitive)


def _aligned(ref: Sequence[Token], hyp: Sequence[Token], *, case_sensitive: bool) -> list[Step]:
    said, heard = ([token for token in side if isinstance(token, str)] for side in (ref, hyp))
    if len(said) == len(ref) and len(heard) == len(hyp):
        return align(said, heard, case_sensitive=case_sensitive)
    fold = str if case_sensitive else ascii_lower
    return align_choices(ref, hyp, lambda a, b: fold(a) == fold(b))


def _by_id(
    references: Sequence[Transcript], hypotheses: Sequence[Transcript], *, case_sensitive: bool
) -> dict[str, Transcript]:
    """The reference of each id. A hypothesis 'S1-u1' matches 's1-u1' unless case counts (sclite lowercases ids)."""
    by_id = {reference.id: reference for reference in references}
    if case_sensitive:
        return by_id
    folded = {ascii_lower(name): reference for name, reference in by_id.items()}
    found = {hypothesis.id: folded.get(ascii_lower(hypothesis.id)) for hypothesis in hypotheses}
    return {**{name: reference for name, reference in found.items() if reference is not None}, **by_id}


def shorten(names: Sequence[str], most: int = 5) -> str:
    """The first few names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
