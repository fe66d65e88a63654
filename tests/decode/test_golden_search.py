"""ESPnet2's weights give ESPnet2's n-best lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tympan.config.asr import AsrTrainConfig
from tympan.config.training import load_training_config
from tympan.data.audio import read_audio
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.ended import Ended
from tympan.decode.limits import LengthLimits
from tympan.decode.scorer import Encoded
from tympan.decode.scorers import AttentionScorer, LengthBonus
from tympan.decode.search import BeamSearch, Weighted
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
    """Neighbours whose scores are nearly equal may change places."""
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
