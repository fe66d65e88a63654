"""A tiny recurrent scorer for search tests: its scores depend on the whole prefix and on the utterance."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tympan.decode.search import Encoded
from tympan.nn.beam_state import PER_UTTERANCE, BeamState


@dataclass(frozen=True)
class ToyState(BeamState):
    hidden: Tensor  # (U, B, dim)
    speech: Tensor = field(metadata=PER_UTTERANCE)  # (U, dim)


class ToyScorer:
    """`ending` raises eos as the prefix grows, so that searches end by themselves."""

    def __init__(self, vocab: int, *, eos: int, ending: float, seed: int, dim: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.randn(vocab, dim, generator=generator, dtype=torch.float64)
        self.mix = torch.randn(dim, dim, generator=generator, dtype=torch.float64) * 0.4
        self.out = torch.randn(dim, vocab, generator=generator, dtype=torch.float64) * 2
        self.eos, self.ending = eos, ending

    def start(self, encoded: Encoded, beams: int) -> ToyState:
        speech = torch.stack([m[: int(n)].mean(0) for m, n in zip(encoded.memory, encoded.lengths, strict=True)])
        hidden = torch.zeros(*speech.shape, dtype=torch.float64).unsqueeze(1).expand(-1, beams, -1)
        return ToyState(hidden=hidden, speech=speech)

    def step(self, tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        steps = state.hidden[..., :1] + 1  # the first unit counts
        hidden = torch.tanh(state.hidden @ self.mix + self.embed[tokens] + state.speech.unsqueeze(1))
        hidden = torch.cat([steps, hidden[..., 1:]], dim=-1)
        logits = hidden[..., 1:] @ self.out[1:]
        logits[..., self.eos] += self.ending * steps[..., 0] - 3
        return logits.log_softmax(-1), ToyState(hidden=hidden, speech=state.speech)


def toy_batch(lengths: list[int], *, vocab: int, dim: int = 7, seed: int = 0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(len(lengths), max(lengths), dim, generator=generator, dtype=torch.float64)
    log_probs = torch.randn(len(lengths), max(lengths), vocab, generator=generator, dtype=torch.float64) * 3
    return Encoded(memory=memory, lengths=torch.tensor(lengths), log_probs=log_probs.log_softmax(2))
