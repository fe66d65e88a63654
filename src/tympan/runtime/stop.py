"""Asking a run to stop: SIGTERM (preemption, a scheduler's time limit) is noted here and obeyed at the next step."""

from __future__ import annotations

import logging
import signal
from types import FrameType

EXIT_REQUEUE = 75
"""EX_TEMPFAIL: the run has saved its place and expects to be started again with --resume true."""


class StopSignal:
    """Becomes true when the process is asked to stop. A second signal of the kind ends it the hard way."""

    def __init__(self) -> None:
        self.is_set = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def __call__(self) -> bool:
        return self.is_set

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        logging.warning("%s received: saving at the next step, then stopping", signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
