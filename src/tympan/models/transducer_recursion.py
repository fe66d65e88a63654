"""The recursions over the lattice of a transducer on a CPU, node by node: all alignments, or the best one.

Each node depends on the last, so numpy can't compute them at once. Sums are in float64, whatever the scores are in.
Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tympan.runtime.compiled import compiled

if TYPE_CHECKING:
    from tympan.models.transducer_lattice import Arcs, Lattice

Array = np.ndarray[Any, Any]
Layout = tuple[Array, Array, Array, Array, Array, Array, Array]
"""`start`, `width`, `first`, `frames`, `tokens` of the lattice; duration of each arc, and whether it emits a token."""


def sum_paths(scores: Tensor, lattice: Lattice, arcs: Arcs) -> tuple[Tensor, Tensor]:
    """Log probabilities (batch,) of all alignments, and the posterior probability (N, K) of each arc."""
    arrays = (scores.detach().contiguous().numpy(), *_arrays(lattice, arcs))
    alpha, total = np.empty(len(scores)), np.empty(len(lattice.frames))
    occupancy = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _forward(*arrays, alpha, total)
    _backward(*arrays, alpha, total, np.empty_like(alpha), occupancy.numpy())
    return torch.from_numpy(total).to(scores.dtype), occupancy


def best_paths(scores: Tensor, lattice: Lattice, arcs: Arcs) -> tuple[Tensor, Tensor]:
    """Log probabilities (batch,) of the best alignments, and the arc (N,) by which each leaves a node, -1 for none."""
    arrays = (scores.detach().cpu().contiguous().numpy(), *_arrays(lattice, arcs))
    total, taken = np.empty(len(lattice.frames)), np.full(len(scores), -1, np.int64)
    _best(*arrays, np.empty(len(scores)), total, taken, np.empty_like(taken))
    return torch.from_numpy(total), torch.from_numpy(taken)


def _arrays(lattice: Lattice, arcs: Arcs) -> Layout:
    longest = int(lattice.frames.max()) if len(lattice.frames) else 0
    first = lattice.first if lattice.first.size(1) >= longest else lattice.first.expand(-1, longest)

    def array(tensor: Tensor) -> Array:
        return tensor.long().cpu().contiguous().numpy()

    return (
        array(lattice.start),
        array(lattice.width),
        array(first),
        array(lattice.frames),
        array(lattice.tokens),
        np.array([*arcs.blanks, *arcs.tokens], np.int64),
        np.array([0] * len(arcs.blanks) + [1] * len(arcs.tokens), np.int64),
    )


@compiled()
def _log_add(a: float, b: float) -> float:
    if a == -np.inf:
        return b
    if b == -np.inf:
        return a
    difference = b - a
    if difference > 0:
        return b + math.log1p(math.exp(-difference))
    return a + math.log1p(math.exp(difference))  # nan stays nan


@compiled()
def _forward(
    scores: Array, start: Array, width: Array, first: Array, frames: Array, tokens: Array, durations: Array,
    emits: Array, alpha: Array, total: Array,
) -> None:  # fmt: skip
    """`alpha` (N,) gets the log probability of reaching each node."""
    for b in range(len(frames)):
        total[b] = -np.inf
        for t in range(frames[b]):
            for j in range(width[b]):
                u = first[b, t] + j
                value = 0.0 if t == 0 and u == 0 else -np.inf
                for k in range(len(durations)):
                    before = t - durations[k]
                    if before >= 0:
                        place = u - emits[k] - first[b, before]
                        if 0 <= place < width[b]:
                            node = start[b] + before * width[b] + place
                            value = _log_add(value, alpha[node] + scores[node, k])
                node = start[b] + t * width[b] + j
                alpha[node] = value
                if u == tokens[b]:
                    for k in range(len(durations)):
                        if emits[k] == 0 and t + durations[k] == frames[b]:
                            total[b] = _log_add(total[b], value + scores[node, k])


@compiled()
def _backward(
    scores: Array, start: Array, width: Array, first: Array, frames: Array, tokens: Array, durations: Array,
    emits: Array, alpha: Array, total: Array, beta: Array, occupancy: Array,
) -> None:  # fmt: skip
    """`beta` (N,) gets the log probability of reaching the end from each node."""
    for b in range(len(frames)):
        known = 0.0 if total[b] == -np.inf else total[b]
        for t in range(frames[b] - 1, -1, -1):
            for j in range(width[b] - 1, -1, -1):
                u = first[b, t] + j
                node = start[b] + t * width[b] + j
                value = -np.inf
                for k in range(len(durations)):
                    after, following = t + durations[k], -np.inf
                    if after == frames[b]:
                        if u == tokens[b] and emits[k] == 0:
                            following = 0.0
                    elif after < frames[b]:
                        place = u + emits[k] - first[b, after]
                        if 0 <= place < width[b]:
                            following = beta[start[b] + after * width[b] + place]
                    following += scores[node, k]
                    occupancy[node, k] = math.exp(alpha[node] + following - known)
                    value = _log_add(value, following)
                beta[node] = value


@compiled()
def _best(
    scores: Array, start: Array, width: Array, first: Array, frames: Array, tokens: Array, durations: Array,
    emits: Array, alpha: Array, total: Array, taken: Array, came: Array,
) -> None:  # fmt: skip
    """`came` (N,) gets the arc by which the best path reaches each node, `taken` (N,) those of the best alignment."""
    for b in range(len(frames)):
        total[b], leaving, arc = -np.inf, -1, -1
        for t in range(frames[b]):
            for j in range(width[b]):
                u = first[b, t] + j
                node = start[b] + t * width[b] + j
                alpha[node], came[node] = (0.0 if t == 0 and u == 0 else -np.inf), -1
                for k in range(len(durations)):
                    before = t - durations[k]
                    if before >= 0:
                        place = u - emits[k] - first[b, before]
                        if 0 <= place < width[b]:
                            other = start[b] + before * width[b] + place
                            if alpha[other] + scores[other, k] > alpha[node]:
                                alpha[node], came[node] = alpha[other] + scores[other, k], k
                if u == tokens[b]:
                    for k in range(len(durations)):
                        value = alpha[node] + scores[node, k]
                        if emits[k] == 0 and t + durations[k] == frames[b] and value > total[b]:
                            total[b], leaving, arc = value, node, k
        while arc >= 0:
            taken[leaving] = arc
            arc = came[leaving]
            if arc >= 0:
                t = (leaving - start[b]) // width[b]
                u = (leaving - start[b]) % width[b] + first[b, t] - emits[arc]
                t -= durations[arc]
                leaving = start[b] + t * width[b] + u - first[b, t]
