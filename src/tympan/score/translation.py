"""BLEU and chrF of translations, by sacrebleu (the extra `st`), with the signatures that make them comparable."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tympan.errors import UserError
from tympan.runtime.packages import import_optional
from tympan.score.result import shorten

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SentenceScore:
    """One utterance; both scores in percent. Sentence BLEU skips n-gram orders longer than the text."""

    id: str
    bleu: float
    chrf: float


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF of a whole set, in percent."""

    bleu: float
    chrf: float
    bleu_signature: str
    """How BLEU was computed; report it together with the score."""
    chrf_signature: str
    sentences: tuple[SentenceScore, ...]
    """In the order of the references."""
    missing: tuple[str, ...]
    """Utterances without a hypothesis, counted as empty."""

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.1f} ({self.bleu_signature})\nchrF2 {self.chrf:.1f} ({self.chrf_signature})"


def score_translation(
    references: Mapping[str, Sequence[str] | str],
    hypotheses: Mapping[str, str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> TranslationScore:
    """Score detokenized texts by utterance id; a reference may be several texts.

    `tokenize` is sacrebleu's tokenizer for BLEU: 13a for languages with spaces, zh, ja-mecab, ko-mecab, char, ...
    """
    texts = {name: _reference_texts(name, given) for name, given in references.items()}
    if not texts:
        raise UserError("there are no references to score against")
    extra = [name for name in hypotheses if name not in texts]
    if extra:
        raise UserError(
            f"{len(extra)} of {len(hypotheses)} hypotheses have no reference: {shorten(extra)}\n"
            "check that both files are for the same data set"
        )
    missing = tuple(name for name in texts if name not in hypotheses)
    if missing:
        logger.warning("%d references have no hypothesis, counted as empty: %s", len(missing), shorten(missing))
    metrics = _import_metrics()
    bleu = _build_bleu(metrics, lowercase=lowercase, tokenize=tokenize)
    sentence_bleu = _build_bleu(metrics, lowercase=lowercase, tokenize=tokenize, effective_order=True)
    chrf = metrics.CHRF(lowercase=lowercase)
    answers = [hypotheses.get(name, "") for name in texts]
    # One list per reference number; None if an utterance has fewer.
    most = max(map(len, texts.values()))
    streams = [[given[n] if n < len(given) else None for given in texts.values()] for n in range(most)]
    return TranslationScore(
        bleu=bleu.corpus_score(answers, streams).score,
        chrf=chrf.corpus_score(answers, streams).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=tuple(
            SentenceScore(
                name, sentence_bleu.sentence_score(answer, given).score, chrf.sentence_score(answer, given).score
            )
            for (name, given), answer in zip(texts.items(), answers, strict=True)
        ),
        missing=missing,
    )


def _reference_texts(name: str, given: Sequence[str] | str) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise UserError(
            f"utterance '{name}' has an empty list of references; give at least one text, or remove the utterance"
        )
    return texts


def _import_metrics() -> Any:
    return import_optional("sacrebleu", "BLEU and chrF scoring").metrics


def _build_bleu(metrics: Any, *, lowercase: bool, tokenize: str, effective_order: bool = False) -> Any:
    if tokenize not in metrics.BLEU.TOKENIZERS:
        known = ", ".join(metrics.BLEU.TOKENIZERS)
        raise UserError(f"sacrebleu has no tokenizer '{tokenize}'; known: {known}")
    try:
        return metrics.BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=effective_order)
    except RuntimeError as error:  # a tokenizer that needs another package
        raise UserError(f"sacrebleu's tokenizer '{tokenize}' cannot be used: {' '.join(str(error).split())}") from None
