"""The recognizer: audio in, text with times out. Memory is bounded, and batching does not change the result."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from tympan.data.kaldi_dir import Segment
from tympan.decode.alignment import (
    Aligned,
    AlignedToken,
    GivenText,
    align_segments,
    align_segments_by_model,
    align_tokens,
    aligned_tokens,
    read_given_text,
)
from tympan.decode.encode import encode_batch
from tympan.decode.hypothesis import Encoding, Hypothesis, by_recording, by_speaker, join_hypotheses
from tympan.decode.load import LoadedModel, load_model
from tympan.decode.model_files import find_model
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.prompt import spoken_hypothesis
from tympan.decode.recording_reader import RecordingReader
from tympan.decode.search import Encoded, Ended, choose_search, run_search
from tympan.decode.segments import cut_at_pauses, plan_by_length, take_segment
from tympan.decode.settings import merged_options, report_idle, report_missing_ctc
from tympan.decode.speech_input import AudioInput
from tympan.decode.stream import RecognitionStream
from tympan.errors import UserError
from tympan.models.abilities import AlignsText
from tympan.models.build import speech_kind
from tympan.models.speech_model import ForSpeakers
from tympan.runtime.device import named_device
from tympan.text.tokenizer import SPACE
from tympan.text.whisper import WhisperTokenizer
from tympan.text.words import join_words

MAX_ALIGNMENT_CELLS = 2_000_000_000
"""Maximum of frames times states in an alignment, at one byte each."""


class Recognizer:
    """`Recognizer.from_pretrained(folder)("a.wav").text`"""

    def __init__(
        self, loaded: LoadedModel, options: DecodeOptions | None = None, *, limits: BatchLimits | None = None
    ) -> None:
        self.loaded = loaded
        self.options = options or DecodeOptions()
        self.limits = limits or BatchLimits()
        self.reader = RecordingReader(loaded.input, channel=self.limits.channel)
        model = loaded.model
        self.num_speakers = model.num_speakers if isinstance(model, ForSpeakers) else None
        """Number of speakers that the model recognizes in each recording; None for a model of one speaker."""
        self.kind = choose_search(model, self.options.search)
        self.search = self.kind.build(loaded, self.options)

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        dtype: str = "float32",
        allow_import: bool = False,
        adapter: str | os.PathLike[str] | None = None,
        limits: BatchLimits | None = None,
        **options: Any,
    ) -> Recognizer:
        """Load a folder made by `tympan pack`, an experiment directory, or OWNER/NAME on a model hub.

        `adapter` is a file or folder of adapters to apply to the model. `options` are fields of DecodeOptions. They
        override those of the folder.
        """
        files = dataclasses.replace(find_model(model), adapter=None if adapter is None else Path(adapter))
        known = [item.name for item in dataclasses.fields(DecodeOptions)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise UserError(f"there is no decode option '{unknown[0]}'; the options are {', '.join(known)}")
        defaults = speech_kind(files.config_values()).config_class.DECODE_DEFAULTS
        chosen = merged_options({**defaults, **files.settings}, options, allow_import=allow_import)
        loaded = load_model(files, device=named_device(device), dtype=dtype, allow_import=allow_import)
        recognizer = cls(loaded, chosen, limits=limits)
        report_idle(recognizer.kind, options, has_lm=files.lm_file is not None, has_ngram=files.ngram_file is not None)
        report_missing_ctc(loaded.model.has_ctc, options, recognizer.kind)
        return recognizer

    @property
    def rate(self) -> int:
        """Sample rate of the model's input, in Hz."""
        return self.loaded.input.rate

    @property
    def space_symbol(self) -> str:
        """The token that represents a space."""
        return self.loaded.codec.tokenizer.space_symbol or SPACE

    @overload
    def __call__(self, audio: AudioInput, *, rate: int | None = None, nbest: None = None) -> Hypothesis: ...

    @overload
    def __call__(self, audio: list[AudioInput], *, rate: int | None = None, nbest: None = None) -> list[Hypothesis]: ...

    @overload
    def __call__(self, audio: AudioInput, *, rate: int | None = None, nbest: int) -> list[Hypothesis]: ...

    @overload
    def __call__(self, audio: list[AudioInput], *, rate: int | None = None, nbest: int) -> list[list[Hypothesis]]: ...

    def __call__(
        self, audio: AudioInput | list[AudioInput], *, rate: int | None = None, nbest: int | None = None
    ) -> Hypothesis | list[Hypothesis] | list[list[Hypothesis]]:
        """The best hypothesis for a path, samples (with `rate`), or (samples, rate); a list of them gives a list.

        With `nbest`, each recording gives a list of up to that many hypotheses, best first. There are at most
        `beam_size`, and only one for a recording that is cut into pieces. For a model of several speakers, use
        `speakers`.
        """
        self.require_one_speaker("use `recognizer.speakers(audio)`, which returns the hypothesis of each speaker")
        if nbest is not None:
            self._keep(nbest)
        ranked = self._ranked(audio if isinstance(audio, list) else [audio], rate, in_list=isinstance(audio, list))
        if nbest is None:
            best = [hypotheses[0] for hypotheses in ranked]
            return best if isinstance(audio, list) else best[0]
        ranked = [hypotheses[:nbest] for hypotheses in ranked]
        return ranked if isinstance(audio, list) else ranked[0]

    def stream(self) -> RecognitionStream:
        """Recognize audio that arrives in pieces. UserError if the model needs the whole recording."""
        return RecognitionStream(self)

    def speakers(self, audio: AudioInput, *, rate: int | None = None) -> list[Hypothesis]:
        """The best hypothesis of each speaker of one recording, for models of several speakers.

        The recording is not cut into pieces, because the speakers' order may differ from piece to piece.
        """
        (hypotheses,) = self._ranked([audio], rate, in_list=False)
        return [ranked[0] for ranked in by_speaker(hypotheses)]

    def require_one_speaker(self, remedy: str) -> None:
        """UserError with this advice if the model recognizes several speakers."""
        if (self.num_speakers or 1) > 1:
            raise UserError(f"this model recognizes {self.num_speakers} speakers of a recording: {remedy}")

    def encode(self, audio: AudioInput, *, rate: int | None = None) -> Encoding:
        """The encoder's output and CTC log posteriors of one recording. The recording is not cut into pieces."""
        self.require_one_speaker("there is no single output to return; `encode_batch` returns that of each speaker")
        encoded = self.encode_batch(self._read_all([audio], rate, in_list=False))
        return Encoding(
            out=encoded.memory[0],
            ctc_log_probs=None if encoded.log_probs is None else encoded.log_probs[0],
            frame_shift_s=self.loaded.input.frame_shift_s,
        )

    def read(self, audio: AudioInput, *, rate: int | None = None) -> np.ndarray:
        """Samples (time,) of a recording at the model's rate (see `RecordingReader`)."""
        return self.reader.read(audio, rate=rate)

    def check_length(self, speech: np.ndarray) -> None:
        """UserError for speech that is too short for one encoder frame."""
        length = len(speech)
        if self.loaded.input.wants_features and speech.ndim == 1:
            length = int(self.duration_s(speech) * 100)
        if length == 0 or int(self.loaded.model.output_lengths(torch.tensor([length]))) < 1:
            raise UserError(f"{self.duration_s(speech):.3f} s of audio are too short for one encoder frame")

    def duration_s(self, speech: np.ndarray) -> float:
        """Duration of samples (time,), or of features (frames, size)."""
        return len(speech) * (1 / self.rate if speech.ndim == 1 else self.loaded.input.feature_shift_s)

    def recognize(self, recordings: Sequence[np.ndarray]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """(index, n-best) for each recording, samples (time,) or features (frames, size), the longest first.

        A recording longer than `max_piece_s` is cut at pauses; the hypotheses of its segments are joined into one.
        This method plans the batches. Use `decode` for a batch that is already planned.
        """
        speech = {str(index): recording for index, recording in enumerate(recordings)}
        segments = {name: self.cut(recording, name=name) for name, recording in speech.items()}
        found: dict[Segment, list[Hypothesis]] = {}
        for batch in self._plan(speech, [segment for parts in segments.values() for segment in parts]):
            arrays = [take_segment(segment, speech[segment.recording], self.rate) for segment in batch]
            found.update(zip(batch, self.decode(arrays), strict=True))
            for name in dict.fromkeys(segment.recording for segment in batch):
                if all(segment in found for segment in segments[name]):
                    yield int(name), self._joined([(segment, found.pop(segment)) for segment in segments[name]])

    def decode(self, inputs: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """N-best lists of one batch: samples (time,), or features (frames, size) for a model trained on those.

        For a model of several speakers, a list contains the n-best list of the first speaker, then that of the second,
        and so on (`tympan.decode.hypothesis.by_speaker`). Digital silence always gives an empty text, because a model
        may invent words for it.
        """
        heard = [index for index, speech in enumerate(inputs) if not _is_silence(speech)]
        found = dict(zip(heard, self._search([inputs[index] for index in heard]), strict=True)) if heard else {}
        return [found[index] if index in found else self._silent() for index in range(len(inputs))]

    def encode_batch(self, inputs: Sequence[np.ndarray]) -> Encoded:
        """Compute features and encoder output of a batch. UserError for an input too short for one frame."""
        return encode_batch(self.loaded, inputs, seconds=[self.duration_s(item) for item in inputs])

    def align(self, audio: AudioInput, text: str) -> Hypothesis:
        """Start and end of each token of a given text. The score is the log probability of the best alignment.

        An array must hold samples at the model's rate, or features. The text is cleaned as in training.
        """
        self.require_one_speaker("alignment is for models of one speaker")
        samples = audio if isinstance(audio, np.ndarray) else self.read(audio)
        given = self.given_text(text)
        model = self.loaded.model
        if not model.has_ctc and not isinstance(model, AlignsText):
            raise UserError("alignment needs CTC, but this model was trained without it (ctc_weight 0)")
        self.check_length(samples)
        shift = self.loaded.input.frame_shift_s
        about_frames = int(self.duration_s(samples) / shift)
        if about_frames * (2 * len(given.ids) + 1) > MAX_ALIGNMENT_CELLS:
            raise UserError(
                f"{about_frames} frames and {len(given.ids)} tokens are too many for one alignment: "
                "cut the recording, for example with a `segments` file"
            )
        segments = (
            (segment.start_s, self.encode_batch([take_segment(segment, samples, self.rate)]))
            for segment in self.cut(samples)
        )
        if isinstance(model, AlignsText):
            scorer, found = "transducer", align_segments_by_model(model, segments, given.ids, frame_shift_s=shift)
        else:
            scorer = "ctc"
            found = align_segments(segments, given.ids, blank_id=model.blank_id, frame_shift_s=shift)
        if found.aligned is None:
            raise UserError(
                f"the text has {len(given.ids)} tokens, too many to align with the {found.frames} encoder frames of "
                f"the recording"
            )
        log_prob = found.aligned.log_prob
        ended = Ended(given.ids, log_prob, {scorer: log_prob}, words=given.words)
        hypothesis = self.hypothesis(ended, found.aligned)
        return dataclasses.replace(hypothesis, text=given.text, tokens=given.tokens, times=found.times)

    def given_text(self, text: str) -> GivenText:
        """The tokens of a text, and those that are unknown to the model. UserError if all are unknown."""
        return read_given_text(text, self.loaded.codec)

    def cut(self, speech: np.ndarray, *, name: str = "") -> list[Segment]:
        """The segments that speech is decoded in: one unless it is longer than `max_piece_s`. Features are not cut.

        Nor are recordings of several speakers, because the order of the speakers may differ from piece to piece.
        Audio is also cut at the model's own limit, because it would ignore the rest.
        """
        max_s = min(self.limits.max_piece_s or math.inf, self.loaded.input.max_s)
        if speech.ndim == 2 or math.isinf(max_s) or (self.num_speakers or 1) > 1:
            return [Segment(name)]
        return cut_at_pauses(speech, self.rate, max_s=max_s, recording=name)

    def _keep(self, nbest: int) -> None:
        """Let the search return this many hypotheses; the best one stays the same."""
        if nbest > self.options.nbest:
            self.options = dataclasses.replace(self.options, nbest=nbest)
            self.search = self.kind.build(self.loaded, self.options)
        elif nbest < 1:
            raise UserError(f"nbest must be at least 1, found {nbest}")

    def _ranked(self, audio: Sequence[AudioInput], rate: int | None, *, in_list: bool) -> list[list[Hypothesis]]:
        found = dict(self.recognize(self._read_all(audio, rate, in_list=in_list)))
        return [found[index] for index in range(len(audio))]

    def _read_all(self, audio: Sequence[AudioInput], rate: int | None, *, in_list: bool) -> list[np.ndarray]:
        if in_list:
            return [self._read_item(item, index, rate) for index, item in enumerate(audio)]
        samples = self.read(audio[0], rate=rate)
        self.check_length(samples)
        return [samples]

    def _read_item(self, audio: AudioInput, index: int, rate: int | None) -> np.ndarray:
        if isinstance(audio, numbers.Real):
            raise UserError(
                "a list must contain recordings: pass the samples of one recording as an array, numpy.array(samples)"
            )
        try:
            samples = self.read(audio, rate=rate)
            self.check_length(samples)
        except UserError as error:
            raise UserError(f"recording [{index}] of the list: {error}") from None
        return samples

    def _plan(self, speech: dict[str, np.ndarray], segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Batches of segments. Those of digital silence come first, because they need no computation."""
        arrays = [take_segment(segment, speech[segment.recording], self.rate) for segment in segments]
        heard = [index for index, array in enumerate(arrays) if not _is_silence(array)]
        if silent := sorted(set(range(len(segments))) - set(heard)):
            yield [segments[index] for index in silent]
        seconds = [self.duration_s(arrays[index]) for index in heard]
        limits = self.limits
        for batch in plan_by_length(seconds, batch_size=limits.batch_size, max_total=limits.max_batch_s):
            yield [segments[heard[index]] for index in batch]

    def _search(self, inputs: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        encoded = self.encode_batch(inputs)
        return by_recording(self.hypotheses(encoded, run_search(self.search, encoded)), self.num_speakers)

    def hypotheses(self, encoded: Encoded, results: Sequence[Sequence[Ended]]) -> list[list[Hypothesis]]:
        """The n-best lists of a batch from the results of its search. The best one of each gets times."""
        # Without CTC, a decoder may output the blank token. It is not part of the text.
        blank_id = self.loaded.model.blank_id
        found = [[ended.without(blank_id) for ended in ranked[: self.options.nbest]] for ranked in results]
        if not all(found):
            raise UserError(
                "the scores are nan or inf, so there is no hypothesis. Check the weights, or try --dtype float32"
            )
        aligned = self._align(encoded, [hypotheses[0] for hypotheses in found])
        return [
            [self.hypothesis(ended, best if rank == 0 else _own_alignment(ended)) for rank, ended in enumerate(ranked)]
            for ranked, best in zip(found, aligned, strict=True)
        ]

    def _align(self, encoded: Encoded, found: Sequence[Ended]) -> Sequence[Aligned | None]:
        """By the search itself if it knows the frames of its tokens, otherwise by CTC."""
        if encoded.log_probs is None or all(ended.spans is not None for ended in found):
            return [_own_alignment(ended) for ended in found]
        texts = [ended.token_ids for ended in found]
        return align_tokens(encoded.log_probs, encoded.lengths, texts, blank_id=self.loaded.model.blank_id)

    def hypothesis(self, ended: Ended, aligned: Aligned | None = None) -> Hypothesis:
        """One result of the search as a hypothesis, with times if the frames of its tokens are known."""
        codec = self.loaded.codec
        tokens = codec.vocabulary.ids2tokens(ended.token_ids)
        if aligned is None and isinstance(codec.tokenizer, WhisperTokenizer):
            return spoken_hypothesis(
                ended, tokens, codec, space_symbol=self.space_symbol, keeps_special=self.options.lid_prompt
            )
        shift = self.loaded.input.frame_shift_s
        return Hypothesis(
            text=codec.text_of(tokens).strip() if ended.words is None else join_words(word for word, _ in ended.words),
            tokens=tuple(tokens),
            token_ids=ended.token_ids,
            score=ended.score,
            scores=ended.scores,
            times=None if aligned is None else tuple(_seconds(token, shift) for token in aligned.tokens),
            token_confidences=None if aligned is None else tuple(token.confidence for token in aligned.tokens),
            words=ended.words,
            space_symbol=self.space_symbol,
        )

    def silence(self) -> Hypothesis:
        """The hypothesis of the search before the first frame."""
        (nothing,) = self.search.partial(self.search.start(1))
        aligned = Aligned([], 0.0) if self.loaded.model.has_ctc else _own_alignment(nothing)
        return self.hypothesis(dataclasses.replace(nothing, score=0.0, scores={}), aligned)

    def _silent(self) -> list[Hypothesis]:
        """The n-best list of digital silence, for each speaker."""
        return by_recording([[self.silence()]] * (self.num_speakers or 1), self.num_speakers)[0]

    def _joined(self, parts: Sequence[tuple[Segment, list[Hypothesis]]]) -> list[Hypothesis]:
        if len(parts) == 1:
            return parts[0][1]
        best = [(segment, hypotheses[0]) for segment, hypotheses in parts]
        return [join_hypotheses(best, separator=self.loaded.codec.separator)]


def _own_alignment(ended: Ended) -> Aligned | None:
    return None if ended.spans is None else Aligned(aligned_tokens(ended.spans), ended.score)


def _is_silence(speech: np.ndarray) -> bool:
    """True for samples that are all 0; never for features."""
    return speech.ndim == 1 and not speech.any()


def _seconds(token: AlignedToken, frame_shift_s: float) -> tuple[float, float]:
    return round(token.start * frame_shift_s, 3), round(token.end * frame_shift_s, 3)
