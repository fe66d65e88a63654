"""The Python API: load a recognizer, train, evaluate. `import tympan` imports these lazily."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from tympan.data.kaldi_dir import DataDir, Segment
    from tympan.decode.recognizer import Recognizer
    from tympan.decode.session import Speech
    from tympan.score.result import ScoreResult
    from tympan.score.transcripts import Unit
    from tympan.training.task import AnyTask

PathLike = str | os.PathLike[str]

AT_ONCE = 64
"""Number of utterances that `evaluate` reads at a time; the recognizer forms its batches from them."""


@dataclass(frozen=True)
class TrainedRun:
    """The result of `train`."""

    directory: Path
    """The experiment directory; `tympan.load` takes it."""
    is_finished: bool
    """False if a signal stopped the run: it is saved, and `resume=True` continues it."""
    epochs: dict[int, dict[str, dict[str, float]]]
    """The statistics of each epoch: `epochs[1]["valid"]["loss"]`."""


def load(model: PathLike, *, device: str = "cpu", dtype: str = "float32", **options: Any) -> Recognizer:
    """Load a recognizer from a packed folder, an experiment directory, or OWNER/NAME on a model hub.

    `options` are decoding options such as `beam_size=10` or `search="ctc_greedy"`, which override the model's. Call the
    recognizer with a path, an array of samples and its `rate`, or a list of these; it returns `Hypothesis` objects.
    """
    from tympan.decode.recognizer import Recognizer

    return Recognizer.from_pretrained(model, device=device, dtype=dtype, **options)


def train(
    task: str | type[AnyTask] | AnyTask = "asr",
    config: PathLike | Sequence[PathLike] = (),
    *,
    output_dir: PathLike,
    **options: Any,
) -> TrainedRun:
    """Train a task, as `tympan train TASK --config CONFIG --output_dir DIR` does. Mistakes raise a UserError.

    `task` is a name (`asr`, `lm`, `st`), or a task class of your own. `options` are the options of the command.
    """
    from tympan.config.parse import as_yaml
    from tympan.config.read import make_training_config
    from tympan.config.yaml_text import dump_yaml
    from tympan.runtime.stop import EXIT_REQUEUE
    from tympan.tasks import find_task
    from tympan.training.checkpoint import read_reporter
    from tympan.training.session import run_training
    from tympan.training.task import check_task

    chosen = find_task(task) if isinstance(task, str) else task() if isinstance(task, type) else task
    files = [str(path) for path in ([config] if isinstance(config, str | os.PathLike) else config)]
    given = as_yaml({**options, "output_dir": os.fspath(output_dir)})
    check_task(type(chosen))
    checked = make_training_config(chosen.config_class, files, given)
    if type(chosen).__module__ == "__main__" and max(checked.ngpu, checked.nproc) > 1:
        raise UserError(
            f"{type(chosen).__name__} is defined in the running script, and worker processes can't import it from "
            "there: put it into a module"
        )
    with tempfile.TemporaryDirectory(prefix="tympan-train-") as folder:
        # Worker processes of the same run read the options from here
        written = Path(folder, "options.yaml")
        written.write_text(dump_yaml(given), encoding="utf-8")
        argv = [word for path in (*files, str(written)) for word in ("--config", path)]
        code = run_training(chosen, checked, argv=argv)
    if code not in (0, EXIT_REQUEUE):
        raise RuntimeError(f"training failed with exit code {code}; {Path(output_dir) / 'train.log'} says more")
    directory = Path(output_dir)
    has_epochs = not (checked.collect_stats or checked.dry_run)
    return TrainedRun(directory, code == 0, dict(read_reporter(directory).stats) if has_epochs else {})


def evaluate(
    model: PathLike | Recognizer,
    data: PathLike | DataDir,
    *,
    unit: Unit | None = None,
    output_dir: PathLike | None = None,
    **options: Any,
) -> ScoreResult:
    """Decode a data directory (`wav.scp`, `text`) and score it: `evaluate(...).total.error_rate` is in percent.

    `unit` is `word` or `char`; None: `char` if the model writes no spaces between words, else `word`. `output_dir`
    keeps the hypotheses. `options` are decoding options. An utterance that can't be decoded counts as deletions.
    """
    from tympan.data.kaldi_dir import DataDir
    from tympan.decode.recognizer import Recognizer
    from tympan.score.inputs import score_files

    recognizer = model if isinstance(model, Recognizer) else load(model, **options)
    if isinstance(model, Recognizer) and options:
        raise UserError(
            f"{', '.join(options)}: the recognizer already has its options; pass them to tympan.load instead"
        )
    directory = data if isinstance(data, DataDir) else DataDir.read(data)
    if not directory.text:
        raise UserError(f"{directory.path}: the data directory has no text file to score against")
    written_as = recognizer.loaded.codec.separator
    with tempfile.TemporaryDirectory(prefix="tympan-evaluate-") as folder:
        hypotheses = Path(folder if output_dir is None else output_dir) / "text"
        with atomic_write(hypotheses) as stream:
            stream.writelines(f"{name} {text}\n" for name, text in _transcripts(recognizer, directory))
        return score_files(directory.path / "text", hypotheses, unit=unit or ("word" if written_as else "char"))


def _transcripts(recognizer: Recognizer, data: DataDir) -> Iterator[tuple[str, str]]:
    """The best hypothesis of every utterance with a reference, `AT_ONCE` of them read at a time."""
    from tympan.decode.session import decode_together

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
        speech = recognizer.read_segment(segment, base=base)
        recognizer.check_length(speech)
    except UserError as error:
        return error
    return speech
