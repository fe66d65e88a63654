"""An encoder gives the same output for concatenated utterances as for a padded batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.tiny import ENCODER, tiny_batch, tiny_model
from tympan.models.encoder import packed

WITHOUT_MACARON = {name: value for name, value in ENCODER.items() if name != "rel_pos_type"}
ENCODERS: dict[str, dict[str, Any]] = {
    "relative": {"encoder_conf": {"macaron_style": True, "cnn_module_kernel": 7}},
    "relative without the future": {"encoder_conf": {"zero_triu": True}},
    "absolute": {"encoder_conf": {"pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn"}},
    "convolutions": {"encoder_conf": {"positionwise_layer_type": "conv1d", "positionwise_conv_kernel_size": 5}},
    "no convolution": {"encoder_conf": {"use_cnn_module": False, "positionwise_conv_kernel_size": 1}},
    "transformer": {
        "encoder": "transformer",
        "encoder_only": {**WITHOUT_MACARON, "positionwise_layer_type": "conv1d", "positionwise_conv_kernel_size": 3},
    },
    "normalised afterwards": {"encoder_conf": {"normalize_before": False}},
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("max_frames", [packed.MAX_FRAMES, 20])
def test_packing_changes_nothing(name: str, max_frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MAX_FRAMES", max_frames)
    encoder = tiny_model(**ENCODERS[name]).double().eval().encoder
    batch = tiny_batch(lengths=(60, 41, 5, 33, 52, 40, 59))
    features, lengths = batch["speech"].double(), batch["speech_lengths"]
    padded = encoder(features, lengths)
    with torch.no_grad():
        assert encoder.can_pack(features)
        out = encoder(features, lengths)
    assert out.lengths.tolist() == padded.lengths.tolist()
    assert 0 in out.lengths.tolist()
    for row, length in enumerate(out.lengths.tolist()):
        torch.testing.assert_close(out.out[row, :length], padded.out[row, :length], atol=1e-10, rtol=0)


def test_what_is_not_packed() -> None:
    features = tiny_batch()["speech"]
    with torch.no_grad():
        assert not tiny_model().encoder.can_pack(features)  # it trains
        assert not tiny_model(encoder_conf={"rel_pos_type": "legacy"}).eval().encoder.can_pack(features)
        assert not tiny_model(encoder_conf={"interctc_layer_idx": [1]}).eval().encoder.can_pack(features)
        assert not tiny_model().eval().encoder.can_pack(features[:1])
        watched = tiny_model().eval().encoder
        watched.encoders[0].self_attn.keep_weights = True
        assert not watched.can_pack(features)
    assert not tiny_model().eval().encoder.can_pack(features)  # gradients


def test_groups_are_even() -> None:
    lengths = [100, 99, 96, 90, 50, 52]
    assert packed.group_by_length(lengths, max_padding=0.05, max_total=1000) == [[0, 1, 2], [3], [5, 4]]
    assert packed.group_by_length(lengths, max_padding=0.05, max_total=200) == [[0, 1], [2], [3], [5, 4]]
