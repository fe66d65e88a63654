"""The lattice of a transducer: its nodes, and the sum over all alignments with its gradient.

A node (t, u) is encoder frame t after u tokens. A blank of duration d leads to (t + d, u), the next token with duration
e to (t + e, u + 1). An alignment goes from (0, 0) to (frames, tokens), and its last arc is a blank. A plain transducer
has one blank of duration 1 and tokens of duration 0. Multi-blank transducers (Xu et al. 2022) have more blanks,
token-and-duration transducers (Xu et al. 2023) several durations of both.

On a CPU the recursion runs node by node, compiled with numba. Elsewhere it runs over the anti-diagonals of the
lattice, all utterances at once.

Shapes: N nodes of all utterances; K arcs of a node, first the blanks, then the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tympan.nn.typed_torch import Context, run_function

NEVER = float("-inf")


@dataclass(frozen=True)
class Arcs:
    """Durations of the arcs that leave a node, in the order of their scores."""

    blanks: tuple[int, ...] = (1,)
    tokens: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Lattice:
    """The nodes of a batch, utterance by utterance, frame by frame, token by token.

    A frame has the nodes of `width` numbers of tokens in a row, beginning with `first`: all, or a band of them.
    """

    utterance: Tensor  # (N,)
    frame: Tensor  # (N,)
    token: Tensor  # (N,) number of tokens before it
    frames: Tensor  # (batch,)
    tokens: Tensor  # (batch,)
    start: Tensor  # (batch,) index of its first node
    width: Tensor  # (batch,)
    first: Tensor  # (batch, T)

    @classmethod
    def of(cls, frames: Tensor, tokens: Tensor, *, first: Tensor | None = None, width: Tensor | None = None) -> Lattice:
        """For numbers of frames and tokens (batch,). Reads their sum on the host once."""
        is_band = first is not None
        if first is None or width is None:
            width, first = tokens + 1, torch.zeros_like(frames).unsqueeze(1)
        counts = frames * width
        size = int(counts.sum())
        utterance = torch.repeat_interleave(counts, output_size=size)
        start = counts.cumsum(0) - counts
        within = torch.arange(size, device=frames.device) - start[utterance]
        wide = width[utterance]
        frame = torch.div(within, wide, rounding_mode="floor")
        lowest = first[utterance, frame] if is_band else 0
        return cls(utterance, frame, within % wide + lowest, frames, tokens, start, width, first)

    @property
    def is_last(self) -> Tensor:
        """(N,) whether no token is left at a node."""
        return self.token == self.tokens[self.utterance]

    def padded(self, scores: Tensor) -> Tensor:
        """Scores (N, K) of nodes -> (diagonals, batch, tokens + 1, K) with -inf elsewhere; diagonal = frame + token."""
        diagonals = int((self.frames + self.tokens).max()) + 1
        out = scores.new_full((diagonals, len(self.frames), int(self.tokens.max()) + 1, scores.size(1)), NEVER)
        out[self.frame + self.token, self.utterance, self.token] = scores
        return out

    def nodes(self, padded: Tensor) -> Tensor:
        """The inverse of `padded`."""
        return padded[self.frame + self.token, self.utterance, self.token]


def lattice_loss(scores: Tensor, lattice: Lattice, *, arcs: Arcs | None = None, fastemit_lambda: float = 0.0) -> Tensor:
    """(batch,) losses of the log probabilities (N, K) of the arcs. 0 where there is no alignment.

    FastEmit (Yu et al. 2021) multiplies the gradient of emitting a token by 1 + lambda; the value does not change.
    """
    return run_function(_LatticeLoss, scores, lattice, arcs or Arcs(), fastemit_lambda)


@torch.no_grad()
def arc_occupancies(scores: Tensor, lattice: Lattice, *, arcs: Arcs | None = None) -> tuple[Tensor, Tensor]:
    """Log probabilities (batch,) of all alignments, and the posterior probability (N, K) of each arc."""
    arcs = arcs or Arcs()
    if scores.device.type == "cpu":
        from tympan.models.transducer_recursion import sum_paths  # imports numba

        return sum_paths(scores, lattice, arcs)
    return sum_by_diagonals(scores, lattice, arcs)


class _LatticeContext(Context, Protocol):
    lattice: Lattice


class _LatticeLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _LatticeContext, scores: Tensor, lattice: Lattice, arcs: Arcs, fastemit_lambda: float) -> Tensor:
        total, occupancy = arc_occupancies(scores, lattice, arcs=arcs)
        occupancy[:, len(arcs.blanks) :] *= 1.0 + fastemit_lambda
        ctx.lattice = lattice
        ctx.save_for_backward(occupancy)
        return -total.masked_fill(total == NEVER, 0.0)

    @staticmethod
    def backward(ctx: _LatticeContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (occupancy,) = ctx.saved_tensors
        return -occupancy * grads[0][ctx.lattice.utterance].unsqueeze(1), None, None, None


@torch.no_grad()
def sum_by_diagonals(scores: Tensor, lattice: Lattice, arcs: Arcs) -> tuple[Tensor, Tensor]:
    """`arc_occupancies` with operations on whole anti-diagonals. A token may not lead to the end: its score is -inf."""
    padded = lattice.padded(scores)  # (D, batch, W, K)
    alpha, beta = _forward_scores(padded, arcs), _backward_scores(padded, arcs, lattice)
    end = (lattice.frames + lattice.tokens, torch.arange(len(lattice.frames), device=alpha.device), lattice.tokens)
    total = alpha[end]
    known = total.masked_fill(total == NEVER, 0.0)
    # Log probability of all alignments through each arc: what leads there, the arc, what follows
    through = padded + (alpha - known.view(1, -1, 1)).unsqueeze(3)
    size = len(beta)
    for arc, duration in enumerate(arcs.blanks):
        through[: max(size - duration, 0), :, :, arc] += beta[duration:]
        through[max(size - duration, 0) :, :, :, arc] = NEVER
    for arc, duration in enumerate(arcs.tokens, len(arcs.blanks)):
        through[: max(size - duration - 1, 0), :, :-1, arc] += beta[duration + 1 :, :, 1:]
        through[max(size - duration - 1, 0) :, :, :, arc] = NEVER
    return total, lattice.nodes(through).exp_()


def _forward_scores(padded: Tensor, arcs: Arcs) -> Tensor:
    """(D, batch, W): log probability of reaching each node, from scores (D, batch, W, K)."""
    alpha = torch.full_like(padded[..., 0], NEVER)
    alpha[0, :, 0] = 0.0
    for diagonal in range(1, len(alpha)):
        now = alpha[diagonal]
        for arc, duration in enumerate(arcs.blanks):
            if duration <= diagonal:
                before = diagonal - duration
                torch.logaddexp(now, alpha[before] + padded[before, :, :, arc], out=now)
        for arc, duration in enumerate(arcs.tokens, len(arcs.blanks)):
            if duration < diagonal:
                before = diagonal - duration - 1
                emitted = alpha[before] + padded[before, :, :, arc]
                now[:, 1:] = torch.logaddexp(now[:, 1:], emitted[:, :-1])
    return alpha


def _backward_scores(padded: Tensor, arcs: Arcs, lattice: Lattice) -> Tensor:
    """(D, batch, W): log probability of reaching the end from each node."""
    beta = torch.full_like(padded[..., 0], NEVER)
    beta[lattice.frames + lattice.tokens, torch.arange(len(lattice.frames), device=beta.device), lattice.tokens] = 0.0
    for diagonal in range(len(beta) - 2, -1, -1):
        now = beta[diagonal]
        for arc, duration in enumerate(arcs.blanks):
            if diagonal + duration < len(beta):
                torch.logaddexp(now, beta[diagonal + duration] + padded[diagonal, :, :, arc], out=now)
        for arc, duration in enumerate(arcs.tokens, len(arcs.blanks)):
            if diagonal + duration + 1 < len(beta):
                emitted = beta[diagonal + duration + 1, :, 1:] + padded[diagonal, :, :-1, arc]
                now[:, :-1] = torch.logaddexp(now[:, :-1], emitted)
    return beta
