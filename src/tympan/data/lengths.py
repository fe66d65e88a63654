"""Lengths of utterances without shape files: from the headers and the texts, once, in parallel, and kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tympan.data.dataset import UtteranceDataset
from tympan.data.readers import value_length
from tympan.data.shapes import Shapes
from tympan.data.table import Ints
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write

_CHUNK = 500
_log = logging.getLogger(__name__)


def measure_shapes(dataset: UtteranceDataset, names: Sequence[str], *, nj: int = 1) -> list[Shapes]:
    """Lengths of these data names. Those of files (not of texts) are kept beside the data file for the next time."""
    return [_measure(dataset, name, nj=nj) for name in names]


def _measure(dataset: UtteranceDataset, name: str, *, nj: int) -> Shapes:
    from tympan.runtime.executor import map_jobs

    table = dataset.index.tables[name]
    is_kept = dataset.types[name] not in ("text", "text_int", "csv_int", "text_float", "csv_float")
    kept = _read_kept(table.cache_path("lengths.npy"), table.stamp) if is_kept else None
    if kept is None:
        chunks = [(dataset, name, start, min(start + _CHUNK, len(table))) for start in range(0, len(table), _CHUNK)]
        parts = list(map_jobs(_measure_chunk, chunks, nj=nj, description=f"lengths of {name}"))
        kept = np.concatenate(parts)
        if is_kept:
            _keep(table.cache_path("lengths.npy"), table.stamp, kept)
    lengths, dims = kept[dataset.index.lines(name)].T
    if (dims != dims[0]).any():
        row = int(np.argmax(dims != dims[0]))
        raise UserError(f"{dataset.place(row, name)}: {dims[row]} values a step, the first utterance has {dims[0]}")
    return Shapes(name, np.ascontiguousarray(lengths), int(dims[0]))


def _measure_chunk(job: tuple[UtteranceDataset, str, int, int]) -> Ints:
    """(lines, 2): length and elements a step of some lines of a data file."""
    dataset, name, start, end = job
    table, data_type, context = dataset.index.tables[name], dataset.types[name], dataset.context(name)
    measured = []
    for line in range(start, end):
        value = table.value(line)
        try:
            if data_type == "text":
                arrays = dataset.preprocess(table.id(line), {name: value}, 1) if dataset.preprocess else {name: value}
                measured.append((len(arrays[name]), 1))
            else:
                measured.append(value_length(data_type, value, context))
        except UserError as error:
            raise UserError(f"{table.path}:{line + 1}: utterance '{table.id(line)}': {error}") from None
    return np.array(measured, dtype=np.int64).reshape(-1, 2)


def _keep(path: Path, stamp: dict[str, int], lengths: Ints) -> None:
    header = np.frombuffer(json.dumps(stamp).encode("ascii"), dtype=np.uint8)
    try:
        with atomic_write(path, "wb") as stream:
            np.save(stream, header)
            np.save(stream, lengths)
    except OSError as error:
        _log.warning("%s cannot be written (%s): lengths are measured again at each start", path, error.strerror)


def _read_kept(path: Path, stamp: dict[str, int]) -> Ints | None:
    try:
        with path.open("rb") as stream:
            if json.loads(np.load(stream, allow_pickle=False).tobytes()) != stamp:
                return None
            return np.asarray(np.load(stream, allow_pickle=False), dtype=np.int64)
    except (OSError, ValueError, EOFError):
        return None
