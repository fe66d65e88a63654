"""Decode data files into the output tree. Batches are planned by length, and a killed decode can be continued."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tympan.data.audio import is_pipe
from tympan.data.index import UtteranceIndex
from tympan.data.kaldi_dir import Segment
from tympan.data.readers import AUDIO_TYPES, find_segment, read_value, require_type, value_seconds
from tympan.decode.espnet2_options import QuantizationOptions
from tympan.decode.journal import Journal, Result, Utterance, origin_of
from tympan.decode.model_files import ModelFiles
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.output import clear_output_tree, write_output_tree
from tympan.decode.recognizer import Recognizer
from tympan.decode.search import SEARCHES
from tympan.decode.segments import plan_by_length
from tympan.decode.settings import report_missing_ctc, unused_options
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.runtime.executor import map_jobs
from tympan.runtime.lock import directory_lock
from tympan.runtime.malloc import keep_freed_memory

logger = logging.getLogger(__name__)

SPEECH_TYPES = (*AUDIO_TYPES, "kaldi_ark", "npy", "hdf5", "text_float", "csv_float")

Speech = np.ndarray | UserError
"""Samples or features for a recognizer, or the reason why there are none."""


@dataclass(frozen=True)
class DecodeSpec:
    """Everything that a process needs to build the recognizer. `key` identifies it, so that it is built only once."""

    files: ModelFiles
    options: DecodeOptions
    limits: BatchLimits
    device: str = "cpu"
    dtype: str = "float32"
    allow_import: bool = False
    allow_pipes: bool = False
    num_workers: int = 1
    num_threads: int | None = None
    quantization: QuantizationOptions = field(default_factory=QuantizationOptions)
    multi_asr: bool = False
    """Whether the user expects a model of several speakers."""
    given: tuple[str, ...] = ()
    """Names of the options that the user gave."""

    @property
    def key(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class DecodeTask:
    """The unit of work: one batch of utterances, decoded in this process or another."""

    spec: DecodeSpec
    utterances: tuple[Utterance, ...]


@dataclass(frozen=True)
class Work:
    """How the work is distributed, and whether an earlier run is continued."""

    nj: int = 1
    executor: Literal["local", "dask"] = "local"
    dask_address: str | None = None
    resume: bool = True


@dataclass(frozen=True)
class Summary:
    """The outcome of a decode."""

    decoded: int
    failures: tuple[Result, ...]
    audio_s: float
    elapsed_s: float
    texts: tuple[Path, ...] = ()
    """The files with the best texts: one, or one for each speaker."""


def decode_data(utterances: Sequence[Utterance], spec: DecodeSpec, output_dir: Path, work: Work) -> Summary:
    """Decode every utterance. The results are written to `output_dir` in the order of the utterances.

    UserError if another process decodes into it: they would mix their results.
    """
    with directory_lock(output_dir, advice="or give this one another --output_dir"):
        return _decode_data(utterances, spec, output_dir, work)


def _decode_data(utterances: Sequence[Utterance], spec: DecodeSpec, output_dir: Path, work: Work) -> Summary:
    began = time.monotonic()
    journal = Journal(output_dir / "logdir" / "results.jsonl", _conditions(spec), resume=work.resume)
    origins = {utterance.id: origin_of(utterance) for utterance in utterances}
    left = _left(utterances, journal, origins)
    seconds, failures = _measure(left)
    failed = {failure.id for failure in failures}
    left = [utterance for utterance in left if utterance.id not in failed]
    audio_s = 0.0
    with journal:
        jobs = map_jobs(
            run_task,
            _plan(left, [seconds[utterance.id] for utterance in left], spec),
            nj=work.nj,
            description="decoding",
            executor=work.executor,
            dask_address=work.dask_address,
            weight=lambda task: len(task.utterances),
            unit="utt",
        )
        for results in jobs:
            if not journal.done:
                clear_output_tree(output_dir)
            journal.add(replace(result, origin=origins[result.id]) for result in results)
            failures += [result for result in results if result.error is not None]
            audio_s += sum(result.duration_s for result in results)
    order = {utterance.id: index for index, utterance in enumerate(utterances)}
    texts = write_output_tree(
        output_dir,
        list(order),
        journal.done,
        nbest=spec.options.nbest,
        nj=work.nj,
    )
    failures.sort(key=lambda failure: order[failure.id])
    _write_failures(output_dir / "failed", failures)
    decoded = sum(name in journal.done for name in order)
    return Summary(decoded, tuple(failures), audio_s, time.monotonic() - began, tuple(texts))


def read_utterances(
    triples: Iterable[tuple[str, str, str]], *, key_file: str | os.PathLike[str] | None = None
) -> list[Utterance]:
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
        raise UserError(f"{path}: type {kind} is not a type of speech; choose from {', '.join(SPEECH_TYPES)}")
    return [Utterance(index.id(row), index.value(row, "speech"), kind, base) for row in range(len(index))]


def run_task(task: DecodeTask) -> list[Result]:
    """Results in the order of the utterances. Utterances that can't be read or decoded give a result with an error."""
    recognizer = build_recognizer(task.spec)
    with ThreadPoolExecutor(max(1, task.spec.num_workers)) as pool:
        speech = list(pool.map(lambda utterance: _read(utterance, recognizer, task.spec), task.utterances))
    names = [utterance.id for utterance in task.utterances]
    return decode_together(recognizer, list(zip(names, speech, strict=True)), is_batch=True)


