"""The base of searches that need the whole encoding of an utterance: `accept` collects, `finish` searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tympan.decode.search import Encoded, Ended


@dataclass(frozen=True)
class Collected:
    """The pieces of an encoding, in order of arrival."""

    utterances: int
    pieces: tuple[Encoded, ...] = ()

    def add(self, piece: Encoded) -> Collected:
        return Collected(self.utterances, (*self.pieces, piece))

    def joined(self) -> Encoded:
        """One encoding of all frames."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        log_probs = [piece.log_probs for piece in self.pieces]
        return Encoded(
            memory=_joined([piece.memory for piece in self.pieces], [piece.lengths for piece in self.pieces]),
            lengths=torch.stack([piece.lengths for piece in self.pieces]).sum(0),
            log_probs=_joined([part for part in log_probs if part is not None], [p.lengths for p in self.pieces])
            if None not in log_probs
            else None,
        )


class WholeUtteranceSearch:
    """A subclass defines `finish(state)`."""

    def start(self, utterances: int) -> Collected:
        return Collected(utterances)

    def accept(self, state: Collected, encoded: Encoded) -> Collected:
        return state.add(encoded)

    def partial(self, state: Collected) -> list[Ended]:
        """Empty hypotheses: there is no result before the end."""
        return [Ended((), 0.0, {})] * state.utterances


def _joined(pieces: Sequence[Tensor], lengths: Sequence[Tensor]) -> Tensor:
    """Concatenate (U, T, ...) pieces in time for each utterance, without the padding between them."""
    counts = [length.tolist() for length in lengths]
    rows = [
        torch.cat([piece[row, : count[row]] for piece, count in zip(pieces, counts, strict=True)])
        for row in range(len(pieces[0]))
    ]
    return pad_sequence(rows, batch_first=True)
