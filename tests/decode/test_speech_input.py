"""A model trained on stored features takes audio by computing the same features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tympan.config.text import TextConfig
from tympan.data.audio import Audio
from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.speech_input import FeatureRecipe, SpeechInput
from tympan.errors import UserError
from tympan.features.cmvn import cmvn_stats, write_stats
from tympan.features.extractor import FeatureOptions, compute_features, save_options
from tympan.features.fbank import FbankOptions
from tympan.models.encoder.output import EncoderOutput
from tympan.models.loss import Loss
from tympan.models.speech_model import SpeechModel
from tympan.text.codec import build_codec

SAMPLES = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)


@pytest.fixture
def recipe(tmp_path: Path) -> FeatureRecipe:
    options = FeatureOptions("fbank", fbank=FbankOptions(num_mel_bins=20, dither=1.0), do_delta=True)
    save_options(tmp_path / "features.yaml", options, cmvn="cmvn.ark")
    plain = FeatureOptions("fbank", fbank=FbankOptions(num_mel_bins=20, dither=0.0))
    features = compute_features(Audio(SAMPLES, 16000), plain, utterance="any")
    write_stats(tmp_path / "cmvn.ark", cmvn_stats([features]))
    return FeatureRecipe(tmp_path / "features.yaml")


def test_features_are_normalized_and_deterministic(recipe: FeatureRecipe) -> None:
    features = recipe(SAMPLES)
    assert features.shape == (98, 60)
    np.testing.assert_array_equal(features, recipe(SAMPLES))
    np.testing.assert_allclose(features[:, :20].mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(features[:, :20].std(0), 1.0, atol=1e-3)


class FramesModel(torch.nn.Module):
    """Stands for a model without a frontend: the encoder's output is the features, halved in time."""

    token_list = ("<blank>", "<unk>", *(chr(0x4E00 + i) for i in range(57)), "<sos/eos>")
    sos = eos = vocab_size = 60
    blank_id = 0
    searches = ("ctc_greedy",)
    has_ctc = True

    def forward(self, **tensors: torch.Tensor) -> Loss:
        raise NotImplementedError

    def output_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return lengths // 2

    def encode(self, speech: torch.Tensor, lengths: torch.Tensor) -> EncoderOutput:
        return EncoderOutput(speech[:, 1::2], lengths // 2)

    def ctc_log_posteriors(self, out: torch.Tensor) -> torch.Tensor:
        return out.log_softmax(-1)

    def set_precision(self, dtype: torch.dtype) -> None:
        self.to(dtype)


def recognizer(recipe: FeatureRecipe | None) -> Recognizer:
    model = FramesModel()
    assert isinstance(model, SpeechModel)
    loaded = LoadedModel(
        model=model,
        codec=build_codec(TextConfig(token_list=list(model.token_list), token_type="char")),
        input=SpeechInput(rate=16000, frame_shift_s=0.02, recipe=recipe, wants_features=True),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    return Recognizer(loaded)


def test_audio_and_its_stored_features_give_the_same(recipe: FeatureRecipe) -> None:
    listener = recognizer(recipe)
    ((heard,),) = listener.decode([SAMPLES])
    ((read,),) = listener.decode([recipe(SAMPLES)])
    assert heard == read
    assert heard.tokens
    assert heard.times is not None
    assert heard.times[-1][1] <= 1.0


def test_without_features_yaml_audio_is_rejected() -> None:
    with pytest.raises(UserError, match=r"features\.yaml"):
        recognizer(None).decode([SAMPLES])


def test_features_that_are_mapped_read_only_give_no_warning() -> None:
    import warnings

    from tympan.decode.encode import _pad

    mapped = np.ones((3, 2), dtype=np.float32)
    mapped.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        padded, lengths = _pad([mapped, mapped[:2]], torch.device("cpu"), torch.float32)
    assert padded.shape == (2, 3, 2)
    assert lengths.tolist() == [3, 2]


def test_only_what_the_model_offers_can_be_chosen(recipe: FeatureRecipe) -> None:
    listener = recognizer(recipe)
    assert listener.kind.name == "ctc_greedy"
    with pytest.raises(UserError, match="can't be decoded with search joint; choose from ctc_greedy"):
        Recognizer(listener.loaded, DecodeOptions(search="joint"))
