"""Read recordings as a model takes them: at its sample rate, one channel or the mean of all, checked."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tympan.data.audio import Audio, Channel, read_audio, resample
from tympan.data.kaldi_dir import Segment
from tympan.data.readers import MAX_CHANNELS
from tympan.decode.speech_input import AudioInput, SpeechInput, check_samples, samples_of
from tympan.errors import UserError


@dataclass(frozen=True)
class RecordingReader:
    """Reads files, samples and stored arrays for one model."""

    input: SpeechInput
    channel: int | None = None
    """The channel that is used, counted from 0. None: that of training, or the mean of all."""

    @property
    def chosen_channel(self) -> Channel:
        return self.input.channel if self.channel is None else self.channel

    def read(self, audio: AudioInput, *, rate: int | None = None) -> np.ndarray:
        """Samples (time,) of a path, of samples (with `rate`), or of (samples, rate), at the model's rate."""
        if isinstance(audio, str | os.PathLike):
            return self._read_file(Path(audio))
        given = samples_of(audio, rate, channel=self.chosen_channel)
        _report_mixture(given, "the recording")
        return given.samples if given.rate == self.input.rate else resample(given.samples, given.rate, self.input.rate)

    def read_segment(self, segment: Segment, *, base: Path | None = None, allow_pipes: bool = False) -> np.ndarray:
        """The same for the value of a wav.scp line: a file, or a command if commands are allowed."""
        return self._read_file(
            segment.recording, start_s=segment.start_s, end_s=segment.end_s, base=base, allow_pipes=allow_pipes
        )

    def take_array(self, array: np.ndarray) -> np.ndarray:
        """Stored samples at the model's rate, or stored features (frames, size) for a model that takes them."""
        if array.ndim == 2 and self.input.wants_features:
            if not np.isfinite(array).all():
                raise UserError("the features contain nan or inf")
            return array
        if array.ndim == 2 and array.shape[1] > MAX_CHANNELS:
            raise UserError(
                f"the input of this model is audio, but the array of shape {array.shape} contains features: pass "
                f"recordings"
            )
        return self.samples_of(array)

    def samples_of(self, samples: Any) -> np.ndarray:
        """Samples (time,) of an array at the model's rate, (time,) or (time, channels)."""
        return samples_of(samples, self.input.rate, channel=self.chosen_channel).samples

    def _read_file(self, source: str | Path, **how: Any) -> np.ndarray:
        """Read a file (a Path), or the value of a wav.scp line (a string)."""
        audio = read_audio(source, rate=self.input.rate, channel=self.chosen_channel, **how)
        try:
            check_samples(audio.samples, remedy="write the file as 16-bit PCM, or scale its samples")
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        _report_mixture(audio, str(source))
        return audio.samples


def _report_mixture(audio: Audio, name: str) -> None:
    if audio.channels_differ:
        logging.warning(
            "%s: its channels differ and were averaged; choose one with --channel N (in Python: "
            "limits=BatchLimits(channel=N)), counted from 0", name
        )  # fmt: skip
