"""Parts that half precision can't carry: STFT, feature statistics, CTC."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Inside, autocast is off on the device of `like`. Half inputs are raised by `at_least_float32`."""
    return torch.autocast(like.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """float16 and bfloat16 raised to float32; float32 and float64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
