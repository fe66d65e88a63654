"""Subsampling as matrix products equals torch's convolutions, and the computed lengths are those of the output."""

from __future__ import annotations

import pytest
import torch

from tympan.nn.fused_subsampling import fused_subsampling
from tympan.nn.position import PositionalEncoding
from tympan.nn.subsampling import CONV1D_SHAPES, CONV2D_SHAPES, Conv1dSubsampling, Conv2dSubsampling


@pytest.mark.parametrize("numbers", [1, 1500, 1 << 21], ids=["one by one", "in parts", "together"])
@pytest.mark.parametrize("bands", [16, 17, 18, 19])
@pytest.mark.parametrize("time", [7, 8, 9, 10, 31])
def test_products_equal_convolutions(time: int, bands: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tympan.nn.fused_subsampling.WIDE_NUMBERS", numbers)
    torch.manual_seed(time + bands)
    layer = Conv2dSubsampling("conv2d", input_size=bands, size=5, position=PositionalEncoding(5, 0.0)).double()
    x = torch.randn(3, time, bands, dtype=torch.float64)
    fused = fused_subsampling(x, layer.conv[0], layer.conv[2], layer.out)
    expected = layer.out(layer.conv(x.unsqueeze(1)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(fused, expected)
    weights = torch.randn_like(fused)
    parameters = list(layer.parameters())
    found = torch.autograd.grad((fused * weights).sum(), parameters)
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(one, other)


def test_training_takes_the_products_and_evaluation_the_convolutions() -> None:
    torch.manual_seed(0)
    layer = Conv2dSubsampling("conv2d", input_size=20, size=8, position=PositionalEncoding(8, 0.0))
    x = torch.randn(2, 40, 20)
    trained = layer(x).x
    assert "Subsampling" in str(trained.grad_fn.next_functions)
    torch.testing.assert_close(trained, layer.eval()(x).x)
    layer.train()
    x.requires_grad_()
    layer(x).x.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("kind", [*CONV2D_SHAPES, *CONV1D_SHAPES])
@pytest.mark.parametrize("time", [1, 3, 10, 23, 40])
def test_lengths(kind: str, time: int) -> None:
    cls = Conv2dSubsampling if kind in CONV2D_SHAPES else Conv1dSubsampling
    layer = cls(kind, input_size=20, size=4, position=PositionalEncoding(4, 0.0)).eval()
    frames = int(layer.output_lengths(torch.tensor([time]))[0])
    assert layer(torch.randn(1, time, 20)).x.size(1) == max(frames, 1)


def test_weights_of_older_espnet2_load() -> None:
    layer = Conv2dSubsampling("conv2d", input_size=20, size=4, position=PositionalEncoding(4, 0.0))
    state = layer.state_dict()
    old = {name.replace("out.", "out.0."): value + 1 for name, value in state.items()}
    layer.load_state_dict(old)
    torch.testing.assert_close(layer.out.weight, old["out.0.weight"])
