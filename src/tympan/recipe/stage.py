"""A recipe is a list of stages, a stage a list of steps: what each needs, makes, and depends on besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tympan.errors import UserError


@dataclass(frozen=True)
class Step:
    """The unit that is done or not done.

    `makes` must be whole when `run` returns; `settings` is everything besides `needs` that decides what it holds.
    `continues` marks a step that takes up its own half-finished output (training): as long as `needs` and this part of
    the settings stay the same, a later run goes on from there; otherwise the old output directory is moved aside.
    `found` says why there is nothing to do though the recipe never ran the step (a corpus that was unpacked by hand).
    `recordings` are wav.scp files whose audio is needed, `labels` are needs that decide nothing of what `continues`:
    other transcripts are no other features. `remedy` is what to do where a need is missing.
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
    """Steps under the recipe's number, listed when the stage begins: what there is to do depends on the data."""

    number: int
    name: str
    purpose: str
    steps: Callable[[], list[Step]]


def find_stage(stages: Sequence[Stage], wanted: str, option: str) -> int:
    """The number of a stage that is given by number or name. Numbers beyond the ends are fine (stop_stage 100)."""
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
