"""`frontend: espnet_ssl` against ESPnet2's class (benchmarks/peer_recipes.py), and `encoder: null`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.models import part_cases
from tests.models import recipe_cases as cases
from tests.models.golden_espnet2 import config_of
from tests.models.test_peer_parts import assert_same, padded, shapes
from tympan.config import choices
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.pretrained.espnet_ssl import EspnetSslFrontend
from tympan.models.pretrained.span_mask import random_spans

GOLDEN = json.loads((Path(__file__).parent / "golden_recipes.json").read_text(encoding="utf-8"))
LENGTHS = torch.tensor(cases.SSL_SAMPLES)


def write_model(folder: Path, name: str) -> dict[str, Any]:
    """A pretrained model as ESPnet2 saves it. Returns the options of its frontend."""
    golden, (model_options, options) = GOLDEN[f"ssl {name}"], cases.SSL[name]
    (folder / "config.yaml").write_text(yaml.safe_dump({**model_options, "batch_bins": 5, "token_list": ["a", "b"]}))
    named = {key.removeprefix("upstream."): size for key, size in golden["shapes"].items() if "upstream." in key}
    weights = {key: torch.randn(size) * 0.2 for key, size in {**named, **golden["losses"]}.items()}
    torch.save(weights, folder / "ssl.pth")
    return {"frontend_conf": {"path_or_url": str(folder / "ssl.pth")}, **options}


def build(conf: dict[str, Any]) -> EspnetSslFrontend:
    frontend: EspnetSslFrontend = choices.FRONTENDS.build("espnet_ssl", conf)
    return frontend


def speech() -> torch.Tensor:
    return padded([cases.ssl_speech(index) for index in range(len(LENGTHS))], 0.3)


@pytest.mark.parametrize("name", cases.SSL)
@torch.no_grad()
def test_outputs_and_parameter_names_are_those_of_espnet2(name: str, tmp_path: Path) -> None:
    golden = GOLDEN[f"ssl {name}"]
    frontend = build(write_model(tmp_path, name)).eval()
    assert shapes(frontend) == golden["shapes"]
    part_cases.fill(frontend, keeps=("global_step",))
    together, frames = frontend(speech(), LENGTHS)
    assert frames.tolist() == frontend.output_lengths(LENGTHS).tolist()
    for index, expected in enumerate(golden["outputs"]):
        alone, _ = frontend(cases.ssl_speech(index), LENGTHS[index : index + 1])
        assert_same(alone[0], expected)
        assert_same(together[index, : frames[index]], expected)
        assert not together[index, frames[index] :].any()


def test_weights_are_read_without_the_parts_of_pretraining(tmp_path: Path) -> None:
    conf = write_model(tmp_path, "sum")
    weights = torch.load(tmp_path / "ssl.pth", weights_only=True)
    assert any(name.startswith("losses.") for name in weights)
    frontend = build(conf)
    frontend.load_pretrained()
    for name, tensor in frontend.upstream.state_dict().items():
        assert torch.equal(tensor, weights[name].to(tensor.dtype)), name
    for change in ({"encoder.encoders.0.norm1.weight": None}, {"encoder.more": torch.zeros(2)}):
        changed = {name: tensor for name, tensor in {**weights, **change}.items() if tensor is not None}
        torch.save(changed, tmp_path / "ssl.pth")
        with pytest.raises(UserError, match=f"does not belong to its config.yaml.*{next(iter(change))}"):
            build(conf).load_pretrained()


def test_it_is_built_again_from_its_architecture(tmp_path: Path) -> None:
    frontend = build(write_model(tmp_path, "sum"))
    conf = {"frontend_conf": {"path_or_url": "elsewhere.pth"}, "multilayer_feature": True}
    again = build({**conf, "architecture": yaml.safe_load(yaml.safe_dump(frontend.architecture))})
    assert shapes(again) == shapes(frontend)


def test_the_first_updates_train_only_the_weights_of_the_sum(tmp_path: Path) -> None:
    frontend = build({**write_model(tmp_path, "sum"), "freeze_encoder_steps": 1})
    upstream = [item for item in frontend.upstream.parameters() if item.requires_grad]
    for is_frozen in (True, False):
        frontend.zero_grad()
        frontend(speech(), LENGTHS)[0].square().sum().backward()
        assert frontend.featurizer.weights.grad.abs().sum() > 0
        assert all(item.grad is not None for item in upstream)
        assert all(not item.grad.any() for item in upstream) == is_frozen
    assert int(frontend.global_step) == 2


def test_frames_are_masked_in_training_only(tmp_path: Path) -> None:
    conf = {**write_model(tmp_path, "last"), "masking_conf": {"mask_prob": 1.0}}
    for masks in (True, False):
        frontend = build({**conf, "mask_feats": masks})
        for module in frontend.modules():
            if module is not frontend.upstream.util_modules:
                module.eval()
        before = frontend(speech(), LENGTHS)[0]
        frontend.training = frontend.upstream.training = True
        assert torch.equal(before, frontend(speech(), LENGTHS)[0]) != masks
        embedding = frontend.upstream.util_modules["mask"].mask_embedding
        assert embedding.requires_grad == masks
    assert build(conf).upstream.util_modules["mask"].length == 3, "of config.yaml"


def test_spans() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([200, 150, 30])
    found = torch.stack([random_spans(lengths, 200, probability=0.5, span=10) for _ in range(50)])
    assert not found[:, 1, 150:].any()
    assert not found[:, 2, 30:].any()
    counts = found.sum(-1)
    assert torch.equal(counts, counts[:, :1].expand(-1, 3))
    # The shortest utterance has at least two different spans
    assert counts.min() >= 11
    assert counts.max() <= 30
    alone = torch.stack([random_spans(torch.tensor([1000]), 1000, probability=0.5, span=10) for _ in range(20)])
    # 50 starts: the share of frames without one in the last 10 positions is about exp(-0.5)
    assert 0.34 < alone.float().mean() < 0.44
    begins, ends = (torch.nn.functional.pad(alone[0, 0].int(), (1, 1)).diff() == step for step in (1, -1))
    assert (ends.nonzero() - begins.nonzero()).min() >= 10
    assert random_spans(torch.tensor([0, 1]), 5, probability=0.5, span=10).sum() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frontend_conf": {}}, "path_or_url: name the .pth file.*found nothing"),
        ({"frontend_conf": {"path_or_url": "espnet/hubert_dummy"}}, "name the .pth file.*found 'espnet/hubert_dummy'"),
        ({"frontend_conf": {"path_or_ur": "a.pth"}}, "has no key 'path_or_ur'. Did you mean 'path_or_url'"),
        ({"frontend_conf": {"path_or_url": "none/a.pth"}}, "none/config.yaml: no such file"),
        ({"layer": 3}, "layer is 3, but the model has the layers 0 to 2"),
        ({"masking_conf": {"mask_selection": "poisson"}}, "only mask_selection: static"),
        ({"masking_conf": {"mask_lenth": 2}}, "mask_lenth"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    conf = write_model(tmp_path, "last")
    with pytest.raises(UserError, match=message):
        build({**conf, **change})


def test_wrong_kinds_of_upstream(tmp_path: Path) -> None:
    conf = write_model(tmp_path, "last")
    (tmp_path / "config.yaml").write_text("encoder: rnn\n")
    with pytest.raises(UserError, match=r"config.yaml: encoder is rnn, but ESPnet2's SSL task has transformer"):
        build(conf)


def test_a_model_without_encoder_trains(tmp_path: Path) -> None:
    conf = write_model(tmp_path, "last")
    model = build_asr_model(
        config_of(
            token_list=["<blank>", "a", "b", "<sos/eos>"],
            frontend="espnet_ssl",
            frontend_conf=conf,
            normalize=None,
            encoder=None,
            encoder_conf={},
            decoder=None,
            model_conf={"ctc_weight": 1.0},
        )
    )
    assert not model.encoder.state_dict()
    loss = model(speech(), LENGTHS, torch.tensor([[1, 2], [2, 1], [1, 1]]), torch.tensor([2, 2, 2])).value
    loss.backward()
    assert model.frontend.upstream.preencoder.linear_out.weight.grad.abs().sum() > 0
    with torch.no_grad():
        model.eval().set_precision(torch.bfloat16)
        encoded = model.encode(speech(), LENGTHS)
        assert encoded.out.dtype == torch.bfloat16
        assert model.ctc_log_posteriors(encoded.out).isfinite().all()
        assert encoded.lengths.tolist() == model.output_lengths(LENGTHS).tolist()


def test_convolution_over_positions_needs_its_input_layer() -> None:
    conf = {"output_size": 16, "attention_heads": 2, "pos_enc_layer_type": "conv"}
    with pytest.raises(UserError, match="conv needs input_layer: wav2vec, found conv2d"):
        choices.ENCODERS.build("transformer", conf, input_size=20)
    with pytest.raises(UserError, match="needs an input of output_size, 16, but its size is 20"):
        choices.ENCODERS.build("transformer", {**conf, "input_layer": "wav2vec"}, input_size=20)
