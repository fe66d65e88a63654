"""Parts that few recipes use, against ESPnet2's classes (benchmarks/peer_recipes.py)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import part_cases
from tests.models import recipe_cases as cases
from tests.models.golden_espnet2 import config_of
from tests.models.test_peer_parts import assert_same, padded, shapes
from tympan.config import choices
from tympan.errors import UserError
from tympan.features.fbank import FbankOptions, fbank
from tympan.features.kaldi_fbank import KaldiFbank
from tympan.models.attention import Text
from tympan.models.build import build_asr_model
from tympan.models.encoder.output import EncoderOutput
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.local_attention import LongformerAttention
from tympan.nn.masks import key_bias, length_mask

GOLDEN = json.loads((Path(__file__).parent / "golden_recipes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", cases.TRIM)
@torch.no_grad()
def test_blank_frames_at_the_end_are_trimmed(name: str) -> None:
    golden = GOLDEN[f"trim {name}"]
    conf = {**cases.TRIM[name], "ctc_trim": True}
    encoder = choices.ENCODERS.build("conformer", conf, input_size=part_cases.FEATURES).eval()
    assert encoder.uses_ctc
    if encoder.interctc_use_conditioning:
        encoder.add_conditioning(cases.VOCABULARY)
    assert shapes(encoder) == golden["shapes"]
    part_cases.fill(encoder)
    utterances = [part_cases.features(index) for index in range(len(part_cases.LENGTHS))]
    lengths = torch.tensor(part_cases.LENGTHS)
    each = [cases.trim_posteriors(int(n), i) for i, n in enumerate(encoder.output_lengths(lengths))]
    together = encoder(padded(utterances, 0.0), lengths, SimpleNamespace(softmax=lambda _: padded(each, 0.1)))
    for index, (utterance, expected) in enumerate(zip(utterances, golden["outputs"], strict=True)):
        ctc = SimpleNamespace(softmax=lambda _, index=index: each[index])
        alone = encoder(utterance, torch.tensor([utterance.size(1)]), ctc)
        length = int(alone.lengths[0])
        assert length < alone.out.size(1)
        assert_same(alone.out[0, :length], expected)
        assert int(together.lengths[index]) == length
        assert_same(together.out[index, :length], expected)


@torch.no_grad()
def test_local_attention_equals_longformer_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "attention_window": [6], "attention_probs_dropout_prob": 0.0}
    theirs = LongformerSelfAttention(transformers.LongformerConfig(**sizes), layer_id=0).eval()
    ours = LongformerAttention(2, 8, 0.0, window=3)
    assert shapes(ours.attention_layer) == shapes(theirs)
    part_cases.fill(theirs)
    ours.attention_layer.load_state_dict(theirs.state_dict())
    x, lengths = part_cases.features(0, 8)[:, :48].repeat(2, 1, 1), torch.tensor([48, 41])
    padding = torch.where(torch.arange(48) < lengths[:, None], 0.0, -10000.0)
    none = torch.zeros(2, 48, dtype=torch.bool)
    expected = theirs(x, padding, is_index_masked=padding < 0, is_index_global_attn=none, is_global_attn=False)[0]
    found = ours(x, SelfAttentionContext(key_bias(length_mask(lengths, 48), x.dtype)))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length], atol=1e-5, rtol=0)


@torch.no_grad()
def test_local_attention_with_dilation_equals_a_masked_softmax() -> None:
    layer = LongformerAttention(2, 8, 0.0, window=2, dilation=3)
    part_cases.fill(layer)
    x = part_cases.features(0, 8)
    found = layer(x, SelfAttentionContext(torch.zeros(1, 1, 1, 53)))
    part = layer.attention_layer
    query, key, value = (each(x[0]).view(53, 2, 4).transpose(0, 1) for each in (part.query, part.key, part.value))
    for frame in (0, 1, 26, 52):
        seen = [other for other in range(frame - 6, frame + 7, 3) if 0 <= other < 53]
        weights = (query[:, frame : frame + 1] @ key[:, seen].transpose(1, 2) / 2.0).softmax(-1)
        expected = (weights @ value[:, seen]).transpose(0, 1).reshape(8)
        torch.testing.assert_close(found[0, frame], expected, atol=1e-5, rtol=0)


def test_longformer_trains_and_does_not_depend_on_padding() -> None:
    conf = {**_LONGFORMER, "attention_windows": [3, 5], "attention_dilation": [1, 2]}
    encoder = choices.ENCODERS.build("longformer", conf, input_size=part_cases.FEATURES)
    assert "encoders.0.self_attn.attention_layer.query_global.weight" in encoder.state_dict()
    encoder(part_cases.features(0), torch.tensor([53])).out.sum().backward()
    assert all(item.grad is not None for item in encoder.parameters() if item.requires_grad)
    encoder.eval()
    with torch.no_grad():
        alone = encoder(part_cases.features(1), torch.tensor([38]))
        both = padded([part_cases.features(0), part_cases.features(1)], 0.0)
        together = encoder(both, torch.tensor([53, 38]))
    length = int(alone.lengths[0])
    torch.testing.assert_close(together.out[1, :length], alone.out[0, :length], atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="attention_windows has 1 values, but num_blocks is 2"):
        choices.ENCODERS.build("longformer", {**conf, "attention_windows": [3]}, input_size=20)


_LONGFORMER = {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 2, "cnn_module_kernel": 3}


def test_filterbank_in_torch_equals_kaldi() -> None:
    speech = torch.cat([cases.beats_speech(0), cases.beats_speech(0).flip(1)])
    found = KaldiFbank(128)(speech)
    options = FbankOptions(num_mel_bins=128, dither=0.0, energy_floor=0.0)
    for row, samples in zip(found, speech, strict=True):
        expected = fbank(np.asarray(samples), options)
        torch.testing.assert_close(row, torch.from_numpy(expected), atol=2e-4, rtol=0)
    assert KaldiFbank.output_lengths(torch.tensor([399, 400, 559, 560, 9000])).tolist() == [0, 1, 1, 2, 54]


def beats(name: str, folder: Path) -> Any:
    conf = dict(cases.BEATS.get(name, cases.BEATS["published"]))
    if name == "adapter":
        (folder / "adapter.json").write_text(json.dumps(cases.ADAPTER))
        conf["adapter_config"] = str(folder / "adapter.json")
    return choices.ENCODERS.build("beats", conf, input_size=1).eval()


@pytest.mark.parametrize("name", [*cases.BEATS, "adapter"])
@torch.no_grad()
def test_beats(name: str, tmp_path: Path) -> None:
    if name == "adapter":
        pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    golden = GOLDEN[f"beats {name}"]
    encoder = beats(name, tmp_path)
    assert shapes(encoder) == golden["shapes"]
    part_cases.fill(encoder)
    frontend, augmenter = encoder.own_inputs()
    assert augmenter is None
    audio = [cases.beats_speech(index) for index in range(len(cases.BEATS_SAMPLES))]
    lengths = torch.tensor([*cases.BEATS_SAMPLES, 0])
    features, frames = frontend(padded([*audio, torch.zeros(1, 0)], 0.5), lengths)
    assert frames.tolist() == frontend.output_lengths(lengths).tolist()
    together = encoder(features, frames)
    assert together.lengths.tolist() == encoder.output_lengths(frames).tolist()
    assert int(together.lengths[-1]) == 0
    for index, (utterance, expected) in enumerate(zip(audio, golden["outputs"], strict=True)):
        alone = encoder(*frontend(utterance, lengths[index : index + 1]))
        assert_same(alone.out[0], expected)
        assert_same(together.out[index, : int(together.lengths[index])], expected)


def test_beats_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    source = beats("published", tmp_path)
    path = tmp_path / "beats.pt"
    weights = {**source.state_dict(), "predictor.weight": torch.zeros(3)}
    torch.save({"cfg": {**source.architecture, "finetuned_model": True}, "model": weights}, path)
    conf = {"beats_ckpt_path": str(path), "beats_config": {"dropout": 0.0}, "max_layer": 1}
    encoder = choices.ENCODERS.build("beats", conf, input_size=1)
    encoder.load_pretrained()
    assert encoder.architecture["dropout"] == 0.0
    assert encoder.architecture["deep_norm"] is True
    torch.testing.assert_close(encoder.state_dict(), source.state_dict())
    assert not any(item.requires_grad for item in encoder.encoder.layers[1:].parameters() if item.dim() == 1)
    path.unlink()
    rebuilt = choices.ENCODERS.build("beats", {**conf, "architecture": encoder.architecture}, input_size=1)
    assert shapes(rebuilt) == shapes(encoder)


def test_beats_rolls_frames_in_training() -> None:
    conf = {**cases.BEATS["published"], "roll_augment": True, "roll_interval": 320}
    _, augmenter = choices.ENCODERS.build("beats", conf, input_size=1).own_inputs()
    assert augmenter is not None
    features = torch.arange(12.0).view(1, 12, 1).repeat(2, 1, 1)
    lengths = torch.tensor([12, 7])
    rolled = augmenter(features, lengths, torch.tensor([3, 4]))
    for row, length in zip(rolled, (12, 7), strict=True):
        first = int(row[0])
        assert first % 2 == 0
        assert row[:length, 0].tolist() == [(first + place) % length for place in range(length)]
        assert row[length:, 0].tolist() == list(range(length, 12))
    torch.testing.assert_close(augmenter(features[1:, :7], lengths[1:], torch.tensor([4])), rolled[1:, :7])


@pytest.mark.parametrize("name", cases.LINEAR)
@torch.no_grad()
def test_linear_decoder(name: str) -> None:
    golden = GOLDEN[f"linear {name}"]
    sizes = {"vocab_size": cases.VOCABULARY, "encoder_output_size": 8}
    decoder = choices.DECODERS.build("linear_decoder", cases.LINEAR[name], **sizes).eval()
    assert shapes(decoder) == golden["shapes"]
    part_cases.fill(decoder)
    memory = padded([part_cases.memory(index) for index in range(3)], 5.0)
    lengths = torch.tensor(part_cases.LENGTHS)
    assert_same(decoder.classes(memory, lengths), golden["outputs"])
    text = Text(torch.tensor([[2], [5], [9]]), torch.tensor([1, 1, 1]))
    found = decoder.attend(EncoderOutput(memory, lengths), text, eos=10, smoothing=0.1)
    assert float(found.total / found.count) == pytest.approx(golden["loss"], abs=1e-5)
    state = decoder.start(memory, lengths, 2)
    log_probs, state = decoder.step(torch.full((3, 2), 10), state)
    both = decoder(memory, lengths, torch.tensor([[10, 2]] * 3), torch.tensor([2, 2, 2]))
    torch.testing.assert_close(log_probs[:, 1], both[:, 0])
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 2))
    log_probs, _ = decoder.step(torch.full((3, 2), 4), state)
    assert log_probs.argmax(-1).eq(10).all()


def test_model_with_a_linear_decoder_learns_the_class_of_an_utterance() -> None:
    options: dict[str, Any] = {"decoder": "linear_decoder", "model_conf": {"ctc_weight": 0.0, "lsm_weight": 0.1}}
    sizes = {"num_layers": 1, "hidden_size": 8, "output_size": 8, "subsample": [1]}
    options |= {"token_list": ["<blank>", "<unk>", "dog", "cat", "<sos/eos>"], "input_size": 8, "frontend": None}
    model = build_asr_model(config_of(**options, encoder_conf=sizes))
    torch.manual_seed(0)
    batch = {"speech": torch.randn(2, 30, 8), "speech_lengths": torch.tensor([30, 22])}
    batch |= {"text": torch.tensor([[2], [3]]), "text_lengths": torch.tensor([1, 1])}
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.value.backward()
        optimizer.step()
    model.eval()
    assert float(model(**batch).stats["acc"].total) == 2
    with pytest.raises(UserError, match="needs texts of one token"):
        model(**{**batch, "text": torch.tensor([[2, 3], [3, 2]]), "text_lengths": torch.tensor([2, 2])})
    with pytest.raises(UserError, match="not a class"):
        model(**{**batch, "text": torch.tensor([[1], [3]])})
    with pytest.raises(UserError, match="linear_decoder needs model_conf ctc_weight=0"):
        build_asr_model(config_of(**{**options, "model_conf": {}}, encoder_conf=sizes))


def test_beats_rejects_what_does_not_fit(tmp_path: Path) -> None:
    for conf, message in (
        ({"beats_config": {"encoder_layer": 2}}, "there is no key 'encoder_layer'. Did you mean 'encoder_layers'"),
        ({**cases.BEATS["published"], "max_layer": 9}, "max_layer is 9, but the model has 3 layers"),
        ({**cases.BEATS["published"], "add_positional_information": True}, "needs max_positions"),
        ({"beats_ckpt_path": str(tmp_path / "none.pt")}, r"none.pt: no such file. Download a checkpoint of BEATs"),
    ):
        with pytest.raises(UserError, match=message):
            choices.ENCODERS.build("beats", conf, input_size=1)
