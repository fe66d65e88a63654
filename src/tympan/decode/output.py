"""Write hypotheses as files: CTM lines, SRT and WebVTT subtitles, and ESPnet2's output tree.

The tree has Nbest_recog/{token,token_int,score,text} in the directory of each job, and the best hypotheses at its top.
For a model of several speakers, the files are token_spk1, token_spk2, ... as in ESPnet2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tympan.decode.hypothesis import Hypothesis, by_speaker
from tympan.decode.journal import Result
from tympan.decode.words import Word, words_of
from tympan.runtime.atomic import atomic_write
from tympan.text.words import is_wide

KINDS = ("token", "token_int", "score", "text")
MAX_CAPTION_S = 6.0
MAX_CAPTION_WIDTH = 42
CAPTION_GAP_S = 0.7


def ctm(name: str, words: Sequence[Word], *, channel: str = "1") -> str:
    """NIST's time-marked conversation format: name, channel, start, duration, word, confidence.

    Spaces separate its columns, so spaces in a name become '_'.
    """
    name = "_".join(name.split())
    return "".join(
        f"{name} {channel} {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} {word.confidence:.3f}\n"
        for word in words
    )


def srt(words: Sequence[Word]) -> str:
    """SRT captions. A new one begins at a pause, and before a line gets too long to read.

    An empty line ends every caption, including the last one.
    """
    return "".join(
        f"{number}\n{_clock(caption[0].start_s)} --> {_clock(caption[-1].end_s)}\n{_written(caption)}\n\n"
        for number, caption in enumerate(_captions(words), 1)
    )


def vtt(words: Sequence[Word]) -> str:
    """The same captions in WebVTT, the format of web browsers."""
    captions = "".join(
        f"{_clock(caption[0].start_s, '.')} --> {_clock(caption[-1].end_s, '.')}\n{_escaped(_written(caption))}\n\n"
        for caption in _captions(words)
    )
    return f"WEBVTT\n\n{captions}"


def _escaped(text: str) -> str:
    """Escape markup: `<unk>` would be a tag."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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


def _clock(seconds: float, point: str = ",") -> str:
    total_ms = round(seconds * 1000)
    hours, rest = divmod(total_ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def write_output_tree(
    directory: Path,
    ids: Sequence[str],
    results: Mapping[str, Result],
    *,
    nbest: int,
    nj: int,
) -> list[Path]:
    """All results in the order of `ids`. With several jobs, each logdir/output.JOB holds a part of them.

    Returns the files with the best texts: one, or one for each speaker.
    """
    done = [results[name] for name in ids if name in results]
    speakers = _speakers(done)
    clear_output_tree(directory, nbest=nbest, jobs=nj if nj > 1 else 0)
    for rank in range(nbest):
        write_recog(directory / f"{rank + 1}best_recog", done, rank, speakers)
    write_recog(directory, done, 0, speakers)
    for job in range(nj if nj > 1 else 0):
        share = [result for index, result in enumerate(done) if index * nj // max(1, len(done)) == job]
        for rank in range(nbest):
            write_recog(directory / "logdir" / f"output.{job + 1}" / f"{rank + 1}best_recog", share, rank, speakers)
    with atomic_write(directory / "hyps.jsonl") as stream:
        for result, best in _best(done):
            entry = {"id": result.id, "duration_s": result.duration_s, **best.as_dict()}
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
    with atomic_write(directory / "ctm") as stream:
        for result, best in _best(done):
            stream.write(ctm(result.id, words_of(best), channel=str(best.speaker or 1)))
    return [directory / f"text{_suffix(speaker)}" for speaker in speakers]


def clear_output_tree(directory: Path, *, nbest: int = 0, jobs: int = 0) -> None:
    """Remove the results of an earlier decode, except the first `nbest` ranks of the first `jobs` jobs."""
    if not nbest:
        _remove_files(directory, (*KINDS, "hyps.jsonl", "ctm"))
    of_jobs = [folder for folder in (directory / "logdir").glob("output.*") if folder.is_dir()]
    for folder in [directory, *of_jobs]:
        is_kept = folder == directory or _number(folder.name, "output.", "") <= jobs
        for ranked in folder.glob("*best_recog"):
            if not is_kept or _number(ranked.name, "", "best_recog") > nbest:
                _remove_files(ranked, KINDS)
                _remove_if_empty(ranked)
        if folder != directory:
            _remove_if_empty(folder)


def _number(name: str, before: str, after: str) -> int:
    """The number in a folder's name; 0 for other folders, which no decode wrote."""
    number = name.removeprefix(before).removesuffix(after)
    return int(number) if number.isdecimal() else 0


def _remove_files(folder: Path, names: Sequence[str]) -> None:
    """Remove these files, and those of each speaker."""
    for name in names:
        for path in [folder / name, *folder.glob(f"{name}_spk[0-9]*")]:
            path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def write_recog(directory: Path, results: Sequence[Result], rank: int, speakers: Sequence[int | None]) -> None:
    """The four files of one rank, for each speaker. An utterance with fewer hypotheses is left out."""
    for speaker in speakers:
        lists = [
            (result.id, [hypothesis for hypothesis in result.hypotheses if hypothesis.speaker == speaker])
            for result in results
        ]
        ranked = [(name, hypotheses[rank]) for name, hypotheses in lists if rank < len(hypotheses)]
        for kind in KINDS:
            with atomic_write(directory / f"{kind}{_suffix(speaker)}") as stream:
                stream.writelines(f"{name} {_value(kind, hypothesis)}\n" for name, hypothesis in ranked)


def _speakers(results: Sequence[Result]) -> Sequence[int | None]:
    """The numbers of the speakers; only None for a model of one speaker."""
    found = {hypothesis.speaker for result in results for hypothesis in result.hypotheses}
    return sorted(found, key=lambda speaker: speaker or 0) or [None]


def _suffix(speaker: int | None) -> str:
    return "" if speaker is None else f"_spk{speaker}"


def _best(results: Sequence[Result]) -> Iterator[tuple[Result, Hypothesis]]:
    """The best hypothesis of each speaker of each result."""
    for result in results:
        for ranked in by_speaker(result.hypotheses):
            yield result, ranked[0]


def _value(kind: str, hypothesis: Hypothesis) -> str:
    if kind == "token":
        return " ".join(hypothesis.tokens)
    if kind == "token_int":
        return " ".join(map(str, hypothesis.token_ids))
    return str(hypothesis.score) if kind == "score" else hypothesis.text
