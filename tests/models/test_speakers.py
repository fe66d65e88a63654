"""Models for several speakers, against ESPnet2's classes (benchmarks/peer_speakers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import part_cases
from tests.models import speaker_cases as cases
from tests.models.test_peer_parts import assert_same, padded, shapes
from tympan.config import choices
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.config.st import StTrainConfig
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.multi_speaker import MultiSpeakerModel

GOLDEN = json.loads((Path(__file__).parent / "golden_speakers.json").read_text(encoding="utf-8"))


def built(name: str, **changes: Any) -> Any:
    config = make_training_config(AsrTrainConfig, [], {**cases.MODELS[name], **changes})
    model = build_asr_model(config).eval()
    assert isinstance(model, MultiSpeakerModel)
    return model


@torch.no_grad()
def filled(name: str) -> Any:
    model = built(name)
    cases.fill(model)
    return model


@pytest.mark.parametrize("name", cases.ENCODERS)
@torch.no_grad()
def test_encoder(name: str) -> None:
    golden, conf = GOLDEN[f"encoder {name}"], cases.ENCODERS[name]
    encoder = choices.ENCODERS.build("transformer_multispkr", conf, input_size=part_cases.FEATURES).eval()
    assert shapes(encoder) == golden["shapes"]
    part_cases.fill(encoder)
    utterances = [part_cases.features(index) for index in range(len(part_cases.LENGTHS))]
    lengths = torch.tensor(part_cases.LENGTHS)
    together = encoder(padded(utterances, 0.0), lengths)
    speakers = conf["num_inf"]
    assert together.lengths.tolist() == encoder.output_lengths(lengths).repeat_interleave(speakers).tolist()
    for index, (utterance, expected) in enumerate(zip(utterances, golden["outputs"], strict=True)):
        alone = encoder(utterance, lengths[index : index + 1])
        for speaker in range(speakers):
            row = index * speakers + speaker
            assert_same(alone.out[speaker], expected[speaker])
            assert_same(together.out[row, : int(together.lengths[row])], expected[speaker])


@pytest.mark.parametrize("name", cases.MODELS)
@torch.no_grad()
def test_model(name: str) -> None:
    golden, model = GOLDEN[f"model {name}"], filled(name)
    assert shapes(model) == golden["shapes"]
    tensors = cases.batch(model.num_speakers)
    encoded = model.encode(tensors["speech"], tensors["speech_lengths"])
    expected = [speaker for utterance in golden["outputs"] for speaker in utterance]
    for out, values in zip(encoded.out, expected, strict=True):
        assert_same(out, values)
    assert encoded.lengths.tolist() == [length for lengths in golden["lengths"] for length in lengths]
    order = model.best_order(encoded, model._texts(tensors["text"], tensors["text_lengths"], tensors))
    assert order.tolist() == golden["permutations"]
    loss = model(**tensors)
    assert float(loss.value) == pytest.approx(golden["loss"], abs=1e-5)
    found = {key: float(stat.total / stat.count) for key, stat in loss.stats.items()}
    assert found == pytest.approx(golden["stats"], abs=1e-5)


def test_loss_does_not_depend_on_the_order_of_texts_or_on_padding() -> None:
    model, tensors = filled("three"), cases.batch(3)
    loss = model(**tensors)
    loss.value.backward()
    gradient = model.ctc.ctc_lo.weight.grad.clone()
    model.zero_grad()
    names = [cases.text_name(speaker) for speaker in (2, 0, 1)]
    moved = dict(tensors)
    for speaker, name in enumerate(names):
        moved[cases.text_name(speaker)] = nn.functional.pad(tensors[name], (0, 3), value=4)
        moved[f"{cases.text_name(speaker)}_lengths"] = tensors[f"{name}_lengths"]
    moved["speech"] = nn.functional.pad(tensors["speech"], (0, 0, 0, 40))
    other = model(**moved)
    other.value.backward()
    torch.testing.assert_close(other.value, loss.value)
    torch.testing.assert_close(model.ctc.ctc_lo.weight.grad, gradient)


def test_every_speaker_gets_a_gradient_and_weights_are_not_counted_twice() -> None:
    model = built("two").train()
    model.set_grad_checkpointing(True)
    model(**cases.batch(2), augment_seed=torch.arange(cases.UTTERANCES)).value.backward()
    parameters = list(model.parameters())
    assert all(item.grad is not None for item in parameters)
    assert len({id(item) for item in parameters}) == len(parameters) == len(model.state_dict()) - 2
    model.load_state_dict(model.state_dict())


def test_a_text_that_does_not_fit_is_not_learned() -> None:
    model, tensors = filled("ctc"), cases.batch(2)
    tensors["text_spk2"] = torch.full((cases.UTTERANCES, 30), 4)
    tensors["text_spk2_lengths"] = torch.full((cases.UTTERANCES,), 30)
    loss = model(**tensors)
    assert torch.isfinite(loss.value)
    encoded = model.encode(tensors["speech"], tensors["speech_lengths"])
    order = model.best_order(encoded, model._texts(tensors["text"], tensors["text_lengths"], tensors))
    one = model.ctc(
        encoded.out[order[:, 0] + 2 * torch.arange(cases.UTTERANCES)],
        encoded.lengths[::2],
        tensors["text"],
        tensors["text_lengths"],
    )
    torch.testing.assert_close(loss.value, one.sum() / (2 * cases.UTTERANCES))


def test_attention_weights_are_those_of_the_first_text() -> None:
    model, tensors = filled("two"), cases.batch(2)
    weights = model.attention_weights(**tensors)
    assert {len(each) for each in weights.values()} == {cases.UTTERANCES}
    source = next(each for name, each in weights.items() if "src_attn" in name)
    assert source.shape[1:] == (2, tensors["text"].size(1) + 1, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "transformer", "encoder_conf": {}}, "pit_espnet needs --encoder transformer_multispkr, found tr"),
        (
            {"model": "espnet", "model_conf": {}},
            "transformer_multispkr needs asr_train with --model pit_espnet",
        ),
        ({"model": "espnet", "model_conf": {}}, r"text_name must be \[text\], the texts of model espnet"),
        ({"model_conf": {"num_inf": 2, "num_ref": 3}}, "the same number of speakers, found 3, 2 and 2"),
        ({"model_conf": {"num_inf": 2, "num_ref": 2, "ctc_weight": 0.0}}, "ctc_weight must be above 0"),
        ({"model_conf": {"num_inf": 2, "num_ref": 2, "interctc_weight": 0.1}}, "interctc_weight must be 0"),
        ({"model_conf": {"num_inf": 2, "num_ref": 5}}, "num_ref"),
        ({"decoder": "transducer", "decoder_conf": {}}, "needs an attention decoder or null"),
        ({"preprocessor": "default", "preprocessor_conf": {}}, r"must be multi, with preprocessor_conf text_name \[te"),
        ({"preprocessor_conf": {"text_name": ["text", "text2"]}}, r"text_name must be \[text, text_spk2\]"),
    ],
)
def test_options_that_do_not_fit_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_training_config(AsrTrainConfig, [], {**cases.MODELS["two"], **changes})


def test_one_loss_per_utterance_is_only_for_this_model() -> None:
    options = {**cases.MODELS["two"], "model": "espnet", "model_conf": {}, "encoder": "transformer", "encoder_conf": {}}
    options |= {"preprocessor": "default", "preprocessor_conf": {}}
    with pytest.raises(UserError, match="reduce: false gives one loss per utterance"):
        make_training_config(AsrTrainConfig, [], options)
    built("two", ctc_conf={"reduce": True})


def test_the_encoder_is_for_this_model_only() -> None:
    for options in ({"encoder": "transformer_multispkr"}, {"hier_encoder": "transformer_multispkr"}):
        given = {"encoder": "transformer", "decoder": "transformer", "token_type": "char", **options}
        with pytest.raises(UserError, match="transformer_multispkr needs asr_train with --model pit_espnet"):
            make_training_config(StTrainConfig, [], given)


def test_speaker_change_symbols_are_never_split() -> None:
    conf = {"speaker_change_symbol": ["<sc>"]}
    given = {"preprocessor": "multi", "preprocessor_conf": conf, "decoder": "transformer", "token_type": "char"}
    config = make_training_config(AsrTrainConfig, [], given)
    assert config.text.nonsplit_symbol == ["<sc>"]
    with pytest.raises(UserError, match="speaker_change_symbol is not supported with Whisper's tokens"):
        make_training_config(AsrTrainConfig, [], {**given, "token_type": "whisper_en"})
