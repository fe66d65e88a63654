"""The pruned transducer loss (Kuang et al. 2022): the joint network only in a band of the lattice.

A simple joint network comes first. Its logits are the sum of a vector of the frame and a vector of the prediction, so
that its log probabilities at all nodes cost one matrix product and no tensor of nodes times vocabulary. The posterior
probabilities of its lattice show where the alignments are likely to be. The full joint network then runs only for
`prune_range` numbers of tokens at each frame.

Shapes: T frames, U tokens, V vocabulary, N nodes, R the range.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tympan.models.transducer_lattice import NEVER, Lattice, arc_occupancies, lattice_loss
from tympan.nn.full_precision import at_least_float32, full_precision


class SimpleJoint(nn.Module):
    """Logits of a frame plus logits of a prediction."""

    def __init__(self, *, encoder_size: int, decoder_size: int, vocab_size: int) -> None:
        super().__init__()
        self.lin_enc = nn.Linear(encoder_size, vocab_size)
        self.lin_dec = nn.Linear(decoder_size, vocab_size)

    def forward(self, out: Tensor, predictions: Tensor, text: Tensor, *, lattice: Lattice, blank_id: int) -> Tensor:
        """Log probabilities (N, 2) of blank and next token, in at least float32.

        Encoder output (batch, T, size), prediction network output (batch, U + 1, size), text (batch, U).
        """
        heard, said = self.lin_enc(out), self.lin_dec(predictions)
        with full_precision(heard):
            heard, said = at_least_float32(heard), at_least_float32(said)  # (batch, T, V), (batch, U + 1, V)
            token = torch.nn.functional.pad(text.clamp(min=0), (0, 1))  # the last is not used
            total = _log_sum_products(heard, said)  # (batch, T, U + 1)
            blank = heard[:, :, blank_id].unsqueeze(2) + said[:, :, blank_id].unsqueeze(1) - total
            of_frame = heard.gather(2, token.unsqueeze(1).expand(-1, heard.size(1), -1))
            of_text = said.gather(2, token.unsqueeze(2)).squeeze(2).unsqueeze(1)
            nodes = torch.stack([blank, of_frame + of_text - total], 3)[lattice.utterance, lattice.frame, lattice.token]
            return torch.stack([nodes[:, 0], nodes[:, 1].masked_fill(lattice.is_last, NEVER)], 1)


def _log_sum_products(a: Tensor, b: Tensor) -> Tensor:
    """log sum over v of exp(a[t, v] + b[u, v]): (batch, T, V), (batch, W, V) -> (batch, T, W)."""
    high_a, high_b = a.detach().amax(2, keepdim=True), b.detach().amax(2, keepdim=True)
    products = torch.bmm((a - high_a).exp(), (b - high_b).exp().transpose(1, 2))
    # Two distributions without a common token make 0 in float32: the smallest number keeps log finite
    smallest = torch.finfo(products.dtype).tiny
    return products.clamp(min=smallest).log() + high_a + high_b.transpose(1, 2)


def simple_loss(scores: Tensor, lattice: Lattice, *, fastemit_lambda: float = 0.0) -> Tensor:
    """(batch,) losses of the simple joint network's scores (N, 2) of the whole lattice."""
    return lattice_loss(scores, lattice, fastemit_lambda=fastemit_lambda)


@torch.no_grad()
def likely_band(scores: Tensor, lattice: Lattice, *, prune_range: int) -> Lattice:
    """The `prune_range` numbers of tokens at each frame that hold most of the posterior probability.

    From one frame to the next the band does not go down, and rises by less than its width, so that it is connected
    from the first node to the last. It is wider where a text has too many tokens for its frames.
    """
    frames, tokens = lattice.frames, lattice.tokens
    longest, most = int(frames.max()), int(tokens.max())
    needed = torch.div(tokens, frames.clamp(min=1), rounding_mode="floor") + 2
    width = torch.minimum(needed.clamp(min=prune_range), tokens + 1)
    passed = scores.new_zeros(len(frames), longest, most + 2)
    occupancy = arc_occupancies(scores, lattice)[1].sum(1).nan_to_num()
    # passed[:, t, u]: mass of the nodes of frame t below u tokens
    passed[lattice.utterance, lattice.frame, lattice.token + 1] = occupancy
    passed = passed.cumsum(2)
    lowest = torch.arange(most + 1, device=frames.device)
    top = (lowest + width.unsqueeze(1)).clamp(max=most + 1)  # (batch, most + 1)
    held = passed.gather(2, top.unsqueeze(1).expand(-1, longest, -1)) - passed[:, :, :-1]
    highest = (tokens + 1 - width).unsqueeze(1)  # (batch, 1)
    held = held.masked_fill(lowest > highest.unsqueeze(2), -1.0)
    return Lattice.of(frames, tokens, first=_connected(held.argmax(2), highest, width, frames), width=width)


def _connected(first: Tensor, highest: Tensor, width: Tensor, frames: Tensor) -> Tensor:
    """Lower bounds (batch, T), changed as little as needed: from 0 to `highest` without falling or leaving the band."""
    place = torch.arange(first.size(1), device=first.device)
    first = torch.where(place >= frames.unsqueeze(1) - 1, highest, first)
    first = first.flip(1).cummin(1).values.flip(1)  # it never goes down
    climbed = (width.unsqueeze(1) - 1) * place
    first = torch.minimum(first, climbed)  # from 0 on, and not too fast
    return ((first - climbed).flip(1).cummax(1).values.flip(1) + climbed).clamp(min=0)
