"""A Whisper model by itself, as it was published: a folder of the Hugging Face hub, or a `.pt` file of openai."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tympan.errors import UserError
from tympan.text.whisper import EOT, SOT, TIMESTAMP, find_vocabulary, read_token_strings, require_vocabulary

if TYPE_CHECKING:
    from torch import Tensor

VOCAB_EN = 51864
"""Only the models for English have this number of tokens."""
SETTINGS: dict[str, Any] = {"beam_size": 5, "ctc_weight": 0.0, "normalize_length": True, "predict_time": True}
"""Whisper's own way of decoding."""


@dataclass(frozen=True)
class WhisperModel:
    """The configuration and the weights of such a model, as Tympan would have written them."""

    path: Path

    @cached_property
    def values(self) -> dict[str, Any]:
        """The options of the model and its tokens."""
        from tympan.models.pretrained.whisper_files import whisper_size

        size = whisper_size(str(self.path), None)
        conf = {"whisper_model": str(self.path.absolute()), "architecture": size.as_dict()}
        token_type = "whisper_en" if size.n_vocab == VOCAB_EN else "whisper_multilingual"
        vocabulary = self._vocabulary(token_type)
        return {
            "input_size": 1,
            "frontend": None,
            "normalize": None,
            "encoder": "whisper",
            "encoder_conf": {**conf, "do_pad_trim": True},
            "decoder": "whisper",
            "decoder_conf": conf,
            "model_conf": {
                "ctc_weight": 0.0,
                "lsm_weight": 0.1,
                "extract_feats_in_collect_stats": False,
                "sym_sos": SOT,
                "sym_eos": EOT,
            },
            "token_type": token_type,
            "token_list": _tokens(vocabulary, size.n_vocab),
            "bpemodel": str(vocabulary.absolute()),
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The options of decoding."""
        is_multilingual = self.values["token_type"] == "whisper_multilingual"
        return {**SETTINGS, "lang_prompt_token": "auto" if is_multilingual else None}

    def weights(self) -> dict[str, Tensor]:
        """With the names of Tympan's parts."""
        from tympan.models.pretrained.whisper_files import read_whisper

        found = read_whisper(self.path)[1]
        return {f"{part}.{part}s.{rest}": tensor.float() for part, rest, tensor in _split(found)}

    def _vocabulary(self, token_type: str) -> Path:
        folder = self.path if self.path.is_dir() else self.path.parent
        name = "gpt2.tiktoken" if token_type == "whisper_en" else "multilingual.tiktoken"
        for candidate in (folder / "tokenizer.json", folder / name):
            if candidate.is_file():
                return candidate
        try:
            return require_vocabulary(find_vocabulary(None, token_type), token_type)
        except UserError as error:
            advice = (
                str(error)
                .replace("Give --bpemodel FILE with", f"Put into {folder} the file")
                .replace("or with tokenizer.json", "or tokenizer.json")
            )
            raise UserError(f"{folder}: {advice}") from None


def find_whisper(path: Path) -> WhisperModel | None:
    """The Whisper model in a folder without config.yaml, or in a `.pt` file; None if there is none."""
    if path.is_file():
        return WhisperModel(path) if path.suffix == ".pt" else None
    if (path / "config.yaml").exists() or (path / "meta.yaml").exists():
        return None
    if (path / "config.json").is_file():
        from tympan.models.pretrained.whisper_files import is_whisper_folder

        return WhisperModel(path) if is_whisper_folder(path) else None
    checkpoints = sorted(path.glob("*.pt"))
    return WhisperModel(checkpoints[0]) if len(checkpoints) == 1 else None


def _split(weights: dict[str, Tensor]) -> list[tuple[str, str, Tensor]]:
    return [(*name.split(".", 1), tensor) for name, tensor in weights.items()]  # type: ignore[misc]


def _tokens(vocabulary: Path, size: int) -> list[str]:
    """Older folders of the hub leave out the tokens of times."""
    tokens = read_token_strings(vocabulary, vocab_size=size)
    if not any(TIMESTAMP.fullmatch(token) for token in tokens):
        tokens += [f"<|{0.02 * number:.2f}|>" for number in range(size - len(tokens))]
    if len(tokens) != size:
        raise UserError(
            f"{vocabulary}: has {len(tokens)} tokens, but the model has {size}; use the vocabulary of this model"
        )
    return tokens
