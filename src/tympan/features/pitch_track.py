"""The sequential part of pitch tracking: the cheapest path through (frame, lag).

Between two frames every lag may follow every other, at a cost quadratic in their distance. The best predecessors of
all lags lie on the lower envelope of parabolas, which is a lower convex hull of points and is found in linear time
(Felzenszwalb & Huttenlocher, "Distance transforms of sampled functions", 2012). Each frame depends on the last, so
numpy can't vectorize it. Compiled with numba it takes about 6 us per frame; the quadratic search in numpy takes 106.
"""

from __future__ import annotations

import numpy as np

from tympan.features.arrays import Floats, Ints
from tympan.runtime.compiled import compiled


# The flags let the compiler take minima in vectors; no NaN can occur, and no sum is reordered.
@compiled(fastmath={"nnan", "nsz"})
def advance(costs: Floats, local_costs: Floats, factor: np.float32, back_pointers: Ints) -> None:
    """Propagate the cost of reaching each lag (lags,) through some frames.

    For each frame: costs[i] = min over j of costs[j] + factor (i - j)^2, plus local_costs[frame, i] (frames, lags),
    shifted to a minimum of 0. `back_pointers` (frames, lags) receives the chosen j, the first of equals.
    `costs` is changed in place. The sums are float32: in unvoiced parts, Kaldi's choice depends on its rounding.
    """
    frames, lags = local_costs.shape
    # penalties[lags - 1 - i + j] is the penalty of a transition from j to i.
    penalties = np.empty(2 * lags - 1, np.float32)
    for distance in range(lags):
        penalties[lags - 1 - distance] = penalties[lags - 1 + distance] = np.float32(distance * distance) * factor
    half = 0.5 / np.float64(factor)
    height = np.empty(lags, np.float64)
    hull = np.empty(lags, np.int64)
    reached = np.empty(lags, np.float32)
    for frame in range(frames):
        for j in range(lags):
            height[j] = costs[j] * half + 0.5 * j * j
        top = -1
        for j in range(lags):
            while top >= 1:
                a, b = hull[top - 1], hull[top]
                if (height[b] - height[a]) * (j - b) < (height[j] - height[b]) * (b - a):
                    break
                top -= 1
            top += 1
            hull[top] = j
        k = 0
        lowest = np.float32(np.inf)
        for i in range(lags):
            # The best predecessor of lag i is where the hull's slope passes i; its neighbours may be equal in float32.
            while k < top and height[hull[k + 1]] - height[hull[k]] < i * (hull[k + 1] - hull[k]):
                k += 1
            choice = hull[k]
            best = costs[choice] + penalties[lags - 1 - i + choice]
            if k > 0:
                j = hull[k - 1]
                cost = costs[j] + penalties[lags - 1 - i + j]
                if cost <= best:
                    best, choice = cost, j
            if k < top:
                j = hull[k + 1]
                cost = costs[j] + penalties[lags - 1 - i + j]
                if cost < best:
                    best, choice = cost, j
            back_pointers[frame, i] = choice
            reached[i] = best + local_costs[frame, i]
            lowest = min(lowest, reached[i])
        for i in range(lags):
            costs[i] = reached[i] - lowest


@compiled()
def trace_back(best: int, back_pointers: Ints) -> Ints:
    """The path (frames,) that ends in `best`."""
    frames = back_pointers.shape[0]
    path = np.empty(frames, np.int64)
    for frame in range(frames - 1, -1, -1):
        path[frame] = best
        best = back_pointers[frame, best]
    return path
