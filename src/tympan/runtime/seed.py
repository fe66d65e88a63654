"""Seed all random generators of this process: Python's, numpy's and torch's on all devices."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def set_all_seeds(seed: int) -> None:
    """Seed Python, numpy and torch (on all devices) with one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_step(seed: int, *, step: int, rank: int) -> None:
    """Seed the generators for one step (dropout, noise), depending only on its position.

    No other random state is needed: a run that resumes at this step gets the same random numbers as an uninterrupted
    run. `seed` is the seed of the epoch (seed of the run + epoch, as in ESPnet2).
    """
    text = f"step\x1f{seed}\x1f{step}\x1f{rank}"
    set_all_seeds(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1)


def set_determinism(
    *,
    deterministic: bool,
    cudnn_enabled: bool,
    cudnn_benchmark: bool,
    cudnn_deterministic: bool,
    use_tf32: bool = False,
) -> None:
    """Apply --deterministic, --use_tf32 and the cudnn_* options. In torch, these settings are for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = use_tf32
    torch.backends.cudnn.allow_tf32 = use_tf32
    torch.backends.cudnn.enabled = cudnn_enabled
    torch.backends.cudnn.benchmark = cudnn_benchmark
    torch.backends.cudnn.deterministic = cudnn_deterministic or deterministic
    torch.use_deterministic_algorithms(deterministic)
