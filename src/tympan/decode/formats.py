"""Times on paper: words with times, CTM lines, SRT subtitles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tympan.decode.hypothesis import Hypothesis
from tympan.text.tokenizer import SPACE
from tympan.text.words import is_wide, join_words, split_words

MAX_CAPTION_S = 6.0
MAX_CAPTION_WIDTH = 42
CAPTION_GAP_S = 0.7
WORD_BEGIN = "▁"


@dataclass(frozen=True)
class Word:
    """A word, or a character of a language that is written without blanks."""

    text: str
    start_s: float
    end_s: float
    confidence: float


def words_of(hypothesis: Hypothesis) -> list[Word]:
    """Words with the times of their tokens; none where the model gave no times."""
    times, confidences = hypothesis.times, hypothesis.token_confidences
    if times is None or confidences is None:
        return []
    groups = _group(hypothesis)
    return [
        Word(
            text=text,
            start_s=times[places[0]][0],
            end_s=times[places[-1]][1],
            confidence=sum(confidences[place] for place in places) / len(places),
        )
        for text, places in groups
    ]


def ctm(name: str, words: Sequence[Word], *, channel: str = "1") -> str:
    """NIST's time-marked conversation format: name, channel, start, duration, word, confidence.

    Blanks separate its columns, so those in a name become '_'.
    """
    name = "_".join(name.split())
    return "".join(
        f"{name} {channel} {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} {word.confidence:.3f}\n"
        for word in words
    )


def srt(words: Sequence[Word]) -> str:
    """Subtitles: a new one at a pause, and before a line grows too long to be read."""
    lines = []
    for number, caption in enumerate(_captions(words), 1):
        text = join_words(word.text for word in caption)
        lines += [str(number), f"{_clock(caption[0].start_s)} --> {_clock(caption[-1].end_s)}", text, ""]
    return "\n".join(lines)


def _group(hypothesis: Hypothesis) -> list[tuple[str, list[int]]]:
    """(word, places of its tokens). A token belongs to the word in which it begins."""
    if hypothesis.words is not None:
        places = iter(range(len(hypothesis.tokens)))
        return [(word, list(itertools.islice(places, count))) for word, count in hypothesis.words]
    surfaces = ["" if token == SPACE else token.replace(WORD_BEGIN, "") for token in hypothesis.tokens]
    words = split_words(hypothesis.text)
    if "".join(surfaces) != "".join(words):
        # A tokenizer that changes letters (bytes for rare characters): every token stands for itself.
        return [(surface, [place]) for place, surface in enumerate(surfaces) if surface]
    groups: list[tuple[str, list[int]]] = []
    begun = ends = 0
    remaining = iter(words)
    for place, surface in enumerate(surfaces):
        if not surface:
            continue
        while begun >= ends:
            word = next(remaining)
            ends += len(word)
            groups.append((word, []))
        groups[-1][1].append(place)
        begun += len(surface)
    return [(word, places) for word, places in groups if places]


def _captions(words: Sequence[Word]) -> list[list[Word]]:
    captions: list[list[Word]] = []
    for word in words:
        if captions:
            caption = captions[-1]
            is_near = word.start_s - caption[-1].end_s <= CAPTION_GAP_S
            is_short = word.end_s - caption[0].start_s <= MAX_CAPTION_S
            if is_near and is_short and _width([*caption, word]) <= MAX_CAPTION_WIDTH:
                caption.append(word)
                continue
        captions.append([word])
    return captions


def _width(words: Sequence[Word]) -> int:
    return sum(2 if is_wide(character) else 1 for character in join_words(word.text for word in words))


def _clock(seconds: float) -> str:
    total_ms = round(seconds * 1000)
    hours, rest = divmod(total_ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d},{rest % 1000:03d}"
