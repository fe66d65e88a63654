"""`frontend: huggingface`: the last hidden state of a pretrained speech encoder of the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.frontend import parse_rate
from tympan.models.pretrained.folder import find_folder, read_architecture, read_weights
from tympan.models.pretrained.s3prl import RATE
from tympan.models.pretrained.speech_encoder import SpeechEncoder
from tympan.nn.masks import length_mask


class HuggingFaceFrontend(nn.Module):
    """`model` is a hub name or a folder; `load_pretrained: false` builds it from its config.json with random weights.

    `architecture` is the content of config.json; `tympan pack` stores it. Differs from ESPnet2, which counts the
    lengths in samples.
    """

    def __init__(
        self,
        model: str,
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        download_dir: str | None = None,
        load_pretrained: bool = True,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if parse_rate(fs) != RATE:
            raise UserError(f"frontend_conf fs: pretrained encoders need audio at {RATE} Hz, not {fs}")
        self.name, self.download_dir, self.loads = model, download_dir, load_pretrained
        self.architecture = architecture or read_architecture(find_folder(model, download_dir))
        self.upstream = SpeechEncoder(self.architecture)
        self.upstream.freeze_unused(self.upstream.num_layers - 1)
        self.output_size = self.upstream.hidden_size
        self.hop_length = self.upstream.stride

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        states, frames = self.upstream(speech, lengths)
        mask = length_mask(frames, states[-1].size(1)).unsqueeze(-1)
        return states[-1].masked_fill(~mask, 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return self.upstream.output_lengths(lengths)

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, unless `load_pretrained` is false."""
        if self.loads:
            folder = find_folder(self.name, self.download_dir)
            self.upstream.load(read_weights(folder), folder)

    def rename_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """ESPnet2 calls the encoder `encoder`."""
        return {
            f"upstream.model.{name.removeprefix('encoder.')}" if name.startswith("encoder.") else name: tensor
            for name, tensor in weights.items()
        }
