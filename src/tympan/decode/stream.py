"""Recognition of audio that arrives in pieces, such as from a microphone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tympan.decode.ctc_search import GreedySearch
from tympan.decode.encode import encoded_piece
from tympan.decode.hypothesis import Hypothesis
from tympan.decode.search import Encoded, Search
from tympan.decode.whole import Collected, WholeUtteranceSearch
from tympan.errors import UserError
from tympan.models.streaming import EncoderStream

if TYPE_CHECKING:
    from tympan.decode.recognizer import Recognizer


class RecognitionStream:
    """Recognizes one recording piece by piece. `recognizer.stream()` makes one.

    The final hypothesis is that of `recognizer(audio)` for the whole recording, up to rounding. Recordings are not cut
    at pauses. Searches that need the whole recording, such as `joint`, run at the end; until then, the texts are those
    of the search `ctc_greedy`, if the model has CTC.
    """

    def __init__(self, recognizer: Recognizer) -> None:
        """UserError if the model can't recognize audio in pieces."""
        model = recognizer.loaded.model
        self._recognizer = recognizer
        self._encoder = EncoderStream(model)
        self._search: Search[Any] = recognizer.search
        self._state = self._search.start(1)
        self._early: Search[Any] = self._search
        if isinstance(self._search, WholeUtteranceSearch) and model.has_ctc:
            self._early = GreedySearch(blank_id=model.blank_id)
        self._early_state = self._early.start(1)
        self._pieces = Collected(1)
        self._has_sound = False
        self._has_ended = False
        self._samples = 0

    @property
    def duration_s(self) -> float:
        """Seconds of audio so far."""
        return self._samples / self._recognizer.rate

    def accept(self, samples: np.ndarray | Sequence[float], *, rate: int) -> Hypothesis:
        """Take the next samples (time,) or (time, channels), and return the best hypothesis so far, without times.

        Later pieces may change it. The text is delayed, because the encoder waits for all frames of its next block.
        """
        if rate != self._recognizer.rate:
            raise UserError(f"the stream needs samples at the model's rate, {self._recognizer.rate} Hz, found {rate}")
        samples = np.asarray(samples)
        if len(samples):
            self._take(torch.from_numpy(self._recognizer.reader.samples_of(samples)), is_last=False)
        return self.partial()

    def partial(self) -> Hypothesis:
        """The best hypothesis so far."""
        if not self._has_sound:
            return self._recognizer.silence()
        (ended,) = self._early.partial(self._early_state)
        return self._recognizer.hypothesis(ended)

    def finish(self) -> Hypothesis:
        """The final hypothesis, with times. The stream accepts no more samples."""
        self._take(torch.zeros(0), is_last=True)
        self._has_ended = True
        if not self._has_sound or not self._pieces.pieces:
            return self._recognizer.silence()
        return self._recognizer.hypotheses(self._pieces.joined(), self._search.finish(self._state))[0][0]

    @torch.inference_mode()
    def _take(self, samples: Tensor, *, is_last: bool) -> None:
        if self._has_ended:
            raise UserError("the stream has ended: make a new one with recognizer.stream() for the next recording")
        self._samples += len(samples)
        self._has_sound = self._has_sound or bool(samples.any())
        loaded = self._recognizer.loaded
        wide = torch.float64 if loaded.dtype == torch.float64 else torch.float32
        out = self._encoder.accept(samples.to(wide).to(loaded.device), is_last=is_last)
        if out.size(1) == 0:
            return
        piece = encoded_piece(loaded, out)
        self._state = self._search.accept(self._state, piece)
        self._early_state = self._state if self._early is self._search else self._early.accept(self._early_state, piece)
        # Times need the posteriors only
        self._pieces = self._pieces.add(Encoded(piece.memory[:, :, :0], piece.lengths, piece.log_probs))
