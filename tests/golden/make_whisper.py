"""Make tests/golden/whisper: features, encodings and logits of openai's own classes for a tiny random model.

    pip install openai-whisper==20250625
    python -m tests.golden.make_whisper

The window of the model is 1 second instead of 30, so that the files stay small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

OUTPUT = Path(__file__).parent / "whisper"
DIMS = {
    "n_mels": 80,
    "n_audio_ctx": 50,
    "n_audio_state": 16,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": 30,
    "n_text_ctx": 12,
    "n_text_state": 16,
    "n_text_head": 2,
    "n_text_layer": 2,
}
TOKENS = [[3, 17, 5, 29, 0, 11, 8]]


def audio(length: int) -> torch.Tensor:
    """(length,): two tones, one of them rising."""
    time = torch.arange(length) / 16000
    return 0.3 * torch.sin(2 * torch.pi * (200 + 900 * time) * time) + 0.1 * torch.sin(3000 * time)


def unpadded(encoder: Any, mel: torch.Tensor) -> torch.Tensor:
    """The encoding of less than a window, with the first positions only, as ESPnet2 calls the encoder."""
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).permute(0, 2, 1)
    x = x + encoder.positional_embedding[: x.size(1)]
    for block in encoder.blocks:
        x = block(x)
    return encoder.ln_post(x)


@torch.no_grad()
def main() -> None:
    from whisper.audio import log_mel_spectrogram, pad_or_trim
    from whisper.model import ModelDimensions, Whisper

    torch.manual_seed(0)
    model = Whisper(ModelDimensions(**DIMS)).eval()
    for name, parameter in model.named_parameters():
        if "ln" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    speech = audio(9000)
    mel = log_mel_spectrogram(speech[None])
    padded = log_mel_spectrogram(pad_or_trim(speech[None], 16000))
    encoded = model.encoder(padded)
    OUTPUT.mkdir(exist_ok=True)
    torch.save({"dims": DIMS, "model_state_dict": model.state_dict()}, OUTPUT / "tiny.pt")
    np.savez_compressed(
        OUTPUT / "tiny.npz",
        mel=mel[0],
        mel_128=log_mel_spectrogram(speech[None], 128)[0],
        padded_mel=padded[0],
        unpadded=unpadded(model.encoder, mel)[0],
        encoded=encoded[0],
        logits=model.decoder(torch.tensor(TOKENS), encoded)[0],
    )


if __name__ == "__main__":
    main()