def decode_together(
    recognizer: Recognizer, items: Sequence[tuple[str, Speech]], *, is_batch: bool = False
) -> list[Result]:
    """Results of named speech, in its order. `is_batch`: decode them as one batch.

    If that fails, for example because memory runs out, they are decoded one by one.
    """
    results = [Result(name, error=str(speech)) if isinstance(speech, UserError) else None for name, speech in items]
    given = [(index, speech) for index, (_, speech) in enumerate(items) if isinstance(speech, np.ndarray)]
    for index, result in _decode([(index, items[index][0], speech) for index, speech in given], recognizer, is_batch):
        results[index] = result
    return [result for result in results if result is not None]


def build_recognizer(spec: DecodeSpec) -> Recognizer:
    """The recognizer of this process. It is kept because loading it for every batch would take longer than decoding."""
    _SPECS[spec.key] = spec
    return _built(spec.key)


_SPECS: dict[str, DecodeSpec] = {}


@functools.lru_cache(maxsize=1)
def _built(key: str) -> Recognizer:
    keep_freed_memory()
    import torch

    from tympan.decode.load import load_model

    spec = _SPECS[key]
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    loaded = load_model(
        spec.files,
        device=torch.device(spec.device),
        dtype=spec.dtype,
        allow_import=spec.allow_import,
        quantization=spec.quantization,
    )
    recognizer = Recognizer(loaded, spec.options, limits=spec.limits)
    if spec.multi_asr and recognizer.num_speakers is None:
        raise UserError("multi_asr: this model recognizes one speaker; true is for model: pit_espnet")
    report_missing_ctc(loaded.model.has_ctc, spec.given, recognizer.kind)
    if spec.options.search is None and (unused := unused_options(recognizer.kind, set(spec.given))):
        logger.warning(unused)
    return recognizer


def _read(utterance: Utterance, recognizer: Recognizer, spec: DecodeSpec) -> Speech:
    """Read speech. Sound is resampled to the model's rate, and its channels are averaged unless one is chosen."""
    context = replace(utterance.context, allow_pipes=spec.allow_pipes)
    try:
        if utterance.data_type in AUDIO_TYPES:
            segment = _first_recording(utterance)
            speech = recognizer.reader.read_segment(segment, base=utterance.base, allow_pipes=spec.allow_pipes)
        else:
            speech = recognizer.reader.take_array(np.asarray(read_value(utterance.data_type, utterance.value, context)))
        recognizer.check_length(speech)
    except UserError as error:
        return error
    return speech


