"""All registered classes conform to the Protocols of parts.py, and its example encoder can be trained."""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models.tiny import rows_of, tiny_batch, tiny_model
from tympan.config import choices
from tympan.config.registry import Registry
from tympan.models import parts

SIZES = {"input_size": 20, "vocab_size": 11, "encoder_output_size": 16}
SMALL: dict[str, dict[str, Any]] = {
    "conformer": {"output_size": 16, "num_blocks": 1},
    "transformer": {"num_blocks": 1},
    "transformer_multispkr": {"num_blocks": 1, "num_blocks_sd": 1, "num_inf": 2},
    "e_branchformer": {"output_size": 16, "num_blocks": 1},
    "branchformer": {"output_size": 16, "num_blocks": 1},
    "rnn": {"num_layers": 1, "hidden_size": 8},
    "vgg_rnn": {"num_layers": 1, "hidden_size": 8},
    "multiconv_conformer": {"output_size": 16, "num_blocks": 1, "cgmlp_linear_units": 32},
    "linear": {"output_size": 16},
    "seq_rnn": {"unit": 8},
    "s4": {"n_layers": 1, "layer": [{"_name_": "s4"}]},
}
PRETRAINED = (
    *("s3prl", "huggingface", "fused", "wav2vec_cnn", "wav2vec2", "hubert", "torchaudiohubert", "whisper"),
    *("espnet_ssl", "hugging_face_transformers", "length_adaptor"),
)
"""Built from files, in the tests of pretrained models."""
NOT_STEPWISE = ("mlm",)
"""A decoder that predicts all tokens at once."""
CONTRACTS: list[tuple[Registry, type, list[str]]] = [
    (choices.FRONTENDS, parts.Frontend, []),
    (choices.PREENCODERS, parts.Preencoder, ["input_size"]),
    (choices.ENCODERS, parts.Encoder, ["input_size"]),
    (choices.DECODERS, parts.Decoder, ["vocab_size", "encoder_output_size"]),
    (choices.LMS, parts.NextTokenModel, ["vocab_size"]),
]
ABILITIES: dict[type, list[str]] = {
    parts.Encoder: ["output_size", "output_lengths", "forward", "__call__", "parameters", "training"],
    parts.ConditionsOnCtc: ["interctc_use_conditioning", "add_conditioning", "__call__"],
    parts.Packs: ["packs_batches"],
    parts.SeparatesSpeakers: ["num_inf"],
    parts.Streams: ["start_stream", "encode_chunk"],
    parts.Recomputes: ["set_grad_checkpointing"],
    parts.KeepsAttention: ["keep_weights", "weights"],
}


@pytest.mark.parametrize(
    ("registry", "contract", "sizes", "name"),
    [
        (registry, contract, sizes, name)
        for registry, contract, sizes in CONTRACTS
        for name in registry.names()
        if name not in (*choices.TRANSDUCER_DECODERS, *PRETRAINED, *NOT_STEPWISE)
    ],
)
def test_registered_classes_conform(registry: Registry, contract: type, sizes: list[str], name: str) -> None:
    conf = {} if (registry, name) == (choices.LMS, "transformer") else SMALL.get(name, {})
    given = {size: 400 if name == "sinc" else SIZES[size] for size in sizes}
    part = registry.build(name, conf, **given)
    assert isinstance(part, contract)
    assert not isinstance(nn.Linear(2, 2), contract)


def test_abilities_by_encoder_and_decoder() -> None:
    def abilities(part: object) -> set[str]:
        return {ability.__name__ for ability in ABILITIES if isinstance(part, ability)}

    model = tiny_model()
    assert abilities(model.encoder) == {"Encoder", "ConditionsOnCtc", "Packs", "Recomputes"}
    assert abilities(model.decoder) == {"Recomputes"}
    recurrent = tiny_model(encoder="rnn", encoder_only=SMALL["rnn"], decoder="rnn", decoder_only={"hidden_size": 8})
    assert abilities(recurrent.encoder) == {"Encoder"}
    assert abilities(recurrent.decoder) == set()
    keepers = [name for name, module in recurrent.named_modules() if isinstance(module, parts.KeepsAttention)]
    assert keepers == ["decoder.att_list.0"]
    keepers = [name for name, module in model.named_modules() if isinstance(module, parts.KeepsAttention)]
    assert len(keepers) == 2 + 2 * 2


def test_options_decide_whether_an_encoder_packs() -> None:
    def packs(**options: Any) -> bool:
        encoder = tiny_model(encoder_conf=options).encoder
        return isinstance(encoder, parts.Packs) and encoder.packs_batches

    assert packs()
    assert not packs(rel_pos_type="legacy")
    assert not packs(interctc_layer_idx=[1])


def test_members_stay_visible_to_newer_pythons() -> None:
    """Python 3.12 looks up members without nn.Module.__getattr__, so a member that became a submodule is not found."""
    model = tiny_model(encoder_conf={"interctc_layer_idx": [1], "interctc_use_conditioning": True}).eval()
    encoder = model.encoder
    assert isinstance(encoder, parts.ConditionsOnCtc)
    encoder.add_conditioning(7)
    assert model.get_submodule("encoder.conditioning_layer").weight.shape == (16, 7)
    attention = model.get_submodule("encoder.encoders.0.self_attn")
    assert isinstance(attention, parts.KeepsAttention)
    attention.keep_weights, attention.weights = True, torch.zeros(2)
    for ability, names in ABILITIES.items():
        for part in (encoder, attention):
            if isinstance(part, ability):
                for name in names:
                    inspect.getattr_static(part, name)


def test_recomputing_is_switched_by_a_method() -> None:
    model = tiny_model()
    for part in (model.encoder, model.decoder):
        assert isinstance(part, parts.Recomputes)
        part.set_grad_checkpointing(True)
        assert part.grad_checkpointing is True


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example in the docstring of `Encoder`, as a module of the user's own."""
    docstring = inspect.getdoc(parts.Encoder)
    assert docstring is not None
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    code = textwrap.dedent(docstring[docstring.index("    import torch") :])
    (tmp_path / "my_package" / "enc.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_package", "my_package.enc"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_package.enc:MyEncoder"


def test_example_encoder_trains_and_ignores_padding(example: str) -> None:
    model = tiny_model(encoder=example, encoder_only={"output_size": 16})
    assert isinstance(model.encoder, parts.Encoder)
    batch = tiny_batch()
    loss = model(**batch)
    loss.value.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    model.eval()
    with torch.no_grad():
        together = model.encode(batch["speech"], batch["speech_lengths"])
        assert together.lengths.tolist() == [30, 21, 17, 26]
        assert together.lengths.tolist() == model.output_lengths(batch["speech_lengths"]).tolist()
        for row, frames in enumerate(together.lengths.tolist()):
            one = rows_of(batch, slice(row, row + 1))
            length = int(one["speech_lengths"])
            alone = model.encode(one["speech"][:, :length], one["speech_lengths"]).out[0]
            torch.testing.assert_close(together.out[row, :frames], alone, atol=1e-6, rtol=0)
