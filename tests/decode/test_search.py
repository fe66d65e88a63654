"""The batched search equals a plain search of one utterance with lists, in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from decode_toy import ToyScorer, toy_batch

from tympan.decode.beam_search import BeamSearch, LengthLimits, Weighted, is_end_detected, rank
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.joint import JointSearch
from tympan.decode.scorer import LengthBonus
from tympan.decode.search import Encoded, Ended, run_search

VOCAB, EOS = 14, 13


def scorers(*, seed: int = 0, ending: float = 0.5) -> tuple[dict[str, Weighted], dict[str, Weighted]]:
    full = {
        "decoder": Weighted(ToyScorer(VOCAB, eos=EOS, ending=ending, seed=seed), 0.6),
        "lm": Weighted(ToyScorer(VOCAB, eos=EOS, ending=ending / 2, seed=seed + 1), 0.3),
        "length_bonus": Weighted(LengthBonus(VOCAB), 0.1),
    }
    return full, {"ctc": Weighted(CtcPrefixScorer(blank_id=0, eos=EOS), 0.4)}


def searcher(full: dict[str, Weighted], partial: dict[str, Weighted], **settings: Any) -> BeamSearch:
    settings = {"beam_size": 4, "sos": EOS, "eos": EOS, "vocab_size": VOCAB, **settings}
    return BeamSearch(full, partial, **settings)


@dataclass
class Plain:
    tokens: list[int]
    score: float
    states: dict[str, Any]


def plain_search(search: BeamSearch, encoded: Encoded, limits: LengthLimits) -> list[tuple[tuple[int, ...], float]]:
    """One utterance, one hypothesis and one candidate after another."""
    everyone = {**search.full, **search.partial}
    frames = int(encoded.lengths[0])
    running = [Plain([search.sos], 0.0, {name: item.scorer.start(encoded, 1) for name, item in everyone.items()})]
    ended: list[Ended] = []
    for step in range(limits.max_steps(frames)):
        grown = []
        for hyp in running:
            last, states, total = torch.tensor([[hyp.tokens[-1]]]), {}, torch.zeros(search.vocab_size).double()
            for name, item in search.full.items():
                scores, states[name] = item.scorer.step(last, hyp.states[name])
                total += item.weight * scores[0, 0]
            ids = set(range(search.vocab_size))
            if search.has_pre_beam:
                ids = {*total.topk(search.pre_beam_size).indices.tolist(), *([search.eos] if search.offers_end else [])}
            for name, item in search.partial.items():
                scores, states[name] = item.scorer.step(last, hyp.states[name], candidates=None)
                total += item.weight * scores[0, 0]
            grown += [Plain([*hyp.tokens, i], hyp.score + float(total[i]), states) for i in ids]
        grown = [hyp for hyp in sorted(grown, key=lambda h: -h.score)[: search.beam_size] if hyp.score > -1e9]
        at_limit = step + 1 == limits.max_steps(frames)
        for hyp in grown:
            if (hyp.tokens[-1] == search.eos or at_limit) and step >= limits.min_steps(frames):
                tokens = hyp.tokens[1:-1] if hyp.tokens[-1] == search.eos else hyp.tokens[1:]
                is_ended_twice = at_limit and hyp.tokens[-1] == search.eos
                ended.append(Ended(tuple(tokens), hyp.score, {}, is_ended_twice=is_ended_twice))
        running = [hyp for hyp in grown if hyp.tokens[-1] != search.eos]
        if not running or (limits.has_end_detection and is_end_detected(ended, step)):
            break
    return [(h.token_ids, h.score) for h in rank(ended, is_length_normalized=search.is_length_normalized)]


def one(encoded: Encoded, row: int) -> Encoded:
    return encoded.select(torch.tensor([row]))


def assert_same(got: list[Ended], want: list[tuple[tuple[int, ...], float]]) -> None:
    assert [h.token_ids for h in got] == [tokens for tokens, _ in want]
    assert [h.score for h in got] == pytest.approx([score for _, score in want], abs=1e-9)


LIMITS = [LengthLimits(), LengthLimits(-6), LengthLimits(0.4, 0.2), LengthLimits(-9, -3)]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_batched_equals_plain(seed: int, limits: LengthLimits) -> None:
    encoded = toy_batch([30, 9, 21, 4, 17], vocab=VOCAB, seed=seed)
    search = searcher(*scorers(seed=seed))
    assert search.has_pre_beam
    for row, got in enumerate(search(encoded, limits)):
        assert got
        assert_same(got, plain_search(search, one(encoded, row), limits))


SETTINGS: list[dict[str, Any]] = [
    {"has_pre_beam": False},
    {"beam_size": 12},
    {"beam_size": 9},  # with the end, as many candidates as tokens
    {"is_length_normalized": True},
    {"offers_end": False},
]


@pytest.mark.parametrize("limits", [LengthLimits(), LengthLimits(-6)], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_other_settings_equal_plain(settings: dict[str, Any], limits: LengthLimits) -> None:
    encoded = toy_batch([12, 30], vocab=VOCAB, seed=5)
    search = searcher(*scorers(seed=5), **settings)
    for row, got in enumerate(search(encoded, limits)):
        assert_same(got, plain_search(search, one(encoded, row), limits))


@pytest.mark.parametrize("without", ["ctc", "all but ctc"])
def test_scorers_may_be_missing(without: str) -> None:
    encoded = toy_batch([12, 25], vocab=VOCAB, seed=6)
    full, partial = scorers(seed=6)
    search = searcher(full, {}) if without == "ctc" else searcher({}, partial)
    for row, got in enumerate(search(encoded, LengthLimits())):
        assert_same(got, plain_search(search, one(encoded, row), LengthLimits()))


def test_the_batch_does_not_change_the_result() -> None:
    lengths = [30, 9, 21, 4, 17, 40]
    encoded = toy_batch(lengths, vocab=VOCAB, seed=3)
    search = searcher(*scorers(seed=3))
    together = search(encoded, LengthLimits())
    for rows in ([0], [3, 1], [5, 4, 2]):
        for got, row in zip(search(encoded.select(torch.tensor(rows)), LengthLimits()), rows, strict=True):
            assert_same(got, [(h.token_ids, h.score) for h in together[row]])


def test_the_score_is_the_weighted_sum_of_the_scores() -> None:
    encoded = toy_batch([20, 15], vocab=VOCAB, seed=4)
    full, partial = scorers(seed=4)
    for hypotheses in searcher(full, partial)(encoded, LengthLimits()):
        for hyp in hypotheses:
            total = sum({**full, **partial}[name].weight * score for name, score in hyp.scores.items())
            assert hyp.score == pytest.approx(total, abs=1e-9)


def test_a_minimum_length_that_no_hypothesis_reaches_is_relaxed() -> None:
    encoded = toy_batch([20, 15], vocab=VOCAB, seed=4)
    found = searcher(*scorers(seed=4))(encoded, LengthLimits(maxlenratio=-5, minlenratio=0.9))
    assert all(hypotheses and all(len(h.token_ids) <= 5 for h in hypotheses) for hypotheses in found)


class BlankLover(ToyScorer):
    """Always expects blank, which CTC never allows."""

    def step(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        scores, state = super().step(tokens, state)
        scores[..., 0] = 10.0
        return scores, state


def test_eos_is_scored_where_no_hypothesis_ended() -> None:
    encoded = toy_batch([3, 2], vocab=VOCAB, seed=4)
    decoder = BlankLover(VOCAB, eos=EOS, ending=0.5, seed=4)
    search = searcher({"decoder": Weighted(decoder, 0.6)}, scorers()[1], beam_size=1, offers_end=False)
    assert not any(search._search(encoded, LengthLimits(), offers_end=False))
    found = search(encoded, LengthLimits(minlenratio=0.5))
    assert [[hyp.token_ids for hyp in hypotheses] for hypotheses in found] == [[()], [()]]


def test_an_end_in_the_last_step_counts_twice_for_the_length() -> None:
    short, long = Ended((1,), -3.0, {}), Ended((2,), -3.1, {}, is_ended_twice=True)
    assert rank([short, long], is_length_normalized=False) == [short, long]
    assert rank([short, long], is_length_normalized=True) == [long, short]


def test_end_is_detected_after_three_poor_lengths() -> None:
    def ended(tokens: int, score: float) -> Ended:
        return Ended(token_ids=(1,) * tokens, score=score, scores={})

    hopeless = [ended(2, -1.0), ended(5, -12.0), ended(6, -13.0), ended(7, -11.5)]
    assert is_end_detected(hopeless, step=9)  # lengths 7, 8, 9 with sos and eos
    assert not is_end_detected(hopeless, step=10)
    assert not is_end_detected([*hopeless, ended(6, -10.0)], step=9)
    assert not is_end_detected([], step=9)


def test_a_search_too_large_for_memory_is_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    search = JointSearch(searcher(*scorers(seed=2), beam_size=3), LengthLimits(-5))
    encoded = toy_batch([12, 5, 20, 9], vocab=VOCAB, seed=2)
    whole = run_search(search, encoded)
    sizes: list[int] = []
    beam = search.beam
    monkeypatch.setattr(search, "beam", Spy(beam, sizes))
    monkeypatch.setattr("tympan.decode.joint.MAX_SCORES", 2 * 3 * VOCAB)
    parts = run_search(search, encoded)
    assert sizes == [2, 2]
    assert [[h.token_ids for h in found] for found in parts] == [[h.token_ids for h in found] for found in whole]


class Spy:
    """A beam search that records the number of utterances that it is given."""

    def __init__(self, beam: BeamSearch, sizes: list[int]) -> None:
        self.beam, self.sizes = beam, sizes
        self.beam_size, self.vocab_size = beam.beam_size, beam.vocab_size

    def __call__(self, encoded: Encoded, limits: LengthLimits) -> list[list[Ended]]:
        self.sizes.append(encoded.utterances)
        return self.beam(encoded, limits)
