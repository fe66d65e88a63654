"""Report what happens to recordings with several channels."""

from __future__ import annotations

import logging
from dataclasses import replace

from tympan.data.dataset import UtteranceDataset
from tympan.data.readers import read_recording, value_info
from tympan.errors import UserError

HEADERS = 100
"""Number of recordings whose headers are read."""
DECODED = 10
"""Number of recordings whose channels are compared."""

_log = logging.getLogger(__name__)


def report_channels(dataset: UtteranceDataset) -> None:
    """Log which channels of the recordings are used. Warn if channels that differ are averaged."""
    for name, data_type in dataset.types.items():
        if data_type in ("sound", "segments") and dataset.context(name).channel is not None:
            rows = range(0, len(dataset), -(-len(dataset) // HEADERS) or 1)
            counts = {row: _channels(dataset, row, name) for row in rows}
            several = [row for row, channels in counts.items() if channels > 1]
            if several:
                _report(dataset, name, several, most=max(counts.values()))


def _channels(dataset: UtteranceDataset, row: int, name: str) -> int:
    every = replace(dataset.context(name), channel=None)
    try:
        return value_info(dataset.types[name], dataset.index.value(row, name), every).channels
    except UserError as error:
        raise UserError(f"{dataset.place(row, name)}: {error}") from None


def _report(dataset: UtteranceDataset, name: str, rows: list[int], *, most: int) -> None:
    """Report about recordings with several channels; `most` is the largest number of channels."""
    context, place = dataset.context(name), dataset.index.tables[name].path
    used = "the mean of all" if context.channel == "mean" else f"channel {context.channel}"
    _log.info("%s: recordings with up to %d channels; %s is used", place, most, used)
    checked = rows[:: -(-len(rows) // DECODED)]
    differ = [
        row
        for row in checked
        if read_recording(dataset.types[name], dataset.index.value(row, name), context).channels_differ
    ]
    if differ:
        _log.warning(
            "%s: the channels of %d of %d recordings that were checked differ, such as those of '%s', and they are "
            "averaged; choose one with --channel N, counted from 0",
            place, len(differ), len(checked), dataset.index.id(differ[0]),
        )  # fmt: skip
