"""Houlsby adapters, frozen batch norms, and the names of layers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.models.test_adapter import loss_of, moved, small_model
from tympan.decode.adapter_file import apply_adapter
from tympan.errors import UserError
from tympan.models.adapter import Lora, saved_weights
from tympan.models.houlsby import Houlsby, HoulsbyLinear
from tympan.models.layers import depth_of, encoder_layers
from tympan.nn.batch_norm import MaskedBatchNorm1d, keep_statistics


def test_a_new_adapter_changes_nothing_and_a_trained_one_adds_its_bottleneck() -> None:
    layer = torch.nn.Linear(5, 7)
    adapted = HoulsbyLinear(layer, bottleneck=3)
    x = torch.randn(4, 5)
    assert torch.equal(adapted(x), layer(x))
    down, _, up = adapted.houlsby_adapter
    torch.nn.init.normal_(up.weight)
    out = layer(x)
    hidden = torch.nn.functional.gelu(out @ down.weight.T + down.bias)
    torch.testing.assert_close(adapted(x), out + hidden @ up.weight.T + up.bias)


def test_exactly_the_adapters_and_also_train_get_gradients() -> None:
    model = small_model()
    names = Houlsby(bottleneck=4).add_to(model, freezes=True, also_train=["ctc"])
    assert names == ["encoder.encoders.0.feed_forward.w_2", "encoder.encoders.1.feed_forward.w_2",
                     "decoder.decoders.0.feed_forward.w_2"]  # fmt: skip
    model.train()
    loss_of(model).backward()
    got = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    parts = ("0.weight", "0.bias", "2.weight", "2.bias")
    expected = {f"{name}.houlsby_adapter.{part}" for name in names for part in parts}
    assert got == expected | {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias"}
    saved = saved_weights(model.state_dict(), model, "adapter_only", also_train=["ctc"])
    assert saved.keys() == got


def test_layers_can_be_chosen() -> None:
    assert Houlsby(target_layers=(1,)).add_to(small_model(), freezes=True) == ["encoder.encoders.1.feed_forward.w_2"]
    names = Houlsby(target_modules=("self_attn.linear_out",)).add_to(small_model(), freezes=True)
    assert len(names) == 3
    with pytest.raises(UserError, match=r"no layer's name ends in feed_forward.w_2 in the layers 9; .* linear_q"):
        Houlsby(target_layers=(9,)).add_to(small_model(), freezes=True)
    with pytest.raises(UserError, match=r"encoder.embed.conv.0 is a Conv2d; adapters can follow only linear layers"):
        Houlsby(target_modules=("embed.conv.0",)).add_to(small_model(), freezes=True)


def test_frozen_batch_norms_keep_their_statistics() -> None:
    model = small_model()
    Lora(rank=2, target_modules=("linear_q",)).add_to(model, freezes=True)
    norms = keep_statistics(model)
    assert norms == ["encoder.encoders.0.conv_module.norm", "encoder.encoders.1.conv_module.norm"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loss_of(model.train())
    torch.testing.assert_close(dict(model.state_dict()), before, atol=0, rtol=0)
    moved(model)
    with torch.no_grad():
        torch.testing.assert_close(loss_of(model.train()), loss_of(model.eval()))
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    assert keep_statistics(model) == []
    assert not any(part.keeps_statistics for part in model.modules() if isinstance(part, MaskedBatchNorm1d))


def test_depth_of_parameters() -> None:
    names = [name for name, _ in small_model().named_parameters()]
    layers = encoder_layers(names)
    assert layers == ["encoder.encoders.0", "encoder.encoders.1"]
    assert depth_of("encoder.embed.conv.0.weight", layers) == 0
    assert depth_of("encoder.encoders.1.norm_ff.weight", layers) == 2
    assert depth_of("encoder.after_norm.weight", layers) == 2
    assert depth_of("ctc.ctc_lo.weight", layers) == 3
    frontend = [
        "frontend.upstream.model.encoder.layers.0.fc.weight",
        "frontend.upstream.model.encoder.layers.1.fc.weight",
    ]
    layers = encoder_layers([*names, *frontend])
    assert layers[:2] == [name.removesuffix(".fc.weight") for name in frontend]
    assert depth_of("encoder.embed.conv.0.weight", layers) == 2
    assert depth_of("preencoder.linear_out.weight", layers) == 2
    assert depth_of("frontend.featurizer.weights", layers) == 0


@pytest.mark.parametrize("case", ["wav2vec2_group", "wav2vec2_layer", "hubert_layer"])
def test_adapters_of_an_espnet2_checkpoint_give_the_hidden_states_of_espnet2(case: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from tests.golden.make_s3prl import audio
    from tests.models.test_pretrained import GOLDEN, frontend

    model = torch.nn.Module()
    model.frontend = frontend(case)
    shutil.copy(GOLDEN / f"{case}_houlsby.pth", tmp_path / "valid.acc.best.pth")
    conf = {"use_adapter": True, "adapter": "houlsby", "adapter_conf": {"bottleneck": 4}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(conf), encoding="utf-8")
    apply_adapter(model, tmp_path)
    with torch.no_grad():
        states, _ = model.frontend.upstream(audio(), torch.tensor([6400]))
    expected = torch.from_numpy(np.load(GOLDEN / f"{case}_houlsby.npy"))
    torch.testing.assert_close(torch.cat(states), expected, atol=1e-5, rtol=0)
    plain = torch.from_numpy(np.load(GOLDEN / f"{case}.npy"))
    assert (expected[1:] - plain[1:]).abs().max() > 0.1
