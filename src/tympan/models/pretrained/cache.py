"""Hidden states of a frozen encoder, kept on disk by the content of the audio."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tympan.runtime.atomic import atomic_write

Compute = Callable[[Tensor, Tensor], tuple[list[Tensor], Tensor]]
"""From speech and lengths to hidden states (batch, frames, size) and the number of frames of each utterance."""


class HiddenStateCache:
    """One file per utterance: `DIR/ab/abcd....npy` of shape (states, frames, size) in float32.

    The name is a hash of the samples, the weights of the encoder and the settings, so that a changed recording or
    encoder never uses an old file. A file that can't be read is computed again.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._model_hash: bytes | None = None

    def states(
        self, speech: Tensor, lengths: Tensor, compute: Compute, *, encoder: nn.Module, setting: str
    ) -> list[Tensor]:
        """The states of `compute(speech, lengths)`: from files where they exist, otherwise computed and stored."""
        start = self._start(encoder, setting)
        host = speech.detach().cpu()
        paths = [self._path(start, row[:length]) for row, length in zip(host, lengths.tolist(), strict=True)]
        found = [_read(path) for path in paths]
        missing = [index for index, value in enumerate(found) if value is None]
        if missing:
            states, frames = compute(speech[missing, : int(lengths[missing].max())], lengths[missing])
            stacked = torch.stack(states, 1).detach().float().cpu()
            for row, index in enumerate(missing):
                value = stacked[row, :, : int(frames[row])].clone()
                _write(paths[index], value)
                found[index] = value
        whole = [value.transpose(0, 1) for value in found if value is not None]
        padded = nn.utils.rnn.pad_sequence(whole, batch_first=True)
        return list(padded.to(speech.device, speech.dtype).unbind(2))

    def _start(self, encoder: nn.Module, setting: str) -> bytes:
        if self._model_hash is None:
            digest = hashlib.blake2b(digest_size=16)
            for name, tensor in sorted(encoder.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._model_hash = digest.digest()
        return self._model_hash + setting.encode()

    def _path(self, start: bytes, samples: Tensor) -> Path:
        digest = hashlib.blake2b(start, digest_size=16)
        digest.update(samples.float().contiguous().numpy().tobytes())
        name = digest.hexdigest()
        return self.directory / name[:2] / f"{name}.npy"


def _read(path: Path) -> Tensor | None:
    """None if there is no such file, or a damaged one."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.ndim != 3 or found.dtype != np.float32:
            return None
        return torch.from_numpy(np.array(found))
    except (OSError, ValueError, EOFError):
        return None


def _write(path: Path, value: Tensor) -> None:
    with atomic_write(path, "wb") as file:
        np.save(file, value.numpy(), allow_pickle=False)
