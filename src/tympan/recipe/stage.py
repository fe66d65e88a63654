"""A recipe is a list of stages, and a stage is a list of steps with their inputs, outputs and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tympan.errors import UserError


@dataclass(frozen=True)
class Step:
    """The smallest unit of work that is recorded as done.

    `makes` must be complete when `run` returns. `settings` is everything besides `needs` that affects its content.
    `continues` marks a step that can continue its own partial output (training): as long as `needs` and this part of
    the settings stay the same, a later run continues it; otherwise the old output directory is moved aside.
    `found` returns why there is nothing to do although the step never ran (a corpus that was unpacked by hand).
    `recordings` are wav.scp files whose audio is needed. `labels` are needs that do not affect what `continues`:
    different transcripts do not change features. `remedy` is what to do if a need is missing.
    """

    name: str
    run: Callable[[], object]
    needs: Sequence[Path] = ()
    makes: Sequence[Path] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    continues: Mapping[str, object] | None = None
    output_dir: Path | None = None
    found: Callable[[], str | None] = lambda: None
    recordings: Sequence[Path] = ()
    labels: Sequence[Path] = ()
    remedy: str = ""


@dataclass(frozen=True)
class Stage:
    """A numbered list of steps. It is made when the stage starts, because the steps depend on the data."""

    number: int
    name: str
    purpose: str
    steps: Callable[[], list[Step]]


def find_stage(stages: Sequence[Stage], wanted: str, option: str) -> int:
    """The number of a stage given by number or name. Numbers out of range are allowed (stop_stage 100)."""
    try:
        return int(wanted)
    except ValueError:
        pass
    for stage in stages:
        if stage.name == wanted:
            return stage.number
    import difflib

    names = [stage.name for stage in stages]
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    listed = ", ".join(f"{stage.number} {stage.name}" for stage in stages)
    raise UserError(f"{option}: there is no stage '{wanted}'.{hint} The stages are: {listed}.")
