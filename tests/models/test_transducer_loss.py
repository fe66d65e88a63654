"""The transducer loss against a slow reference in float64, with plain and big blanks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from tympan.models import transducer_loss as module
from tympan.models.transducer_lattice import Lattice, lattice_loss
from tympan.models.transducer_loss import transducer_loss

VOCAB, SIZE = 7, 5
FRAMES = (6, 1, 9, 4)
TEXTS = ([3, 3, 5], [4, 2, 6, 3], [], [6])
BIG_BLANKS = [(1, 2), (2, 4)]


def slow_loss(log_probs: Tensor, text: Sequence[int], arcs: Sequence[tuple[int, int]]) -> Tensor:
    """log_probs (T, U + 1, V) of one utterance; arcs are (blank, duration). Differentiable, node by node."""
    frames = log_probs.size(0)
    alpha: dict[tuple[int, int], Tensor] = {(0, 0): log_probs.new_zeros(())}
    for t in range(frames + 1):
        for u in range(len(text) + 1):
            ways = [alpha[t - d, u] + log_probs[t - d, u, blank] for blank, d in arcs if t >= d and (t - d, u) in alpha]
            if u > 0 and t < frames and (t, u - 1) in alpha:
                ways.append(alpha[t, u - 1] + log_probs[t, u - 1, text[u - 1]])
            if ways:
                alpha[t, u] = torch.stack(ways).logsumexp(0)
    return -alpha[frames, len(text)]


class Joint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(SIZE, VOCAB)

    def forward(self, frames: Tensor, predictions: Tensor) -> Tensor:
        return self.out(torch.tanh(frames + predictions))


@pytest.fixture
def case() -> tuple[Joint, Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    joint = Joint().double()
    frames = torch.randn(4, 9, SIZE, dtype=torch.float64, requires_grad=True)
    predictions = (2 * torch.randn(4, 5, SIZE, dtype=torch.float64)).requires_grad_()
    text = nn.utils.rnn.pad_sequence([torch.tensor(t, dtype=torch.long) for t in TEXTS], True, -1)
    return joint, frames, predictions, torch.tensor(FRAMES), text, torch.tensor([len(t) for t in TEXTS])


def slow_losses(
    joint: Joint, frames: Tensor, predictions: Tensor, arcs: Sequence[tuple[int, int]], sigma: float
) -> Tensor:
    losses = []
    for row, (length, text) in enumerate(zip(FRAMES, TEXTS, strict=True)):
        logits = joint(frames[row, :length].unsqueeze(1), predictions[row, : len(text) + 1].unsqueeze(0))
        losses.append(slow_loss(logits.log_softmax(-1) - sigma, text, arcs))
    return torch.stack(losses)


@pytest.mark.parametrize(("piece", "kept"), [(10_000, 10_000), (70, 10_000), (70, 0)])
@pytest.mark.parametrize(("big_blanks", "sigma"), [([], 0.0), (BIG_BLANKS, 0.05)])
def test_values_and_gradients_are_those_of_the_slow_reference(
    case, piece: int, kept: int, big_blanks: list[tuple[int, int]], sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint, frames, predictions, *rest = case
    monkeypatch.setattr(module, "PIECE_CELLS", piece)
    monkeypatch.setattr(module, "KEPT_CELLS", kept)
    weights = torch.tensor([1.0, 0.5, -2.0, 3.0], dtype=torch.float64)
    inputs = [frames, predictions, joint.out.weight, joint.out.bias]
    found = transducer_loss(joint, frames, predictions, *rest, blank_id=0, big_blanks=big_blanks, sigma=sigma)
    expected = slow_losses(joint, frames, predictions, [(0, 1), *big_blanks], sigma)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, slow in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, slow, rtol=1e-10, atol=1e-10)


def test_fastemit_scales_the_gradient_of_emissions_only(case) -> None:
    *_, frames, _, tokens = case
    lattice = Lattice.of(frames, tokens)
    torch.manual_seed(0)
    scores = torch.randn(len(lattice.frame), 2, dtype=torch.float64)
    scores[lattice.token == lattice.tokens[lattice.utterance], 1] = float("-inf")
    scores.requires_grad_()
    plain, fast = (lattice_loss(scores, lattice, fastemit_lambda=value) for value in (0.0, 0.25))
    assert torch.equal(plain, fast)
    grad, fast_grad = (torch.autograd.grad(loss.sum(), scores)[0] for loss in (plain, fast))
    torch.testing.assert_close(fast_grad, grad * torch.tensor([1.0, 1.25], dtype=torch.float64))
    # Each of the 4 texts is emitted once, by some alignment
    assert float(-grad[:, 1].sum()) == pytest.approx(sum(map(len, TEXTS)))


def test_an_utterance_without_frames_has_loss_and_gradient_zero() -> None:
    torch.manual_seed(0)
    joint = Joint()
    frames, predictions = torch.randn(2, 3, SIZE, requires_grad=True), torch.randn(2, 3, SIZE, requires_grad=True)
    losses = transducer_loss(
        joint,
        frames,
        predictions,
        torch.tensor([0, 3]),
        torch.tensor([[3, 4], [5, 2]]),
        torch.tensor([2, 2]),
        blank_id=0,
    )
    assert losses[0] == 0
    assert losses[1] > 0
    losses.sum().backward()
    assert frames.grad[0].eq(0).all()
    assert frames.grad[1].ne(0).any()
    assert predictions.grad.isfinite().all()


def test_scores_that_are_not_finite_are_not_hidden() -> None:
    lattice = Lattice.of(torch.tensor([2]), torch.tensor([1]))
    scores = torch.full((4, 2), -1.0)
    scores[0, 0] = float("nan")
    assert lattice_loss(scores, lattice).isnan().all()


def test_a_long_lattice_in_float32() -> None:
    torch.manual_seed(1)
    lattice = Lattice.of(torch.tensor([400]), torch.tensor([80]))
    scores = 3 * torch.randn(len(lattice.frame), 2)
    scores[lattice.token == 80, 1] = float("-inf")
    single, double = scores.clone().requires_grad_(), scores.double().requires_grad_()
    losses = lattice_loss(single, lattice), lattice_loss(double, lattice)
    torch.testing.assert_close(losses[0].double(), losses[1], rtol=1e-6, atol=1e-4)
    for loss in losses:
        loss.sum().backward()
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=2e-3, atol=1e-5)


def test_half_precision_is_left_before_the_recursion(case) -> None:
    joint, frames, predictions, *rest = case
    joint = joint.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = transducer_loss(joint, frames.float(), predictions.float(), *rest, blank_id=0)
    assert found.dtype == torch.float32
    expected = slow_losses(joint.double(), frames, predictions, [(0, 1)], 0.0)
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("kept", "times"), [(10_000, 1), (0, 2)])
def test_logits_are_computed_twice_only_where_they_are_too_many_to_keep(
    case, kept: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint, frames, predictions, *rest = case
    monkeypatch.setattr(module, "PIECE_CELLS", 70)
    monkeypatch.setattr(module, "KEPT_CELLS", kept)
    sizes = []
    joint.register_forward_hook(lambda _, __, out: sizes.append(len(out)))
    transducer_loss(joint, frames, predictions, *rest, blank_id=0).sum().backward()
    nodes = sum(length * (len(text) + 1) for length, text in zip(FRAMES, TEXTS, strict=True))
    assert sum(sizes[1:]) == times * nodes  # the first call finds out the vocabulary size


def test_logits_exist_for_the_nodes_of_the_lattice_only(case) -> None:
    joint, frames, predictions, *rest = case
    sizes = []
    joint.register_forward_hook(lambda _, __, out: sizes.append(len(out)))
    transducer_loss(joint, frames, predictions, *rest, blank_id=0)
    assert max(sizes) == sum(length * (len(text) + 1) for length, text in zip(FRAMES, TEXTS, strict=True))
