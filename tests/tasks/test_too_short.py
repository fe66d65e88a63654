"""Utterances whose text does not fit into their encoder frames, for CTC and for transducers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import st_cases
from tests.models.test_transducer import tiny_transducer
from tests.models.tiny import tiny_model
from tympan.config.read import make_training_config
from tympan.config.st import StTrainConfig
from tympan.errors import UserError
from tympan.models.attention import Text
from tympan.models.st_build import build_st_model
from tympan.models.transducer_lattice import Lattice
from tympan.models.transducer_loss import transducer_loss
from tympan.tasks.speech import too_short

TEXTS = {"fits": [2, 3], "repeats": [4, 4, 4, 4, 4], "long": [2, 3, 4, 5, 6, 7, 8], "nothing": [5]}
SPEECH = {"fits": 60, "repeats": 31, "long": 27, "nothing": 3}
"""Feature frames; they become 14, 7, 6 and 0 encoder frames."""


def batches() -> Any:
    lengths = {
        "speech": np.array(list(SPEECH.values())),
        "text": np.array([len(text) for text in TEXTS.values()]),
    }
    names = list(TEXTS)
    return SimpleNamespace(
        lengths=lambda: lengths,
        utterance=lambda row: SimpleNamespace(id=names[row], arrays={"text": np.array(TEXTS[names[row]])}),
    )


def found(model: torch.nn.Module) -> dict[str, list[str]]:
    assert model.output_lengths(torch.tensor(list(SPEECH.values()))).tolist() == [14, 7, 6, 0]
    return {finding.message: list(finding.utterances) for finding in too_short(model, batches(), ())}


CTC = "utterances are too short for CTC and do not contribute to its loss"
TRANSDUCER = "utterances are too short for the transducer and do not contribute to its loss"
FOR_CTC = [
    "repeats: 7 encoder frames for a transcript that needs 9",
    "long: 6 encoder frames for a transcript that needs 7",
    "nothing: 0 encoder frames for a transcript that needs 1",
]


def test_ctc() -> None:
    assert found(tiny_model()) == {CTC: FOR_CTC}
    assert found(tiny_model(model_conf={"ctc_weight": 0.0})) == {}


def test_nothing_is_learned_if_all_are_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEECH, "fits", 5)
    with pytest.raises(UserError, match="all 4 training utterances are too short for CTC, such as fits: 0 encoder fra"):
        list(too_short(tiny_model(), batches(), ()))


def test_a_plain_transducer_emits_any_number_of_tokens_at_one_frame() -> None:
    nothing = ["nothing: 0 encoder frames for a transcript that needs 1"]
    assert found(tiny_transducer(model_conf={"ctc_weight": 0.0})) == {TRANSDUCER: nothing}
    assert found(tiny_transducer()) == {TRANSDUCER: nothing, CTC: FOR_CTC}


def test_tokens_that_take_frames_and_a_last_blank() -> None:
    joint = {"joint_space_size": 10, "tdt_durations": [1, 2]}
    model = tiny_transducer(model_conf={"ctc_weight": 0.0}, joint_net_conf=joint)
    assert found(model) == {
        TRANSDUCER: [
            "long: 6 encoder frames for a transcript that needs 8",
            "nothing: 0 encoder frames for a transcript that needs 2",
        ]
    }


@pytest.mark.parametrize("case", ["st_ctc", "hier", "asr_ctc", "attention_only", "hier_smaller"])
@torch.no_grad()
def test_the_losses_of_translation_are_zero_exactly_for_these(case: str) -> None:
    """The reference is the loss itself; the target begins with the language token, the source skips `hier_encoder`."""
    options = {**st_cases.settings_of(case), "frontend": None, "input_size": 16}
    model = build_st_model(make_training_config(StTrainConfig, options=options)).eval()
    lengths = torch.arange(16, 64)
    tokens = 9 - torch.arange(len(lengths)) % 9
    text = torch.arange(9).fmod(2).add(3).expand(len(lengths), -1)
    encoded = model._encode(torch.randn(len(lengths), 63, 16), lengths, augment_seed=None)
    for ctc, judge, out, prompt in (
        (model.st_ctc, model, encoded[1], model.prompt),
        (model.ctc, model.source_side, encoded[0], ()),
    ):
        needed = judge.frames_needed(tokens, torch.zeros_like(tokens))
        if ctc is None:
            assert needed == {}
            continue
        spoken = Text.cut(text, tokens).after(prompt)
        losses = ctc(out.out, out.lengths, spoken.ids, spoken.lengths, blank_id=0)
        frames = judge.output_lengths(lengths)
        assert 0 < losses.eq(0).sum() < len(losses)
        assert losses.eq(0).equal(frames < next(iter(needed.values())))


@pytest.mark.parametrize("durations", [(), (0, 1, 3), (1, 2), (1, 4)])
@torch.no_grad()
def test_the_loss_is_zero_exactly_for_these(durations: tuple[int, ...]) -> None:
    """The reference is the lattice itself: every number of frames up to 9, and up to 6 tokens."""
    joint = {"joint_space_size": 10, "tdt_durations": list(durations)}
    model = tiny_transducer(model_conf={"ctc_weight": 0.0}, joint_net_conf=joint).eval()
    frames, tokens = (grid.flatten() for grid in torch.meshgrid(torch.arange(10), torch.arange(7), indexing="ij"))
    projected, predicted = torch.randn(len(frames), 9, 10), torch.randn(len(frames), 7, 10)
    text = torch.randint(2, 9, (len(frames), 6))
    losses = transducer_loss(
        model.joint_network, projected, predicted, frames, text, tokens, blank_id=0, durations=durations,
        lattice=Lattice.of(frames, tokens),
    )  # fmt: skip
    needed = model.frames_needed(tokens, torch.zeros_like(tokens))["the transducer"]
    assert losses.eq(0).equal(frames < needed)


def test_durations_that_do_not_reach_every_frame() -> None:
    with pytest.raises(UserError, match="one must be 1, so that a blank can end at every frame"):
        tiny_transducer(joint_net_conf={"tdt_durations": [0, 2, 4]})
