"""Keys and values of a beam search's tokens, stored once while hypotheses come and go.

Hypotheses of an utterance share prefixes. Copying the cache of a parent to its children costs more than the attention
itself. So the key and value of every token are stored once per utterance, and a mask marks the tokens of each
hypothesis. The beams of an utterance are then queries to the same keys: one product instead of many.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tympan.nn.beam_state import PER_UTTERANCE, STATIC, BeamState
from tympan.nn.masks import MASKED

TIDY_EVERY = 5
"""Number of tokens between two removals of unused entries: after a removal few entries per token are left."""

FIRST_CAPACITY = 128
"""Entries of a cache of fixed shape. It doubles when the entries in use, which are about two per token, fill half."""


class StepAttention(Protocol):
    """Self-attention that can be computed one token at a time."""

    def project_step(self, x: Tensor, /) -> tuple[Tensor, Tensor, Tensor]:
        """The newest tokens (U, B, size) -> queries (U, heads, B, head size), keys and values (U, B, size)."""
        ...

    def split_heads(self, x: Tensor, /) -> Tensor:
        """(U, entries, size) -> (U, heads, entries, head size)."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, /) -> Tensor:
        """(U, B, size) from projected queries, keys and values."""
        ...


@dataclass(frozen=True)
class PrefixCache(BeamState):
    """U utterances, B beams. A step writes into the tensors of the cache that it extends: do not reuse an old cache."""

    is_own: Tensor  # (U, B, entries), whether the hypothesis descends from the entry
    keys: tuple[Tensor, ...] = field(metadata=PER_UTTERANCE)  # per layer: (U, capacity, size)
    values: tuple[Tensor, ...] = field(metadata=PER_UTTERANCE)
    length: int = field(metadata=STATIC)
    """Number of tokens of each hypothesis."""

    @classmethod
    def empty(
        cls, layers: int, utterances: int, beams: int, size: int, *, dtype: torch.dtype, device: torch.device
    ) -> PrefixCache:
        nothing = torch.empty((utterances, 0, size), dtype=dtype, device=device)
        is_own = torch.empty((utterances, beams, 0), dtype=torch.bool, device=device)
        return cls(is_own, (nothing,) * layers, (nothing,) * layers, 0)

    def extended(self, is_key: Tensor | None = None) -> PrefixCache:
        """Add an entry for the next token of every hypothesis, which `attend` fills.

        `is_key` (U, B): tokens that may be attended to; all of them if it is not given.
        """
        cache = self._tidied() if self.length and self.length % TIDY_EVERY == 0 else self
        utterances, beams, entries = cache.is_own.shape
        new = torch.eye(beams, dtype=torch.bool, device=cache.is_own.device).expand(utterances, beams, beams)
        if is_key is not None:
            new = new & is_key.unsqueeze(1)
        missing = entries + beams - cache.keys[0].size(1)
        if missing > 0:
            room = max(missing, entries)
            keys, values = (tuple(pad(t, (0, 0, 0, room)) for t in tensors) for tensors in (cache.keys, cache.values))
            cache = replace(cache, keys=keys, values=values)
        return replace(cache, is_own=torch.cat([cache.is_own, new], dim=2), length=self.length + 1)

    def bias(self) -> Tensor:
        """(U, 1, B, entries): bias for attention scores, so that hypotheses attend only to their own tokens."""
        bias = torch.zeros(self.is_own.shape, dtype=self.keys[0].dtype, device=self.is_own.device)
        return bias.masked_fill_(~self.is_own, MASKED).unsqueeze(1)

    def attend(self, layer: int, attention: StepAttention, x: Tensor, bias: Tensor) -> Tensor:
        """The newest tokens x (U, B, size) attend to all tokens of their hypotheses, including themselves."""
        beams, entries = self.is_own.shape[1:]
        q, k, v = attention.project_step(x)
        keys, values = self.keys[layer][:, :entries], self.values[layer][:, :entries]
        keys[:, entries - beams :] = k
        values[:, entries - beams :] = v
        return attention.attend(q, attention.split_heads(keys), attention.split_heads(values), bias)

    def _tidied(self) -> PrefixCache:
        """Remove entries that no hypothesis uses; utterances with fewer used entries keep some unused ones."""
        is_used = self.is_own.any(1)
        count = int(is_used.sum(1).max())
        chosen = is_used.sort(dim=1, descending=True, stable=True).indices[:, :count]
        index = chosen.unsqueeze(2).expand(-1, -1, self.keys[0].size(2))
        return replace(
            self,
            is_own=self.is_own.gather(2, chosen.unsqueeze(1).expand(-1, self.is_own.size(1), -1)),
            keys=tuple(t.gather(1, index) for t in self.keys),
            values=tuple(t.gather(1, index) for t in self.values),
        )

    def with_fixed_shapes(self) -> FixedPrefixCache:
        assert self.length == 0
        utterances, beams, _ = self.is_own.shape
        capacity = max(FIRST_CAPACITY, 4 * beams)
        return FixedPrefixCache(
            is_own=self.is_own.new_zeros((utterances, beams, capacity)),
            keys=tuple(t.new_zeros((utterances, capacity, t.size(2))) for t in self.keys),
            values=tuple(t.new_zeros((utterances, capacity, t.size(2))) for t in self.values),
            length=0,
            filled=0,
        )


@dataclass(frozen=True)
class FixedPrefixCache(PrefixCache):
    """The same with tensors of fixed shapes: unused entries are masked. The capacity doubles when it is exceeded."""

    filled: int = field(default=0, metadata=STATIC)
    """Number of entries that were written."""

    def extended(self, is_key: Tensor | None = None) -> FixedPrefixCache:
        cache = self
        _, beams, capacity = cache.is_own.shape
        if cache.filled + beams > capacity:
            cache = cache._tidied()
            if 2 * cache.filled > capacity:
                cache = cache._doubled()
        new = torch.eye(beams, dtype=torch.bool, device=cache.is_own.device).expand(len(cache.is_own), beams, beams)
        if is_key is not None:
            new = new & is_key.unsqueeze(1)
        is_own = cache.is_own.clone()
        is_own[:, :, cache.filled : cache.filled + beams] = new
        return replace(cache, is_own=is_own, length=self.length + 1, filled=cache.filled + beams)

    def attend(self, layer: int, attention: StepAttention, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = attention.project_step(x)
        keys, values = self.keys[layer], self.values[layer]
        newest = slice(self.filled - self.is_own.size(1), self.filled)
        keys[:, newest] = k
        values[:, newest] = v
        return attention.attend(q, attention.split_heads(keys), attention.split_heads(values), bias)

    def with_fixed_shapes(self) -> FixedPrefixCache:
        return self

    def _tidied(self) -> FixedPrefixCache:
        """Move the entries in use to the front."""
        is_used = self.is_own.any(1)
        order = is_used.sort(dim=1, descending=True, stable=True).indices
        index = order.unsqueeze(2).expand(-1, -1, self.keys[0].size(2))
        return replace(
            self,
            is_own=self.is_own.gather(2, order.unsqueeze(1).expand_as(self.is_own)),
            keys=tuple(t.gather(1, index) for t in self.keys),
            values=tuple(t.gather(1, index) for t in self.values),
            filled=int(is_used.sum(1).max()),
        )

    def _doubled(self) -> FixedPrefixCache:
        capacity = self.is_own.size(2)
        return replace(
            self,
            is_own=pad(self.is_own, (0, capacity)),
            keys=tuple(pad(t, (0, 0, 0, capacity)) for t in self.keys),
            values=tuple(pad(t, (0, 0, 0, capacity)) for t in self.values),
        )