def _first_recording(utterance: Utterance) -> Segment:
    """The recording that a value of one of `AUDIO_TYPES` begins with."""
    if utterance.data_type == "segments":
        return find_segment(utterance.value, utterance.context)
    return Segment(utterance.value if utterance.data_type == "sound" else utterance.value.split()[0])


def _decode(
    items: Sequence[tuple[int, str, np.ndarray]], recognizer: Recognizer, is_batch: bool
) -> list[tuple[int, Result]]:
    try:
        arrays = [speech for _, _, speech in items]
        # If a recording has to be cut, its segments are planned together with the other utterances.
        if is_batch and all(len(recognizer.cut(speech)) == 1 for speech in arrays):
            found = dict(enumerate(recognizer.decode(arrays)))
        else:
            found = dict(recognizer.recognize(arrays))
    except (RuntimeError, MemoryError, UserError) as error:
        if len(items) > 1:
            logger.warning("a batch of %d utterances failed (%s): decoding them one by one", len(items), error)
            return [result for item in items for result in _decode([item], recognizer, is_batch)]
        ((index, name, _),) = items
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return [(index, Result(name, error=reason))]
    return [
        (index, Result(name, tuple(found[number]), duration_s=recognizer.duration_s(speech)))
        for number, (index, name, speech) in enumerate(items)
    ]


def _left(utterances: Sequence[Utterance], journal: Journal, origins: Mapping[str, str]) -> list[Utterance]:
    """The utterances that an earlier run has not decoded, or has decoded from other recordings."""
    changed = journal.drop_changed(origins)
    left = [utterance for utterance in utterances if utterance.id not in journal.done]
    if changed:
        logger.warning(
            "decoding %d utterances again: their recordings changed since the earlier run, or it did not store "
            "their size and date",
            changed,
        )
    if journal.done:
        logger.info("continuing: %d of %d utterances are done", len(utterances) - len(left), len(utterances))
    return left


def _measure(utterances: Sequence[Utterance]) -> tuple[dict[str, float], list[Result]]:
    """Duration of each utterance in seconds, from its header, and the utterances that can't be opened."""
    seconds: dict[str, float] = {}
    failures = []
    for utterance in utterances:
        if is_pipe(utterance.value):
            seconds[utterance.id] = float(
                "inf"
            )  # the length of a command's output is unknown before it runs: decoded by itself
            continue
        try:
            seconds[utterance.id] = value_seconds(utterance.data_type, utterance.value, utterance.context)
        except UserError as error:
            failures.append(Result(utterance.id, error=str(error)))
    return seconds, failures


def _plan(utterances: Sequence[Utterance], seconds: Sequence[float], spec: DecodeSpec) -> list[DecodeTask]:
    """Plan which utterances are decoded together."""
    limits = spec.limits
    batches = plan_by_length(seconds, batch_size=limits.batch_size, max_total=limits.max_batch_s)
    return [DecodeTask(spec, tuple(utterances[index] for index in batch)) for batch in batches]


def _conditions(spec: DecodeSpec) -> dict[str, Any]:
    """The settings that the results depend on, without the distribution of the work and the paths of the files."""
    marks = {
        name: None if path is None else f"{path.name} ({_fingerprint(path)})"
        for name, path in (spec.files.paths | spec.files.companions()).items()
    }
    options = asdict(spec.options)
    # A default and the same value given count as equal. Journals of the first release have no `search_conf`
    options["search"] = spec.options.search or SEARCHES.names()[0]
    if not options["search_conf"]:
        del options["search_conf"]
    if spec.options.prompt_token_file is not None:
        options["prompt_token_file"] = str(spec.options.prompt_token_file)
    read = {"max_piece_s": spec.limits.max_piece_s}
    if spec.limits.channel is not None:
        read["channel"] = spec.limits.channel
    quantized = asdict(spec.quantization) if spec.quantization.is_quantized else {}
    return {**marks, **options, "dtype": spec.dtype, "token_type": spec.files.token_type, **read, **quantized}


def _fingerprint(path: Path) -> str:
    """A hash of the content: a model that was trained further may have the same path and size."""
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
