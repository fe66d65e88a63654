"""Bayes risk CTC (Tian et al. 2023): paths that emit tokens late count less, so the model learns to emit them early.

The paths of a transcript are grouped by the frame in which a token ends, and each group is weighted by exp(-risk). With
a risk of zero the loss is that of CTC. Everything is computed in float64, as ESPnet2's version with k2 does.

Shapes: B utterances, T frames, U tokens, S = 2U + 1 states (blank, token, blank, token, ..., blank).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

NEVER = -1e30
"""Log probability of what can't happen. Finite, so that gradients are never NaN."""


@dataclass(frozen=True)
class BayesRisk:
    """`exp`: the risk grows with the frame. `exp_rel`: it counts from the most probable end of each token.

    `end`: groups by the end of the last token; `end_mean`: the mean over all tokens, grouped by the end of each.
    """

    strategy: Literal["exp", "exp_rel"] = "exp"
    groups: Literal["end", "end_mean"] = "end"
    factor: float = 0.0

    def __call__(self, logits: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor, *, blank_id: int) -> Tensor:
        """(B,) losses; 0 for an utterance with too few frames. text (B, U) has ids from 0 on."""
        states = _states(text, blank_id=blank_id)
        emissions = logits.double().log_softmax(-1).gather(2, states.unsqueeze(1).expand(-1, logits.size(1), -1))
        can_skip = _can_skip(states, blank_id=blank_id)
        into = _forward(emissions, can_skip)
        out = _backward(emissions, can_skip, lengths=lengths, text_lengths=text_lengths)
        is_frame = torch.arange(logits.size(1), device=logits.device) < lengths.unsqueeze(1)
        # Log probability that a token ends in a frame: (B, T, U)
        ends = torch.where(is_frame.unsqueeze(2), into[:, :, 1::2] + out, NEVER)
        totals = (ends - self._risks(ends, lengths)).logsumexp(1)  # (B, U)
        losses = -self._over_tokens(totals, text_lengths)
        no_text = -torch.where(is_frame, emissions[:, :, 0], 0.0).sum(1)
        losses = torch.where(text_lengths == 0, no_text, losses)
        return torch.where(losses < -NEVER / 2, losses, 0.0).to(logits.dtype)

    def _risks(self, ends: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, 1 or U)."""
        frames = torch.arange(1, ends.size(1) + 1, device=ends.device, dtype=ends.dtype).view(1, -1, 1)
        if self.strategy == "exp_rel":
            frames = frames - ends.argmax(1, keepdim=True)
        return self.factor * frames / lengths.clamp(min=1).view(-1, 1, 1)

    def _over_tokens(self, totals: Tensor, text_lengths: Tensor) -> Tensor:
        if self.groups == "end":
            return totals.gather(1, (text_lengths.clamp(min=1) - 1).unsqueeze(1)).squeeze(1)
        is_token = torch.arange(totals.size(1), device=totals.device) < text_lengths.unsqueeze(1)
        return torch.where(is_token, totals, 0.0).sum(1) / text_lengths.clamp(min=1)


def _states(text: Tensor, *, blank_id: int) -> Tensor:
    """(B, S) token of each state."""
    states = text.new_full((text.size(0), 2 * text.size(1) + 1), blank_id)
    states[:, 1::2] = text
    return states


def _can_skip(states: Tensor, *, blank_id: int) -> Tensor:
    """(B, S): whether the state may follow the one two before it, without the blank between different tokens."""
    before = torch.nn.functional.pad(states[:, :-2], (2, 0), value=blank_id)
    return (states != blank_id) & (states != before)


def _forward(emissions: Tensor, can_skip: Tensor) -> Tensor:
    """(B, T, S): log probability of all paths up to and with this state and frame."""
    now = torch.full_like(emissions[:, 0], NEVER)
    now = torch.cat([emissions[:, 0, :2], now[:, 2:]], dim=1)
    rows = [now]
    for frame in range(1, emissions.size(1)):
        one, two = _moved(now, 1), torch.where(can_skip, _moved(now, 2), NEVER)
        now = torch.stack([now, one, two]).logsumexp(0) + emissions[:, frame]
        rows.append(now)
    return torch.stack(rows, dim=1)


def _backward(emissions: Tensor, can_skip: Tensor, *, lengths: Tensor, text_lengths: Tensor) -> Tensor:
    """(B, T, U): log probability of all paths after this frame that leave the token's state right then."""
    frames, count = emissions.shape[1:]
    position = torch.arange(count, device=emissions.device)
    is_last = (position >= 2 * text_lengths.unsqueeze(1) - 1) & (position <= 2 * text_lengths.unsqueeze(1))
    final = torch.where(is_last, 0.0, NEVER).to(emissions.dtype)
    skips = torch.nn.functional.pad(can_skip[:, 2:], (0, 2))
    after = torch.full_like(final, NEVER)
    rows: list[Tensor] = []
    for frame in reversed(range(frames)):
        is_end = (lengths == frame + 1).unsqueeze(1)
        if frame + 1 < frames:
            coming = after + emissions[:, frame + 1]
            left = torch.logaddexp(_moved(coming, -1), torch.where(skips, _moved(coming, -2), NEVER))
            stays = coming
        else:
            left = stays = torch.full_like(final, NEVER)
        left = torch.where(is_end, final, left)
        after = torch.where(is_end, final, torch.logaddexp(left, stays))
        rows.append(left[:, 1::2])
    return torch.stack(rows[::-1], dim=1)


def _moved(row: Tensor, steps: int) -> Tensor:
    """(B, S) moved by `steps` states, NEVER where none comes."""
    count = row.size(1)
    if steps > 0:
        return torch.nn.functional.pad(row, (steps, 0), value=NEVER)[:, :count]
    return torch.nn.functional.pad(row, (0, -steps), value=NEVER)[:, -steps:]
