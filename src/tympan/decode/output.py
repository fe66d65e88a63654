"""Hypotheses as files: words with times, CTM lines, SRT subtitles, and ESPnet2's output tree.

The tree is Nbest_recog/{token,token_int,score,text}, the jobs' directories, and the best on top.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.decode.hypothesis import Hypothesis
from tympan.decode.journal import Result
from tympan.runtime.atomic import atomic_write
from tympan.text.tokenizer import SPACE
from tympan.text.words import is_wide, split_words

KINDS = ("token", "token_int", "score", "text")
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
    is_apart: bool = True
    """Whether the text has a blank before it."""


def words_of(hypothesis: Hypothesis, *, space_symbol: str = SPACE) -> list[Word]:
    """Words with the times of their tokens; none where the model gave no times."""
    times, confidences = hypothesis.times, hypothesis.token_confidences
    if times is None or confidences is None:
        return []
    return [
        Word(
            text=text,
            start_s=_within(times[shares[0].place], shares[0].begin),
            end_s=_within(times[shares[-1].place], shares[-1].end),
            confidence=sum(confidences[share.place] for share in shares) / len(shares),
            is_apart=is_apart,
        )
        for text, is_apart, shares in _group(hypothesis, space_symbol)
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
    """Pieces of the text as it is written: a new one at a pause, and before a line grows too long to be read.

    A blank line ends each, the last one too.
    """
    return "".join(
        f"{number}\n{_clock(caption[0].start_s)} --> {_clock(caption[-1].end_s)}\n{_written(caption)}\n\n"
        for number, caption in enumerate(_captions(words), 1)
    )


@dataclass(frozen=True)
class _Share:
    """Of a token what a word takes: from `begin` to `end`, of 1."""

    place: int
    begin: float = 0.0
    end: float = 1.0


def _group(hypothesis: Hypothesis, space: str) -> list[tuple[str, bool, list[_Share]]]:
    """(word, whether a blank stands before it, its tokens)."""
    if hypothesis.words is not None:
        places = iter(range(len(hypothesis.tokens)))
        words = [word for word, _ in hypothesis.words]
        shares = [[_Share(place) for place in itertools.islice(places, count)] for _, count in hypothesis.words]
        return _zipped(words, _blanks(hypothesis.text, words), shares)
    surfaces = ["" if token == space else token.replace(WORD_BEGIN, "") for token in hypothesis.tokens]
    words = split_words(hypothesis.text)
    if "".join(surfaces) != "".join(words):
        # A tokenizer that changes letters (bytes for rare characters): every token stands for itself.
        begins = _begins(hypothesis.tokens, space)
        return [(surface, begins[place], [_Share(place)]) for place, surface in enumerate(surfaces) if surface]
    return _zipped(words, _blanks(hypothesis.text, words), _shared(words, surfaces))


def _zipped(
    words: Sequence[str], blanks: Sequence[bool], shares: Sequence[list[_Share]]
) -> list[tuple[str, bool, list[_Share]]]:
    return [group for group in zip(words, blanks, shares, strict=True) if group[2]]


def _shared(words: Sequence[str], surfaces: Sequence[str]) -> list[list[_Share]]:
    """The tokens of each word. A token that reaches over several words is divided by letters: none of them is lost."""
    letters = ((place, letter) for place, surface in enumerate(surfaces) for letter in range(len(surface)))
    shares = []
    for word in words:
        runs = itertools.groupby(itertools.islice(letters, len(word)), key=lambda letter: letter[0])
        taken = [(place, [letter for _, letter in run]) for place, run in runs]
        shares.append(
            [_Share(place, run[0] / len(surfaces[place]), (run[-1] + 1) / len(surfaces[place])) for place, run in taken]
        )
    return shares


def _blanks(text: str, words: Sequence[str]) -> list[bool]:
    """Whether the text has a blank before each of its words."""
    blanks, position = [], 0
    for word in words:
        found = text.find(word, position)
        blanks.append(found <= 0 or text[found - 1].isspace())
        position = max(position, found + len(word))
    return blanks


def _begins(tokens: Sequence[str], space: str) -> list[bool]:
    """Whether a word begins with each token: all do where nothing marks it, as with phones."""
    if not any(token == space or token.startswith(WORD_BEGIN) for token in tokens):
        return [True] * len(tokens)
    before = [space, *tokens]
    return [before[place] in (space, WORD_BEGIN) or token.startswith(WORD_BEGIN) for place, token in enumerate(tokens)]


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


def _written(words: Sequence[Word]) -> str:
    return "".join(f" {word.text}" if word.is_apart else word.text for word in words).strip()


def _width(words: Sequence[Word]) -> int:
    return sum(2 if is_wide(character) else 1 for character in _written(words))


def _within(times: tuple[float, float], share: float) -> float:
    return round(times[0] + share * (times[1] - times[0]), 3)


def _clock(seconds: float) -> str:
    total_ms = round(seconds * 1000)
    hours, rest = divmod(total_ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d},{rest % 1000:03d}"


def write_output_tree(
    directory: Path,
    ids: Sequence[str],
    results: Mapping[str, Result],
    *,
    nbest: int,
    nj: int,
    space_symbol: str = SPACE,
) -> None:
    """All results in the order of `ids`. With several jobs, logdir/output.JOB holds a share each."""
    done = [results[name] for name in ids if name in results]
    clear_output_tree(directory, nbest=nbest, jobs=nj if nj > 1 else 0)
    for rank in range(nbest):
        write_recog(directory / f"{rank + 1}best_recog", done, rank)
    write_recog(directory, done, 0)
    for job in range(nj if nj > 1 else 0):
        share = [result for place, result in enumerate(done) if place * nj // max(1, len(done)) == job]
        for rank in range(nbest):
            write_recog(directory / "logdir" / f"output.{job + 1}" / f"{rank + 1}best_recog", share, rank)
    with atomic_write(directory / "hyps.jsonl") as stream:
        for result in done:
            best = result.hypotheses[0].as_dict()
            stream.write(json.dumps({"id": result.id, "duration_s": result.duration_s, **best}, ensure_ascii=False))
            stream.write("\n")
    with atomic_write(directory / "ctm") as stream:
        stream.writelines(ctm(result.id, words_of(result.hypotheses[0], space_symbol=space_symbol)) for result in done)


def clear_output_tree(directory: Path, *, nbest: int = 0, jobs: int = 0) -> None:
    """Take away what an earlier decode left here, but for the first `nbest` ranks of the first `jobs` jobs."""
    if not nbest:
        _take_away(directory, (*KINDS, "hyps.jsonl", "ctm"))
    of_jobs = [folder for folder in (directory / "logdir").glob("output.*") if folder.is_dir()]
    for folder in [directory, *of_jobs]:
        is_kept = folder == directory or _number(folder.name, "output.", "") <= jobs
        for ranked in folder.glob("*best_recog"):
            if not is_kept or _number(ranked.name, "", "best_recog") > nbest:
                _take_away(ranked, KINDS)
                _remove_if_empty(ranked)
        if folder != directory:
            _remove_if_empty(folder)


def _number(name: str, before: str, after: str) -> int:
    """Of a folder that carries one; 0 for others, which are not ours."""
    number = name.removeprefix(before).removesuffix(after)
    return int(number) if number.isdecimal() else 0


def _take_away(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def write_recog(directory: Path, results: Sequence[Result], rank: int) -> None:
    """The four files of one rank; an utterance with fewer hypotheses is left out."""
    ranked = [(result.id, result.hypotheses[rank]) for result in results if rank < len(result.hypotheses)]
    for kind in KINDS:
        with atomic_write(directory / kind) as stream:
            stream.writelines(f"{name} {_value(kind, hypothesis)}\n" for name, hypothesis in ranked)


def _value(kind: str, hypothesis: Hypothesis) -> str:
    if kind == "token":
        return " ".join(hypothesis.tokens)
    if kind == "token_int":
        return " ".join(map(str, hypothesis.token_ids))
    return str(hypothesis.score) if kind == "score" else hypothesis.text
