"""Transducers against ESPnet2's classes (benchmarks/peer_transducer.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.models import transducer_cases as cases
from tests.models.golden_espnet2 import config_of
from tests.models.st_cases import newest_name
from tympan.decode.search import Encoded, run_search
from tympan.decode.transducer_search import GreedyTransducer
from tympan.models.build import build_asr_model
from tympan.models.transducer import TransducerModel
from tympan.tasks.asr import _with_big_blanks

GOLDEN = json.loads((Path(__file__).parent / "golden_transducer.json").read_text(encoding="utf-8"))


def model_of(case: str) -> TransducerModel:
    settings = cases.settings_of(case)
    tokens = _with_big_blanks(settings["token_list"], settings["model_conf"])
    assert tokens == GOLDEN[case]["tokens"]
    model = build_asr_model(config_of(**{**settings, "token_list": tokens})).eval()
    cases.fill(model)
    return model


@pytest.mark.parametrize("case", cases.CASES)
@torch.no_grad()
def test_parameters_and_joint_outputs(case: str) -> None:
    model, golden = model_of(case), GOLDEN[case]
    shapes = {newest_name(name): list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == {newest_name(name): shape for name, shape in golden["shapes"].items()}
    first = model.vocab_size - len(cases.TOKENS)
    for index, text in enumerate(cases.TEXTS):
        audio = cases.audio(index)
        out = model.encode(audio[None], torch.tensor([len(audio)])).out
        predicted = model.decoder(torch.tensor([[model.blank_id, *(first + token for token in text)]]))
        joint = model.joint_network
        logits = joint(joint.project_frames(out).unsqueeze(2), joint.project_predictions(predicted).unsqueeze(1))
        expected = torch.tensor(golden["joint"][index])
        torch.testing.assert_close(logits.flatten()[::37], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["lstm", "gru"])
@torch.no_grad()
def test_losses(case: str) -> None:
    model = model_of(case)
    for index, text in enumerate(cases.TEXTS):
        audio = cases.audio(index)
        loss = model(audio[None], torch.tensor([len(audio)]), torch.tensor([text]), torch.tensor([len(text)]))
        for name, expected in GOLDEN[case]["losses"][index].items():
            stat = loss.stats[name]
            assert float(stat.total / stat.count) == pytest.approx(expected, rel=1e-5), name


@pytest.mark.parametrize(
    ("case", "search", "max_symbols"), [("lstm", "greedy", 1), ("gru", "greedy", 1), ("multi_blank", "mbg", 4)]
)
@torch.no_grad()
def test_greedy_search_finds_the_same_tokens(case: str, search: str, max_symbols: int) -> None:
    """All utterances in one batch. ESPnet2's plain greedy score has no blanks, so only the score of mbg is compared."""
    model = model_of(case)
    outs = [model.encode(a[None], torch.tensor([len(a)])).out[0] for a in map(cases.audio, range(len(cases.SAMPLES)))]
    memory = torch.nn.utils.rnn.pad_sequence(outs, batch_first=True)
    encoded = Encoded(memory=memory, lengths=torch.tensor([len(out) for out in outs]))
    found = run_search(GreedyTransducer(model.transducer_parts, max_symbols=max_symbols), encoded)
    for (mine,), (theirs,) in zip(found, GOLDEN[case]["nbest"][search], strict=True):
        assert list(mine.token_ids) == theirs["yseq"]
        if search == "mbg":
            assert mine.score == pytest.approx(theirs["score"], abs=1e-3)
