"""A decode from data files to the output tree: planned by length, journalled as it goes, resumed if it was killed."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tympan.data.audio import is_pipe
from tympan.data.index import UtteranceIndex
from tympan.data.readers import AUDIO_TYPES, Context, require_type, value_length
from tympan.decode.audio_input import MAX_CHANNELS
from tympan.decode.journal import Journal, Result
from tympan.decode.origin import origin_of
from tympan.decode.output_tree import clear_output_tree, write_output_tree
from tympan.decode.plan import plan_by_length
from tympan.decode.task import DecodeSpec, DecodeTask, Source, run_task
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.runtime.executor import map_jobs

logger = logging.getLogger(__name__)

USUAL_RATE, USUAL_FEATURE_RATE = 16000, 100
SPEECH_TYPES = (*AUDIO_TYPES, "kaldi_ark", "npy", "text_float", "csv_float")


@dataclass(frozen=True)
class Work:
    """How the work is spread and whether an earlier run goes on."""

    nj: int = 1
    executor: Literal["local", "dask"] = "local"
    dask_address: str | None = None
    resume: bool = True


@dataclass(frozen=True)
class Summary:
    """What came of a decode."""

    decoded: int
    failures: tuple[Result, ...]
    audio_s: float
    elapsed_s: float


def decode_data(sources: Sequence[Source], spec: DecodeSpec, output_dir: Path, work: Work) -> Summary:
    """Decode every source; results stand in `output_dir` in the order of the sources."""
    began = time.monotonic()
    journal = Journal(output_dir / "logdir" / "results.jsonl", _conditions(spec), resume=work.resume)
    origins = {source.id: origin_of(source) for source in sources}
    left = _left(sources, journal, origins)
    seconds, failures = _measure(left)
    failed = {failure.id for failure in failures}
    left = [source for source in left if source.id not in failed]
    tasks = _plan(left, [seconds[source.id] for source in left], spec)
    audio_s = 0.0
    with journal:
        jobs = map_jobs(
            run_task,
            tasks,
            nj=work.nj,
            description="decoding",
            executor=work.executor,
            dask_address=work.dask_address,
            weight=lambda task: len(task.sources),
            unit="utt",
        )
        for results in jobs:
            if not journal.done:
                clear_output_tree(output_dir)
            journal.add(replace(result, origin=origins[result.id]) for result in results)
            failures += [result for result in results if result.error is not None]
            audio_s += sum(result.duration_s for result in results)
    write_output_tree(
        output_dir,
        [source.id for source in sources],
        journal.done,
        nbest=spec.settings.nbest,
        nj=work.nj,
        space_symbol=spec.files.space_symbol(),
    )
    order = {source.id: place for place, source in enumerate(sources)}
    failures.sort(key=lambda failure: order[failure.id])
    _write_failures(output_dir / "failed", failures)
    decoded = sum(source.id in journal.done for source in sources)
    return Summary(decoded, tuple(failures), audio_s, time.monotonic() - began)


def read_sources(
    triples: Iterable[tuple[str, str, str]], *, key_file: str | os.PathLike[str] | None = None
) -> list[Source]:
    """The speech of `--data_path_and_name_and_type`, in the order of the file (or of `key_file`)."""
    speech = [(path, data_type) for path, name, data_type in triples if name == "speech"]
    if len(speech) != 1:
        raise UserError(
            "--data_path_and_name_and_type needs one PATH,speech,TYPE such as data/test/wav.scp,speech,sound; "
            f"found {len(speech)}"
        )
    ((path, data_type),) = speech
    index = UtteranceIndex({"speech": path}, keys=key_file)
    kind, base = require_type(data_type), Path(path).parent
    if kind not in SPEECH_TYPES:
        raise UserError(f"{path}: type {kind} holds no speech; choose from {', '.join(SPEECH_TYPES)}")
    return [Source(index.id(row), index.value(row, "speech"), kind, base) for row in range(len(index))]


def _left(sources: Sequence[Source], journal: Journal, origins: Mapping[str, str]) -> list[Source]:
    """What an earlier run has not decoded, or has decoded of other recordings."""
    changed = journal.drop_changed(origins)
    left = [source for source in sources if source.id not in journal.done]
    if changed:
        logger.warning(
            "%d utterances are decoded again: the earlier run had other recordings, or does not tell which", changed
        )
    if journal.done:
        logger.info("going on: %d of %d utterances are done", len(sources) - len(left), len(sources))
    return left


def _measure(sources: Sequence[Source]) -> tuple[dict[str, float], list[Result]]:
    """About how many seconds each is, from its header, and what cannot be opened."""
    seconds: dict[str, float] = {}
    failures = []
    for source in sources:
        if is_pipe(source.value):
            seconds[source.id] = float("inf")  # known only once it has run: decoded alone
            continue
        try:
            length, width = value_length(source.data_type, source.value, Context(source.base))
        except UserError as error:
            failures.append(Result(source.id, error=str(error)))
        else:
            is_audio = width <= MAX_CHANNELS
            seconds[source.id] = length / (USUAL_RATE if is_audio else USUAL_FEATURE_RATE)
    return seconds, failures


def _plan(sources: Sequence[Source], seconds: Sequence[float], spec: DecodeSpec) -> list[DecodeTask]:
    limits = spec.limits
    batches = plan_by_length(seconds, batch_size=limits.batch_size, max_total=limits.max_batch_s)
    return [DecodeTask(spec, tuple(sources[place] for place in batch)) for batch in batches]


def _conditions(spec: DecodeSpec) -> dict[str, Any]:
    """What the results depend on; not how the work was spread, nor where the files lie."""
    names = ("asr_train_config", "asr_model_file", "lm_train_config", "lm_file", "ngram_file", "bpemodel")
    files = {name: getattr(spec.files, name) for name in names} | spec.files.companions()
    marks = {
        name: None if path is None else f"{Path(path).name} ({_fingerprint(Path(path))})"
        for name, path in files.items()
    }
    cut = {"max_piece_s": spec.limits.max_piece_s}
    return {**marks, **asdict(spec.settings), "dtype": spec.dtype, "token_type": spec.files.token_type, **cut}


def _fingerprint(path: Path) -> str:
    """Of the content: a model that was trained on lies at the same place with the same size."""
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_failures(path: Path, failures: Sequence[Result]) -> None:
    if not failures:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as stream:
        stream.writelines(f"{result.id} {' '.join((result.error or '').split())}\n" for result in failures)
