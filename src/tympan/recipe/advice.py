"""What to do when the estimate of `--check` is too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tympan.config.asr import AsrTrainConfig
from tympan.recipe.console import in_words
from tympan.recipe.options import RecipeOptions

if TYPE_CHECKING:
    from tympan.recipe.estimate import StageEstimate

LONG_S = 2 * 24 * 3600
"""Advice is given for stages that together take longer than this."""
DOMINANT = 0.1
"""Only stages with this share of the time are worth changing."""


def shorten(stages: list[StageEstimate], options: RecipeOptions, asr: AsrTrainConfig) -> list[str]:
    """Lines that name the longest stages, and for each the options that reduce its time. Empty if all are short."""
    total = sum(stage.seconds for stage in stages)
    if total <= LONG_S:
        return []
    longest = sorted(stages, key=lambda stage: stage.seconds, reverse=True)
    lines = [f"{in_words(total)} is long. The longest stages, and what makes them shorter:"]
    for stage in longest:
        if stage.seconds >= DOMINANT * total:
            share, ways = 100 * stage.seconds / total, _ways(stage.number, options, asr)
            lines.append(f"  stage {stage.number} {stage.name}, {share:.0f} % of the time:")
            lines += [f"    - {way}" for way in ways]
    return lines


def _ways(stage: int, options: RecipeOptions, asr: AsrTrainConfig) -> list[str]:
    devices = f"more accelerators (--ngpu, now {options.ngpu})" if options.ngpu else "an accelerator (--ngpu 1)"
    subset = "a part of the data (`tympan subset_data`, then `tympan recipe new`)"
    if stage in (-1, 0, 2):
        return [subset]
    if stage == 1:
        return [f"more processes, if there are cores (--nj, now {options.jobs})", subset]
    if stage == 3:
        return [devices, f"fewer epochs (max_epoch in {options.lm_config})", 'no neural LM (--lm_config "")']
    if stage == 5:
        return [
            f"more processes, if there are cores (--nj, now {options.jobs})",
            f"a smaller beam (beam_size in {options.decode_config})",
        ]
    schedule = ", and total_steps in the same proportion" if "total_steps" in asr.scheduler_conf else ""
    return [
        devices,
        f"fewer epochs (max_epoch in {options.train_config}, now {asr.max_epoch}{schedule})",
        "a smaller model (num_blocks, output_size and linear_units in encoder_conf)",
        subset,
    ]
