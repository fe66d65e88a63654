"""LoRA adapters: results, trained parameters, saved weights, and ESPnet2's names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from tympan.bin.main import cli
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config, make_training_config
from tympan.decode.load import filled_model
from tympan.decode.model_files import find_model
from tympan.errors import UserError
from tympan.models.adapter import Lora, LoraEmbedding, LoraLinear, saved_weights
from tympan.models.build import build_asr_model
from tympan.models.weights import load_weights
from tympan.nn.batch_norm import keep_statistics

CONFIG = {
    "token_list": ["<blank>", "<unk>", "a", "b", "<sos/eos>"],
    "token_type": "char",
    "input_size": 8,
    "normalize": None,
    "encoder": "conformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2, "dropout_rate": 0.0,
                     "positional_dropout_rate": 0.0, "macaron_style": True},
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 1, "dropout_rate": 0.0,
                     "positional_dropout_rate": 0.0},
}  # fmt: skip
ATTENTION = ("linear_q", "linear_v")
EVERYTHING = ("linear_q", "w_1", "w_2", "embed.out", "embed.0", "output_layer", "ctc_lo")


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_asr_model(make_training_config(AsrTrainConfig, options=CONFIG))


def loss_of(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    batch = {
        "speech": torch.randn(2, 60, 8, generator=generator),
        "speech_lengths": torch.tensor([60, 50]),
        "text": torch.tensor([[2, 3, 2], [3, 2, -1]]),
        "text_lengths": torch.tensor([3, 2]),
    }
    loss: torch.Tensor = model(**batch).value
    return loss


def moved(model: nn.Module, seed: int = 3) -> None:
    """Give every adapter an effect, as training does."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.3)


def test_a_new_adapter_changes_nothing_and_a_trained_one_adds_its_product() -> None:
    linear, embedding = nn.Linear(5, 7), nn.Embedding(6, 4)
    x, tokens = torch.randn(3, 5), torch.tensor([0, 5, 2])
    adapted = LoraLinear(linear, rank=2, scale=0.5, dropout_rate=0.0)
    looked_up = LoraEmbedding(embedding, rank=2, scale=2.0)
    assert torch.equal(adapted(x), linear(x))
    assert torch.equal(looked_up(tokens), embedding(tokens))
    nn.init.normal_(adapted.lora_B)
    nn.init.normal_(looked_up.lora_A)
    expected = x @ (linear.weight + 0.5 * adapted.lora_B @ adapted.lora_A).T + linear.bias
    torch.testing.assert_close(adapted(x), expected)
    table = embedding.weight + 2.0 * (looked_up.lora_B @ looked_up.lora_A).T
    torch.testing.assert_close(looked_up(tokens), table[tokens])


@pytest.mark.parametrize("bias_type", ["none", "all", "lora_only"])
def test_exactly_the_adapters_get_gradients(bias_type: str) -> None:
    model = small_model()
    names = Lora(rank=2, target_modules=EVERYTHING, bias_type=bias_type).add_to(model, freezes=True)  # type: ignore[arg-type]
    moved(model)
    model.train()
    loss_of(model).backward()
    got = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    expected = {f"{name}.{part}" for name in names for part in ("lora_A", "lora_B")}
    every = {name for name, _ in model.named_parameters()}
    if bias_type == "all":
        expected |= {name for name in every if name.endswith(".bias")}
    elif bias_type == "lora_only":
        expected |= {f"{name}.bias" for name in names} & every
    assert got == expected
    assert all(float(model.get_parameter(name).grad.abs().max()) > 0 for name in expected if "lora_" in name)  # type: ignore[union-attr]


def test_other_parameters_are_trained_where_freeze_param_leaves_them() -> None:
    model = small_model()
    for parameter in model.get_submodule("encoder").parameters():
        parameter.requires_grad_(False)
    Lora(target_modules=ATTENTION).add_to(model, freezes=False)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "decoder.output_layer.weight" in trained
    assert "encoder.encoders.0.self_attn.linear_q.lora_A" in trained
    assert "encoder.encoders.0.self_attn.linear_q.weight" not in trained


