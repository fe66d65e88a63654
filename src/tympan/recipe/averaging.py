"""The model to decode with: a mean of epochs chosen by their validation results, or the best epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.training.nbest import Criterion

REGION = 0.1
"""Share of the improvement from the first to the best epoch that an averaged epoch may lack."""


@dataclass(frozen=True)
class Choice:
    """Epochs to average, in order, and why these."""

    epochs: list[int]
    reason: str


def write_model(directory: Path, model: Path, *, number: int, which: Literal["last", "best"]) -> None:
    """Write the mean of up to `number` saved epochs of the experiment `directory` to `model`, and print which."""
    from tympan.training.checkpoint import read_reporter
    from tympan.training.nbest import average, save_weights

    criteria = _criteria(directory / "config.yaml")
    stats = read_reporter(directory).stats
    results = [_results(stats, criterion) for criterion in criteria]
    # A model may lack the first one, such as the accuracy of a decoder, and after few epochs all error rates may be 1.
    differ = [place for place, found in enumerate(results) if len(set(found.values())) > 1]
    present = [place for place, found in enumerate(results) if found]
    place = next(iter([*differ, *present, 0]))
    criterion, values = criteria[place], results[place]
    saved = [epoch for epoch in sorted(stats) if (directory / f"{epoch}epoch.pth").exists()]
    if not saved:
        raise UserError(f"{directory} has no saved epochs; train the model first (--stage train).")
    choice = choose_epochs(saved, values, criterion=criterion, number=number, which=which)
    save_weights(model, average(directory / f"{epoch}epoch.pth" for epoch in choice.epochs))
    listed = ", ".join(map(str, choice.epochs))
    made = f"epoch {listed}" if len(choice.epochs) == 1 else f"mean of epochs {listed}"
    print(f"    {model}: {made} ({choice.reason})")


def choose_epochs(
    saved: Sequence[int],
    values: Mapping[int, float],
    *,
    criterion: Criterion,
    number: int,
    which: Literal["last", "best"],
) -> Choice:
    """Up to `number` of the `saved` epochs: the last ones, or the best ones by their validation `values`.

    Epochs whose value is far from the best one are left out: averaged with a trained model, an untrained one ruins it.
    """
    phase, name, mode = criterion
    sign = 1.0 if mode == "min" else -1.0
    cost = {epoch: sign * value for epoch, value in values.items() if math.isfinite(value)}
    ranked = sorted((epoch for epoch in saved if epoch in cost), key=lambda epoch: (cost[epoch], epoch))
    if not ranked:
        chosen = list(saved[-number:])
        which_ones = "the last ones" if len(chosen) > 1 else "the last one"
        return Choice(chosen, f"{which_ones}; the log has no {phase}.{name}")
    best = min(cost.values())
    limit = best + REGION * (max(cost[min(cost)], best) - best)
    near = [epoch for epoch in ranked if cost[epoch] <= limit] or ranked[:1]
    chosen = sorted(near)[-number:] if which == "last" else sorted(near[:number])
    if which == "last":
        reason = f"the last {number}" if number > 1 else "the last"
    else:
        reason = f"the best {number} by {phase}.{name}" if number > 1 else f"the best by {phase}.{name}"
    candidates = saved[-number:] if which == "last" else ranked[:number]
    left_out = sorted(set(candidates) - set(near))
    if left_out:
        without = ", ".join(map(str, left_out))
        reason += f", without {without}: their {name} is much worse than the best, {abs(best):.3g}"
    return Choice(chosen, reason)


def _results(stats: Mapping[int, Mapping[str, Mapping[str, float]]], criterion: Criterion) -> dict[int, float]:
    """The value of a criterion by epoch."""
    phase, name, _ = criterion
    return {epoch: parts[phase][name] for epoch, parts in stats.items() if name in parts.get(phase, {})}


def _criteria(config: Path) -> list[Criterion]:
    """The criteria by which training chose its best epochs, and the loss for the case that they say nothing."""
    from tympan.config.yaml_text import read_yaml

    document = read_yaml(config).value
    found = document.get("best_model_criterion") if isinstance(document, dict) else None
    return [*((phase, name, mode) for phase, name, mode in found or []), ("valid", "loss", "min")]
