"""The lexicon as a tree of phones, in tensors: where a token leads, and which words end there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.text.lexicon import Phones

ROOT = 0
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
    ending: Tensor  # (N, H) numbers of the words that end here, the others NO_WORD

    @property
    def nodes(self) -> int:
        return self.token.numel()

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The nodes that tokens lead to, and whether they do."""
        wanted = nodes << self.bits | tokens
        place = torch.searchsorted(self.key, wanted).clamp_(max=len(self.key) - 1)
        return self.child[place], self.key[place] == wanted


def build_tree(
    pronunciations: Mapping[str, Sequence[Phones]], token_ids: Mapping[str, int], *, device: torch.device, source: str
) -> LexiconTree:
    """The tree of all pronunciations whose phones are tokens of the model."""
    children: dict[tuple[int, int], int] = {}
    token_of = [-1]
    ending: list[list[int]] = [[]]
    words = tuple(pronunciations)
    is_sayable = [False] * len(words)
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
            is_sayable[number] = True
    if not any(is_sayable):
        raise UserError(f"{source}: the model has the phones of none of its words: was it trained with another?")
    bits = max(token_ids.values()).bit_length()
    arcs = sorted((node << bits | token, child) for (node, token), child in children.items())
    width = max(map(len, ending))
    return LexiconTree(
        words=words,
        bits=bits,
        key=torch.tensor([key for key, _ in arcs], device=device),
        child=torch.tensor([child for _, child in arcs], device=device),
        token=torch.tensor(token_of, device=device),
        ending=torch.tensor([row + [NO_WORD] * (width - len(row)) for row in ending], device=device),
    )
