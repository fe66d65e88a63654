"""N-gram scores from KenLM's binary files, through the optional package kenlm. As in ESPnet, they are log10.

KenLM can't list its n-grams, so they can't become a table on the device: every new context is scored word by word, as
in ESPnet. The scores of a context are kept, because hypotheses share contexts. An ARPA file is faster.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tympan.decode.search import Encoded
from tympan.errors import UserError
from tympan.files import explained
from tympan.nn.beam_state import STATIC, BeamState
from tympan.runtime.child import code_command
from tympan.runtime.packages import import_optional

MOST_TRIED = 1_000
"""Words that are scored to find out whether a file is damaged."""
_TRIAL = """
import json, sys, kenlm
model, state, after = kenlm.Model(sys.argv[1]), kenlm.State(), kenlm.State()
model.BeginSentenceWrite(state)
for word in json.load(sys.stdin):
    model.BaseScore(state, word, after)
    state, after = after, state
"""
MOST_CONTEXTS = 20_000
"""Contexts whose scores are kept: 400 MB for 5,000 tokens."""


@dataclass(frozen=True)
class KenlmState(BeamState):
    context: Tensor  # (U, B): number of the context in the scorer
    is_begin: bool = field(metadata=STATIC)


class KenlmFullScorer:
    """Scores the whole vocabulary (`--ngram_scorer full`)."""

    def __init__(self, path: Path, token_list: Sequence[str], *, eos: int | None, device: torch.device) -> None:
        """`eos`: the token to score as </s>. None: as `<sos/eos>`, an unknown word, as in ESPnet2."""
        self.kenlm = _kenlm()
        self.words = ["</s>" if number == eos else token for number, token in enumerate(token_list)]
        _try_in_child(path, self.words)
        with explained(path, "a file that KenLM can read"):
            self.model = self.kenlm.Model(str(path))
        self.device = device
        begin = self.kenlm.State()
        self.model.BeginSentenceWrite(begin)
        self.contexts = [begin]
        self.numbers: dict[Any, int] = {begin: 0}
        self.rows: dict[int, Tensor] = {}

    def start(self, encoded: Encoded, beams: int) -> KenlmState:
        context = torch.zeros(encoded.utterances, beams, dtype=torch.long, device=self.device)
        return KenlmState(context=context, is_begin=True)

    def step(self, tokens: Tensor, state: KenlmState) -> tuple[Tensor, KenlmState]:
        """Last tokens (U, B) -> log10 scores of every next token (U, B, V)."""
        state = self._advance(tokens, state)
        rows = [self._scores(number) for number in state.context.flatten().tolist()]
        return torch.stack(rows).view(*tokens.shape, -1).to(self.device), state

    def _advance(self, tokens: Tensor, state: KenlmState) -> KenlmState:
        if state.is_begin:
            return KenlmState(context=state.context, is_begin=False)
        pairs = zip(state.context.flatten().tolist(), tokens.flatten().tolist(), strict=True)
        following = [self._after(number, token) for number, token in pairs]
        return KenlmState(context=torch.tensor(following, device=self.device).view(tokens.shape), is_begin=False)

    def _after(self, number: int, token: int) -> int:
        context = self.kenlm.State()
        self.model.BaseScore(self.contexts[number], self.words[token], context)
        found = self.numbers.setdefault(context, len(self.contexts))
        if found == len(self.contexts):
            self.contexts.append(context)
        return found

    def _scores(self, number: int) -> Tensor:
        """(V,) on the CPU."""
        if number not in self.rows:
            if len(self.rows) >= MOST_CONTEXTS:
                self.rows.pop(next(iter(self.rows)))
            context, after = self.contexts[number], self.kenlm.State()
            self.rows[number] = torch.tensor([self.model.BaseScore(context, word, after) for word in self.words])
        return self.rows[number]


class KenlmPartScorer(KenlmFullScorer):
    """Scores only candidates (`--ngram_scorer part`)."""

    def step(self, tokens: Tensor, state: KenlmState, *, candidates: Tensor | None = None) -> tuple[Tensor, KenlmState]:
        """Last tokens (U, B) -> log10 scores of the candidates (U, B, C)."""
        if candidates is None:
            return super().step(tokens, state)
        state, after = self._advance(tokens, state), self.kenlm.State()
        rows = zip(state.context.flatten().tolist(), candidates.flatten(0, 1).tolist(), strict=True)
        scores = [
            [self.model.BaseScore(self.contexts[number], self.words[token], after) for token in row]
            for number, row in rows
        ]
        return torch.tensor(scores, device=self.device).view(candidates.shape), state


def _try_in_child(path: Path, words: Sequence[str]) -> None:
    """UserError if reading this file ends the process: KenLM maps it into memory without checking its content."""
    command = [*code_command(_TRIAL), str(path)]
    done = subprocess.run(command, input=json.dumps(list(words[:MOST_TRIED])), capture_output=True, text=True)
    if done.returncode < 0:
        raise UserError(
            f"{path}: damaged: KenLM was ended by signal {-done.returncode} while it read this file; build it again "
            "from the ARPA file"
        )


def _kenlm() -> Any:
    try:
        return import_optional("kenlm", "a binary file of KenLM")
    except UserError as reason:
        raise UserError(f"{reason}. Without it, use the ARPA file from which the binary file was built") from None
