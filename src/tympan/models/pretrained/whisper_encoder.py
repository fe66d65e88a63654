"""`encoder: whisper` and `frontend: whisper`: the encoder of Whisper, with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.choices import SPECAUGS
from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.frontend import parse_rate
from tympan.features.whisper import HOP, RATE, WhisperLogMel
from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Augmenter, Frontend
from tympan.models.pretrained.whisper_files import whisper_size, whisper_weights
from tympan.models.pretrained.whisper_layers import WhisperBlock, sinusoids
from tympan.models.pretrained.whisper_sizes import WhisperSize
from tympan.nn.checkpointing import call_layer
from tympan.nn.dropout import Dropout
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.typed_torch import ModuleList


class WhisperEncoder(nn.Module):
    """Whisper's encoder. It takes audio: the model then has no other frontend and no normalization.

    `whisper_model` is one of openai's names, a folder of the Hugging Face hub, or a `.pt` file of openai. The weights
    of a name are looked for in `download_dir` (`small.pt` or `openai/whisper-small`), then on the hub. `do_pad_trim`
    pads every utterance to 30 seconds, as Whisper was trained; longer ones are cut in any case. `architecture` has the
    sizes of the model; `tympan pack` stores it.

    Differs from ESPnet2: padding never changes a result, and with `do_pad_trim` the output is 30 seconds long.
    """

    def __init__(
        self,
        *,
        input_size: int = 1,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        whisper_model: str = "small",
        download_dir: str | None = None,
        use_specaug: bool = False,
        specaug_conf: dict[str, Any] | None = None,
        do_pad_trim: bool = False,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.download_dir = whisper_model, download_dir
        size = read_size(whisper_model, download_dir, architecture, "encoder_conf")
        self.architecture = size.as_dict()
        self.encoders = AudioEncoder(size, dropout_rate)
        self.output_size = size.n_audio_state
        self.max_samples = 2 * HOP * size.n_audio_ctx
        self.pads = do_pad_trim
        self._specaug_conf = dict(specaug_conf or {}) if use_specaug else None

    def own_inputs(self) -> tuple[Frontend, Augmenter | None]:
        """Log-mel features, and SpecAugment if `use_specaug` is true."""
        mel = WhisperLogMel(self.encoders.n_mels, pads=self.pads, max_samples=self.max_samples)
        if self._specaug_conf is None:
            return mel, None
        try:
            return mel, SPECAUGS.build("specaug", self._specaug_conf)
        except UserError as error:
            raise UserError(f"encoder_conf use_specaug: specaug_conf does not fit: {error}") from None

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """Log-mel features (batch, frames, mels)."""
        return EncoderOutput(self.encoders(features, lengths), self.output_lengths(lengths))

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of log-mel frames."""
        return self.encoders.output_lengths(lengths)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.encoders.grad_checkpointing = is_on

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a file or the hub."""
        _, weights = whisper_weights(self.name, self.download_dir)
        fill(self.encoders, weights, "encoder.", self.name)


class WhisperFrontend(nn.Module):
    """`frontend: whisper`: the output of Whisper's encoder as features. It is not trained unless `freeze_weights` is
    false. The options are those of `encoder: whisper`.
    """

    def __init__(
        self,
        whisper_model: str = "small",
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        freeze_weights: bool = True,
        download_dir: str | None = None,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if parse_rate(fs) != RATE:
            raise UserError(f"frontend_conf fs: Whisper needs audio at {RATE} Hz, not {fs}")
        self.name, self.download_dir = whisper_model, download_dir
        size = read_size(whisper_model, download_dir, architecture, "frontend_conf")
        self.architecture = size.as_dict()
        self.mel = WhisperLogMel(size.n_mels, pads=False, max_samples=2 * HOP * size.n_audio_ctx)
        self.whisper = nn.ModuleDict({"encoder": AudioEncoder(size, 0.0)})
        self.is_frozen = freeze_weights
        self.whisper.requires_grad_(not freeze_weights)
        self.output_size = size.n_audio_state
        self.hop_length = 2 * HOP

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        features, frames = self.mel(speech, lengths)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_frozen):
            out = self.whisper["encoder"](features, frames)
        frames = self.output_lengths(lengths)
        return out.masked_fill(~length_mask(frames, out.size(1)).unsqueeze(-1), 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return AudioEncoder.output_lengths(self.mel.output_lengths(lengths))

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a file or the hub."""
        _, weights = whisper_weights(self.name, self.download_dir)
        fill(self.whisper["encoder"], weights, "encoder.", self.name)

    def rename_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """ESPnet2 also stores Whisper's decoder, which is not used."""
        return {name: tensor for name, tensor in weights.items() if not name.startswith("whisper.decoder.")}


class AudioEncoder(nn.Module):
    """Two convolutions, positions, and Transformer blocks."""

    def __init__(self, size: WhisperSize, dropout_rate: float) -> None:
        super().__init__()
        self.n_mels = size.n_mels
        state = size.n_audio_state
        self.conv1 = nn.Conv1d(size.n_mels, state, 3, padding=1)
        self.conv2 = nn.Conv1d(state, state, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(size.n_audio_ctx, state))
        self.blocks: ModuleList[WhisperBlock] = ModuleList(
            WhisperBlock(state, size.n_audio_head, has_memory=False) for _ in range(size.n_audio_layer)
        )
        self.ln_post = nn.LayerNorm(state)
        self.dropout = Dropout(dropout_rate)
        self.grad_checkpointing = False

    positional_embedding: Tensor

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Log-mel features (batch, frames, mels) of any value beyond their lengths -> (batch, frames / 2, size)."""
        mask = length_mask(lengths, features.size(1)).unsqueeze(1)
        x = nn.functional.gelu(self.conv1(features.transpose(1, 2).masked_fill(~mask, 0.0)))
        x = nn.functional.gelu(self.conv2(x.masked_fill(~mask, 0.0))).transpose(1, 2)
        x = self.dropout(x + self.positional_embedding[: x.size(1)].to(x.dtype))
        bias = key_bias(length_mask(self.output_lengths(lengths), x.size(1)), x.dtype)
        for number, block in enumerate(self.blocks, start=1):
            x = call_layer(block, x, bias, is_checkpointed=self.training and self.grad_checkpointing)
            if number < len(self.blocks):
                x = self.dropout(x)
        out: Tensor = self.ln_post(x)
        return out

    @staticmethod
    def output_lengths(lengths: Tensor) -> Tensor:
        """Number of output frames for a number of log-mel frames."""
        return torch.div(lengths + 1, 2, rounding_mode="floor")


def read_size(name: str, download_dir: str | None, architecture: dict[str, Any] | None, owner: str) -> WhisperSize:
    """The sizes in `architecture`, or those of the model."""
    if architecture is not None:
        return WhisperSize.parse(architecture, f"{owner} architecture")
    return whisper_size(name, download_dir)


def fill(part: nn.Module, weights: Mapping[str, Tensor], prefix: str, source: object) -> None:
    """Load the weights whose names begin with `prefix` into a part. All of them must be there."""
    own = part.state_dict()
    taken = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    missing = sorted(own.keys() - taken.keys())
    wrong = [name for name, tensor in taken.items() if name in own and tensor.shape != own[name].shape]
    if missing or wrong:
        example = (missing or wrong)[0]
        raise UserError(
            f"{source}: {len(missing)} weights are missing and {len(wrong)} have another shape, such as "
            f"{prefix}{example}; the weights belong to another model"
        )
    part.load_state_dict({name: tensor for name, tensor in taken.items() if name in own})
