"""Depthwise convolution in bfloat16 on a CPU: torch 2.13's never returns for some shapes on processors with
AVX512-BF16."""

from __future__ import annotations

import subprocess

import pytest
import torch
from train_corpus import environment

from tympan.nn.convolution import DepthwiseConv1d
from tympan.runtime.child import code_command

LIMIT_S = 50
SCAN = """
import sys, torch
from tympan.nn.convolution import DepthwiseConv1d
threads, lengths = int(sys.argv[1]), eval(sys.argv[2])
torch.set_num_threads(threads)
for channels in eval(sys.argv[3]):
    for kernel in eval(sys.argv[4]):
        layer = DepthwiseConv1d(channels, kernel)
        plain = DepthwiseConv1d(channels, kernel).bfloat16()
        for length in lengths:
            print(threads, channels, kernel, length, flush=True)
            x = torch.randn(1, length, channels)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                layer(x).float().sum().backward()
            plain(x.bfloat16()).float().sum().backward()
print("done", flush=True)
"""


def scan(threads: int, lengths: str, channels: str, kernels: str) -> None:
    """In a separate process, because a call that does not return can't be interrupted."""
    command = [*code_command(SCAN), str(threads), lengths, channels, kernels]
    try:
        done = subprocess.run(
            command, env={**environment(), "OMP_NUM_THREADS": str(threads)}, capture_output=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        last = (error.stdout or b"").split(b"\n")[-2:]
        pytest.fail(f"does not return: threads, channels, kernel and frames are {last[0].decode()}")
    assert done.stdout.endswith(b"done\n"), done.stderr.decode()


@pytest.mark.parametrize("threads", [1, 2])
def test_every_shape_returns(threads: int) -> None:
    scan(threads, "range(50, 100, 2)", "(16, 144, 256)", "(7, 15, 31)")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [80, 144, 176, 512])
def test_many_shapes_return(threads: int, channels: int) -> None:
    scan(threads, "range(1, 260)", f"({channels},)", "(3, 15, 31)")


@pytest.mark.parametrize("kind", ["weights", "autocast"])
def test_it_is_computed_in_float32_and_rounded_once(kind: str) -> None:
    torch.manual_seed(0)
    layer = DepthwiseConv1d(8, 5)
    x = torch.randn(2, 11, 8)
    if kind == "weights":
        layer, x = layer.bfloat16(), x.bfloat16()
        out = layer(x)
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x)
    exact = DepthwiseConv1d(8, 5)
    exact.load_state_dict({name: tensor.float() for name, tensor in layer.state_dict().items()})
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact(x.float()).bfloat16())
    out.float().square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == layer.weight.dtype


def test_other_formats_are_computed_as_they_are() -> None:
    for kind in (torch.float32, torch.float64):
        layer = DepthwiseConv1d(8, 5).to(kind)
        x = torch.randn(2, 11, 8, dtype=kind)
        expected = torch.nn.functional.conv1d(x.mT, layer.weight, layer.bias, padding=2, groups=8).mT
        torch.testing.assert_close(layer(x), expected)
        assert layer(x).dtype == kind
