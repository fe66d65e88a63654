"""The Python API: load a recognizer, train, fine-tune, evaluate. `import tympan` imports these lazily."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.data.kaldi_dir import DataDir
    from tympan.decode.recognizer import Recognizer
    from tympan.score.result import ScoreResult
    from tympan.score.transcripts import Unit
    from tympan.training.task import AnyTask
    from tympan.tuning.run import Finetuned

PathLike = str | os.PathLike[str]


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
    from tympan.tuning.evaluate import decode_and_score

    recognizer = model if isinstance(model, Recognizer) else load(model, **options)
    if isinstance(model, Recognizer) and options:
        raise UserError(
            f"{', '.join(options)}: the recognizer already has its options; pass them to tympan.load instead"
        )
    directory = data if isinstance(data, DataDir) else DataDir.read(data)
    with tempfile.TemporaryDirectory(prefix="tympan-evaluate-") as folder:
        hypotheses = Path(folder if output_dir is None else output_dir) / "text"
        return decode_and_score(recognizer, directory, hypotheses=hypotheses, unit=unit)


def finetune(model: PathLike, *, output_dir: PathLike, **options: Any) -> Finetuned:
    """Fine-tune a model, as `tympan finetune MODEL --output_dir DIR` does. Mistakes raise a UserError.

    `options` are the options of the command: `train_dir`, `dev_dir`, `method`, ...
    """
    from tympan.tuning.options import make_options
    from tympan.tuning.run import run_finetuning

    return run_finetuning(make_options(model=os.fspath(model), output_dir=os.fspath(output_dir), **options))
