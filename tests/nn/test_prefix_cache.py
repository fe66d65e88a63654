"""Attention over a shared cache equals attention over each hypothesis by itself."""

from __future__ import annotations

import pytest
import torch

from tympan.nn import prefix_cache
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.masks import MASKED, causal_bias
from tympan.nn.prefix_cache import PrefixCache

UTTERANCES, BEAMS, SIZE, STEPS = 3, 4, 8, 12


@pytest.mark.parametrize("tidy_every", [1, 5, 1000])
def test_hypotheses_see_their_own_tokens_alone(tidy_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "TIDY_EVERY", tidy_every)
    torch.manual_seed(0)
    attention = MultiHeadedAttention(2, SIZE, 0.0).double().eval()
    cache = PrefixCache.empty(1, UTTERANCES, 1, SIZE, dtype=torch.float64, device=torch.device("cpu"))
    history = torch.zeros(UTTERANCES, 1, 0, SIZE, dtype=torch.float64)
    is_key = torch.zeros(UTTERANCES, 1, 0, dtype=torch.bool)
    with torch.no_grad():
        for step in range(STEPS):
            beams = history.size(1)
            token = torch.randn(UTTERANCES, beams, SIZE, dtype=torch.float64)
            is_new_key = torch.rand(UTTERANCES, beams) < 0.8 if step else torch.ones(UTTERANCES, beams).bool()
            cache = cache.extended(is_key=is_new_key)
            out = cache.attend(0, attention, token, cache.bias())

            history = torch.cat([history, token.unsqueeze(2)], dim=2)
            is_key = torch.cat([is_key, is_new_key.unsqueeze(2)], dim=2)
            bias = causal_bias(step + 1, torch.float64, torch.device("cpu")).expand(UTTERANCES * beams, 1, -1, -1)
            bias = bias.masked_fill(~is_key.flatten(0, 1)[:, None, None], MASKED)
            whole = attention.attend_to_self(history.flatten(0, 1), bias)[:, -1]
            torch.testing.assert_close(out.flatten(0, 1), whole, atol=1e-12, rtol=0)

            parents = torch.randint(0, beams, (UTTERANCES, BEAMS))
            cache = cache.reorder(parents)
            history = torch.stack([rows[order] for rows, order in zip(history, parents, strict=True)])
            is_key = torch.stack([rows[order] for rows, order in zip(is_key, parents, strict=True)])
    assert cache.length == STEPS


def test_utterances_that_finished_leave() -> None:
    torch.manual_seed(0)
    attention = MultiHeadedAttention(2, SIZE, 0.0).eval()
    cache = PrefixCache.empty(1, UTTERANCES, 2, SIZE, dtype=torch.float32, device=torch.device("cpu")).extended()
    first, second = torch.randn(2, UTTERANCES, 2, SIZE)
    with torch.no_grad():
        cache.attend(0, attention, first, cache.bias())
        kept = cache.keep(torch.tensor([2])).extended()
        alone = kept.attend(0, attention, second[2:], kept.bias())
        whole = cache.extended()
        together = whole.attend(0, attention, second, whole.bias())
    torch.testing.assert_close(alone, together[2:])


def test_what_nobody_descends_from_is_dropped() -> None:
    cache = PrefixCache.empty(1, 1, 3, SIZE, dtype=torch.float32, device=torch.device("cpu"))
    for _ in range(prefix_cache.TIDY_EVERY):
        cache = cache.extended().reorder(torch.zeros(1, 3, dtype=torch.long))
    assert cache.is_own.size(2) == 3 * prefix_cache.TIDY_EVERY
    assert cache.extended().is_own.size(2) == prefix_cache.TIDY_EVERY + 3
