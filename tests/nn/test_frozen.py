"""A frozen model gives the same results as before and stores each weight once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.tiny import tiny_batch, tiny_model
from tympan.nn import feed_forward, frozen
from tympan.nn.activation import get_activation
from tympan.nn.attention import (
    LegacyRelPositionMultiHeadedAttention,
    MultiHeadedAttention,
    RelPositionMultiHeadedAttention,
    SelfAttentionContext,
)
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.frozen import FrozenLinear, freeze, freeze_linear, freeze_together
from tympan.nn.position import LegacyRelPositionalEncoding, PositionalEncoding, RelPositionalEncoding
from tympan.nn.subsampling import CONV2D_SHAPES, Conv2dSubsampling


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_frozen_linear_layer_is_the_layer(activation: str, has_bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 70, bias=has_bias)
    frozen = freeze_linear(linear, activation)
    apply = nn.Identity() if activation == "none" else get_activation(activation)
    strided = torch.randn(6, 5, 100)[:, 1:, :96:2]
    with torch.no_grad():
        for x in (torch.randn(1, 48), torch.randn(3, 7, 48), torch.randn(48, 9).t(), strided, torch.randn(0, 48)):
            torch.testing.assert_close(frozen(x), apply(linear(x)))


def test_linear_layers_together_give_their_results_one_behind_another() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(16, 5), nn.Linear(16, 9)
    x = torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(freeze_together(first, second)(x), torch.cat([first(x), second(x)], dim=-1))


def test_attention_freezes_what_is_used_together() -> None:
    torch.manual_seed(0)
    attention = MultiHeadedAttention(2, 16, 0.0).eval()
    x, memory, bias = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.zeros(2, 1, 1, 1)
    with torch.no_grad():
        expected = attention.attend_to_self(x, bias), attention.attend_to(x, memory, bias)
        assert freeze(attention)
        found = attention.attend_to_self(x, bias), attention.attend_to(x, memory, bias)
    assert attention._frozen is not None
    assert set(attention._frozen) == {"qkv", "q", "kv"}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [RelPositionMultiHeadedAttention, LegacyRelPositionMultiHeadedAttention])
def test_relative_attention_projects_its_positions_for_the_longest_input(
    kind: type[RelPositionMultiHeadedAttention],
) -> None:
    torch.manual_seed(0)
    is_legacy = kind is LegacyRelPositionMultiHeadedAttention
    position = (LegacyRelPositionalEncoding if is_legacy else RelPositionalEncoding)(16, 0.0, 12)
    attention = kind(2, 16, 0.0).eval()
    inputs = [torch.randn(1, length, 16) for length in (5, 9, 1, 7, 9, 14)]

    def run() -> list[torch.Tensor]:
        contexts = [(x, position(x)) for x in inputs]
        return [
            attention(x, SelfAttentionContext(torch.zeros(1), placed.table, torch.tensor([x.size(1)]), placed.max_len))
            for x, placed in contexts
        ]

    with torch.no_grad():
        expected = run()
        assert freeze(attention)
        for found, wanted in zip(run(), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    kept = attention._projected_table
    assert kept is None if is_legacy else kept is not None and kept.size(2) == 2 * 14 - 1


@pytest.mark.parametrize("kind", CONV2D_SHAPES)
def test_subsampling_does_its_convolutions_with_channels_last(kind: str) -> None:
    torch.manual_seed(0)
    layer = Conv2dSubsampling(kind, input_size=21, size=8, position=PositionalEncoding(8, 0.0)).eval()
    inputs = torch.randn(2, 60, 21), torch.randn(1, 33, 21), torch.randn(1, 3, 21)
    with torch.no_grad():
        expected = [layer(x).x for x in inputs]
        assert freeze(layer)
        for x, wanted in zip(inputs, expected, strict=True):
            torch.testing.assert_close(layer(x).x, wanted)


@pytest.mark.parametrize("activation", ["swish", "relu", "gelu"])
def test_a_feed_forward_is_done_in_parts(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(feed_forward, "HIDDEN_NUMBERS", 5 * 40)
    layer = PositionwiseFeedForward(16, 40, 0.1, get_activation(activation)).eval()
    x = torch.randn(3, 4, 16)
    with torch.no_grad():
        expected = layer(x), layer(x[0])
        assert freeze(layer)
        assert layer.rows_at_once == 5
        for found, wanted in zip((layer(x), layer(x[0])), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert isinstance(layer.w_1, FrozenLinear)
    assert layer.w_1.activation == ("relu" if activation == "relu" else "none")


@pytest.mark.parametrize("encoder_conf", [{"macaron_style": True}, {"rel_pos_type": "legacy"}])
def test_a_frozen_model_encodes_and_decodes_as_before(encoder_conf: dict[str, object]) -> None:
    model = tiny_model(encoder_conf=encoder_conf).eval()
    batch = tiny_batch(lengths=(60, 41, 52))
    tokens = torch.tensor([[3, 4], [1, 2], [2, 5]])
    results = []
    with torch.no_grad():
        for _ in range(2):
            out = model.encode(batch["speech"], batch["speech_lengths"])
            state = model.decoder.start(out.out, out.lengths, 2)
            scores, state = model.decoder.step(tokens, state)
            results.append((out.out, model.ctc.log_softmax(out.out), scores, model.decoder.step(tokens, state)[0]))
            freeze(model)
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, atol=2e-5, rtol=0)
    assert not any(type(module) is nn.Linear for module in model.decoder.decoders[0].feed_forward.modules())


def test_a_torch_without_these_products_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> None:
        raise RuntimeError("Could not run 'mkldnn::_reorder_linear_weight'")

    monkeypatch.setattr(frozen, "FrozenLinear", missing)
    frozen.can_freeze.cache_clear()
    try:
        layer = nn.Sequential(nn.Linear(4, 3))
        assert not freeze(layer)
        assert type(layer[0]) is nn.Linear
    finally:
        frozen.can_freeze.cache_clear()


def test_other_number_formats_stay_as_they_are() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        layer = nn.Sequential(nn.Linear(4, 3)).to(dtype)
        assert not freeze(layer)
        assert type(layer[0]) is nn.Linear
