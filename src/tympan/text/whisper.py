"""Whisper's tokens: byte-level BPE, special tokens, and the prompt that a decoder's text begins with.

A token is written as in ESPnet2's token lists: bytes as printable characters (GPT-2's table), and a space as a space.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tympan.errors import UserError
from tympan.files import explained, read_text
from tympan.runtime.packages import import_fault

WHISPER_TYPES = ("whisper_en", "whisper_multilingual")
SOT, EOT, NO_TIMESTAMPS = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"
TASKS = ("transcribe", "translate")
SPECIAL = re.compile(r"<\|[^|]*\|>")
TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")
_LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = tuple(_LANGUAGES.split())
"""In the order of their tokens. Only large-v3 has the last one."""
_ESPNET_CODES = {"noinfo": "en", "jpn": "ja", "kr": "ko", "zh-TW": "zh", "zh-CN": "zh", "zh-HK": "zh"}
_FILES = {"whisper_en": "gpt2.tiktoken", "whisper_multilingual": "multilingual.tiktoken"}


def prompt_tokens(token_type: str, language: str | None, task: str | None) -> tuple[str, ...]:
    """The tokens after the start of a transcript, as in ESPnet2: language and task, without timestamps."""
    if token_type not in WHISPER_TYPES:
        return ()
    if token_type == "whisper_en":
        return (NO_TIMESTAMPS,)
    task = task or "transcribe"
    if task not in TASKS:
        raise UserError(f"preprocessor_conf whisper_task: must be one of {', '.join(TASKS)}, found {task}")
    return (f"<|{language_code(language or 'en')}|>", f"<|{task}|>", NO_TIMESTAMPS)


def language_code(name: str) -> str:
    """Whisper's code of a language; ESPnet2 also uses other codes for some of them."""
    code = _ESPNET_CODES.get(name, name)
    if code not in LANGUAGES:
        raise UserError(f"whisper_language '{name}' is not a language of Whisper: {', '.join(LANGUAGES)}")
    return code


class WhisperTokenizer:
    """`token_type: whisper_en` and `whisper_multilingual`. Only `text2tokens` needs the vocabulary file."""

    space_symbol: None = None

    def __init__(self, vocabulary: Path | None, token_type: str, *, added: Sequence[str] = ()) -> None:
        """`added` are further tokens, which a text is split at before all others."""
        self.vocabulary = vocabulary
        self.token_type = token_type
        self.added = tuple(added)

    def with_added(self, tokens: Sequence[str]) -> WhisperTokenizer:
        """The same tokenizer with further tokens."""
        return WhisperTokenizer(self.vocabulary, self.token_type, added=(*self.added, *tokens))

    def text2tokens(self, line: str) -> list[str]:
        tokens: list[str] = self._tokenizer.encode(line, add_special_tokens=False).tokens
        return [token.replace("Ġ", " ") for token in tokens]

    def tokens2text(self, tokens: Iterable[str]) -> str:
        """The text without special tokens."""
        return "".join(_decoded(part) for part in _without_specials(tokens))

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = read_tokenizer(require_vocabulary(self.vocabulary, self.token_type))
        tokenizer.add_tokens(list(self.added))
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary, "token_type": self.token_type, "added": self.added}


def find_vocabulary(name: str | Path | None, token_type: str) -> Path | None:
    """The vocabulary file: a file or a folder with tokenizer.json; else that of an installed openai-whisper package."""
    if name is not None and str(name) not in WHISPER_TYPES:
        path = Path(name)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"bpemodel {name}: no such file. {_advice(token_type)}")
        return path
    package = importlib.util.find_spec("whisper")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "assets" / _FILES[token_type]
    return path if path.is_file() else None


def require_vocabulary(path: Path | None, token_type: str) -> Path:
    if path is None:
        raise UserError(f"token_type {token_type} needs Whisper's vocabulary. {_advice(token_type)}")
    return path


def read_token_strings(path: Path, *, vocab_size: int | None = None) -> list[str]:
    """All tokens of a vocabulary file, special tokens included. `vocab_size` tells large-v3 from other models."""
    with explained(path, "a vocabulary of Whisper"):
        tokens = _token_strings(path, vocab_size)
    return [token if SPECIAL.fullmatch(token) else token.replace("Ġ", " ") for token in tokens]