def test_names_and_shapes_are_those_of_loralib() -> None:
    model = small_model()
    Lora(rank=3, target_modules=("decoders.0.self_attn.linear_q", "decoder.embed.0")).add_to(model, freezes=True)
    shapes = {name: tuple(item.shape) for name, item in model.state_dict().items() if "lora_" in name}
    assert shapes == {
        "decoder.decoders.0.self_attn.linear_q.lora_A": (3, 16),
        "decoder.decoders.0.self_attn.linear_q.lora_B": (16, 3),
        "decoder.embed.0.lora_A": (3, 5),
        "decoder.embed.0.lora_B": (16, 3),
    }


@pytest.mark.parametrize("targets", [ATTENTION, EVERYTHING])
def test_saved_weights_are_a_model_without_adapters_that_computes_the_same(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    model = small_model()
    Lora(rank=2, alpha=6, target_modules=targets).add_to(model, freezes=True)
    moved(model)
    model.eval()
    torch.save(saved_weights(model.state_dict(), model, "all"), tmp_path / "1epoch.pth")
    stored = torch.load(tmp_path / "1epoch.pth", weights_only=True)
    assert stored.keys() == model.state_dict().keys()
    plain = small_model(seed=9).eval()
    plain.load_state_dict(load_weights(tmp_path / "1epoch.pth"))
    with torch.no_grad():
        torch.testing.assert_close(loss_of(plain), loss_of(model))
        assert not torch.isclose(loss_of(plain), loss_of(small_model().eval()))


def test_what_each_strategy_saves() -> None:
    model = small_model()
    Lora(target_modules=ATTENTION).add_to(model, freezes=True)
    state = model.state_dict()
    adapters = {name for name in state if "lora_" in name}
    assert saved_weights(state, model, "adapter_only").keys() == adapters
    buffers = state.keys() - {name for name, _ in model.named_parameters()}
    assert buffers
    assert saved_weights(state, model, "required_grad_only").keys() == adapters | buffers
    plain = small_model()
    assert saved_weights(plain.state_dict(), plain, "adapter_only").keys() == plain.state_dict().keys()


@pytest.fixture
def adapted_run(tmp_path: Path) -> Path:
    """An experiment directory whose model file holds only the adapters."""
    base = small_model()
    torch.save(base.state_dict(), tmp_path / "base.pth")
    Lora(rank=2, alpha=6, target_modules=EVERYTHING).add_to(base, freezes=True)
    moved(base)
    folder = tmp_path / "exp"
    folder.mkdir()
    conf = {"rank": 2, "alpha": 6, "target_modules": list(EVERYTHING)}
    options = {"use_adapter": True, "adapter_conf": conf, "save_strategy": "adapter_only"}
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **options, "init_param": ["../base.pth"]}))
    torch.save(saved_weights(base.state_dict(), base, "adapter_only"), folder / "model.pth")
    torch.save(saved_weights(base.state_dict(), base, "all"), tmp_path / "all.pth")
    return folder


def test_a_file_of_adapters_is_merged_into_the_model_it_started_from(adapted_run: Path, tmp_path: Path) -> None:
    config = load_training_config(AsrTrainConfig, adapted_run / "config.yaml")
    model = filled_model(config, find_model(adapted_run), build_asr_model)
    expected = load_weights(tmp_path / "all.pth")
    assert model.state_dict().keys() == expected.keys()
    torch.testing.assert_close(dict(model.state_dict()), expected)


@pytest.mark.parametrize("missing", ["lora_A", "lora_B"])
def test_half_of_an_adapter_is_an_error(adapted_run: Path, missing: str) -> None:
    weights = load_weights(adapted_run / "model.pth")
    del weights[f"encoder.encoders.0.self_attn.linear_q.{missing}"]
    torch.save(weights, adapted_run / "model.pth")
    config = load_training_config(AsrTrainConfig, adapted_run / "config.yaml")
    with pytest.raises(UserError, match=r"linear_q needs both .*lora_A and .*lora_B: the file is incomplete"):
        filled_model(config, find_model(adapted_run), build_asr_model)


@pytest.mark.parametrize("shape", [(2,), (2, 5), (3, 16)])
def test_an_adapter_of_another_shape_is_an_error(adapted_run: Path, shape: tuple[int, ...]) -> None:
    weights = load_weights(adapted_run / "model.pth")
    weights["encoder.encoders.0.self_attn.linear_q.lora_A"] = torch.zeros(shape)
    torch.save(weights, adapted_run / "model.pth")
    config = load_training_config(AsrTrainConfig, adapted_run / "config.yaml")
    with pytest.raises(UserError, match=r"linear_q, lora_B \(16, 2\) by lora_A .*, does not fit the layer"):
        filled_model(config, find_model(adapted_run), build_asr_model)


