"""The encoder of the documentation can be decoded, although it has no parameters left after its layout for oneDNN."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.decode.recognizer import Recognizer
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.encoder.own import build_encoder
from tympan.models.parts import Encoder


def example() -> str:
    """The code in the docstring of `Encoder`."""
    lines = inspect.getdoc(Encoder).splitlines()  # type: ignore[union-attr]
    start = next(index for index, line in enumerate(lines) if line.strip() == "import torch")
    return textwrap.dedent("\n".join(line for line in lines[start:] if not line or line.startswith("    ")))


def test_the_page_shows_the_same_encoder_as_the_docstring() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
    (shown,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert ast.unparse(ast.parse(shown)) == ast.unparse(ast.parse(example()))


def test_the_documented_encoder_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented.py").write_text(example(), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    options = {
        "token_list": ["<blank>", "<unk>", "a", "b", "<sos/eos>"],
        "token_type": "char",
        "encoder": "documented:MyEncoder",
        "encoder_conf": {"output_size": 8},
        "decoder": None,
        "model_conf": {"ctc_weight": 1.0},
    }
    model = build_asr_model(make_training_config(AsrTrainConfig, options=options))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    recognizer = Recognizer.from_pretrained(tmp_path, allow_import=True, search="ctc_greedy")
    noise = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)
    hypothesis = recognizer(noise, rate=16000)
    assert set(hypothesis.tokens) <= set(options["token_list"])
    plain = Recognizer.from_pretrained(tmp_path, allow_import=True, search="ctc_greedy", dtype="float64")
    assert hypothesis.tokens == plain(noise, rate=16000).tokens


ESPNET_FORM = """
import torch
from torch import nn
from tympan.models.encoder.output import EncoderOutput

class Enc(nn.Module):
    def __init__(self, input_size: int, output_size: int = 8):
        super().__init__()
        self._output_size = output_size
        self.conv = nn.Conv1d(input_size, output_size, 3, stride=2)

    def output_size(self):
        return self._output_size

    def forward(self, xs_pad, ilens, prev_states=None):
        return self.conv(xs_pad.transpose(1, 2)).transpose(1, 2), (ilens - 1) // 2, None

class Lacking(nn.Module):
    def __init__(self, input_size: int):
        super().__init__()

    def forward(self, features, lengths):
        return features, lengths

class WrongResult(Lacking):
    def __init__(self, input_size: int):
        super().__init__(input_size)
        self.output_size = input_size

    def output_lengths(self, lengths):
        return lengths

class OneTensor(Enc):
    def forward(self, xs_pad, ilens, prev_states=None):
        return xs_pad

class OtherSize(Enc):
    def output_size(self):
        return 5

class NoLengths(Enc):
    def forward(self, xs_pad, ilens, prev_states=None):
        return super().forward(xs_pad, ilens)[0], None, None

class OneArgument(Enc):
    def forward(self, xs_pad):
        return super().forward(xs_pad, None)

class Own(nn.Module):
    def __init__(self, *, input_size: int):
        super().__init__()
        self.output_size = input_size

    def forward(self, features, lengths):
        return EncoderOutput(features, lengths)

    def output_lengths(self, lengths):
        return lengths

class FloatLengths(Own):
    def forward(self, features, lengths):
        return EncoderOutput(features, lengths.float())

class OneLength(Own):
    def forward(self, features, lengths):
        return EncoderOutput(features, lengths.max())

class TooLong(Own):
    def forward(self, features, lengths):
        return EncoderOutput(features, lengths + 1)

class OtherLengths(Own):
    def output_lengths(self, lengths):
        return lengths // 2

class NoArgument(Own):
    def output_lengths(self):
        return 1

class NoInputSize(nn.Module):
    def __init__(self, output_size: int = 8):
        super().__init__()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(ESPNET_FORM, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def test_an_encoder_with_the_interface_of_espnet2(module: str) -> None:
    encoder = build_encoder(f"{module}:Enc", {"output_size": 4}, input_size=6)
    assert encoder.output_size == 4
    assert isinstance(encoder, Encoder)
    assert [name for name, _ in encoder.named_parameters()] == ["conv.weight", "conv.bias"]
    features, lengths = torch.randn(2, 9, 6), torch.tensor([9, 7])
    found = encoder(features, lengths)
    torch.testing.assert_close(found.out, encoder.conv(features.transpose(1, 2)).transpose(1, 2))
    assert found.lengths.tolist() == [4, 3]
    lengths = torch.arange(3, 500)
    assert ((encoder.output_lengths(lengths) - (lengths - 1) // 2).abs() <= 1).all()


def test_what_an_encoder_lacks(module: str) -> None:
    with pytest.raises(UserError) as caught:
        build_encoder(f"{module}:Lacking", {}, input_size=6)
    assert "it has no attribute output_size" in str(caught.value)
    assert "it has no method output_lengths(lengths)" in str(caught.value)
    assert "docs/extending.md" in str(caught.value)
    encoder = build_encoder(f"{module}:WrongResult", {}, input_size=6)
    with pytest.raises(UserError, match=r"forward must return .*EncoderOutput.*; it returned tuple"):
        encoder(torch.randn(1, 3, 6), torch.tensor([3]))


def test_what_an_encoder_does_wrong(module: str) -> None:
    """Each is one message that names the class; before, it was a traceback."""
    features, lengths = torch.randn(1, 9, 6), torch.tensor([9])
    with pytest.raises(UserError, match=rf"encoder {module}:OneTensor: .* must return a tuple .*; it returned Tensor"):
        build_encoder(f"{module}:OneTensor", {}, input_size=6)(features, lengths)
    expected = r"output_size is 5, so forward must return .* \(batch, frames, 5\); it has the shape \(1, 4, 8\)"
    with pytest.raises(UserError, match=expected):
        build_encoder(f"{module}:OtherSize", {}, input_size=6)(features, lengths)
    with pytest.raises(UserError, match=r"NoInputSize: __init__ must take input_size"):
        build_encoder(f"{module}:NoInputSize", {}, input_size=6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoLengths", "forward must return the lengths as a tensor of integers (batch,); it returned NoneType"),
        (
            "FloatLengths",
            "forward must return the lengths as a tensor of integers (batch,); it returned torch.float32 ",
        ),
        ("OneLength", "forward must return the lengths as a tensor of integers (batch,); it returned torch.int64 ()"),
        ("TooLong", "forward returned a length of 10, but an output of 9 frames"),
        ("OtherLengths", "forward returned the lengths [9], but output_lengths returned [4] for the same recordings"),
        ("OneArgument", "forward must take (features, lengths)"),
        ("NoArgument", "output_lengths must take (lengths)"),
    ],
)
def test_lengths_and_arguments(module: str, name: str, message: str) -> None:
    """Each ended in a traceback from inside of torch, or was not noticed."""
    with pytest.raises(UserError) as caught:
        build_encoder(f"{module}:{name}", {}, input_size=6)(torch.randn(1, 9, 6), torch.tensor([9]))
    assert f"encoder {module}:{name}: {message}" in str(caught.value)
