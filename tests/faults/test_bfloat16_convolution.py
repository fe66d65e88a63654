"""Depthwise convolution in bfloat16 on a CPU: torch 2.13's never returns for some shapes on processors with
AVX512-BF16."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import torch
from train_corpus import environment

from tympan.nn.convolution import DepthwiseConv1d
from tympan.runtime.child import code_command

LIMIT_S = 100
"""For one shape: the time of a scan depends on the other programs of the machine."""
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


def scan(threads: int, lengths: str, channels: str, kernels: str, output: Path) -> None:
    """In a separate process, because a call that does not return can't be interrupted."""
    command = [*code_command(SCAN), str(threads), lengths, channels, kernels]
    variables = {**environment(), "OMP_NUM_THREADS": str(threads)}
    with output.open("wb") as stream, subprocess.Popen(command, env=variables, stdout=stream) as process:
        size, began = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            if output.stat().st_size > size:
                size, began = output.stat().st_size, time.monotonic()
            if time.monotonic() - began > LIMIT_S:
                process.kill()
                last = output.read_text().splitlines()[-1:]
                pytest.fail(f"does not return: threads, channels, kernel and frames are {last}")
    assert output.read_text().endswith("done\n")


@pytest.mark.parametrize("threads", [1, 2])
def test_every_shape_returns(tmp_path: Path, threads: int) -> None:
    scan(threads, "range(50, 100, 2)", "(16, 144, 256)", "(7, 15, 31)", tmp_path / "shapes")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [80, 144, 176, 512])
def test_many_shapes_return(tmp_path: Path, threads: int, channels: int) -> None:
    scan(threads, "range(1, 260)", f"({channels},)", "(3, 15, 31)", tmp_path / "shapes")


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
