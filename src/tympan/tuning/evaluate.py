"""Decode a data directory and score it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tympan.data.kaldi_dir import DataDir, Segment
from tympan.decode.recognizer import Recognizer
from tympan.decode.session import Speech, decode_together
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.score.inputs import score_files
from tympan.score.result import ScoreResult
from tympan.score.transcripts import Unit

AT_ONCE = 64
"""Number of utterances to read at a time; the recognizer forms its batches from them."""


def decode_and_score(
    recognizer: Recognizer, data: DataDir, *, hypotheses: Path, unit: Unit | None = None
) -> ScoreResult:
    """Write the best hypotheses of all utterances with a reference to `hypotheses` and score them.

    `unit` None: characters if the model writes no spaces between words, else words.
    """
    recognizer.require_one_speaker("decode with `tympan asr_inference` and score the text of each speaker")
    if not data.text:
        raise UserError(f"{data.path}: the data directory has no text file to score against")
    with atomic_write(hypotheses) as stream:
        stream.writelines(f"{name} {text}\n" for name, text in _transcripts(recognizer, data))
    return score_files(data.path / "text", hypotheses, unit=unit or usual_unit(recognizer))


def usual_unit(recognizer: Recognizer) -> Unit:
    """Words, or characters if the model writes no spaces between words."""
    return "word" if recognizer.loaded.codec.separator else "char"


def _transcripts(recognizer: Recognizer, data: DataDir) -> Iterator[tuple[str, str]]:
    """The best hypothesis of every utterance with a reference, `AT_ONCE` of them read at a time."""
    parts = [(name, replace(part, recording=source)) for name, source, part in data.parts() if name in data.text]
    for first in range(0, len(parts), AT_ONCE):
        chunk = parts[first : first + AT_ONCE]
        for result in decode_together(recognizer, [(name, _read(recognizer, part, data.path)) for name, part in chunk]):
            if result.error is None:
                yield result.id, result.hypotheses[0].text
            else:
                logging.warning("%s was not decoded; its words count as deletions: %s", result.id, result.error)


def _read(recognizer: Recognizer, segment: Segment, base: Path) -> Speech:
    try:
        speech = recognizer.reader.read_segment(segment, base=base)
        recognizer.check_length(speech)
    except UserError as error:
        return error
    return speech
