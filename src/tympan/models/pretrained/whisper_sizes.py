"""The sizes of the published Whisper models, by openai's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tympan.config.mistakes import did_you_mean
from tympan.errors import UserError

_VOCAB_EN = 51864
_VOCAB = 51865
_VOCAB_V3 = 51866
"""With Cantonese."""


@dataclass(frozen=True, kw_only=True)
class WhisperSize:
    """The names are those of `dims` in openai's checkpoints."""

    n_mels: int = 80
    n_audio_ctx: int = 1500
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int = _VOCAB
    n_text_ctx: int = 448
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @classmethod
    def parse(cls, values: Mapping[str, Any], source: object) -> WhisperSize:
        """From `dims` of a checkpoint, or `architecture` of a packed model."""
        try:
            return cls(**{name: int(value) for name, value in values.items()})
        except (TypeError, ValueError) as error:
            raise UserError(f"{source}: does not describe a Whisper model ({error})") from None

    @classmethod
    def from_transformers(cls, config: Mapping[str, Any], source: object) -> WhisperSize:
        """From the config.json of a Hugging Face folder."""
        try:
            found = {own: int(config[name]) for own, name in _TRANSFORMERS.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{source}: does not describe a Whisper model ({error!r})") from None
        for part in ("encoder", "decoder"):
            if int(config.get(f"{part}_ffn_dim", 4 * found["n_audio_state"])) != 4 * found["n_audio_state"]:
                raise UserError(f"{source}: {part}_ffn_dim must be 4 times d_model, as in all published Whisper models")
        return cls(**found, n_text_state=found["n_audio_state"])

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


_TRANSFORMERS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}


def _size(
    state: int, head: int, layer: int, *, n_vocab: int = _VOCAB, n_mels: int = 80, text_layer: int = 0
) -> WhisperSize:
    return WhisperSize(
        n_mels=n_mels,
        n_audio_state=state,
        n_audio_head=head,
        n_audio_layer=layer,
        n_vocab=n_vocab,
        n_text_state=state,
        n_text_head=head,
        n_text_layer=text_layer or layer,
    )


SIZES: dict[str, WhisperSize] = {
    "tiny.en": _size(384, 6, 4, n_vocab=_VOCAB_EN),
    "tiny": _size(384, 6, 4),
    "base.en": _size(512, 8, 6, n_vocab=_VOCAB_EN),
    "base": _size(512, 8, 6),
    "small.en": _size(768, 12, 12, n_vocab=_VOCAB_EN),
    "small": _size(768, 12, 12),
    "medium.en": _size(1024, 16, 24, n_vocab=_VOCAB_EN),
    "medium": _size(1024, 16, 24),
    "large-v1": _size(1280, 20, 32),
    "large-v2": _size(1280, 20, 32),
    "large-v3": _size(1280, 20, 32, n_vocab=_VOCAB_V3, n_mels=128),
    "large-v3-turbo": _size(1280, 20, 32, n_vocab=_VOCAB_V3, n_mels=128, text_layer=4),
}

ALIASES = {"large": "large-v2", "turbo": "large-v3-turbo"}
"""ESPnet2 can only use models with 80 mel bands, so its `large` is the second version."""


def find_size(name: str) -> WhisperSize:
    """The sizes of a published model; UserError if there is none of this name."""
    found = SIZES.get(ALIASES.get(name, name))
    if found is None:
        known = [*SIZES, *ALIASES]
        raise UserError(
            f"whisper_model: there is no model '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}; or a "
            "folder of the Hugging Face hub, or a .pt file of openai"
        )
    return found
