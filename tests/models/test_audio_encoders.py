"""Pretrained encoders that take audio, and the length adaptor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.golden.make_s3prl import audio
from tests.models.golden_espnet2 import config_of
from tests.models.tiny import tiny_batch, tiny_model
from tympan.config.choices import ENCODERS, FRONTENDS
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.postencoder import LengthAdaptor
from tympan.runtime.precision import choose_precision

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tympan.models.pretrained.audio_encoders import HubertEncoder, TorchAudioHubertEncoder  # noqa: E402
from tympan.models.pretrained.fairseq import own_name  # noqa: E402
from tympan.models.weights import fill_weights, read_tensors  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden" / "s3prl"
HUBERT: dict[str, Any] = {
    "extractor_conv_layer_config": [[8, 10, 5], *[[8, 3, 2]] * 4, *[[8, 2, 2]] * 2],
    "encoder_embed_dim": 16,
    "encoder_num_layers": 2,
    "encoder_num_heads": 2,
    "encoder_ff_interm_features": 24,
    "encoder_pos_conv_kernel": 16,
    "encoder_pos_conv_groups": 4,
    "finetuning": True,
}


def build(family: str, **options: Any) -> Any:
    key = "w2v_url" if family == "wav2vec2" else "hubert_url"
    encoder = ENCODERS.build(family, {key: str(GOLDEN / f"{family}_group.pt"), **options}, input_size=1)
    encoder.load_pretrained()
    return encoder


@pytest.mark.parametrize("family", ["wav2vec2", "hubert"])
def test_output_equals_the_last_layer_of_the_frontend(family: str) -> None:
    from tests.models.test_pretrained import frontend

    encoder = build(family, output_size=16).eval()
    speech, lengths = audio(), torch.tensor([6400])
    out = encoder(speech, lengths)
    assert out.lengths.tolist() == encoder.output_lengths(lengths).tolist() == [19]
    features, _ = frontend(f"{family}_group")(speech, lengths)
    torch.testing.assert_close(out.out[0], features[0, :19], atol=1e-5, rtol=0)


def test_output_does_not_depend_on_the_batch() -> None:
    encoder = build("hubert", output_size=12, normalize_before=True).eval()
    batch = torch.full((2, 6400), 0.5)
    batch[0] = audio()[0]
    batch[1, :4000] = audio()[0, :4000]
    both = encoder(batch, torch.tensor([6400, 4000]))
    alone = encoder(audio()[:, :4000], torch.tensor([4000]))
    assert both.out.size(2) == encoder.output_size == 12
    torch.testing.assert_close(both.out[1, : alone.lengths[0]], alone.out[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["wav2vec2", "torchaudiohubert"])
def test_first_updates_do_not_train_the_encoder(family: str) -> None:
    if family == "wav2vec2":
        encoder: nn.Module = build(family, output_size=16, freeze_finetune_updates=2)
    else:
        encoder = TorchAudioHubertEncoder(**HUBERT, freeze_encoder_updates=2)
    is_trained = []
    for _ in range(3):
        encoder.zero_grad()
        encoder(audio(), torch.tensor([6400])).out.square().sum().backward()
        gradients = [item.grad for item in encoder.parameters() if item.requires_grad]
        assert all(gradient is not None for gradient in gradients), "DDP needs a gradient of every parameter"
        is_trained.append(any(bool(gradient.any()) for gradient in gradients))
    assert is_trained == [False, False, True]


def test_weights_of_torchaudio_load() -> None:
    """The weights of fairseq's HuBERT under torchaudio's names give the same output."""
    weights = read_tensors(GOLDEN / "hubert_group.pt")["model_weight"]
    theirs = {}
    for name, tensor in weights.items():
        if (own := own_name(name)) is None:
            continue
        own = own.replace("masked_spec_embed", "mask_generator.mask_embedding")
        if own.startswith("encoder."):
            own = own.replace("encoder.", "wav2vec2.encoder.transformer.", 1)
        elif own.startswith("feature_projection."):
            own = f"wav2vec2.encoder.{own}"
        elif own.startswith("feature_extractor."):
            own = f"wav2vec2.{own}"
        theirs[f"hubert_pretrain_model.{own}"] = tensor
    theirs["hubert_pretrain_model.logit_generator.label_embeddings"] = torch.zeros(3, 3)
    theirs["global_step"] = torch.tensor([7])
    encoder = TorchAudioHubertEncoder(**HUBERT).eval()
    fill_weights(encoder, theirs, "theirs.pth", "config.yaml")
    assert encoder.global_step.tolist() == [7]
    expected = build("hubert", output_size=16).eval()(audio(), torch.tensor([6400]))
    torch.testing.assert_close(encoder(audio(), torch.tensor([6400])).out, expected.out, atol=1e-5, rtol=0)


def test_what_is_not_supported_is_rejected() -> None:
    with pytest.raises(UserError, match="finetuning: false is pretraining"):
        TorchAudioHubertEncoder(**{**HUBERT, "finetuning": False})
    with pytest.raises(UserError, match="a model that ESPnet2 trained itself"):
        HubertEncoder(hubert_url="espnet")


def test_model_with_an_audio_encoder_and_a_length_adaptor_trains() -> None:
    tokens = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
    config = config_of(
        token_list=tokens, input_size=1, frontend=None, normalize=None,
        encoder="hubert", encoder_conf={"hubert_url": str(GOLDEN / "hubert_group.pt"), "output_size": 16},
        postencoder="length_adaptor", postencoder_conf={"length_adaptor_n_layers": 1},
        decoder="transformer", decoder_conf={"attention_heads": 2, "linear_units": 8, "num_blocks": 1},
    )  # fmt: skip
    model = build_asr_model(config)
    assert isinstance(model, nn.Module)
    text, lengths = torch.tensor([[2, 3]]), torch.tensor([2])
    loss = model(speech=audio(), speech_lengths=torch.tensor([6400]), text=text, text_lengths=lengths)
    loss.value.backward()
    assert model.output_lengths(torch.tensor([6400])).tolist() == [9], "half of 19"
    assert "postencoder.length_adaptor.0.weight" in model.state_dict()


@pytest.mark.parametrize("norm_mode", ["group_norm", "layer_norm"])
def test_convolutions_equal_those_of_transformers_and_ignore_the_padding(norm_mode: str) -> None:
    shapes = [[8, 10, 5], *[[8, 3, 2]] * 4, *[[8, 2, 2]] * 2]
    conf = {"norm_mode": norm_mode, "conv_mode": "standard", "bias": True, "shapes": shapes}
    frontend = FRONTENDS.build("wav2vec_cnn", conf).eval()
    kind = {"group_norm": "group", "layer_norm": "layer"}[norm_mode]
    sizes = {"conv_dim": [8] * 7, "conv_bias": True, "feat_extract_norm": kind}
    theirs = transformers.Wav2Vec2Model(
        transformers.Wav2Vec2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, **sizes
        )
    ).feature_extractor.eval()
    theirs.load_state_dict({f"conv_{name}": tensor for name, tensor in frontend.state_dict().items()})
    with torch.no_grad():
        features, lengths = frontend(audio(), torch.tensor([6400]))
        torch.testing.assert_close(features, theirs(audio()).transpose(1, 2), atol=1e-5, rtol=0)
        assert lengths.tolist() == frontend.output_lengths(torch.tensor([6400])).tolist() == [19]
        batch = torch.cat([audio(), audio()])
        both, frames = frontend(batch, torch.tensor([6400, 3000]))
        alone, _ = frontend(audio()[:, :3000], torch.tensor([3000]))
        torch.testing.assert_close(both[1, : frames[1]], alone[0], atol=1e-5, rtol=0)


def test_length_adaptor_halves_the_frames_of_each_utterance() -> None:
    torch.manual_seed(0)
    part = LengthAdaptor(input_size=6, length_adaptor_n_layers=2, input_layer="linear", output_size=4).eval()
    x = torch.randn(2, 13, 6)
    out, lengths = part(x, torch.tensor([13, 7]))
    assert lengths.tolist() == [3, 1]
    assert out.shape == (2, 3, 4)
    alone, _ = part(x[1:, :7], torch.tensor([7]))
    torch.testing.assert_close(out[1, :1], alone[0])
    assert part(x[:, :2], torch.tensor([2, 2]))[1].tolist() == [0, 0]


@pytest.mark.parametrize("train_dtype", ["O2", "O3", "float16", "bfloat16"])
def test_a_pretrained_frontend_computes_in_float32(train_dtype: str) -> None:
    """As in decoding. The weights of the other parts are in half precision."""
    conf = {"norm_mode": "layer_norm", "conv_mode": "standard", "bias": True, "shapes": [[8, 10, 5], [8, 3, 2]]}
    model = tiny_model(
        frontend="wav2vec_cnn", frontend_conf=conf, input_size=None, encoder_conf={"input_layer": "linear"}
    )
    precision = choose_precision(train_dtype, device_type="cpu")
    precision.prepare(model)
    assert {weight.dtype for weight in model.frontend.parameters()} == {torch.float32}
    assert model.encoder.encoders[0].feed_forward.w_1.weight.dtype == precision.weights
    batch = tiny_batch()
    batch["speech"] = torch.randn(4, 16000)
    batch["speech_lengths"] = torch.tensor([16000, 12000, 15000, 9000])
    with precision.forward_context():
        loss = model(**batch).value
    assert loss.isfinite()
    loss.backward()
