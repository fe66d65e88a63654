"""The log-mel frontend: against torch's own STFT of each utterance, filters with known sums, edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tympan.errors import UserError
from tympan.features.frontend import DefaultFrontend, mel_filters, parse_rate

LENGTHS = torch.tensor([4000, 8000, 300, 257])


@pytest.fixture(scope="module")
def speech() -> torch.Tensor:
    # Values beyond the lengths must have no effect.
    return torch.randn(4, 8000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"hop_length": 160, "win_length": 400},
        {"n_fft": 400, "window": "hamming", "n_mels": 40, "fmin": 60, "fmax": 7600},
        {"window": None, "normalized": True, "htk": True},
        {"center": False},
        {"fs": "8k", "n_fft": 256, "hop_length": 80, "n_mels": 23},
    ],
)
@pytest.mark.parametrize("is_training", [True, False])
def test_each_utterance_of_a_batch_equals_the_transform_of_it_alone(
    speech: torch.Tensor, conf: dict[str, object], is_training: bool
) -> None:
    frontend = DefaultFrontend(**conf).train(is_training)
    features, lengths = frontend(speech, LENGTHS)
    assert features.shape == (4, int(frontend.output_lengths(torch.tensor(8000))), frontend.output_size)
    assert lengths.tolist() == frontend.output_lengths(LENGTHS).tolist()
    for row, samples in enumerate(LENGTHS.tolist()):
        if samples < frontend.n_fft and not frontend.center:
            assert lengths[row] == 0
            continue
        window = None if frontend.window is None else getattr(torch, f"{frontend.window}_window")(frontend.win_length)
        spectrum = torch.stft(
            speech[row, :samples],
            frontend.n_fft,
            frontend.hop_length,
            frontend.win_length,
            torch.ones(frontend.win_length) if window is None else window,
            center=frontend.center,
            normalized=frontend.normalized,
            return_complex=True,
        )
        expected = (spectrum.abs().square().T @ frontend.logmel.melmat).clamp(min=1e-10).log()
        assert lengths[row] == len(expected)
        torch.testing.assert_close(features[row, : len(expected)], expected, atol=2e-4, rtol=0)
        assert features[row, len(expected) :].eq(0).all()


def test_reflection_goes_back_and_forth_in_very_short_signals() -> None:
    frontend = DefaultFrontend()
    signal = torch.tensor([1.0, 2.0, 3.0])
    features, lengths = frontend(signal.unsqueeze(0), torch.tensor([3]))
    padded = torch.from_numpy(np.pad(signal.numpy(), 256, mode="reflect"))
    window = torch.hann_window(512)
    power = torch.fft.rfft(padded[:512] * window).abs().square()
    torch.testing.assert_close(
        features[0, 0], (power @ frontend.logmel.melmat).clamp(min=1e-10).log(), atol=1e-3, rtol=0
    )
    assert lengths.tolist() == [1]


def test_no_samples_give_no_frames() -> None:
    features, lengths = DefaultFrontend()(torch.zeros(1, 600), torch.tensor([0]))
    assert lengths.tolist() == [0]
    assert features.isfinite().all()


def test_of_several_channels_evaluation_hears_the_first(speech: torch.Tensor) -> None:
    frontend = DefaultFrontend().eval()
    channels = torch.stack([speech, speech.flip(0)], dim=-1)
    torch.testing.assert_close(frontend(channels, LENGTHS)[0], frontend(speech, LENGTHS)[0])


def test_half_precision_input_is_raised(speech: torch.Tensor) -> None:
    features, _ = DefaultFrontend()(speech.half(), LENGTHS)
    assert features.dtype == torch.float32


def test_filters_are_triangles_of_equal_area() -> None:
    filters = mel_filters(16000, 2048, 40, fmin=100.0, fmax=7000.0, htk=True)
    areas = filters.sum(0) * 16000 / 2048
    np.testing.assert_allclose(areas[5:], 1.0, atol=0.02)
    assert (np.diff(filters.argmax(0)) > 0).all()


def test_rates() -> None:
    assert [parse_rate(rate) for rate in (16000, "16000", "16k", "44.1 kHz")] == [16000, 16000, 16000, 44100]
    with pytest.raises(UserError, match="sample rate"):
        parse_rate("fast")


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"n_fft": 400, "win_length": 399, "hop_length": 160, "window": "hamming"},
        {"n_fft": 256, "win_length": 200, "normalized": True, "center": False},
    ],
)
def test_the_matrix_product_equals_the_stft(
    speech: torch.Tensor, conf: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For devices without complex numbers: the same features within 1e-4, in float32 too."""
    frontend = DefaultFrontend(**conf)
    quiet = torch.cat([speech[:1] * 1e-3, speech[1:]])
    expected, expected_lengths = frontend(quiet, LENGTHS)
    monkeypatch.setattr("tympan.features.frontend.has_complex", lambda device: False)
    found, lengths = frontend(quiet, LENGTHS)
    assert torch.equal(lengths, expected_lengths)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    with torch.no_grad():
        single = frontend.logmel(frontend._stft_power(quiet, LENGTHS))
    mask = (torch.arange(single.size(1)) < lengths.unsqueeze(1)).unsqueeze(-1)
    torch.testing.assert_close(single * mask, expected * mask, atol=1e-4, rtol=0)
