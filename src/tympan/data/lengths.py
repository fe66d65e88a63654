"""Measure the lengths of utterances from headers and texts if there are no shape files, and cache them."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from tympan.data.audio import locate, split_ark
from tympan.data.dataset import Preprocess, UtteranceDataset
from tympan.data.kept import keep, kept_path
from tympan.data.readers import MAX_CHANNELS, Context, value_length, value_sources
from tympan.data.shapes import Shapes
from tympan.data.table import Ints, Table
from tympan.errors import UserError
from tympan.files import status_of
from tympan.runtime.executor import map_jobs

_LINES = 1000
_SAMPLE = 100
"""Number of files whose size and time are compared before cached lengths are used."""


def measure_shapes(dataset: UtteranceDataset, names: Sequence[str], *, nj: int = 1) -> list[Shapes]:
    """Return the lengths of these data names. Lengths of files (not of texts) are cached next to the data file."""
    return [_measure(dataset, name, nj=nj) for name in names]


@dataclass(frozen=True)
class _Chunk:
    """Some lines of a data file, with what a worker process needs to measure them."""

    path: Path
    name: str
    data_type: str
    context: Context
    preprocess: Preprocess | None
    start: int
    end: int


def _measure(dataset: UtteranceDataset, name: str, *, nj: int) -> Shapes:
    table, data_type = dataset.index.tables[name], dataset.types[name]
    is_kept = data_type not in ("text", "text_int", "csv_int", "text_float", "csv_float")
    stamp = {**table.stamp, "sources": _sources_stamp(table, data_type, dataset.context(name))} if is_kept else {}
    if (rate := dataset.context(name).target_rate) is not None and is_kept:
        stamp["rate"] = rate
    kept = _read_kept(kept_path(table.path, "lengths"), stamp) if is_kept else None
    if kept is None:
        preprocess = dataset.preprocess if data_type == "text" else None
        context = replace(dataset.context(name), channel=None)
        chunks = [
            _Chunk(table.path, name, data_type, context, preprocess, start, min(start + _LINES, len(table)))
            for start in range(0, len(table), _LINES)
        ]
        found = map_jobs(_measure_chunk, chunks, nj=nj, description=f"lengths of {name}", weight=_lines, unit="utt")
        kept = np.concatenate(list(found))
        if is_kept:
            _keep(kept_path(table.path, "lengths"), stamp, kept)
    lengths, dims = kept[dataset.index.lines(name)].T
    if dataset.context(name).channel is not None and data_type != "multi_columns_sound":
        # The cache has the channels of the files.
        dims = np.where(dims <= MAX_CHANNELS, 1, dims)
    if (dims != dims[0]).any():
        row = int(np.argmax(dims != dims[0]))
        raise UserError(
            f"{dataset.place(row, name)}: {dims[row]} values per frame, but the first utterance has {dims[0]}"
        )
    return Shapes(name, np.ascontiguousarray(lengths), int(dims[0]))


def _sources_stamp(table: Table, data_type: str, context: Context) -> int:
    """A hash of size and time of a sample of the files, to notice recordings that were replaced."""
    state = []
    for line in range(0, len(table), -(-len(table) // _SAMPLE) or 1):
        with contextlib.suppress(UserError):  # reported when the length is measured
            for source in value_sources(data_type, table.value(line), context):
                status = status_of(split_ark(locate(source, context.base))[0])
                state.append(None if status is None else (status.st_size, status.st_mtime_ns))
    return zlib.crc32(repr(state).encode("ascii"))


def _lines(chunk: _Chunk) -> int:
    return chunk.end - chunk.start


def _measure_chunk(chunk: _Chunk) -> Ints:
    """Return (lines, 2): length and number of elements per step of each line."""
    table = Table(chunk.path)
    measured = []
    for line in range(chunk.start, chunk.end):
        try:
            measured.append(_measure_value(chunk, table.id(line), table.value(line)))
        except UserError as error:
            raise UserError(f"{table.path}:{line + 1}: utterance '{table.id(line)}': {error}") from None
    return np.array(measured, dtype=np.int64).reshape(-1, 2)


def _measure_value(chunk: _Chunk, utterance_id: str, value: str) -> tuple[int, int]:
    if chunk.data_type != "text":
        return value_length(chunk.data_type, value, chunk.context)
    if chunk.preprocess is None:
        raise UserError("converting text to token ids needs use_preprocessor true, a token_type and a token_list")
    return len(chunk.preprocess(utterance_id, {chunk.name: value}, 1)[chunk.name]), 1


def _keep(path: Path, stamp: dict[str, int], lengths: Ints) -> None:
    header = np.frombuffer(json.dumps(stamp).encode("ascii"), dtype=np.uint8)

    def write(stream: IO[bytes]) -> None:
        np.save(stream, header)
        np.save(stream, lengths)

    keep(path, write)


def _read_kept(path: Path, stamp: dict[str, int]) -> Ints | None:
    try:
        with path.open("rb") as stream:
            if json.loads(np.load(stream, allow_pickle=False).tobytes()) != stamp:
                return None
            lengths = np.asarray(np.load(stream, allow_pickle=False), dtype=np.int64)
            return lengths if lengths.ndim == 2 and lengths.shape[1] == 2 and (lengths >= 0).all() else None
    except Exception:  # a damaged cache costs only the time to measure again
        return None
