"""ESPnet2's output tree: Nbest_recog/{token,token_int,score,text}, the jobs' directories, the best on top."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tympan.decode.formats import ctm, words_of
from tympan.decode.hypothesis import Hypothesis
from tympan.decode.journal import Result
from tympan.runtime.atomic import atomic_write
from tympan.text.tokenizer import SPACE

KINDS = ("token", "token_int", "score", "text")


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
