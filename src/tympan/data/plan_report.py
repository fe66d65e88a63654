"""What a user asks about a plan: how many batches, how large, how much of them is padding."""

from __future__ import annotations

import numpy as np

from tympan.data.batches import BatchPlan


def describe_plan(plan: BatchPlan, *, rate: float | None = None) -> str:
    """A few lines of text. `rate` is how many steps of the first shape make a second."""
    sizes = plan.sizes
    totals, padded = plan.total_lengths(), plan.padded_lengths() * sizes[:, None]
    lines = [
        f"{len(plan):,} batches of {sizes.sum():,} utterances",
        f"utterances a batch: {_spread(sizes)}",
    ]
    dropped = len(plan.shapes[0].lengths) - int(sizes.sum())
    if dropped:
        lines.append(f"left out by drop_last_iter: {dropped:,} utterances")
    for column, shape in enumerate(plan.shapes):
        length, total = totals[:, column], padded[:, column]
        if not length.any():
            continue  # made without lengths
        share = 1 - length.sum() / max(total.sum(), 1)
        lines.append(
            f"{shape.name}: {_spread(length)} a batch, padding {share:.1%} (worst batch {_worst(length, total):.1%})"
        )
        if column == 0 and rate:
            lines.append(f"audio: {length.sum() / rate / 3600:.2f} h, {_spread(length / rate, ' s')} a batch")
    if plan.padded is not None:
        lines.append(f"fixed shapes: {len(np.unique(np.column_stack([sizes, plan.padded]), axis=0))}")
    return "\n".join(lines)


def list_batches(plan: BatchPlan, number: int, *, rate: float | None = None) -> str:
    """The first batches in the order of the plan (training shuffles them anew in each epoch)."""
    totals, padded = plan.total_lengths()[:number], plan.padded_lengths()[:number]
    lines = ["batch  utterances  " + "  ".join(f"{shape.name} padded to (padding)" for shape in plan.shapes)]
    for place, (size, total, longest) in enumerate(zip(plan.sizes, totals, padded, strict=False)):
        shares = 1 - total / np.maximum(longest * size, 1)
        columns = [f"{length:,} ({share:.1%})" for length, share in zip(longest, shares, strict=True)]
        seconds = f"  {total[0] / rate:,.1f} s" if rate else ""
        lines.append(f"{place:>5}  {size:>10,}  " + "  ".join(columns) + seconds)
    return "\n".join(lines)


def _spread(values: np.ndarray, unit: str = "") -> str:
    if np.issubdtype(values.dtype, np.integer):
        return f"{values.min():,} to {values.max():,}{unit}, {values.mean():,.1f}{unit} on average"
    return f"{values.min():,.1f} to {values.max():,.1f}{unit}, {values.mean():,.1f}{unit} on average"


def _worst(length: np.ndarray, total: np.ndarray) -> float:
    return float((1 - length / np.maximum(total, 1)).max())
