"""The transducer loss (Graves 2012): minus the log probability of a text, summed over all alignments.

The loss needs few of the joint network's outputs at each node of the lattice (`tympan.models.transducer_lattice`), so
`node_scores` computes them in pieces, only for the nodes that exist. A large lattice keeps none of its logits: those
of a piece are computed again in the backward pass.

Shapes: N nodes, the sum of frames * (tokens + 1) over the batch; V vocabulary; B blanks, the standard one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tympan.models.transducer_lattice import NEVER, Arcs, Lattice, lattice_loss
from tympan.nn.full_precision import at_least_float32, full_precision
from tympan.nn.typed_torch import Context, run_function

PIECE_CELLS = 1_000_000
"""Nodes times vocabulary of one piece: 4 MB of logits in float32. Larger pieces are slower on a CPU."""
KEPT_CELLS = 32_000_000
"""Nodes times vocabulary up to which the logits are kept for the backward pass: 128 MB in float32."""

Joint = Callable[[Tensor, Tensor], Tensor]
"""From projected frames (N, size) and projected predictions (N, size) to logits (N, V), or (N, V + durations)."""


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
    durations: Sequence[int] = (),
    sigma: float = 0.0,
    fastemit_lambda: float = 0.0,
    lattice: Lattice | None = None,
) -> Tensor:
    """(batch,) losses of projected frames (batch, T, size), predictions (batch, U + 1, size) and text (batch, U).

    `big_blanks` are (token id, duration) pairs. With `durations` the last logits of the joint network are those of the
    durations of blanks and tokens (TDT). `sigma` is subtracted from every log probability of a token or blank (logit
    under-normalization). A `lattice` that is a band leaves out all alignments that leave it. An utterance without
    alignment, such as one without frames, has loss and gradient 0.
    """
    lattice = lattice or Lattice.of(lengths, text_lengths)
    blanks = [(blank_id, 1), *big_blanks]
    scores, arcs = transducer_scores(
        joint, frames, predictions, lattice, text, blanks=blanks, durations=durations, sigma=sigma
    )
    return lattice_loss(scores, lattice, arcs=arcs, fastemit_lambda=fastemit_lambda)


def transducer_scores(
    joint: Joint,
    frames: Tensor,
    predictions: Tensor,
    lattice: Lattice,
    text: Tensor,
    *,
    blanks: Sequence[tuple[int, int]],
    durations: Sequence[int] = (),
    sigma: float = 0.0,
) -> tuple[Tensor, Arcs]:
    """Log probabilities (N, K) of the arcs, in at least float32, and their durations. `blanks` are (id, duration)."""
    ids = [token for token, _ in blanks]
    scores = node_scores(joint, frames, predictions, lattice, text, blank_ids=ids, durations=len(durations))
    with full_precision(scores):
        if not durations:
            return scores - sigma, Arcs(blanks=tuple(duration for _, duration in blanks))
        blank, token, lasting = scores[:, :1] - sigma, scores[:, 1:2] - sigma, scores[:, 2:]
        forward = [place for place, duration in enumerate(durations) if duration > 0]
        after = lattice.frame.unsqueeze(1) + torch.tensor(durations, device=scores.device)
        leaves = after >= lattice.frames[lattice.utterance].unsqueeze(1)
        tokens = (token + lasting).masked_fill(leaves, NEVER)
        arcs = Arcs(blanks=tuple(durations[place] for place in forward), tokens=tuple(durations))
        return torch.cat([blank + lasting[:, forward], tokens], 1), arcs


def node_scores(
    joint: Joint,
    frames: Tensor,
    predictions: Tensor,
    lattice: Lattice,
    text: Tensor,
    *,
    blank_ids: Sequence[int],
    durations: int = 0,
) -> Tensor:
    """(N, B + 1 + durations) log probabilities at each node: of the blanks, of the next token (-inf after the last),
    and of the durations that the joint network has behind the tokens.
    """
    # One column more, for the nodes after the last token, whose entry is not used
    following = torch.nn.functional.pad(text.clamp(min=0), (0, 1))[lattice.utterance, lattice.token]
    blanks = torch.tensor(blank_ids, device=text.device).expand(len(following), -1)
    picked = torch.cat([blanks, following.unsqueeze(1)], 1)

    def piece_scores(utterance: Tensor, frame: Tensor, token: Tensor, picked: Tensor) -> Tensor:
        logits = joint(frames[utterance, frame], predictions[utterance, token])
        with full_precision(logits):
            if not durations:
                return picked_log_probs(logits, picked)
            lasting = at_least_float32(logits[:, -durations:]).log_softmax(1)
            return torch.cat([picked_log_probs(logits[:, :-durations], picked), lasting], 1)

    vocab_size = _vocab_size(joint, frames, predictions)
    size = max(1, PIECE_CELLS // vocab_size)
    is_kept = len(following) * vocab_size <= KEPT_CELLS
    columns = (lattice.utterance, lattice.frame, lattice.token, picked)
    pieces = list(zip(*(torch.split(column, size) for column in columns), strict=True))
    if is_kept or not torch.is_grad_enabled():
        scores = torch.cat([piece_scores(*piece) for piece in pieces])
    else:
        scores = torch.cat([checkpoint(piece_scores, *piece, use_reentrant=False) for piece in pieces])
    token = scores[:, len(blank_ids)].masked_fill(lattice.is_last, NEVER).unsqueeze(1)
    return torch.cat([scores[:, : len(blank_ids)], token, scores[:, len(blank_ids) + 1 :]], 1)


def picked_log_probs(logits: Tensor, picked: Tensor) -> Tensor:
    """Log probabilities (N, P) of the tokens `picked` (N, P), in at least float32, from logits (N, V).

    `logits.log_softmax(1).gather(1, picked)` with fewer passes over the logits, which is what the loss costs.
    """
    return run_function(_PickedLogProbs, logits, picked)


class _PickedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, logits: Tensor, picked: Tensor) -> Tensor:
        wide = at_least_float32(logits)
        total = wide.logsumexp(1, keepdim=True)
        ctx.save_for_backward(logits, total, picked)
        return wide.gather(1, picked) - total

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, total, picked = ctx.saved_tensors
        grad = (at_least_float32(logits) - total).exp_().mul_(-grads[0].sum(1, keepdim=True))
        grad.scatter_add_(1, picked, grads[0])
        return grad.to(logits.dtype), None


@torch.no_grad()
def _vocab_size(joint: Joint, frames: Tensor, predictions: Tensor) -> int:
    """Number of logits of the joint network, with those of the durations."""
    return joint(frames.flatten(0, 1)[:1], predictions.flatten(0, 1)[:1]).size(1)
