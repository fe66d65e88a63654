"""The lexicon as a tree of phones, in tensors: the child node for each token, and the words that end at each node."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.text.lexicon import Phones

logger = logging.getLogger(__name__)

ROOT = 0
FEW_WORDS = 0.01
"""Share of words that may be skipped without a warning."""
NO_WORD = -1


@dataclass(frozen=True)
class LexiconTree:
    """N nodes; node 0 is the root, where every word begins."""

    words: tuple[str, ...]
    bits: int
    """A key is a node shifted left by this, plus a token."""
    key: Tensor  # (N - 1,) ascending
    child: Tensor  # (N - 1,) the node that this token leads to
    token: Tensor  # (N,) the token that leads here; the root has -1
    first_word: Tensor  # (N + 1,) where the words that end at a node begin in `word`
    word: Tensor  # (pronunciations,) word indices

    @property
    def nodes(self) -> int:
        return self.token.numel()

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The child nodes for tokens, and whether they exist."""
        wanted = nodes << self.bits | tokens
        index = torch.searchsorted(self.key, wanted).clamp_(max=len(self.key) - 1)
        return self.child[index], self.key[index] == wanted

    def ending(self, nodes: Tensor) -> Tensor:
        """Indices of the words that end at nodes (...) -> (..., H), padded with NO_WORD."""
        first, end = self.first_word[nodes].unsqueeze(-1), self.first_word[nodes + 1].unsqueeze(-1)
        index = first + torch.arange(max(1, int((end - first).max())), device=nodes.device)
        return torch.where(index < end, self.word[index.clamp(max=len(self.word) - 1)], NO_WORD)


def build_tree(
    pronunciations: Mapping[str, Sequence[Phones]], token_ids: Mapping[str, int], *, device: torch.device, source: str
) -> LexiconTree:
    """The tree of all pronunciations whose phones are tokens of the model."""
    children: dict[tuple[int, int], int] = {}
    token_of = [-1]
    ending: list[list[int]] = [[]]
    words = tuple(pronunciations)
    covered = set()
    for number, word in enumerate(words):
        for phones in pronunciations[word]:
            if any(phone not in token_ids for phone in phones):
                continue
            node = ROOT
            for phone in phones:
                arc = (node, token_ids[phone])
                if arc not in children:
                    children[arc] = len(token_of)
                    token_of.append(arc[1])
                    ending.append([])
                node = children[arc]
            if number not in ending[node]:
                ending[node].append(number)
            covered.add(number)
    if len(covered) < len(words):
        missing = next(word for number, word in enumerate(words) if number not in covered)
        # A few entries such as <sil> are usual and no reason for a warning at every start.
        level = logging.WARNING if len(words) - len(covered) > FEW_WORDS * len(words) else logging.DEBUG
        logger.log(
            level,
            "%s: %d of %d words are skipped because the model lacks some of their phones, for example: %s",
            source, len(words) - len(covered), len(words), missing,
        )  # fmt: skip
    if not covered:
        raise UserError(f"{source}: the model lacks phones of every word. It was probably trained with another lexicon")
    bits = max(token_ids.values()).bit_length()
    arcs = sorted((node << bits | token, child) for (node, token), child in children.items())
    counts = [len(numbers) for numbers in ending]
    return LexiconTree(
        words=words,
        bits=bits,
        key=torch.tensor([key for key, _ in arcs], device=device),
        child=torch.tensor([child for _, child in arcs], device=device),
        token=torch.tensor(token_of, device=device),
        first_word=torch.tensor([0, *itertools.accumulate(counts)], device=device),
        word=torch.tensor([number for numbers in ending for number in numbers], device=device),
    )
