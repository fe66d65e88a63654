"""ESPnet2's output tree: Nbest_recog/{token,token_int,score,text}, the jobs' directories, the best on top."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tympan.decode.formats import ctm, words_of
from tympan.decode.hypothesis import Hypothesis
from tympan.decode.journal import Result
from tympan.runtime.atomic import atomic_write

KINDS = ("token", "token_int", "score", "text")


def write_output_tree(
    directory: Path, ids: Sequence[str], results: Mapping[str, Result], *, nbest: int, nj: int
) -> None:
    """All results in the order of `ids`. With several jobs, logdir/output.JOB holds a share each."""
    done = [results[name] for name in ids if name in results]
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
        stream.writelines(ctm(result.id, words_of(result.hypotheses[0])) for result in done)


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
