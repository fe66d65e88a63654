"""The unit of work of a decode: one batch of utterances, in this process or another."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tympan.data.readers import AUDIO_TYPES, Context, Part, find_segment, read_value
from tympan.decode.journal import Result
from tympan.decode.model_files import ModelFiles
from tympan.decode.recognizer import BatchLimits, Recognizer
from tympan.decode.settings import DecodeSettings
from tympan.errors import UserError
from tympan.runtime.malloc import keep_freed_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Where an utterance's speech is: the line of a data file."""

    id: str
    value: str
    data_type: str
    base: Path


@dataclass(frozen=True)
class DecodeSpec:
    """Everything a process needs to build the recogniser. Compared by `key`, so that it is built once."""

    files: ModelFiles
    settings: DecodeSettings
    limits: BatchLimits
    device: str = "cpu"
    dtype: str = "float32"
    allow_import: bool = False
    allow_pipes: bool = False
    num_workers: int = 1
    num_threads: int | None = None

    @property
    def key(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class DecodeTask:
    spec: DecodeSpec
    sources: tuple[Source, ...]


def run_task(task: DecodeTask) -> list[Result]:
    """Results in the order of the sources. What cannot be read or decoded is a result with an error."""
    recognizer = build_recognizer(task.spec)
    with ThreadPoolExecutor(max(1, task.spec.num_workers)) as pool:
        read = list(pool.map(lambda source: _read(source, recognizer, task.spec), task.sources))
    good = [(source, item) for source, item in zip(task.sources, read, strict=True) if isinstance(item, np.ndarray)]
    results = {
        source.id: Result(source.id, error=item)
        for source, item in zip(task.sources, read, strict=True)
        if isinstance(item, str)
    }
    results.update({result.id: result for result in _decode_together(recognizer, good)})
    return [results[source.id] for source in task.sources]


def build_recognizer(spec: DecodeSpec) -> Recognizer:
    """The recogniser of this process: loading it for every batch would cost more than decoding."""
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
        spec.settings,
        device=torch.device(spec.device),
        dtype=spec.dtype,
        allow_import=spec.allow_import,
    )
    return Recognizer(loaded, spec.settings, limits=spec.limits)


def _read(source: Source, recognizer: Recognizer, spec: DecodeSpec) -> np.ndarray | str:
    """The speech, or what is wrong with it. Sound is heard at the model's rate, and of several channels the first."""
    context = Context(source.base, None, spec.allow_pipes)
    try:
        if source.data_type in AUDIO_TYPES:
            part = _first_channel(source, context)
            speech = recognizer.read_source(
                part.source,
                start_s=part.start_s,
                end_s=part.end_s,
                base=source.base,
                allow_pipes=spec.allow_pipes,
            )
        else:
            speech = recognizer.take_array(np.asarray(read_value(source.data_type, source.value, context)))
        recognizer.check_length(speech)
    except UserError as error:
        return str(error)
    return speech


def _first_channel(source: Source, context: Context) -> Part:
    """The recording that a value of one of `AUDIO_TYPES` begins with."""
    if source.data_type == "segments":
        return find_segment(source.value, context)
    return Part(source.value if source.data_type == "sound" else source.value.split()[0])


def _decode_together(recognizer: Recognizer, items: Sequence[tuple[Source, np.ndarray]]) -> list[Result]:
    """One batch; if that fails (memory), one by one, so that the others' work is not lost."""
    try:
        return _decode(recognizer, items)
    except (RuntimeError, MemoryError, UserError) as error:
        if len(items) == 1:
            return [Result(items[0][0].id, error=f"{type(error).__name__}: {error}")]
        logger.warning("a batch of %d utterances failed (%s): decoding them one by one", len(items), error)
        return [result for item in items for result in _decode_together(recognizer, [item])]


def _decode(recognizer: Recognizer, items: Sequence[tuple[Source, np.ndarray]]) -> list[Result]:
    arrays = [speech for _, speech in items]
    found = dict(recognizer.recognize(arrays))
    return [
        Result(source.id, tuple(found[place]), duration_s=recognizer.duration_s(arrays[place]))
        for place, (source, _) in enumerate(items)
    ]
