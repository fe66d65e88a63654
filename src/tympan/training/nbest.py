"""The models of the best epochs: kept, linked by what they are best at, and averaged (ESPnet2's names)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tympan.training.checkpoint import save_tensors
from tympan.training.reporter import Reporter

Criterion = tuple[str, str, str]
"""(phase, name, min|max), e.g. ("valid", "acc", "max")."""


def link_best(directory: Path, reporter: Reporter, epoch: int, criteria: Sequence[Criterion]) -> list[str]:
    """Point latest.pth and each `valid.acc.best.pth` at this epoch where it is the best; say which improved."""
    link(directory / "latest.pth", f"{epoch}epoch.pth")
    improved = []
    for phase, name, mode in criteria:
        if _best(reporter, (phase, name, mode), 1) == [epoch]:
            link(directory / f"{phase}.{name}.best.pth", f"{epoch}epoch.pth")
            improved.append(f"{phase}.{name}")
    return improved


def remove_others(
    directory: Path, reporter: Reporter, epoch: int, criteria: Sequence[Criterion], *, keep: int, keep_last: int = 1
) -> list[str]:
    """Delete the models of epochs that are neither of the last `keep_last` nor of the best `keep` by any criterion."""
    wanted = set(range(epoch - keep_last + 1, epoch + 1))
    for phase, name, mode in criteria:
        wanted.update(e for e, _ in reporter.ranking(phase, name, mode)[:keep])
    removed = []
    for earlier in range(1, epoch):
        path = directory / f"{earlier}epoch.pth"
        if earlier not in wanted and path.exists():
            path.unlink()
            removed.append(path.name)
    return removed


def average_nbest(
    directory: Path,
    reporter: Reporter,
    criteria: Sequence[Criterion],
    *,
    nbests: Sequence[int],
    till_epoch: int | None = None,
) -> list[Path]:
    """Write `valid.acc.ave_10best.pth` and the like, and link `valid.acc.ave.pth` to the one of the largest n."""
    suffix = "" if till_epoch is None else f".till{till_epoch}epoch"
    written = []
    for phase, name, mode in criteria:
        for nbest in sorted(nbests):
            best = _best(reporter, (phase, name, mode), nbest)
            epochs = [epoch for epoch in best if (directory / f"{epoch}epoch.pth").is_file()]
            if len(epochs) < len(best):
                gone = ", ".join(str(epoch) for epoch in best if epoch not in epochs)
                logging.warning(
                    "%s.%s: of the %d best epochs the models of %s are gone (removed when fewer were to be kept)",
                    phase, name, len(best), gone,
                )  # fmt: skip
            if not epochs:
                continue
            path = directory / f"{phase}.{name}.ave_{len(epochs)}best{suffix}.pth"
            if len(epochs) == 1:
                link(path, f"{epochs[0]}epoch.pth")
            else:
                logging.info('Averaging %sbest models: criterion="%s.%s": %s', len(epochs), phase, name, path)
                save_weights(path, average(directory / f"{epoch}epoch.pth" for epoch in epochs))
            if not suffix:
                link(directory / f"{phase}.{name}.ave.pth", path.name)
            written.append(path)
    return written


def is_finite(state: Mapping[str, Tensor]) -> bool:
    """Whether every weight is a number: of a model that may be used."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())


def _best(reporter: Reporter, criterion: Criterion, number: int) -> list[int]:
    """The best epochs; an epoch whose value is no finite number is not among them."""
    ranking = reporter.ranking(*criterion)
    return [epoch for epoch, value in ranking if math.isfinite(value)][:number]


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of these models, summed in float64. Counters (whole numbers) are the largest."""
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    number = 0
    for path in paths:
        number += 1
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
            if name not in sums:
                kinds[name] = tensor.dtype
                sums[name] = tensor.double() if tensor.is_floating_point() else tensor
            elif tensor.is_floating_point():
                sums[name] += tensor.double()
            else:
                sums[name] = torch.maximum(sums[name], tensor)
    return {
        name: (total / number).to(kinds[name]) if total.is_floating_point() else total for name, total in sums.items()
    }


def save_weights(path: Path, state: dict[str, Tensor]) -> None:
    """A model's weights alone, as ESPnet2 keeps them."""
    save_tensors(path, state)


def link(path: Path, target: str) -> None:
    """Make `path` a link to its neighbour `target`, in one step."""
    spare = path.with_name(f".{path.name}.link")
    spare.unlink(missing_ok=True)
    spare.symlink_to(target)
    os.replace(spare, path)
