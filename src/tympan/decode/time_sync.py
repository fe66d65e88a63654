"""Time-synchronous joint search (Yan et al. 2023): CTC prefix search whose beam is also ranked by decoder and LM.

The same algorithm as ESPnet2's BeamSearchTimeSync. Prefixes of different lengths compete in a frame, so the decoder is
run on whole prefixes: once for each that enters a beam, for all utterances together.

Shapes: T frames, V vocabulary. A prefix is a tuple of tokens that begins with sos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended
from tympan.decode.whole import Collected, WholeUtteranceSearch
from tympan.models.parts import Decoder, NextTokenModel
from tympan.models.speech_model import HasDecoder
from tympan.nn.full_precision import at_least_float32

Prefix = tuple[int, ...]
Floats = NDArray[np.float64]
NEVER = (-np.inf, -np.inf)
"""Log probability of a prefix that ends in a token, and in blank."""
PRE_BEAM_RATIO = 1.5


class PrefixScorer(Protocol):
    def __call__(self, encoded: Encoded, rows: Tensor, tokens: Tensor, lengths: Tensor, /) -> Tensor:
        """Log probabilities (prefixes, V) of the next token of each prefix (prefixes, length) of utterance `rows`."""
        ...


@dataclass
class _Utterance:
    """The search of one utterance: its beam, the prefixes of the last frame, and scores of prefixes."""

    log_probs: Floats  # (T, V)
    beam: list[Prefix]
    frame: dict[Prefix, tuple[float, float]]
    scores: dict[Prefix, float] = field(default_factory=dict)
    next_token: dict[str, dict[Prefix, Floats]] = field(default_factory=dict)
    so_far: dict[str, dict[Prefix, float]] = field(default_factory=dict)

    def score_of(self, name: str, prefix: Prefix) -> float:
        """Sum over the tokens of a prefix; the scores of its beginning are known."""
        root = prefix[:-1]
        return self.so_far[name][root] + float(self.next_token[name][root][prefix[-1]])


class TimeSyncSearch(WholeUtteranceSearch):
    """Needs the whole encoding for the decoder, so it searches at the end."""

    def __init__(
        self, scorers: Mapping[str, tuple[PrefixScorer, float]], *, ctc_weight: float, penalty: float, beam_size: int,
        sos: int, blank_id: int,
    ) -> None:  # fmt: skip
        self.scorers = scorers
        self.ctc_weight = ctc_weight
        self.penalty = penalty
        self.beam_size = beam_size
        self.sos = sos
        self.blank_id = blank_id

    @torch.inference_mode()
    def finish(self, state: Collected) -> list[list[Ended]]:
        encoded = state.joined()
        assert encoded.log_probs is not None
        first = (self.sos,)
        searches = [
            _Utterance(log_probs[:length].double().cpu().numpy(), [first], {first: (-np.inf, 0.0)})
            for log_probs, length in zip(encoded.log_probs, encoded.lengths.tolist(), strict=True)
        ]
        for frame in range(encoded.log_probs.size(1)):
            running = {row: one for row, one in enumerate(searches) if frame < len(one.log_probs)}
            self._score_beams(encoded, running)
            for one in running.values():
                self._advance(one, one.log_probs[frame])
        return [self._ended(one) for one in searches]

    def _score_beams(self, encoded: Encoded, running: Mapping[int, _Utterance]) -> None:
        """Run every scorer on the prefixes that are new in a beam."""
        for name, (scorer, _) in self.scorers.items():
            new = []
            for row, one in running.items():
                known = one.next_token.setdefault(name, {})
                so_far = one.so_far.setdefault(name, {(self.sos,): 0.0})
                for prefix in one.beam:
                    if prefix not in known:
                        new.append((row, prefix))
                        so_far.setdefault(prefix, one.score_of(name, prefix) if len(prefix) > 1 else 0.0)
            if not new:
                continue
            device = encoded.memory.device
            tokens = pad_sequence([torch.tensor(prefix) for _, prefix in new], batch_first=True).to(device)
            lengths = torch.tensor([len(prefix) for _, prefix in new], device=device)
            rows = torch.tensor([row for row, _ in new], device=device)
            log_probs = scorer(encoded, rows, tokens, lengths).double().cpu().numpy()
            for (row, prefix), values in zip(new, log_probs, strict=True):
                running[row].next_token[name][prefix] = values

    def _advance(self, one: _Utterance, log_probs: Floats) -> None:
        """One frame: extend the beam by the most probable tokens, add up what leads to the same prefix, prune."""
        count = min(int(PRE_BEAM_RATIO * self.beam_size), len(log_probs))
        candidates = np.flatnonzero(log_probs >= np.sort(log_probs)[-count]).tolist()
        beam = set(one.beam)
        after: dict[Prefix, tuple[float, float]] = {}
        # As in ESPnet2, a prefix that only repeats its last token is ranked only if blank is a candidate, too.
        reached: dict[Prefix, None] = {}
        for prefix in one.beam:
            in_token, in_blank = one.frame.get(prefix, NEVER)
            total = np.logaddexp(in_token, in_blank)
            for token in candidates:
                value = float(log_probs[token])
                if token == self.blank_id:
                    old = after.get(prefix, NEVER)
                    after[prefix] = (old[0], np.logaddexp(old[1], value + total))
                    reached[prefix] = None
                    continue
                longer = (*prefix, token)
                new_token, new_blank = after.get(longer, NEVER)
                if token == prefix[-1]:
                    new_token = np.logaddexp(new_token, value + in_blank)
                    old = after.get(prefix, NEVER)
                    after[prefix] = (np.logaddexp(old[0], value + in_token), old[1])
                else:
                    new_token = np.logaddexp(new_token, value + total)
                if longer not in beam and longer in one.frame:
                    # It was pruned in the frame before: its own paths go on, too.
                    pruned = one.frame[longer]
                    new_blank = np.logaddexp(new_blank, log_probs[self.blank_id] + np.logaddexp(*pruned))
                    new_token = np.logaddexp(new_token, value + pruned[0])
                after[longer] = (new_token, new_blank)
                reached[longer] = None
        # With a beam of one, the only other prefix may be a repetition without a blank in between, which is impossible.
        is_possible = any(np.isfinite(after[prefix]).any() for prefix in reached)
        ranked = reached if is_possible else after
        one.scores = {prefix: self._total(one, prefix, float(np.logaddexp(*after[prefix]))) for prefix in ranked}
        one.beam = sorted(one.scores, key=lambda prefix: -one.scores[prefix])[: self.beam_size]
        one.frame = after

    def _total(self, one: _Utterance, prefix: Prefix, ctc: float) -> float:
        total = self.ctc_weight * ctc + self.penalty * (len(prefix) - 1)
        if len(prefix) > 1:
            total += sum(weight * one.score_of(name, prefix) for name, (_, weight) in self.scorers.items())
        return total

    def _ended(self, one: _Utterance) -> list[Ended]:
        found = []
        for prefix in one.beam:
            scores = {"ctc": float(np.logaddexp(*one.frame[prefix]))}
            if len(prefix) > 1:
                scores |= {name: one.score_of(name, prefix) for name in self.scorers}
            found.append(Ended(prefix[1:], float(one.scores.get(prefix, 0.0)), scores))
        return found


def build_time_sync(loaded: LoadedModel, options: DecodeOptions) -> TimeSyncSearch:
    model = loaded.model
    scorers: dict[str, tuple[PrefixScorer, float]] = {}
    decoder = model.step_decoder if isinstance(model, HasDecoder) else None
    if isinstance(decoder, Decoder) and options.ctc_weight < 1.0:
        scorers["decoder"] = (_DecoderScorer(decoder), 1.0 - options.ctc_weight)
    if loaded.lm is not None and options.lm_weight != 0:
        scorers["lm"] = (_LmScorer(loaded.lm.lm), options.lm_weight)
    return TimeSyncSearch(
        scorers,
        ctc_weight=options.ctc_weight,
        penalty=options.penalty,
        beam_size=options.beam_size,
        sos=model.sos,
        blank_id=model.blank_id,
    )


@dataclass(frozen=True)
class _DecoderScorer:
    decoder: Decoder

    def __call__(self, encoded: Encoded, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        logits = self.decoder(encoded.memory[rows], encoded.lengths[rows], tokens, lengths)
        return _last(logits, lengths)


@dataclass(frozen=True)
class _LmScorer:
    lm: NextTokenModel

    def __call__(self, encoded: Encoded, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        return _last(self.lm(tokens), lengths)


def _last(logits: Tensor, lengths: Tensor) -> Tensor:
    index = (lengths - 1).view(-1, 1, 1).expand(-1, 1, logits.size(2))
    return at_least_float32(logits.gather(1, index).squeeze(1)).log_softmax(-1)
