"""CTC without a decoder: greedy and prefix search against brute force; alignment against every path; two passes."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from decode_toy import ToyScorer, toy_batch

from tympan.decode.alignment import align_segments, align_tokens
from tympan.decode.beam_search import Weighted
from tympan.decode.ctc_search import CtcPrefixSearch, GreedySearch
from tympan.decode.joint import rescore
from tympan.decode.search import Encoded, Ended, run_search

VOCAB = 4


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token)


def all_paths(log_probs: torch.Tensor) -> list[tuple[tuple[int, ...], float]]:
    frames = range(len(log_probs))
    return [
        (path, float(log_probs[frames, path].sum()))
        for path in itertools.product(range(log_probs.size(1)), repeat=len(log_probs))
    ]


@pytest.mark.parametrize("vocab", [2, VOCAB])
@pytest.mark.parametrize("seed", range(4))
def test_prefix_search_with_a_wide_beam_is_exact(seed: int, vocab: int) -> None:
    batch = toy_batch([4, 3, 5], vocab=vocab, seed=seed)
    for row, found in enumerate(run_search(CtcPrefixSearch(beam_size=400, blank_id=0), batch)):
        totals: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for path, score in all_paths(batch.log_probs[row, : batch.lengths[row]]):
            totals[collapse(path)] += np.exp(score)
        want = sorted(totals.items(), key=lambda item: -item[1])
        assert [h.token_ids for h in found[:10]] == [text for text, _ in want[:10]]
        np.testing.assert_allclose([h.score for h in found], np.log([p for _, p in want]), atol=1e-9)


def test_prefix_search_with_a_narrow_beam_does_not_depend_on_the_batch() -> None:
    batch = toy_batch([40, 11, 25], vocab=30, seed=1)
    together = run_search(CtcPrefixSearch(beam_size=6, blank_id=0), batch)
    for row in range(3):
        assert len(together[row]) == 6
        (alone,) = run_search(CtcPrefixSearch(beam_size=6, blank_id=0), batch.select(torch.tensor([row])))
        assert [h.token_ids for h in together[row]] == [h.token_ids for h in alone]
        assert len({h.token_ids for h in alone}) == 6


def test_greedy_is_the_best_path() -> None:
    batch = toy_batch([5, 3], vocab=VOCAB, seed=2)
    for row, (best,) in enumerate(run_search(GreedySearch(blank_id=0), batch)):
        path, score = max(all_paths(batch.log_probs[row, : batch.lengths[row]]), key=lambda item: item[1])
        assert best.token_ids == collapse(path)
        assert best.score == pytest.approx(score)


@pytest.mark.parametrize("texts", [[(1,), (2, 2), (3, 1, 2)], [(), (1, 3, 3), (2, 1)]])
def test_alignment_is_the_best_path_of_the_text(texts: list[tuple[int, ...]]) -> None:
    batch = toy_batch([4, 6, 5], vocab=VOCAB, seed=3)
    for row, aligned in enumerate(align_tokens(batch.log_probs, batch.lengths, texts, blank_id=0)):
        log_probs = batch.log_probs[row, : batch.lengths[row]]
        fitting = [item for item in all_paths(log_probs) if collapse(item[0]) == texts[row]]
        path, score = max(fitting, key=lambda item: item[1])
        assert aligned is not None
        assert aligned.log_prob == pytest.approx(score, abs=1e-9)
        spans = [(t.start, t.end) for t in aligned.tokens]
        runs = [list(group) for token, group in itertools.groupby(enumerate(path), key=lambda item: item[1]) if token]
        assert spans == [(run[0][0], run[-1][0] + 1) for run in runs]
        peaks = [max(float(log_probs[frame, token].exp()) for frame, token in run) for run in runs]
        assert [t.confidence for t in aligned.tokens] == pytest.approx(peaks)


def test_alignment_in_blocks_and_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = toy_batch([40], vocab=VOCAB, seed=5)
    text = (1, 3, 3, 2)
    (whole,) = align_tokens(batch.log_probs, batch.lengths, [text], blank_id=0)
    assert whole is not None
    monkeypatch.setattr("tympan.decode.alignment.BLOCK_CELLS", 30)
    parts = [
        (start_s, Encoded(batch.memory[:, frames], torch.tensor([20]), batch.log_probs[:, frames]))
        for start_s, frames in ((0.0, slice(0, 20)), (10.0, slice(20, 40)))
    ]
    found = align_segments(iter(parts), text, blank_id=0, frame_shift_s=0.04)
    assert found.aligned == whole
    for (start_s, end_s), token in zip(found.times, whole.tokens, strict=True):
        assert start_s == pytest.approx(token.start * 0.04 if token.start < 20 else 10 + (token.start - 20) * 0.04)
        assert end_s == pytest.approx(token.end * 0.04 if token.end <= 20 else 10 + (token.end - 20) * 0.04)


def test_a_text_that_does_not_fit_has_no_alignment() -> None:
    batch = toy_batch([2, 5], vocab=VOCAB, seed=3)
    short, fits = align_tokens(batch.log_probs, batch.lengths, [(1, 1), (1, 1)], blank_id=0)
    assert short is None
    assert fits is not None


def test_second_pass_adds_the_score_of_the_whole_text() -> None:
    batch = toy_batch([20, 12], vocab=6, seed=4)
    scorer = ToyScorer(6, eos=5, ending=0.3, seed=1)
    first = [
        [Ended((1, 2, 3), -4.0, {"ctc": -4.0}), Ended((2,), -5.0, {"ctc": -5.0})],
        [Ended((), -3.0, {"ctc": -3.0})],
    ]
    found = rescore(batch, first, full={"decoder": Weighted(scorer, 0.7)}, first_weights={"ctc": 0.3}, sos=5, eos=5)
    for row, hypotheses in enumerate(first):
        for hypothesis in hypotheses:
            state, last, total = scorer.start(batch.select(torch.tensor([row])), 1), 5, 0.0
            for token in (*hypothesis.token_ids, 5):
                scores, state = scorer.step(torch.tensor([[last]]), state)
                total, last = total + float(scores[0, 0, token]), token
            (got,) = [h for h in found[row] if h.token_ids == hypothesis.token_ids]
            assert got.scores["decoder"] == pytest.approx(total, abs=1e-9)
            assert got.score == pytest.approx(0.7 * total + 0.3 * hypothesis.score, abs=1e-9)
    assert found[0] == sorted(found[0], key=lambda h: -h.score)
