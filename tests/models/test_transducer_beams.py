"""Beam searches of transducers beside ESPnet2's own (benchmarks/peer_transducer.py), and in batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import transducer_cases as cases
from tests.models.test_transducer_golden import model_of
from tympan.decode.search import Encoded, Search, run_search
from tympan.decode.transducer_beam_search import AlignmentLengthSearch, FrameBeamSearch
from tympan.decode.transducer_beams import Grower
from tympan.decode.transducer_fusion import Fusion, InternalLm, LengthText, LmText, TextScorer
from tympan.decode.transducer_steps import AdaptiveExpansion, BestFirst, NStep, TimeSync
from tympan.models.lm.model import LanguageModel
from tympan.models.lm.seq_rnn import SequentialRnnLm
from tympan.models.transducer import TransducerModel

GOLDEN = json.loads((Path(__file__).parent / "golden_transducer.json").read_text(encoding="utf-8"))


def lm_of(model: TransducerModel) -> LanguageModel:
    network = SequentialRnnLm(model.vocab_size, **cases.LM).eval()
    cases.fill_lm(network)
    return LanguageModel(network, vocab_size=model.vocab_size).eval()


def search_of(model: TransducerModel, given: dict[str, Any], **scorers: tuple[TextScorer, float]) -> Search[Any]:
    """With ESPnet2's options."""
    if "lm_weight" in given:
        scorers = {**scorers, "lm": (LmText(lm_of(model)), given["lm_weight"])}
    grower = Grower(model.transducer_parts, Fusion(scorers), past=given.get("prefix_alpha", 1))
    beam, during, norm = given["beam_size"], given.get("score_norm_during", False), given.get("score_norm", True)
    steps = {
        "default": lambda: BestFirst(grower, beam, during),
        "tsd": lambda: TimeSync(grower, beam, given.get("max_sym_exp", 2), during),
        "nsc": lambda: NStep(grower, beam, given.get("nstep", 1)),
        "maes": lambda: AdaptiveExpansion(
            grower, beam, given.get("nstep", 2), given.get("expansion_beta", 2), given.get("expansion_gamma", 2.3)
        ),
    }
    if given["search_type"] == "alsd":
        return AlignmentLengthSearch(
            grower, beam=beam, u_max=given.get("u_max", 50), is_normalized=during, ranks_by_length=norm
        )
    return FrameBeamSearch(steps[given["search_type"]](), ranks_by_length=norm)


def encoded_of(model: TransducerModel) -> Encoded:
    outs = cases.memories(model)
    memory = torch.nn.utils.rnn.pad_sequence(outs, batch_first=True)
    return Encoded(memory=memory, lengths=torch.tensor([len(out) for out in outs]))


def beam_model(case: str) -> TransducerModel:
    model = model_of(case)
    cases.fill_for_beams(model)
    return model


PAIRS = [(case, name) for case, names in cases.BEAM_SEARCHES.items() for name in names]


@pytest.mark.parametrize(("case", "name"), PAIRS)
@torch.no_grad()
def test_nbest_lists_are_those_of_espnet2_and_do_not_depend_on_the_batch(case: str, name: str) -> None:
    model = beam_model(case)
    search, encoded = search_of(model, cases.SEARCHES[name]), encoded_of(model)
    together = run_search(search, encoded)
    for row, theirs in enumerate(GOLDEN[case]["beams"][name]):
        alone = run_search(search, encoded.select(torch.tensor([row])))[0]
        for mine in (together[row], alone):
            assert [list(one.token_ids) for one in mine][: len(theirs)] == [one["yseq"] for one in theirs]
            for one, expected in zip(mine, theirs, strict=False):
                assert one.score == pytest.approx(expected["score"], abs=1e-3)
        # Times are those of the search itself
        assert all(len(one.spans) == len(one.token_ids) for one in alone)
        assert all(span[0] < int(encoded.lengths[row]) for one in alone for span in one.spans)
        starts = [[span[0] for span in one.spans] for one in alone]
        assert all(sorted(frames) == frames for frames in starts)


