"""Utterances by row or id, read from the data files, augmented and tokenized."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tympan.data.audio import Channel
from tympan.data.index import UtteranceIndex
from tympan.data.readers import AUDIO_TYPES, Context, Value, read_value, require_type, value_info
from tympan.errors import UserError

Triple = tuple[str | os.PathLike[str], str, str]
"""PATH, NAME, TYPE of `train_data_path_and_name_and_type`."""

Preprocess = Callable[[str, Mapping[str, Value], int], Mapping[str, Value]]
"""(utterance id, values, epoch) -> values, with texts as token ids. Random choices may depend on the epoch."""


@dataclass(frozen=True)
class Utterance:
    id: str
    arrays: dict[str, np.ndarray]
    """By data name: speech (time,) or (time, dim) float32, text (length,) int64."""


class UtteranceDataset:
    """`dataset[row_or_id, epoch]`. Holds only memory maps, so that worker processes cost little memory.

    `sample_rate` None requires all recordings to have the rate of the first; 0 accepts any
    (ESPnet2's allow_multi_rates). With `resample`, recordings of other rates are resampled to it. `channel` selects
    from files with several channels (None: all). `keys` is a file whose ids select the utterances, usually a shape
    file.
    """

    def __init__(
        self,
        triples: Sequence[Triple],
        *,
        preprocess: Preprocess | None = None,
        keys: str | os.PathLike[str] | None = None,
        sample_rate: int | None = None,
        resample: bool = False,
        channel: Channel | None = None,
        allow_pipes: bool = False,
    ) -> None:
        _refuse_repeated_names(triples)
        self.types = {name: require_type(data_type) for _, name, data_type in triples}
        self.index = UtteranceIndex({name: path for path, name, _ in triples}, keys=keys)
        self.preprocess = preprocess
        self._allow_pipes = allow_pipes
        self.sample_rate = self._first_rate() if sample_rate is None else sample_rate or None
        self._contexts = {
            name: Context(table.path.parent, self.sample_rate, allow_pipes, channel, resample)
            for name, table in self.index.tables.items()
        }

    def __len__(self) -> int:
        return len(self.index)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.types)

    def context(self, name: str) -> Context:
        return self._contexts[name]

    def __getitem__(self, item: tuple[int | str, int]) -> Utterance:
        key, epoch = item
        row = self.index.row(key) if isinstance(key, str) else int(key)
        utterance_id = self.index.id(row)
        values = {name: self._read(row, name) for name in self.types}
        arrays = values if self.preprocess is None else self.preprocess(utterance_id, values, epoch)
        return Utterance(utterance_id, {name: self._as_array(value, row, name) for name, value in arrays.items()})

    def place(self, row: int, name: str) -> str:
        """Return file and line of the data of an utterance, for error messages."""
        table = self.index.tables[name]
        return f"{table.path}:{self.index.line(row, name) + 1}: utterance '{self.index.id(row)}'"

    def _read(self, row: int, name: str) -> Value:
        value, context = self.index.value(row, name), self._contexts[name]  # its errors name the line
        try:
            return read_value(self.types[name], value, context, utterance_id=self.index.id(row))
        except UserError as error:
            raise UserError(f"{self.place(row, name)}: {error}") from None

    def _as_array(self, value: Value, row: int, name: str) -> np.ndarray:
        if isinstance(value, str):
            raise UserError(
                f"{self.place(row, name)}: converting text to token ids needs use_preprocessor true, a token_type "
                "and a token_list, and preprocessor_conf text_name must be the name of this data"
            )
        if value.dtype.kind == "f":
            return np.asarray(value, dtype=np.float32)
        if value.dtype.kind in "iu":
            return np.asarray(value, dtype=np.int64)
        raise UserError(
            f"{self.place(row, name)}: unsupported array type {value.dtype}; use integers or floating-point numbers"
        )

    def _first_rate(self) -> int | None:
        for name, data_type in self.types.items():
            if data_type in AUDIO_TYPES:
                context = Context(self.index.tables[name].path.parent, allow_pipes=self._allow_pipes)
                try:
                    return value_info(data_type, self.index.value(0, name), context).rate
                except UserError as error:
                    raise UserError(f"{self.place(0, name)}: {error}") from None
        return None


def _refuse_repeated_names(triples: Sequence[Triple]) -> None:
    names = [name for _, name, _ in triples]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(
            f"the data name '{repeated[0]}' is given {names.count(repeated[0])} times; use each name only once"
        )
