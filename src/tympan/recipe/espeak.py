"""Speech synthesis with espeak-ng from PyPI's `espeakng-loader` (GPL: an optional extra, only used to make data)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tympan.errors import UserError
from tympan.runtime.packages import import_optional

_SYNCHRONOUS = 2  # espeak_AUDIO_OUTPUT: samples come through the callback before espeak_Synth returns
_DONT_EXIT = 0x8000
_RATE, _PITCH = 1, 3  # espeak_PARAMETER
_CHARS_UTF8 = 1
_BY_CHARACTER = 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Voice:
    """A speaker: espeak-ng's voice with its variant (`cmn+f2`), words per minute, and pitch from 0 to 99."""

    name: str
    rate: int
    pitch: int


class Synthesizer:
    """One library with one voice at a time. Not thread-safe.

    The library's noise depends on everything it said before in this process. The output is reproducible only in a
    new process that says the same texts in the same order.
    """

    def __init__(self, seed: int = 0) -> None:
        self._library = _load()
        self._chunks: list[np.ndarray] = []
        self._callback = _CALLBACK(self._receive)  # keep a reference: the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))

    @property
    def rate(self) -> int:
        return self._rate_hz

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """Speak the text: int16 (time,) at `rate`."""
        if self._library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise UserError(f"espeak-ng has no voice '{voice.name}'.")
        self._library.espeak_SetParameter(_RATE, voice.rate, 0)
        self._library.espeak_SetParameter(_PITCH, voice.pitch, 0)
        self._chunks.clear()
        spelled = text.encode("utf-8")
        self._library.espeak_Synth(
            spelled, ctypes.c_size_t(len(spelled) + 1), 0, _BY_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        self._library.espeak_Synchronize()
        if not self._chunks:
            raise UserError(f"espeak-ng produced no audio for '{text}' with voice '{voice.name}'.")
        return np.concatenate(self._chunks)

    def phonemes(self, text: str) -> str:
        """espeak-ng's phonemes of a text, in the language of the current voice."""
        pointer = ctypes.pointer(ctypes.c_char_p(text.encode("utf-8")))
        found = self._library.espeak_TextToPhonemes(pointer, _CHARS_UTF8, 0)
        return found.decode("ascii", "replace").strip() if found else ""

    def _receive(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    _rate_hz = 22_050


def _load() -> ctypes.CDLL:
    espeakng_loader = import_optional("espeakng_loader", "speech synthesis with espeak-ng")
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    home = Path(espeakng_loader.get_data_path()).parent
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(home).encode(), _DONT_EXIT)
    if rate != Synthesizer._rate_hz:
        raise UserError(
            f"espeak-ng could not be initialized (code {rate}) with its data in {home}: reinstall espeakng-loader."
        )
    return library
