"""Cleaners, which normalize a transcript before it is tokenized (`--cleaner`)."""

from __future__ import annotations

import difflib
import importlib
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from types import ModuleType

from tympan.errors import UserError

_PUNCTUATION = frozenset(string.punctuation.replace("'", "") + "，。！？、；：“”‘’（）《》【】…—·")


class TextCleaner:
    """Applies cleaners by name, one after the other. ESPnet2's cleaners need an optional package, ours do not."""

    def __init__(self, cleaner: str | Sequence[str] | None = None) -> None:
        self.names: tuple[str, ...] = (
            () if cleaner is None else (cleaner,) if isinstance(cleaner, str) else tuple(cleaner)
        )
        for name in self.names:
            if name in ("vietnamese", "korean_cleaner"):
                raise UserError(f"ESPnet2's cleaner '{name}' is not supported; clean the texts before")
            if name not in CLEANERS:
                near = difflib.get_close_matches(name, CLEANERS, n=1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise UserError(f"cleaner '{name}': must be one of {', '.join(CLEANERS)}.{hint}")
            CLEANERS[name]("")

    def __call__(self, text: str) -> str:
        for name in self.names:
            text = CLEANERS[name](text)
        return text


def _package(cleaner: str, module: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"cleaner '{cleaner}' needs an optional package: pip install {install} ({error})") from None


def _tacotron(text: str) -> str:
    module = _package("tacotron", "tacotron_cleaner.cleaners", "espnet_tts_frontend")
    return str(module.custom_english_cleaners(text))


def _jaconv(text: str) -> str:
    return str(_package("jaconv", "jaconv", "jaconv").normalize(text))


def _whisper_basic(text: str) -> str:
    return str(_package("whisper_basic", "whisper.normalizers", "openai-whisper").BasicTextNormalizer()(text))


def _whisper_en(text: str) -> str:
    return str(_package("whisper_en", "whisper.normalizers", "openai-whisper").EnglishTextNormalizer()(text))


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _remove_punctuation(text: str) -> str:
    """Remove punctuation except the apostrophe, and repeated spaces that result."""
    return re.sub(r" {2,}", " ", "".join(char for char in text if char not in _PUNCTUATION)).strip()


def _remove_spaces(text: str) -> str:
    """Remove spaces, as in the AISHELL recipe, because Chinese is written without them."""
    return "".join(text.split())


CLEANERS: dict[str, Callable[[str], str]] = {
    "lowercase": str.lower,
    "uppercase": str.upper,
    "nfkc": _nfkc,
    "remove_punctuation": _remove_punctuation,
    "remove_spaces": _remove_spaces,
    "tacotron": _tacotron,
    "jaconv": _jaconv,
    "whisper_basic": _whisper_basic,
    "whisper_en": _whisper_en,
}