def test_a_packed_model_needs_no_base(adapted_run: Path, tmp_path: Path) -> None:
    packed = tmp_path / "elsewhere" / "packed"
    assert cli(["pack", str(packed), "--model", str(adapted_run)]) == 0
    torch.testing.assert_close(load_weights(packed / "model.safetensors"), load_weights(tmp_path / "all.pth"))
    assert "use_adapter" not in (packed / "config.yaml").read_text()


def test_a_file_of_adapters_without_its_base_is_an_error(adapted_run: Path) -> None:
    path = adapted_run / "config.yaml"
    values = {**yaml.safe_load(path.read_text()), "init_param": ["../base.pth:encoder:encoder"]}
    path.write_text(yaml.safe_dump(values))
    config = load_training_config(AsrTrainConfig, path)
    with pytest.raises(UserError, match=r"other weights, such as ctc.ctc_lo.bias, are not in the files of init_param"):
        filled_model(config, find_model(adapted_run), build_asr_model)


def test_targets_that_do_not_exist_or_cannot_be_adapted_are_named() -> None:
    with pytest.raises(UserError, match=r"no layer's name ends in query; linear layers .* are named .*linear_q"):
        Lora().add_to(small_model(), freezes=True)
    with pytest.raises(
        UserError, match=r"encoder.embed.conv.0 is a Conv2d; LoRA supports only linear layers and embeddings"
    ):
        Lora(target_modules=("embed.conv.0",)).add_to(small_model(), freezes=True)


def test_options_of_older_espnet2(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    options = {"use_lora": True, "save_lora_only": True, "lora_conf": {"rank": 4, "target_modules": ["linear_q"]}}
    path.write_text(yaml.safe_dump({**CONFIG, **options}))
    config = make_training_config(AsrTrainConfig, [path])
    assert (config.use_adapter, config.adapter, config.save_strategy) == (True, "lora", "adapter_only")
    assert config.adapter_conf == {"rank": 4, "target_modules": ["linear_q"]}
    path.write_text(yaml.safe_dump({**CONFIG, "use_lora": True, "lora_conf": {"rnk": 4}}))
    with pytest.raises(UserError, match=r"train.yaml:\d+: adapter_conf: rnk: the adapter 'lora' has no key"):
        make_training_config(AsrTrainConfig, [path])


@pytest.mark.parametrize(
    ("bias_type", "also_train"), [("all", []), ("none", ["encoder.encoders.*.conv_module", "encoder.*.*.norm_*"])]
)
def test_statistics_of_trained_batch_norms_are_saved_with_the_adapters(bias_type: str, also_train: list[str]) -> None:
    model = small_model()
    Lora(rank=2, target_modules=ATTENTION, bias_type=bias_type).add_to(model, freezes=True, also_train=also_train)  # type: ignore[arg-type]
    assert keep_statistics(model) == []
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moved(model)
    loss_of(model.train())
    saved = saved_weights(model.state_dict(), model, "adapter_only", also_train=also_train)
    statistics = {name for name in base if "running" in name}
    assert len(statistics) == 4
    assert statistics <= saved.keys()
    wanted = loss_of(model.eval())
    lora = {name for name in saved if "lora_" in name}
    model.load_state_dict({**base, **saved}, strict=True)
    assert lora
    torch.testing.assert_close(loss_of(model.eval()), wanted)


def test_parts_of_every_layer_are_named_with_an_asterisk() -> None:
    model = small_model()
    Lora(rank=2, target_modules=ATTENTION).add_to(model, freezes=True, also_train=["encoder.encoders.*.norm_*"])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad and "lora" not in name}
    norms = ("norm_ff", "norm_mha", "norm_ff_macaron", "norm_conv", "norm_final")
    assert trained == {
        f"encoder.encoders.{n}.{norm}.{part}" for n in (0, 1) for norm in norms for part in ("weight", "bias")
    }
    with pytest.raises(UserError, match=r"--also_train encoder\.\*\.nothing: no weight has this name or prefix"):
        Lora(target_modules=ATTENTION).add_to(small_model(), freezes=True, also_train=["encoder.*.nothing"])
