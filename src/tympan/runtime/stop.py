"""Ask a run to stop: SIGTERM, SIGUSR1 (preemption, a time limit) and SIGINT (Ctrl-C) take effect at the next step."""

from __future__ import annotations

import logging
import signal
from types import FrameType

EXIT_REQUEUE = 75
"""EX_TEMPFAIL: the run has saved a checkpoint and expects to be started again with --resume true."""


class StopSignal:
    """Becomes true when the process is asked to stop. A second signal of the same kind ends the process at once.

    So does SIGTERM after SIGINT: torch's agent sends it to its workers when Ctrl-C is pressed a second time.
    """

    def __init__(self) -> None:
        self.is_set = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # a shell ignores SIGINT for jobs in the background
                signal.signal(number, self._note)

    def __call__(self) -> bool:
        return self.is_set

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        is_typed = number == signal.SIGINT
        again = " (press Ctrl-C again to stop at once)" if is_typed else ""
        logging.warning("%s received: saving at the next step, then stopping%s", signal.Signals(number).name, again)
        for final in (number, signal.SIGTERM) if is_typed else (number,):
            signal.signal(final, signal.SIG_DFL)
