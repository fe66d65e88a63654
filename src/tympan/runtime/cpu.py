"""What the processor can do."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Protocol

CPUINFO = Path("/proc/cpuinfo")
FAST_BFLOAT16 = (
    "this CPU has bfloat16 instructions: training with --use_amp true may be faster, a Conformer about twice as fast"
)
IN_A_RECIPE = " (in a recipe: --asr_args '--use_amp true')"
"""Where the option of `FAST_BFLOAT16` is given."""


class Precision(Protocol):
    """The options of a training configuration that choose its precision."""

    @property
    def use_amp(self) -> bool: ...
    @property
    def train_dtype(self) -> str: ...


def should_advise_bfloat16(config: Precision) -> bool:
    """Whether training on this CPU would be faster with --use_amp true and does not use bfloat16 yet."""
    return not config.use_amp and config.train_dtype == "float32" and has_fast_bfloat16()


@functools.cache
def has_fast_bfloat16() -> bool:
    """Return whether the processor announces instructions for bfloat16 (AVX512-BF16 or AMX). Linux only.

    Some virtual machines announce AMX but forbid it; `--use_amp true` tests that before training.
    """
    try:
        text = CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
