"""Weights to start from: --init_param file:source:target:exclude."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.weights import in_own_names, load_weights


def init_from(model: nn.Module, entry: str, *, ignore_mismatch: bool) -> list[str]:
    """Copy the weights of a file into the model, in place; returns their names in the model.

    `model.pth:decoder:decoder:decoder.embed` copies the weights below `decoder` in the file to `decoder` in the model,
    except those below `decoder.embed`. Each part after the file may be empty or left out.
    """
    path, source, target, excluded = ([*entry.split(":"), "", "", ""])[:4]
    if entry.count(":") > 3:
        raise UserError(f"--init_param {entry}: expects FILE:SOURCE:TARGET:EXCLUDE, found {entry.count(':') + 1} parts")
    try:
        weights = load_weights(Path(path))
    except UserError as error:
        raise UserError(f"--init_param {entry}: {error}") from error
    for prefix in filter(None, excluded.split(",")):
        weights = {name: tensor for name, tensor in weights.items() if not _is_under(name, prefix)}
    if source:
        weights = {name[len(source) + 1 :]: tensor for name, tensor in weights.items() if name.startswith(f"{source}.")}
    if not weights:
        raise UserError(
            f"--init_param {entry}: {path} has no weights to load" + (f" of the module '{source}'" if source else "")
        )
    part = _submodule(model, target, entry)
    own = part.state_dict()
    weights = in_own_names(part, weights)
    unknown = [name for name in weights if name not in own]
    misshapen = [name for name in weights if name in own and own[name].shape != weights[name].shape]
    if (unknown or misshapen) and not ignore_mismatch:
        lines = [f"{name}: the model has no such weight" for name in unknown]
        lines += [f"{n}: {tuple(weights[n].shape)} in the file, {tuple(own[n].shape)} in the model" for n in misshapen]
        more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
        shown = "\n  ".join(lines[:8] + more)
        raise UserError(f"--init_param {entry}:\n  {shown}\nUse --ignore_init_mismatch true to skip these weights")
    skipped = {*unknown, *misshapen}
    if len(skipped) == len(weights):
        raise UserError(
            f"--init_param {entry}: none of the {len(weights)} weights of {path} fits the model, such as {min(skipped)}"
        )
    try:
        part.load_state_dict({**own, **{name: tensor for name, tensor in weights.items() if name not in skipped}})
    except UserError as error:
        raise UserError(f"--init_param {entry}: {error}") from None
    logging.info("Loaded %d weights from %s, skipped %d", len(weights) - len(skipped), entry, len(skipped))
    table = match_table(own, weights, misshapen=misshapen)
    if skipped or len(weights) < len(own):
        logging.info("Weights of the model%s and of the file:\n%s", f" below {target}" if target else "", table)
    return [f"{target}.{name}" if target else name for name in weights if name not in skipped]


def match_table(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, misshapen: Sequence[str] = ()) -> str:
    """A table of what was loaded: for each part of the model the number of weights loaded, of another shape, and new.

    `only in the file` counts weights that the model does not have.
    """
    columns = ("part", "loaded", "other shape", "not in the file", "only in the file")
    rows: dict[str, list[int]] = {}
    for name in [*own, *(name for name in weights if name not in own)]:
        row = rows.setdefault(_part(name), [0, 0, 0, 0])
        kind = 3 if name not in own else 2 if name not in weights else 1 if name in misshapen else 0
        row[kind] += 1
    lines = [columns, *((part, *map(str, row)) for part, row in rows.items())]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _part(name: str) -> str:
    """`encoder.encoders.3` of a layer in a list, else the first two components."""
    parts = name.split(".")[:-1] or name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), 1)
    return ".".join(parts[: number + 1])


def _is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _submodule(model: nn.Module, name: str, entry: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        parts = ", ".join(child for child, _ in model.named_children())
        raise UserError(f"--init_param {entry}: the model has no module '{name}'; its modules: {parts}") from None
