"""Bayes risk CTC against the sum over all paths, written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.tiny import tiny_batch, tiny_model
from tympan.models.bayes_risk_ctc import BayesRisk


def paths(text: list[int], frames: int, vocabulary: int) -> list[tuple[int, ...]]:
    """All alignments of a text: remove repetitions, then blanks (0)."""
    return [
        path
        for path in itertools.product(range(vocabulary), repeat=frames)
        if [token for token, _ in itertools.groupby(path) if token] == text
    ]


def end_frames(path: tuple[int, ...]) -> list[int]:
    """The last frame (from 1) of every token of a path."""
    runs = [(token, len(list(group))) for token, group in itertools.groupby(path)]
    ends = itertools.accumulate(length for _, length in runs)
    return [end for (token, _), end in zip(runs, ends, strict=True) if token]


def expected_loss(log_probs: torch.Tensor, text: list[int], risk: BayesRisk) -> float:
    """log_probs (T, V)."""
    frames, vocabulary = log_probs.shape
    found = [
        (sum(float(log_probs[t, token]) for t, token in enumerate(path)), end_frames(path))
        for path in paths(text, frames, vocabulary)
    ]
    losses = []
    for place in range(len(text)):
        by_end = [0.0] * (frames + 1)
        for score, ends in found:
            by_end[ends[place]] += math.exp(score)
        start = max(range(1, frames + 1), key=lambda t: by_end[t]) - 1 if risk.strategy == "exp_rel" else 0
        total = sum(
            value * math.exp(-risk.factor * (end - start) / frames) for end, value in enumerate(by_end) if value
        )
        losses.append(-math.log(total))
    return losses[-1] if risk.groups == "end" else sum(losses) / len(losses)


@pytest.mark.parametrize("groups", ["end", "end_mean"])
@pytest.mark.parametrize("strategy", ["exp", "exp_rel"])
@pytest.mark.parametrize("factor", [0.0, 4.0])
def test_it_equals_the_sum_over_all_paths(strategy: str, groups: str, factor: float) -> None:
    risk = BayesRisk(strategy, groups, factor)  # type: ignore[arg-type]
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(3))
    texts, lengths = [[1, 2], [3, 3], [2]], torch.tensor([5, 4, 3])
    text = torch.tensor([[1, 2], [3, 3], [2, 0]])
    losses = risk(logits, lengths, text, torch.tensor([2, 2, 1]), blank_id=0)
    for row, one in enumerate(texts):
        log_probs = logits[row, : lengths[row]].double().log_softmax(-1)
        assert losses[row].item() == pytest.approx(expected_loss(log_probs, one, risk), abs=1e-5)


def test_without_risk_it_is_ctc_and_so_is_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 12, 7, generator=generator, requires_grad=True)
    text = torch.tensor([[2, 2, 5], [1, 6, 4], [3, 0, 0], [5, 1, 0]])
    lengths, text_lengths = torch.tensor([12, 9, 4, 12]), torch.tensor([3, 3, 1, 2])
    ours = BayesRisk(factor=0.0)(logits, lengths, text, text_lengths, blank_id=0)
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    theirs = F.ctc_loss(log_probs, text, lengths, text_lengths, reduction="none")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


def test_texts_that_are_empty_or_too_long() -> None:
    logits = torch.randn(3, 3, 5, requires_grad=True)
    text = torch.tensor([[0, 0, 0], [2, 2, 3], [1, 0, 0]])
    losses = BayesRisk(factor=2.0)(logits, torch.tensor([2, 3, 0]), text, torch.tensor([0, 3, 1]), blank_id=0)
    assert losses[0].item() == pytest.approx(-logits[0, :2].log_softmax(-1)[:, 0].sum().item(), abs=1e-5)
    assert losses[1:].tolist() == [0.0, 0.0]
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1:].eq(0).all()


def test_a_model_trains_with_it() -> None:
    """With a larger risk the loss grows, because every path ends after the first frame."""
    values = []
    for factor in (0.0, 10.0):
        conf = {"ctc_type": "brctc", "brctc_risk_factor": factor}
        model = tiny_model(ctc_conf=conf, model_conf={"ctc_weight": 1.0}, decoder=None, decoder_only={})
        loss = model(**tiny_batch()).value
        loss.backward()
        assert all(item.grad is None or item.grad.isfinite().all() for item in model.parameters())
        values.append(loss.item())
    assert values[1] > values[0] + 1
