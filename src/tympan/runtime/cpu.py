"""What the processor can do."""

from __future__ import annotations

import functools
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
FAST_BFLOAT16 = (
    "this CPU has bfloat16 instructions: training with --use_amp true may be about twice as fast (in a recipe: "
    "--asr_args '--use_amp true')"
)


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
