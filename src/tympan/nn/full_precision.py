"""Full precision for parts that half precision is too coarse for: STFT, feature statistics, CTC."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the device of `like` in this context. Convert half inputs with `at_least_float32`."""
    return torch.autocast(like.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert float16 and bfloat16 to float32; float32 and float64 stay unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
