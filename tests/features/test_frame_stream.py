"""Frames of audio in pieces, against those of the whole recording."""

from __future__ import annotations

import pytest
import torch

from tympan.errors import UserError
from tympan.features.frame_stream import FrameStream
from tympan.features.frontend import DefaultFrontend

SETTINGS = [
    {},
    {"hop_length": 160, "win_length": 400},
    {"center": False},
    {"center": False, "hop_length": 700},
    {"hop_length": 600},
    {"n_fft": 129, "hop_length": 50, "n_mels": 20},
]


@pytest.mark.parametrize("conf", SETTINGS)
@pytest.mark.parametrize(
    ("total", "piece"),
    [(513, 1), *((total, piece) for total in (1, 100, 256, 257, 511, 512, 5003) for piece in (37, 160, 1000, 6000))],
)
def test_frames_equal_those_of_the_whole(conf: dict[str, int], total: int, piece: int) -> None:
    frontend = DefaultFrontend(**conf).eval()  # type: ignore[arg-type]
    samples = torch.randn(total, generator=torch.Generator().manual_seed(total))
    whole, lengths = frontend(samples.unsqueeze(0), torch.tensor([total]))
    stream = FrameStream(frontend)
    pieces = [stream.accept(part, is_last=False) for part in samples.split(piece)]
    pieces.append(stream.accept(samples[:0], is_last=True))
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole[:, : int(lengths)])
    kept = stream._samples
    assert kept is not None
    assert kept.numel() <= 3 * frontend.n_fft + 2 * frontend.hop_length, "memory does not grow with the recording"


def test_a_frame_comes_as_early_as_possible() -> None:
    stream = FrameStream(DefaultFrontend(hop_length=160))
    counts = [stream.accept(torch.randn(160), is_last=False).size(1) for _ in range(10)]
    assert counts == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1], "frame t needs the samples up to 160 t + 256"


def test_no_samples_give_no_frames() -> None:
    assert FrameStream(DefaultFrontend()).accept(torch.zeros(0), is_last=True).shape == (1, 0, 80)


def test_spectra_are_rejected() -> None:
    with pytest.raises(UserError, match="apply_stft"):
        FrameStream(DefaultFrontend(apply_stft=False))
