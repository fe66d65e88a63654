"""A CTC loss that is faster on a CPU: recursion and gradient use only the tokens of each transcript.

torch's gradient visits the whole vocabulary for every frame, in another memory order than the model's. But the loss
depends on the logits only through their normalizer and the few tokens of the transcript:
d loss / d logits = softmax(logits) - posterior of the transcript's tokens (Graves et al. 2006, equation 16).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tympan.nn.typed_torch import Context, run_function
from tympan.runtime.device import compiles_every_shape


def ctc_loss(
    logits: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor, *, blank_id: int, zero_infinity: bool
) -> Tensor:
    """(batch,) losses of logits (batch, time, vocabulary) against text (batch, length) of ids from 0 on."""
    if logits.is_cpu and text.size(1) > 0 and not torch.compiler.is_compiling():
        return run_function(_CtcLoss, logits, lengths, text, text_lengths, blank_id, zero_infinity)
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    if compiles_every_shape(logits.device.type):
        return _in_fixed_shapes(log_probs, lengths, text, text_lengths, blank_id=blank_id, zero_infinity=zero_infinity)
    return F.ctc_loss(
        log_probs, text, lengths, text_lengths, blank=blank_id, reduction="none", zero_infinity=zero_infinity
    )


def _in_fixed_shapes(
    log_probs: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor, *, blank_id: int, zero_infinity: bool
) -> Tensor:
    """The states that torch allocates depend on the longest transcript. A dummy one of full length makes that fixed."""
    frames, _, vocab_size = log_probs.shape
    log_probs = torch.cat([log_probs, log_probs.new_zeros(frames, 1, vocab_size)], dim=1)
    text = torch.cat([text, torch.full_like(text[:1], (blank_id + 1) % vocab_size)])
    lengths = torch.cat([lengths, torch.full_like(lengths[:1], frames)])
    text_lengths = torch.cat([text_lengths, torch.full_like(text_lengths[:1], text.size(1))])
    losses = F.ctc_loss(
        log_probs, text, lengths, text_lengths, blank=blank_id, reduction="none", zero_infinity=zero_infinity
    )
    return losses[:-1]


class _CtcLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        logits: Tensor,
        lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        blank_id: int,
        zero_infinity: bool,
    ) -> Tensor:
        log_probs = logits.log_softmax(-1)
        tokens = F.pad(text, (1, 0), value=blank_id)  # (batch, 1 + length): a separate vocabulary per utterance
        index = tokens.unsqueeze(1).expand(-1, logits.size(1), -1)
        with torch.enable_grad():
            small = log_probs.gather(2, index).detach().requires_grad_()
            losses = F.ctc_loss(
                small.transpose(0, 1),
                1 + _first_occurrence(text),
                lengths,
                text_lengths,
                blank=0,
                reduction="none",
                zero_infinity=zero_infinity,
            )
            if not ctx.needs_input_grad[0]:
                return losses.detach()
            (grad_small,) = torch.autograd.grad(losses.sum(), small)
        is_counted = torch.arange(logits.size(1)) < lengths.unsqueeze(1)
        if zero_infinity:
            is_counted &= (losses.detach() != 0).unsqueeze(1) | grad_small.ne(0).any(2)
        # torch's gradient is exp(log_probs) - posterior, as if its input were a complete softmax.
        posterior = (small.detach().exp() - grad_small) * is_counted.unsqueeze(-1)
        ctx.save_for_backward(log_probs, index, posterior, is_counted)
        return losses.detach()

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_probs, index, posterior, is_counted = ctx.saved_tensors
        weight = grads[0].view(-1, 1, 1)
        grad = log_probs.exp().mul_(weight * is_counted.unsqueeze(-1))
        grad.scatter_add_(2, index, -weight * posterior)
        return grad, None, None, None, None, None


def _first_occurrence(text: Tensor) -> Tensor:
    """(batch, length): the first position of each token, so that equal tokens have equal ids."""
    return (text.unsqueeze(2) == text.unsqueeze(1)).int().argmax(2)