def _token_strings(path: Path, vocab_size: int | None) -> list[str]:
    if path.suffix == ".json":
        content = _read_json(path)
        if not isinstance(content["model"]["vocab"], dict):
            raise UserError(f"{path}: is not the tokenizer.json of a Whisper model")
        ids = {token: int(number) for token, number in content["model"]["vocab"].items()}
        ids |= {str(item["content"]): int(item["id"]) for item in content.get("added_tokens", ())}
        return [token for token, _ in sorted(ids.items(), key=lambda item: item[1])]
    tokens = list(_read_ranks(path))
    count = len(LANGUAGES) if vocab_size == len(tokens) + 1609 else len(LANGUAGES) - 1
    tokens += [EOT, SOT, *(f"<|{code}|>" for code in LANGUAGES[:count])]
    tokens += [f"<|{name}|>" for name in ("translate", "transcribe", "startoflm", "startofprev", "nospeech")]
    return [*tokens, NO_TIMESTAMPS, *(f"<|{0.02 * number:.2f}|>" for number in range(1501))]


def read_tokenizer(path: Path) -> Any:
    """The tokenizer of the package `tokenizers`, from tokenizer.json or openai's .tiktoken file."""
    fault = import_fault("tokenizers")
    if fault is not None:
        raise UserError(f"Whisper's tokens need the package 'tokenizers': {fault}")
    import tokenizers

    with explained(path, "a vocabulary of Whisper"):
        if path.suffix == ".json":
            _read_json(path)
            return tokenizers.Tokenizer.from_file(str(path))
        ranks = _read_ranks(path)
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ranks, _merges(ranks)))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer


def byte_characters() -> dict[int, str]:
    """GPT-2's printable character for every byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_BYTES = {char: byte for byte, char in byte_characters().items()} | {" ": ord(" ")}


def _decoded(text: str) -> str:
    """Characters outside of the table, as in tokens that a user added, stay as they are."""
    if any(char not in _BYTES for char in text):
        return text
    return bytes(_BYTES[char] for char in text).decode("utf-8", errors="replace")


def _without_specials(tokens: Iterable[str]) -> list[str]:
    """Runs of byte-level tokens, joined because a character may span several, and tokens that a user added."""
    runs: list[str] = [""]
    for token in tokens:
        if SPECIAL.fullmatch(token):
            continue
        if any(char not in _BYTES for char in token) or (
            token.startswith("<") and token.endswith(">") and len(token) > 2
        ):
            runs += [token, ""]
        else:
            runs[-1] += token
    return runs


def _read_ranks(path: Path) -> dict[str, int]:
    """openai's file has lines of a token in base64 and its number."""
    characters = byte_characters()
    ranks: dict[str, int] = {}
    for line in read_text(path, kind="vocabulary").splitlines():
        token, _, number = line.partition(" ")
        try:
            # The last token of the multilingual vocabulary is empty, and written as "="
            data = b"" if token == "=" else base64.b64decode(token, validate=True)
            ranks["".join(characters[byte] for byte in data)] = int(number)
        except ValueError:
            raise UserError(f"{path}: lines must be a token in base64 and a number, found {line[:40]!r}") from None
    return ranks


def _merges(ranks: Mapping[str, int]) -> list[tuple[str, str]]:
    """The two parts that each token was merged from: the last two when only earlier merges are applied to it."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and len(parts := _split(token, rank, ranks)) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _split(token: str, limit: int, ranks: Mapping[str, int]) -> Sequence[str]:
    parts = list(token)
    while len(parts) > 2:
        pairs = [(ranks.get(parts[n] + parts[n + 1], limit), n) for n in range(len(parts) - 1)]
        rank, place = min(pairs)
        if rank >= limit:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path, kind="vocabulary"))
        assert isinstance(content["model"]["vocab"], dict | list)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path}: is not a tokenizer.json of the Hugging Face hub") from None
    found: dict[str, Any] = content
    return found


def _advice(token_type: str) -> str:
    size = "small.en" if token_type == "whisper_en" else "small"
    return (
        f"Give --bpemodel FILE with {_FILES.get(token_type, 'multilingual.tiktoken')} of "
        "https://github.com/openai/whisper (folder whisper/assets), or with tokenizer.json of "
        f"https://huggingface.co/openai/whisper-{size}"
    )
