"""How long a hypothesis may and must be, in ESPnet2's terms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LengthLimits:
    """`maxlenratio` 0: as many steps as frames, and end detection; positive: that share of the frames; negative:
    that many steps. `minlenratio`: likewise, and a hypothesis that ends earlier is dropped.
    """

    maxlenratio: float = 0.0
    minlenratio: float = 0.0

    @property
    def has_end_detection(self) -> bool:
        return self.maxlenratio == 0

    def max_steps(self, frames: int) -> int:
        if self.maxlenratio == 0:
            return frames
        if self.maxlenratio < 0:
            return max(1, -int(self.maxlenratio))
        return max(1, int(self.maxlenratio * frames))

    def min_steps(self, frames: int) -> int:
        return -int(self.minlenratio) if self.minlenratio < 0 else int(self.minlenratio * frames)

    def relaxed(self) -> LengthLimits:
        """For utterances where nothing long enough ended: a tenth less, or no minimum."""
        return LengthLimits(maxlenratio=self.maxlenratio, minlenratio=max(0.0, self.minlenratio - 0.1))
