"""One seed for every generator of this process: Python's, numpy's and torch's on all devices."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def set_all_seeds(seed: int) -> None:
    """Seed Python, numpy and torch (each device included) with one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_step(seed: int, *, step: int, rank: int) -> None:
    """Seed what a step draws (dropout, noise) from its place alone.

    The place is then the whole random state: a run that resumes at this step draws what the undisturbed one drew,
    with nothing to replay. `seed` is that of the epoch (the run's seed + epoch, as in ESPnet2).
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
    """Apply --deterministic, --use_tf32 and the cudnn_* options to torch (process-wide by torch's design)."""
    torch.backends.cuda.matmul.allow_tf32 = use_tf32
    torch.backends.cudnn.allow_tf32 = use_tf32
    torch.backends.cudnn.enabled = cudnn_enabled
    torch.backends.cudnn.benchmark = cudnn_benchmark
    torch.backends.cudnn.deterministic = cudnn_deterministic or deterministic
    torch.use_deterministic_algorithms(deterministic)