@pytest.mark.parametrize("name", cases.LONG_SEARCHES)
@torch.no_grad()
def test_nbest_lists_of_longer_texts_are_those_of_espnet2(name: str) -> None:
    model = model_of("gru")
    cases.fill_for_long_texts(model)
    outs = cases.long_memories(model)
    memory = torch.nn.utils.rnn.pad_sequence(outs, batch_first=True)
    encoded = Encoded(memory=memory, lengths=torch.tensor([len(out) for out in outs]))
    golden = GOLDEN["gru"]["long"][name]
    for mine, theirs in zip(run_search(search_of(model, cases.SEARCHES[name]), encoded), golden, strict=True):
        assert [list(one.token_ids) for one in mine][: len(theirs)] == [one["yseq"] for one in theirs]
        for one, expected in zip(mine, theirs, strict=False):
            assert one.score == pytest.approx(expected["score"], abs=1e-3)
    if not name.startswith("lm"):
        assert len(golden[0][0]["yseq"]) >= 9


@pytest.mark.parametrize("name", ["default", "tsd", "nsc", "maes", "alsd"])
@torch.no_grad()
def test_frames_may_come_in_pieces(name: str) -> None:
    model = beam_model("gru")
    search, encoded = search_of(model, cases.SEARCHES[name]), encoded_of(model)
    whole = run_search(search, encoded)
    first = torch.tensor([7, 0, 3])
    state = search.accept(search.start(3), Encoded(memory=encoded.memory, lengths=first))
    rest = torch.stack([row.roll(-int(cut), 0) for row, cut in zip(encoded.memory, first, strict=True)])
    found = search.finish(search.accept(state, Encoded(memory=rest, lengths=encoded.lengths - first)))
    for mine, other in zip(found, whole, strict=True):
        assert [one.token_ids for one in mine] == [one.token_ids for one in other]
        assert [one.spans for one in mine[:1]] == [
            tuple((a, b, pytest.approx(p, abs=1e-5)) for a, b, p in one.spans) for one in other[:1]
        ]


@torch.no_grad()
def test_fused_scores_add_up_and_the_internal_lm_is_subtracted() -> None:
    model = beam_model("lstm")
    parts, encoded = model.transducer_parts, encoded_of(model)
    scorers: dict[str, tuple[TextScorer, float]] = {
        "ilm": (InternalLm(parts), -0.3),
        "length_bonus": (LengthText(model.vocab_size), 0.5),
    }
    search = search_of(model, {**cases.SEARCHES["tsd"], "lm_weight": 0.2}, **scorers)
    lm = lm_of(model)
    for hypotheses in run_search(search, encoded):
        for one in hypotheses:
            text = torch.tensor([one.token_ids])
            inputs = torch.nn.functional.pad(text, (1, 0), value=lm.sos)[:, :-1]
            expected = lm.lm(inputs).log_softmax(-1).gather(2, text.unsqueeze(2)).sum()
            assert one.scores["lm"] == pytest.approx(float(expected), abs=1e-3)
            assert one.scores["length_bonus"] == len(one.token_ids)
            before = torch.tensor([[0, *one.token_ids[:-1]]])
            predicted = model.joint_network.project_predictions(model.decoder(before))
            logits = model.joint_network(model.joint_network.project_frames(torch.zeros(8)), predicted)
            internal = logits[:, :, 1:].log_softmax(-1).gather(2, text.unsqueeze(2) - 1).sum()
            assert one.scores["ilm"] == pytest.approx(float(internal), abs=1e-3)
            total = one.scores["transducer"] + 0.2 * one.scores["lm"] - 0.3 * one.scores["ilm"]
            assert one.score == pytest.approx(total + 0.5 * len(one.token_ids), abs=1e-6)
