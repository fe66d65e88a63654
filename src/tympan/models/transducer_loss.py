"""The transducer loss (Graves 2012): minus the log probability of a text, summed over all alignments.

A lattice node (t, u) is encoder frame t after u tokens. From there a blank leads to (t + 1, u), the next token to
(t, u + 1), and with multi-blank transducers (Xu et al. 2022) a big blank of duration d to (t + d, u). An alignment goes
from (0, 0) to (frames, tokens).

The loss needs few of the joint network's outputs at each node, so `node_scores` computes them in pieces, only for the
nodes that exist, and keeps none of the logits: those of a piece are computed again in the backward pass. The recursion
runs over the anti-diagonals of the lattice, all utterances at once.

Shapes: nodes (N,), the sum of frames * (tokens + 1) over the batch; K blanks, the standard one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tympan.nn.full_precision import at_least_float32, full_precision
from tympan.nn.typed_torch import Context, run_function

NEVER = float("-inf")
PIECE_CELLS = 8_000_000
"""Nodes times vocabulary of one piece: 32 MB of logits in float32."""

Joint = Callable[[Tensor, Tensor], Tensor]
"""From projected frames (N, size) and projected predictions (N, size) to logits (N, V)."""


@dataclass(frozen=True)
class Lattice:
    """The nodes of a batch, utterance by utterance, frame by frame, token by token."""

    utterance: Tensor  # (N,)
    frame: Tensor  # (N,)
    token: Tensor  # (N,)
    frames: Tensor  # (batch,)
    tokens: Tensor  # (batch,)

    @classmethod
    def of(cls, frames: Tensor, tokens: Tensor) -> Lattice:
        """For numbers of frames and tokens (batch,). Reads their sum on the host once."""
        width = tokens + 1
        counts = frames * width
        size = int(counts.sum())
        utterance = torch.repeat_interleave(counts, output_size=size)
        first = counts.cumsum(0) - counts
        within = torch.arange(size, device=frames.device) - first[utterance]
        wide = width[utterance]
        return cls(utterance, torch.div(within, wide, rounding_mode="floor"), within % wide, frames, tokens)

    def padded(self, scores: Tensor) -> Tensor:
        """Scores (N, K) of nodes -> (diagonals, batch, tokens + 1, K) with -inf elsewhere; diagonal = frame + token."""
        diagonals = int((self.frames + self.tokens).max()) + 1
        out = scores.new_full((diagonals, len(self.frames), int(self.tokens.max()) + 1, scores.size(1)), NEVER)
        out[self.frame + self.token, self.utterance, self.token] = scores
        return out

    def nodes(self, padded: Tensor) -> Tensor:
        """The inverse of `padded`."""
        return padded[self.frame + self.token, self.utterance, self.token]


def transducer_loss(
    joint: Joint,
    frames: Tensor,
    predictions: Tensor,
    lengths: Tensor,
    text: Tensor,
    text_lengths: Tensor,
    *,
    blank_id: int,
    big_blanks: Sequence[tuple[int, int]] = (),
    sigma: float = 0.0,
    fastemit_lambda: float = 0.0,
) -> Tensor:
    """(batch,) losses of projected frames (batch, T, size), predictions (batch, U + 1, size) and text (batch, U).

    `big_blanks` are (token id, duration) pairs. `sigma` is subtracted from every log probability (logit
    under-normalization). FastEmit (Yu et al. 2021) multiplies the gradient of emitting a token by 1 + lambda; the value
    does not change. An utterance without frames has no alignment: its loss and gradient are 0.
    """
    lattice = Lattice.of(lengths, text_lengths)
    ids = [blank_id, *(token for token, _ in big_blanks)]
    scores = node_scores(joint, frames, predictions, lattice, text, blank_ids=ids)
    with full_precision(scores):
        return lattice_loss(
            at_least_float32(scores) - sigma,
            lattice,
            durations=[1, *(duration for _, duration in big_blanks)],
            fastemit_lambda=fastemit_lambda,
        )


def node_scores(
    joint: Joint, frames: Tensor, predictions: Tensor, lattice: Lattice, text: Tensor, *, blank_ids: Sequence[int]
) -> Tensor:
    """(N, K + 1) log probabilities of the blanks and of the next token at each node, -inf after the last token."""
    # One column more, for the nodes after the last token, whose entry is not used
    following = torch.nn.functional.pad(text.clamp(min=0), (0, 1))[lattice.utterance, lattice.token]
    blanks = torch.tensor(blank_ids, device=text.device).expand(len(following), -1)
    picked = torch.cat([blanks, following.unsqueeze(1)], 1)

    def piece_scores(rows: Tensor, picked: Tensor) -> Tensor:
        utterance, frame, token = lattice.utterance[rows], lattice.frame[rows], lattice.token[rows]
        logits = joint(frames[utterance, frame], predictions[utterance, token])
        with full_precision(logits):
            logits = at_least_float32(logits)
            return logits.gather(1, picked) - logits.logsumexp(1, keepdim=True)

    size = _piece_size(joint, frames, predictions)
    rows = torch.arange(len(following), device=text.device)
    pieces = list(zip(torch.split(rows, size), torch.split(picked, size), strict=True))
    if len(pieces) == 1 or not torch.is_grad_enabled():
        scores = torch.cat([piece_scores(*piece) for piece in pieces])
    else:
        scores = torch.cat([checkpoint(piece_scores, *piece, use_reentrant=False) for piece in pieces])
    is_last = lattice.token == lattice.tokens[lattice.utterance]
    return torch.cat([scores[:, :-1], scores[:, -1:].masked_fill(is_last.unsqueeze(1), NEVER)], 1)


@torch.no_grad()
def _piece_size(joint: Joint, frames: Tensor, predictions: Tensor) -> int:
    vocab_size = joint(frames.flatten(0, 1)[:1], predictions.flatten(0, 1)[:1]).size(1)
    return max(1, PIECE_CELLS // vocab_size)


def lattice_loss(
    scores: Tensor, lattice: Lattice, *, durations: Sequence[int] = (1,), fastemit_lambda: float = 0.0
) -> Tensor:
    """(batch,) losses of log probabilities (N, K + 1): of blanks with these durations, and of the next token."""
    return run_function(_LatticeLoss, scores, lattice, tuple(durations), fastemit_lambda)


class _LatticeContext(Context, Protocol):
    lattice: Lattice
    durations: tuple[int, ...]
    fastemit_lambda: float


class _LatticeLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _LatticeContext, scores: Tensor, lattice: Lattice, durations: tuple[int, ...], fastemit_lambda: float
    ) -> Tensor:
        padded = lattice.padded(scores)  # (D, batch, W, K + 1)
        alpha = _forward_scores(padded, durations)
        total = alpha[
            lattice.frames + lattice.tokens, torch.arange(len(lattice.frames), device=alpha.device), lattice.tokens
        ]
        total = total.masked_fill(total == NEVER, 0.0)
        ctx.lattice, ctx.durations, ctx.fastemit_lambda = lattice, durations, fastemit_lambda
        ctx.save_for_backward(padded, alpha, total)
        return -total

    @staticmethod
    def backward(ctx: _LatticeContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        padded, alpha, total = ctx.saved_tensors
        lattice = ctx.lattice
        beta = _backward_scores(padded, ctx.durations, lattice)
        # Log probability of all alignments through each arc: what leads there, the arc, what follows
        through = padded + (alpha - total.view(1, -1, 1)).unsqueeze(3)
        for blank, duration in enumerate(ctx.durations):
            through[: len(beta) - duration, :, :, blank] += beta[duration:]
            through[len(beta) - duration :, :, :, blank] = NEVER
        through[:-1, :, :-1, -1] += beta[1:, :, 1:]
        occupancy = lattice.nodes(through).exp_()
        occupancy[:, -1] *= 1.0 + ctx.fastemit_lambda
        return -occupancy * grads[0][lattice.utterance].unsqueeze(1), None, None, None


def _forward_scores(padded: Tensor, durations: tuple[int, ...]) -> Tensor:
    """(D, batch, W): log probability of reaching each node, from scores (D, batch, W, K + 1)."""
    alpha = torch.full_like(padded[..., 0], NEVER)
    alpha[0, :, 0] = 0.0
    for diagonal in range(1, len(alpha)):
        now = alpha[diagonal]
        for blank, duration in enumerate(durations):
            if duration <= diagonal:
                before = diagonal - duration
                torch.logaddexp(now, alpha[before] + padded[before, :, :, blank], out=now)
        emitted = alpha[diagonal - 1] + padded[diagonal - 1, :, :, -1]
        now[:, 1:] = torch.logaddexp(now[:, 1:], emitted[:, :-1])
    return alpha


def _backward_scores(padded: Tensor, durations: tuple[int, ...], lattice: Lattice) -> Tensor:
    """(D, batch, W): log probability of reaching the end from each node."""
    beta = torch.full_like(padded[..., 0], NEVER)
    beta[lattice.frames + lattice.tokens, torch.arange(len(lattice.frames), device=beta.device), lattice.tokens] = 0.0
    for diagonal in range(len(beta) - 2, -1, -1):
        now = beta[diagonal]
        for blank, duration in enumerate(durations):
            if diagonal + duration < len(beta):
                torch.logaddexp(now, beta[diagonal + duration] + padded[diagonal, :, :, blank], out=now)
        emitted = beta[diagonal + 1, :, 1:] + padded[diagonal, :, :-1, -1]
        now[:, :-1] = torch.logaddexp(now[:, :-1], emitted)
    return beta
