"""ESPnet2's weights give ESPnet2's n-best lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.data.audio import read_audio
from tympan.decode.beam_search import BeamSearch, LengthLimits, Weighted
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.load import load_model
from tympan.decode.model_files import ModelFiles
from tympan.decode.options import DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.scorer import AttentionScorer, LengthBonus
from tympan.decode.search import Encoded, Ended, run_search
from tympan.models.build import build_asr_model
from tympan.models.weights import load_weights

MODELS = ["conformer", "transformer", "e_branchformer", "branchformer", "vgg_rnn"]


def load(folder: Path) -> Any:
    model = build_asr_model(load_training_config(AsrTrainConfig, folder / "config.yaml"), reads_statistics=False)
    model.load_state_dict(load_weights(folder / "model.pth"))
    return model.eval()


def encode(model: Any, golden: Path, names: list[str]) -> Encoded:
    samples = [torch.from_numpy(read_audio(golden / "kaldi" / f"{name}.wav").samples) for name in names]
    speech = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    with torch.inference_mode():
        encoded = model.encode(speech, torch.tensor([len(item) for item in samples]))
        return Encoded(encoded.out, encoded.lengths, model.ctc.log_softmax(encoded.out))


def assert_nbest(got: list[Ended], want: list[dict[str, Any]]) -> None:
    """Hypotheses with nearly equal scores may be swapped."""
    by_tokens = {hypothesis.token_ids: hypothesis for hypothesis in got}
    for place, expected in enumerate(want):
        hypothesis = by_tokens[tuple(expected["yseq"][1:-1])]
        assert hypothesis.score == pytest.approx(expected["score"], abs=1e-3)
        assert got[place].score == pytest.approx(expected["score"], abs=1e-3)
        for name, score in expected["scores"].items():
            assert hypothesis.scores[name] == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_batched_search_gives_espnet2s_nbest(golden: Path, name: str) -> None:
    folder = golden / "espnet2" / name
    expected = json.loads((folder / "expected.json").read_text())
    settings, weights = expected["search"], expected["search"]["weights"]
    model = load(folder)
    search = BeamSearch(
        {
            "decoder": Weighted(AttentionScorer(model.decoder), weights["decoder"]),
            "length_bonus": Weighted(LengthBonus(model.vocab_size), weights["length_bonus"]),
        },
        {"ctc": Weighted(CtcPrefixScorer(blank_id=model.blank_id, eos=model.eos), weights["ctc"])},
        beam_size=settings["beam_size"],
        sos=model.sos,
        eos=model.eos,
        vocab_size=model.vocab_size,
        pre_beam_ratio=settings["pre_beam_ratio"],
    )
    limits = LengthLimits(settings["maxlenratio"], settings["minlenratio"])
    found = search(encode(model, golden, expected["utterances"]), limits)
    for utterance, hypotheses in zip(expected["utterances"], found, strict=True):
        assert len(hypotheses) == len(expected["nbest"][utterance])
        assert_nbest(hypotheses, expected["nbest"][utterance])


@pytest.mark.parametrize("form", ["full", "part"])
def test_an_ngram_gives_espnet2s_nbest(golden: Path, form: str) -> None:
    folder = golden / "espnet2" / "conformer"
    expected = json.loads((golden / "espnet2" / "conformer_ngram" / "expected.json").read_text())
    utterances = list(expected["nbest"][form])
    search, weights = expected["search"], expected["search"]["weights"]
    settings = DecodeOptions(
        beam_size=search["beam_size"],
        nbest=search["beam_size"],
        ctc_weight=weights["ctc"],
        ngram_weight=weights["ngram"],
        ngram_scorer=form,
        penalty=weights["length_bonus"],
        maxlenratio=search["maxlenratio"],
        minlenratio=search["minlenratio"],
    )
    files = ModelFiles(
        folder / "config.yaml",
        folder / "model.pth",
        ngram_file=golden / "espnet2" / "conformer_ngram" / "4gram.arpa",
    )
    recognizer = Recognizer(load_model(files), settings)
    found = run_search(recognizer.search, encode(recognizer.loaded.model, golden, utterances))
    for utterance, hypotheses in zip(utterances, found, strict=True):
        assert_nbest(hypotheses, expected["nbest"][form][utterance])


@pytest.fixture(scope="module")
def an4(golden: Path) -> ModelFiles:
    folder = golden / "espnet2" / "an4_trained"
    return ModelFiles(
        folder / "asr_config.yaml", folder / "asr_model.pth", folder / "lm_config.yaml", folder / "lm_model.pth"
    )


@pytest.fixture(scope="module")
def an4_expected(golden: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((golden / "espnet2" / "an4_trained" / "nbest.json").read_text())
    return expected


def an4_settings(expected: dict[str, Any]) -> DecodeOptions:
    names = ("beam_size", "nbest", "ctc_weight", "lm_weight", "penalty", "maxlenratio", "minlenratio")
    return DecodeOptions(**{name: expected["settings"][name] for name in names})


def read_an4(golden: Path, expected: dict[str, Any]) -> list[Any]:
    folder = golden / "espnet2" / "an4_trained" / "wav"
    return [read_audio(folder / f"{name}.wav").samples for name in expected["results"]]


def test_a_trained_model_with_an_lm_gives_espnet2s_nbest(
    golden: Path, an4: ModelFiles, an4_expected: dict[str, Any]
) -> None:
    """Searches that end by end detection, all utterances in one batch."""
    settings = an4_settings(an4_expected)
    recognizer = Recognizer(load_model(an4), settings)
    found = run_search(recognizer.search, recognizer.encode_batch(read_an4(golden, an4_expected)))
    for hypotheses, expected in zip(found, an4_expected["results"].values(), strict=True):
        assert_nbest(hypotheses[:10], expected["nbest"])


def test_float64_does_not_depend_on_the_batch(golden: Path, an4: ModelFiles, an4_expected: dict[str, Any]) -> None:
    settings = an4_settings(an4_expected)
    recognizer = Recognizer(load_model(an4, dtype="float64"), settings)
    samples = read_an4(golden, an4_expected)
    together = recognizer.decode(samples)
    for row in (0, 3):
        (alone,) = recognizer.decode([samples[row]])
        assert [h.token_ids for h in together[row]] == [h.token_ids for h in alone]
        assert [h.score for h in together[row]] == pytest.approx([h.score for h in alone], abs=1e-9)
        assert [h.times for h in together[row]] == [h.times for h in alone]


def test_float32_does_not_depend_on_the_batch(golden: Path, an4: ModelFiles, an4_expected: dict[str, Any]) -> None:
    settings = an4_settings(an4_expected)
    recognizer = Recognizer(load_model(an4), settings)
    samples = read_an4(golden, an4_expected)
    together = recognizer.decode(samples)
    for row in (1, 4):
        (alone,) = recognizer.decode([samples[row]])
        assert together[row][0].token_ids == alone[0].token_ids
        assert [h.score for h in together[row]] == pytest.approx([h.score for h in alone], abs=1e-4)
