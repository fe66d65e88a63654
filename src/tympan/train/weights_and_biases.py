"""The curves of a run on Weights & Biases (wandb.ai, or offline files for a later `wandb sync`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.train.curves import Quiet
from tympan.train.reporter import EpochReporter, Reporter

RUN_ID = Path("wandb", "run_id")
"""Where the experiment directory notes the id, so that a resumed training goes on in the same run there."""


class WeightsAndBiases(Quiet):
    """`train/*` and `valid/*` by epochs, `by_batch/*` by batches."""

    def __init__(
        self, *, directory: Path, config: Mapping[str, Any], id: str | None, is_resumed: bool, **options: Any
    ) -> None:
        """`options` are those of `wandb.init`. Without an `id`, a resumed training takes the one it had."""
        try:
            import wandb
        except ImportError:
            raise UserError("--use_wandb true needs the package wandb: pip install 'tympan[wandb]'") from None
        note = directory / RUN_ID
        if id is None:
            id = note.read_text(encoding="utf-8").strip() if is_resumed and note.is_file() else secrets.token_hex(4)
        try:
            self.run = wandb.init(dir=str(directory), config=dict(config), id=id, resume="allow", **options)
        except wandb.errors.Error as error:
            raise UserError(
                f"--use_wandb true: wandb refuses: {error}. `wandb login` stores a key; "
                "WANDB_MODE=offline in the environment writes files for a later `wandb sync`"
            ) from error
        with atomic_write(note) as stream:
            stream.write(f"{id}\n")
        # Its own step counter also counts what a resumed run repeats
        for names, axis in (("by_batch/*", "batch"), ("train/*", "epoch"), ("valid/*", "epoch")):
            self.run.define_metric(names, step_metric=axis)

    def logged(self, part: EpochReporter) -> None:
        values = {f"by_batch/{name}": value for name, value in part.last_window.items()}
        self.run.log({**values, "batch": part.batches_before + part.batches})

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        values = {f"{phase}/{name}": v for phase, means in reporter.stats[epoch].items() for name, v in means.items()}
        self.run.log({**values, "epoch": epoch})

    def close(self) -> None:
        self.run.finish()
