"""multiconv_conformer, sinc and sliding_window against ESPnet2's classes (benchmarks/peer_parts.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import part_cases as cases
from tests.models.tiny import tiny_batch, tiny_model
from tympan.config import choices
from tympan.errors import UserError
from tympan.nn.dropout import Dropout

GOLDEN = json.loads((Path(__file__).parent / "golden_parts.json").read_text(encoding="utf-8"))


def shapes(module: nn.Module) -> dict[str, list[int]]:
    return {cases.newest_name(name): list(tensor.shape) for name, tensor in module.state_dict().items()}


def assert_same(out: Tensor, golden: dict[str, Any]) -> None:
    """out (frames, size)."""
    assert list(out.shape) == golden["shape"]
    expected = torch.tensor(golden["values"])
    torch.testing.assert_close(out.flatten()[:: golden["step"]], expected, atol=1e-5, rtol=1e-5)


def padded(rows: list[Tensor], value: float) -> Tensor:
    return nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True, padding_value=value)


@pytest.mark.parametrize("name", cases.MULTICONV)
@torch.no_grad()
def test_multiconv_conformer(name: str) -> None:
    golden = GOLDEN[f"multiconv {name}"]
    encoder = choices.ENCODERS.build("multiconv_conformer", cases.MULTICONV[name], input_size=cases.FEATURES).eval()
    assert shapes(encoder) == golden["shapes"]
    cases.fill(encoder)
    utterances = [cases.features(index) for index in range(len(cases.LENGTHS))]
    together = encoder(padded(utterances, 0.0), torch.tensor(cases.LENGTHS))
    for index, (utterance, expected) in enumerate(zip(utterances, golden["outputs"], strict=True)):
        alone = encoder(utterance, torch.tensor([utterance.size(1)]))
        assert_same(alone.out[0], expected)
        assert int(together.lengths[index]) == alone.out.size(1)
        assert_same(together.out[index, : alone.out.size(1)], expected)


def test_multiconv_conformer_trains() -> None:
    conf = {**cases.MULTICONV["concat_fusion"], "interctc_layer_idx": [1]}
    model = tiny_model(encoder="multiconv_conformer", encoder_only=conf, init="xavier_uniform")
    gate = model.encoder.encoders[0].conv_module.csgu
    assert gate.depthwise_conv_fusion.bias.eq(1).all()
    assert gate.convs[0].weight.abs().max() < 1e-4
    model(**tiny_batch()).value.backward()
    assert all(item.grad is not None for item in model.encoder.parameters())


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"multicgmlp_kernel_sizes": "3,5,7"}, "8 channels .* can't be divided between 3 kernels"),
        ({"multicgmlp_kernel_sizes": "3,6"}, "only odd numbers, found 6"),
    ],
)
def test_kernels_that_do_not_fit(conf: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choices.ENCODERS.build("multiconv_conformer", {**cases.MULTICONV["sum"], **conf}, input_size=20)


@pytest.mark.parametrize("name", cases.SINC)
@torch.no_grad()
def test_sinc_filters(name: str) -> None:
    golden = GOLDEN[f"sinc {name}"]
    sinc = choices.PREENCODERS.build("sinc", cases.SINC[name], input_size=400).eval()
    assert shapes(sinc) == golden["shapes"]
    torch.testing.assert_close(sinc.filters.f.flatten()[::16], torch.tensor(golden["filters"]))
    cases.fill(sinc, keeps=(".f",))
    frontend = choices.FRONTENDS.build("sliding_window")
    windows, lengths = frontend(padded([cases.speech(i) for i in range(3)], 0.0), torch.tensor(cases.SAMPLES))
    assert_same(sinc(windows)[0, : int(lengths[0])], golden["outputs"][0])


def test_padding_does_not_change_the_statistics_of_sinc() -> None:
    """In training, ESPnet2 includes the frames of padding; Tympan excludes them."""
    sincs = [choices.PREENCODERS.build("sinc", {}, input_size=400).train() for _ in range(2)]
    sincs[1].load_state_dict(sincs[0].state_dict())
    for layer in (layer for sinc in sincs for layer in sinc.modules() if isinstance(layer, Dropout)):
        layer.p = 0.0
    frames = torch.randn(1, 6, 400)
    outs = [sincs[0](frames), sincs[1](nn.functional.pad(frames, (0, 0, 0, 5)))]
    assert outs[1].shape == (1, 11, 256)
    for name, value in sincs[0].state_dict().items():
        torch.testing.assert_close(sincs[1].state_dict()[name], value, msg=name)


def test_sinc_survives_an_initialization_and_trains() -> None:
    model = tiny_model(
        input_size=None,
        frontend="sliding_window",
        frontend_conf={"hop_length": 240},
        preencoder="sinc",
        init="xavier_uniform",
    )
    fresh = choices.PREENCODERS.build("sinc", {}, input_size=400)
    assert torch.equal(model.preencoder.filters.f, fresh.filters.f)
    text = torch.randint(2, 9, (2, 3))
    batch = {"speech": torch.randn(2, 16000) * 0.1, "speech_lengths": torch.tensor([16000, 12000])}
    model(**batch, text=text, text_lengths=torch.tensor([3, 2])).value.backward()
    assert model.preencoder.filters.f.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("conf", "size", "message"),
    [
        ({}, 80, "needs windows of 400 samples, found 80"),
        ({"out_channels": 200}, 400, "multiple of 128"),
        ({"in_channels": 2}, 400, "one channel is supported"),
    ],
)
def test_mistakes_of_sinc(conf: dict[str, Any], size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choices.PREENCODERS.build("sinc", conf, input_size=size)


@pytest.mark.parametrize("name", cases.WINDOWS)
def test_sliding_window(name: str) -> None:
    golden = GOLDEN[f"windows {name}"]
    frontend = choices.FRONTENDS.build("sliding_window", cases.WINDOWS[name])
    waves = [cases.speech(index) for index in range(len(cases.SAMPLES))]
    windows, lengths = frontend(padded(waves, 9.0), torch.tensor(cases.SAMPLES))
    assert lengths.tolist() == golden["lengths"]
    for out, count, expected in zip(windows, lengths.tolist(), golden["outputs"], strict=True):
        assert_same(out[:count], expected)
        assert out[count:].eq(0).all()


def test_windows_of_short_audio_and_other_channels() -> None:
    frontend = choices.FRONTENDS.build("sliding_window", {"channels": 2})
    windows, lengths = frontend(torch.randn(2, 300, 2), torch.tensor([300, 0]))
    assert lengths.tolist() == [0, 0]
    assert windows.shape[2] == 800
    with pytest.raises(UserError, match="channels is 2, but the recordings have 1"):
        frontend(torch.randn(2, 300), torch.tensor([300, 0]))
