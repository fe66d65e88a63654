"""The recogniser: audio in, text with times out. Batched, bounded in memory, the same for any batch."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tympan.data.audio import read_audio, resample
from tympan.decode.alignment import Aligned, AlignedToken, align_tokens
from tympan.decode.audio_input import MAX_CHANNELS, AudioInput, check_samples, samples_of
from tympan.decode.ended import Ended
from tympan.decode.given_text import GivenText, read_given_text
from tympan.decode.hypothesis import Hypothesis, Piece, join_pieces
from tympan.decode.load import LoadedModel, load_model
from tympan.decode.model_files import ModelFiles, find_model
from tympan.decode.pauses import cut_at_pauses
from tympan.decode.pieces_alignment import align_pieces
from tympan.decode.plan import plan_by_length
from tympan.decode.scorer import Encoded
from tympan.decode.searcher import Searcher
from tympan.decode.settings import DecodeSettings
from tympan.errors import UserError
from tympan.models.encoder.packed import group_by_length
from tympan.runtime.device import named_device
from tympan.text.tokenizer import SPACE
from tympan.text.words import join_words

CPU_SECONDS, CPU_PADDING = 20.0, 0.05
"""An encoder that pays for padding on a CPU takes this much audio at once, with this share of padding: a sentence keeps
it busy, and padding costs as much as speech. The search takes the whole batch.
"""

MIN_PIECE_S = 1.0
"""Words would be cut in two, and the encoder could make no frame of a piece."""

MAX_ALIGNMENT_CELLS = 2_000_000_000
"""Frames times states: a byte each."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds on memory: utterances in a batch, their padded seconds together, and the longest piece of a recording
    (0: recordings are never cut).
    """

    batch_size: int = 16
    max_batch_s: float = 240.0
    max_piece_s: float = 30.0

    def __post_init__(self) -> None:
        mistakes = []
        if self.batch_size < 1:
            mistakes.append(f"batch_size must be at least 1, found {self.batch_size}")
        if not self.max_batch_s > 0:
            mistakes.append(f"max_batch_s must be a positive number of seconds, found {self.max_batch_s}")
        if self.max_piece_s != 0 and not MIN_PIECE_S <= self.max_piece_s < math.inf:
            mistakes.append(
                f"max_piece_s must be {MIN_PIECE_S:g} or more seconds, or 0 (never cut), found {self.max_piece_s}"
            )
        if mistakes:
            raise UserError("\n".join(mistakes))


class Recognizer:
    """`Recognizer.from_pretrained(folder)("a.wav").text`"""

    def __init__(self, loaded: LoadedModel, settings: DecodeSettings, *, limits: BatchLimits | None = None) -> None:
        self.loaded = loaded
        self.settings = settings
        self.limits = limits or BatchLimits()
        self.searcher = Searcher(
            loaded.model, settings, lm=loaded.lm, ngram=loaded.ngram, lexicon_search=loaded.lexicon_search
        )

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        dtype: str = "float32",
        allow_import: bool = False,
        limits: BatchLimits | None = None,
        **settings: Any,
    ) -> Recognizer:
        """A folder that `tympan pack` made, an experiment directory, or OWNER/NAME on a model hub.

        `settings` are fields of DecodeSettings, over those that the folder brings.
        """
        files = find_model(model)
        known = [item.name for item in dataclasses.fields(DecodeSettings)]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise UserError(f"there is no decode setting '{unknown[0]}'; known: {', '.join(known)}")
        _check_asked_models(files, settings)
        chosen = DecodeSettings(**{**files.settings, **settings})
        loaded = load_model(files, chosen, device=named_device(device), dtype=dtype, allow_import=allow_import)
        return cls(loaded, chosen, limits=limits)

    @property
    def rate(self) -> int:
        """Samples a second that the model hears."""
        return self.loaded.input.rate

    @property
    def space_symbol(self) -> str:
        """The token that represents a space."""
        return self.loaded.codec.tokenizer.space_symbol or SPACE

    @overload
    def __call__(self, audio: AudioInput, *, rate: int | None = None) -> Hypothesis: ...

    @overload
    def __call__(self, audio: list[AudioInput], *, rate: int | None = None) -> list[Hypothesis]: ...

    def __call__(
        self, audio: AudioInput | list[AudioInput], *, rate: int | None = None
    ) -> Hypothesis | list[Hypothesis]:
        """The best hypothesis for a path, samples (with `rate`), or (samples, rate); a list of them gives a list."""
        if isinstance(audio, list):
            found = dict(self.recognize([self._read_item(item, place, rate) for place, item in enumerate(audio)]))
            return [found[place][0] for place in range(len(audio))]
        samples = self.read(audio, rate=rate)
        self.check_length(samples)
        ((_, hypotheses),) = self.recognize([samples])
        return hypotheses[0]

    def read(self, audio: AudioInput, *, rate: int | None = None) -> np.ndarray:
        """Samples (time,) at the model's rate; of several channels the first."""
        if isinstance(audio, str | os.PathLike):
            return self.read_source(Path(audio))
        given = samples_of(audio, rate)
        return given.samples if given.rate == self.rate else resample(given.samples, given.rate, self.rate)

    def read_source(
        self,
        source: str | os.PathLike[str],
        *,
        start_s: float = 0.0,
        end_s: float | None = None,
        base: Path | None = None,
        allow_pipes: bool = False,
    ) -> np.ndarray:
        """A file (a Path), or what a line of wav.scp names (a string), or a part of it, likewise."""
        samples = read_audio(
            source,
            rate=self.rate,
            channel=0,
            start_s=start_s,
            end_s=end_s,
            base=base,
            allow_pipes=allow_pipes,
        ).samples
        try:
            check_samples(samples, remedy="write the file as 16-bit PCM, or scale it")
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        return samples

    def take_array(self, array: np.ndarray) -> np.ndarray:
        """Stored samples at the model's rate, or stored features, as `recognize` takes them."""
        if array.ndim == 2 and self.loaded.input.wants_features:
            if not np.isfinite(array).all():
                raise UserError("the features hold values that are not finite numbers (nan or inf)")
            return array
        if array.ndim == 2 and array.shape[1] > MAX_CHANNELS:
            raise UserError(f"the model hears audio, and this is a matrix {array.shape} of features: give recordings")
        return samples_of(array, self.rate).samples

    def check_length(self, speech: np.ndarray) -> None:
        """UserError for speech that makes no encoder frame."""
        length = len(speech)
        if self.loaded.input.wants_features and speech.ndim == 1:
            length = int(self.duration_s(speech) * 100)
        if length == 0 or int(self.loaded.model.output_lengths(torch.tensor([length]))) < 1:
            raise UserError(f"too short: {self.duration_s(speech):.3f} s make no encoder frame")

    def duration_s(self, speech: np.ndarray) -> float:
        """Of samples (time,), or of features (frames, size)."""
        return len(speech) * (1 / self.rate if speech.ndim == 1 else self.loaded.input.feature_shift_s)

    def recognize(self, samples: Sequence[np.ndarray]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """(place, n-best) for each recording (time,) or features (frames, size), the longest first: that wastes little.

        A recording longer than `max_piece_s` is cut at pauses; it gets one hypothesis, its pieces joined.
        """
        cuts = [self._cut(item) for item in samples]
        pieces = [(place, start, end) for place, parts in enumerate(cuts) for start, end in parts]
        done: dict[int, dict[int, list[Hypothesis]]] = {}
        for (place, start, _), hypotheses in self._decoded(samples, pieces):
            done.setdefault(place, {})[start] = hypotheses
            if len(done[place]) == len(cuts[place]):
                yield place, self._joined(done.pop(place))

    def decode(self, inputs: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """N-best lists of one batch: samples (time,), or features (frames, size) for a model trained on those."""
        encoded = self.encode(inputs)
        # A decoder may say blank where CTC does not keep it from it: it is nothing to read.
        blank_id = self.loaded.model.blank_id
        found = [
            [ended.without(blank_id) for ended in hypotheses[: self.settings.nbest]]
            for hypotheses in self.searcher(encoded)
        ]
        if not all(found):
            raise UserError(
                "the model's scores are not finite numbers, so there is no hypothesis (weights, or --dtype)"
            )
        best = [hypotheses[0].token_ids for hypotheses in found]
        return [
            [self._hypothesis(ended, aligned if rank == 0 else None) for rank, ended in enumerate(hypotheses)]
            for hypotheses, aligned in zip(found, self._align(encoded, best), strict=True)
        ]

    @torch.inference_mode()
    def encode(self, inputs: Sequence[np.ndarray]) -> Encoded:
        """A batch through features and encoder. An input too short for one frame is a UserError."""
        prepared = self.loaded.input.prepare(inputs)
        lengths = [len(item) for item in prepared]
        frames = self.loaded.model.output_lengths(torch.tensor(lengths, device=self.loaded.device))
        if int(frames.min()) < 1:
            raise UserError(f"{min(lengths)} samples or frames are too short: the encoder makes no frame of them")
        seconds = [self.duration_s(item) for item in inputs]
        groups: Sequence[Sequence[int]] = [range(len(inputs))]
        if self.loaded.device.type == "cpu" and not self.loaded.model.packs_batches:
            groups = group_by_length(seconds, max_padding=CPU_PADDING, max_total=CPU_SECONDS)
        ctc = self.loaded.model.ctc
        outputs: dict[int, Tensor] = {}
        for group in groups:
            speech, group_lengths = _pad([prepared[place] for place in group], self.loaded.device, self.loaded.dtype)
            encoded = self.loaded.model.encode(speech, group_lengths)
            for place, out, length in zip(group, encoded.out, encoded.lengths.tolist(), strict=True):
                outputs[place] = out[:length]
        ordered = [outputs[place] for place in range(len(inputs))]
        memory = pad_sequence(ordered, batch_first=True)
        return Encoded(
            memory=memory,
            lengths=torch.tensor([len(out) for out in ordered], device=memory.device),
            log_probs=None if ctc is None else _log_posteriors(ctc, ordered),
        )

    def align(self, audio: AudioInput, text: str) -> Hypothesis:
        """When each token of a given text is said; the score is the log probability of the best alignment.

        An array holds samples at the model's rate, or features.
        """
        samples = audio if isinstance(audio, np.ndarray) else self.read(audio)
        given = self.given_text(text)
        if self.loaded.model.ctc is None:
            raise UserError("alignment needs CTC, and this model was trained without (ctc_weight 0)")
        self.check_length(samples)
        shift = self.loaded.input.frame_shift_s
        about_frames = int(self.duration_s(samples) / shift)
        if about_frames * (2 * len(given.ids) + 1) > MAX_ALIGNMENT_CELLS:
            raise UserError(
                f"{about_frames} frames and {len(given.ids)} tokens are too many for one alignment: "
                "cut the recording (segments)"
            )
        pieces = ((start / self.rate, self.encode([samples[start:end]])) for start, end in self._cut(samples))
        found = align_pieces(pieces, given.ids, blank_id=self.loaded.model.blank_id, frame_shift_s=shift)
        if found.aligned is None:
            raise UserError(
                f"the text has {len(given.ids)} tokens, more than the recording's {found.frames} encoder frames "
                "can hold"
            )
        log_prob = found.aligned.log_prob
        ended = Ended(given.ids, log_prob, {"ctc": log_prob}, words=given.words)
        hypothesis = self._hypothesis(ended, found.aligned)
        return dataclasses.replace(hypothesis, text=given.text, tokens=given.tokens, times=found.times)

    def given_text(self, text: str) -> GivenText:
        """The tokens of a text, and which of them the model does not know; UserError if it knows none."""
        return read_given_text(text, self.loaded.codec)

    def _read_item(self, audio: AudioInput, place: int, rate: int | None) -> np.ndarray:
        if isinstance(audio, numbers.Real):
            raise UserError("a list holds recordings: give samples as an array, numpy.array(samples)")
        try:
            samples = self.read(audio, rate=rate)
            self.check_length(samples)
        except UserError as error:
            raise UserError(f"recording [{place}] of the list: {error}") from None
        return samples

    def _decoded(
        self, samples: Sequence[np.ndarray], pieces: Sequence[tuple[int, int, int]]
    ) -> Iterator[tuple[tuple[int, int, int], list[Hypothesis]]]:
        """Each of `pieces` (place in `samples`, start, end) with its n-best. Digital silence has no text."""
        arrays = [samples[place][start:end] for place, start, end in pieces]
        heard = [number for number, array in enumerate(arrays) if array.ndim == 2 or array.any()]
        for number in sorted(set(range(len(pieces))) - set(heard)):
            yield pieces[number], [self._silence()]
        limits = self.limits
        seconds = [self.duration_s(arrays[number]) for number in heard]
        for batch in plan_by_length(seconds, batch_size=limits.batch_size, max_total=limits.max_batch_s):
            numbers = [heard[place] for place in batch]
            for number, hypotheses in zip(numbers, self.decode([arrays[n] for n in numbers]), strict=True):
                yield pieces[number], hypotheses

    def _cut(self, speech: np.ndarray) -> list[tuple[int, int]]:
        if speech.ndim == 2 or self.limits.max_piece_s <= 0:
            return [(0, len(speech))]
        return cut_at_pauses(speech, self.rate, max_s=self.limits.max_piece_s)

    def _align(self, encoded: Encoded, texts: Sequence[Sequence[int]]) -> list[Aligned | None]:
        if encoded.log_probs is None:
            return [None] * len(texts)
        return align_tokens(encoded.log_probs, encoded.lengths, texts, blank_id=self.loaded.model.blank_id)

    def _hypothesis(self, ended: Ended, aligned: Aligned | None) -> Hypothesis:
        tokens = self.loaded.codec.vocabulary.ids2tokens(ended.token_ids)
        shift = self.loaded.input.frame_shift_s
        return Hypothesis(
            text=self.loaded.codec.text_of(tokens)
            if ended.words is None
            else join_words(word for word, _ in ended.words),
            tokens=tuple(tokens),
            token_ids=ended.token_ids,
            score=ended.score,
            scores=ended.scores,
            times=None if aligned is None else tuple(_seconds(token, shift) for token in aligned.tokens),
            token_confidences=None if aligned is None else tuple(token.confidence for token in aligned.tokens),
            words=ended.words,
        )

    def _silence(self) -> Hypothesis:
        """The answer to digital silence, of which a model may dream."""
        words = () if self.settings.search == "lexicon" else None
        aligned = None if self.loaded.model.ctc is None else Aligned([], 0.0)
        return self._hypothesis(Ended((), 0.0, {}, words=words), aligned)

    def _joined(self, parts: dict[int, list[Hypothesis]]) -> list[Hypothesis]:
        if len(parts) == 1:
            return next(iter(parts.values()))
        pieces = [Piece(start / self.rate, hypotheses[0]) for start, hypotheses in sorted(parts.items())]
        return [join_pieces(pieces, separator=self.loaded.codec.separator)]


def _check_asked_models(files: ModelFiles, settings: Mapping[str, Any]) -> None:
    """A weight that is asked for, of something that the model does not have, would change nothing."""
    parts = {
        "lm_weight": (files.lm_file, "neural language model", "--lm_train_config and --lm_file"),
        "ngram_weight": (files.ngram_file, "n-gram", "--ngram_file"),
    }
    mistakes = [
        f"{name} {settings[name]}: the model has no {kind}; leave it out, or pack one with {options}"
        for name, (file, kind, options) in parts.items()
        if settings.get(name) and file is None
    ]
    if mistakes:
        raise UserError("\n".join(mistakes))


def _log_posteriors(ctc: Any, outputs: Sequence[Tensor]) -> Tensor:
    """(U, T, V), zero beyond each utterance. The frames of a token lie behind one another: searches and alignments want
    few tokens of all frames. Utterance by utterance: this is the largest tensor of all, padding would count double.
    """
    frames = max(len(out) for out in outputs)
    by_token: Tensor | None = None
    for row, out in enumerate(outputs):
        log_probs: Tensor = ctc.log_softmax(out)
        if by_token is None:
            by_token = log_probs.new_zeros(len(outputs), log_probs.size(1), frames)
        by_token[row, :, : len(out)].copy_(log_probs.t())
    assert by_token is not None
    return by_token.transpose(1, 2)


def _seconds(token: AlignedToken, frame_shift_s: float) -> tuple[float, float]:
    return round(token.start * frame_shift_s, 3), round(token.end * frame_shift_s, 3)


def _pad(inputs: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # Half precision would cut samples to 8 or 11 bits; the model casts what comes after its frontend.
    wide = dtype if dtype == torch.float64 else torch.float32
    # Features are mapped from their archive, and torch warns of what it could not write to.
    tensors = [torch.from_numpy(np.require(item, requirements=["C", "W"])).to(wide) for item in inputs]
    lengths = torch.tensor([len(item) for item in tensors])
    return pad_sequence(tensors, batch_first=True).to(device), lengths.to(device)
