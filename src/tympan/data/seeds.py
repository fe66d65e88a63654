"""Random numbers as a pure function of (seed, epoch, utterance, purpose)."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed from these parts, the same on every machine, worker and rank."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little") >> 1


def rng_for(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator for these parts, e.g. rng_for(seed, epoch, utterance_id, "noise")."""
    return np.random.Generator(np.random.Philox(derive_seed(*parts)))
