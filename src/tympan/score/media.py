"""Audio and spectrograms for the report."""

from __future__ import annotations

import base64
import io
import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import soundfile
from numpy.typing import NDArray

from tympan.data.audio import Audio, AudioError, audio_info, locate, read_audio, resample
from tympan.data.kaldi_dir import DataDir, Segment
from tympan.errors import UserError
from tympan.runtime.executor import map_jobs
from tympan.runtime.plotting import import_matplotlib
from tympan.score.report import Media
from tympan.score.result import shorten

logger = logging.getLogger(__name__)

PLAYABLE_NAMES = {".wav", ".flac", ".mp3", ".ogg"}
PLAYABLE_FORMATS = {"WAV", "WAVEX", "FLAC", "MP3", "OGG"}
PLAYABLE_WAV_CODECS = {"PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "ULAW", "ALAW"}
"""Formats that browsers can play directly. Anything else is embedded (a .wav may be NIST sphere or ADPCM)."""
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
WINDOW_MS, SHIFT_MS = 25, 10
PICTURE_HEIGHT, PICTURE_WIDTH = 128, 900
DYNAMIC_RANGE_DB = 70.0


@dataclass(frozen=True)
class Recording:
    """The location of one utterance."""

    utterance: str
    source: str
    start_s: float = 0.0
    end_s: float | None = None


def collect_media(
    data_dir: Path,
    utterances: Sequence[str],
    *,
    report: Path,
    embed_audio: bool,
    pictured: Collection[str],
    nj: int = 1,
    allow_pipes: bool = False,
) -> dict[str, Media]:
    """Audio for every utterance of the data directory, and a spectrogram for those in `pictured`."""
    recordings = _recordings(data_dir, utterances)
    job = partial(
        _media,
        base=data_dir,
        report_dir=report.resolve().parent,
        embed_audio=embed_audio,
        pictured=frozenset(pictured),
        allow_pipes=allow_pipes,
    )
    found = dict(map_jobs(job, recordings, nj=nj, description="sound"))
    silent = [name for name, media in found.items() if isinstance(media, str)]
    if silent:
        logger.warning("%d utterances have no audio in the report: %s", len(silent), shorten(silent))
        logger.warning("the first failure: %s", found[silent[0]])
    return {name: media for name, media in found.items() if isinstance(media, Media)}


def _recordings(data_dir: Path, utterances: Sequence[str]) -> list[Recording]:
    data = DataDir.read(data_dir)
    whole = {name: Segment(name, 0.0, None) for name in data.wav}
    parts = {u: part for u, part in (data.segments or whole).items() if part.recording in data.wav}
    missing = [utterance for utterance in utterances if utterance not in parts]
    if len(missing) == len(utterances):
        raise UserError(
            f"{data_dir}: no audio for any utterance ({shorten(missing)}); check that it belongs to the same data set"
        )
    if missing:
        logger.warning(
            "%s: no audio for %d of %d utterances: %s", data_dir, len(missing), len(utterances), shorten(missing)
        )
    found = [(utterance, parts[utterance]) for utterance in utterances if utterance in parts]
    return [Recording(u, str(data.wav[part.recording]), part.start_s, part.end_s) for u, part in found]


def _media(
    recording: Recording,
    *,
    base: Path,
    report_dir: Path,
    embed_audio: bool,
    pictured: Collection[str],
    allow_pipes: bool,
) -> tuple[str, Media | str]:
    """The media of one utterance, or what is wrong with its recording."""
    has_picture = recording.utterance in pictured
    try:
        linked = None if embed_audio else _linked(recording, base, report_dir)
        if linked and not has_picture:
            return recording.utterance, linked
        audio = read_audio(
            recording.source,
            channel=0,
            start_s=recording.start_s,
            end_s=recording.end_s,
            base=base,
            allow_pipes=allow_pipes,
            allow_nan=True,
        )
        # In place and only if needed: copies and masks of an hour of audio are as large as the audio.
        if not np.isfinite(audio.samples).all():
            np.nan_to_num(audio.samples, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
        sound = linked.audio if linked else _embedded(audio, recording.source)
    except UserError as error:
        return recording.utterance, str(error)
    return recording.utterance, Media(sound, spectrogram(audio) if has_picture else None, round(audio.duration_s, 2))


def _linked(recording: Recording, base: Path, report_dir: Path) -> Media | None:
    """The path from the page to the file; None if a browser can't play the file directly."""
    is_whole_file = recording.start_s == 0.0 and recording.end_s is None
    if not is_whole_file or Path(recording.source).suffix.lower() not in PLAYABLE_NAMES:
        return None
    # The header is read although the page needs no samples: otherwise a broken link would go unnoticed.
    info = audio_info(recording.source, base=base)
    if info.frames == 0:
        raise AudioError(f"{recording.source}: has no samples")
    path = locate(recording.source, base)
    inside = soundfile.info(path)
    if inside.format not in PLAYABLE_FORMATS:
        return None
    if inside.format.startswith("WAV") and inside.subtype not in PLAYABLE_WAV_CODECS:
        return None
    link = quote(os.path.relpath(Path(path).resolve(), report_dir))
    return Media(audio=link, duration_s=round(info.duration_s, 2))


def _embedded(audio: Audio, source: str) -> str:
    """Encode as MP3, at the next higher sample rate that MP3 supports."""
    if len(audio.samples) == 0:
        raise AudioError(f"{source}: has no samples")
    rate = min((rate for rate in MP3_RATES if rate >= audio.rate), default=MP3_RATES[-1])
    samples = audio.samples.clip(-1.0, 1.0)
    if rate != audio.rate:
        samples = resample(samples, audio.rate, rate)
    buffer = io.BytesIO()
    try:
        soundfile.write(buffer, samples, rate, format="MP3")
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{source}: cannot be encoded as MP3 ({error.error_string})") from None
    return _data_uri(buffer, "audio/mpeg")


def spectrogram(audio: Audio) -> str:
    """A log power spectrogram, low frequencies at the bottom, as a data URI."""
    import_matplotlib()
    from matplotlib import colormaps
    from PIL import Image

    decibel = _decibel(audio)[::-1]
    shade = np.clip((decibel - decibel.max()) / DYNAMIC_RANGE_DB + 1, 0, 1)
    image = Image.fromarray((colormaps["magma"](shade)[..., :3] * 255).astype(np.uint8))
    buffer = io.BytesIO()
    image.resize((min(image.width * 2, PICTURE_WIDTH), PICTURE_HEIGHT)).save(buffer, format="JPEG", quality=70)
    return _data_uri(buffer, "image/jpeg")


def _decibel(audio: Audio) -> NDArray[np.float64]:
    """(frequency, time): a column for each frame, or for the mean of several where the picture is narrower.

    Column by column: all frames of a long recording at once would take a hundred times its own memory.
    """
    window, shift = (max(1, audio.rate * ms // 1000) for ms in (WINDOW_MS, SHIFT_MS))
    missing = max(0, window - len(audio.samples))
    samples = np.pad(audio.samples, (0, missing)) if missing else audio.samples
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::shift]
    taper = np.hanning(window)
    columns = []
    for part in np.array_split(frames, min(len(frames), PICTURE_WIDTH)):
        power = np.abs(np.fft.rfft(part * taper)) ** 2
        columns.append(10 * np.log10(np.maximum(power, 1e-12)).mean(axis=0))
    return np.stack(columns, axis=1)


def _data_uri(buffer: io.BytesIO, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
