"""Keep, link and average the models of the best epochs, with ESPnet2's file names."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.files import explained, require_file
from tympan.models.weights import named_weights
from tympan.training.checkpoint import save_tensors
from tympan.training.reporter import Reporter

Criterion = tuple[str, str, str]
"""(phase, name, min|max), e.g. ("valid", "acc", "max")."""


def link_best(directory: Path, reporter: Reporter, epoch: int, criteria: Sequence[Criterion]) -> list[str]:
    """Link latest.pth to this epoch, and `valid.acc.best.pth` and others if it is the best. Returns what improved."""
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
    """Delete models of epochs that are not among the last `keep_last` or the best `keep` by any criterion."""
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
    """Write averaged models such as `valid.acc.ave_10best.pth`. `valid.acc.ave.pth` links to the largest average."""
    suffix = "" if till_epoch is None else f".till{till_epoch}epoch"
    written = []
    for phase, name, mode in criteria:
        for nbest in sorted(nbests):
            best = _best(reporter, (phase, name, mode), nbest)
            epochs = [epoch for epoch in best if (directory / f"{epoch}epoch.pth").is_file()]
            if len(epochs) < len(best):
                gone = ", ".join(str(epoch) for epoch in best if epoch not in epochs)
                logging.warning(
                    "%s.%s: averaging without epochs %s, which are among the best %d: their models were deleted "
                    "(--keep_nbest_models was smaller before), or not saved because of weights that are not finite",
                    phase, name, gone, len(best),
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
    """Return whether all weights are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())


def _best(reporter: Reporter, criterion: Criterion, number: int) -> list[int]:
    """Return the best epochs, without those whose value is not finite."""
    ranking = reporter.ranking(*criterion)
    return [epoch for epoch, value in ranking if math.isfinite(value)][:number]


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """Return the mean of these models, summed in float64. Of integer buffers (counters), return the maximum."""
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    number = 0
    for path in paths:
        number += 1
        state = _state_of(path)
        if number > 1 and _shapes(state) != _shapes(sums):
            raise UserError(f"{path}: its weights have other names or shapes than those of the models before it")
        for name, tensor in state.items():
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


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def _state_of(path: Path) -> dict[str, Tensor]:
    with explained(path, "the weights of a model"):
        require_file(path)
        return named_weights(path, torch.load(path, map_location="cpu", weights_only=True))


def save_weights(path: Path, state: dict[str, Tensor]) -> None:
    """Save only the weights of a model, as ESPnet2 does."""
    save_tensors(path, state)


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target` in the same directory, atomically."""
    spare = path.with_name(f".{path.name}.link")
    spare.unlink(missing_ok=True)
    spare.symlink_to(target)
    os.replace(spare, path)
