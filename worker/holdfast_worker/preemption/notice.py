"""The notice that a node is about to be taken, as one rank hears it."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

from holdfast_worker.clock import now
from holdfast_worker.distributed.step_vote import UNKNOWN_LEFT_S
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import RunDir


class Notice:
    """Whether this process was told to go, and how long it has.

    Until a run heeds it, a notice ends the process at once: before the first step there is nothing to save, and a
    script without a `Run` would never look. From then on it only waits to be seen at the next vote.
    """

    def __init__(self) -> None:
        self.is_raised = False
        self._is_heeded = False
        self._raised_s = 0.0
        self._run_dir: RunDir | None = None
        self._is_hint_served = False

    def listen(self, run_dir: RunDir | None) -> None:
        """Take over SIGTERM. `run_dir` is where the deadline stands; None if there is none."""
        self._run_dir = run_dir
        signal.signal(signal.SIGTERM, self._hear)

    def install_handlers(self) -> None:
        """From now on somebody looks at `is_raised` between steps."""
        self._is_heeded = True

    def remove_handlers(self) -> None:
        """From now on nobody looks any more, so that a notice ends the process again."""
        self._is_heeded = False

    def raise_(self) -> None:
        """The notice is here.

        Raises:
            SystemExit: nobody heeds it, so the process leaves at once.
        """
        if not self.is_raised:
            self.is_raised = True
            self._raised_s = time.monotonic()
        if not self._is_heeded:
            self.ignore_signals()
            raise SystemExit(Exit.PREEMPTED)

    def ignore_signals(self) -> None:
        """From now on this process is leaving, and is not killed on its way by whoever says so once more.

        Python gives up its handlers before it ends. Slurm tells every process of a node, and the wrapper its ranks.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def told_left_s(self) -> float | None:
        """Seconds until the node goes; None when the notice did not say."""
        deadline = self._run_dir.deadline() if self._run_dir else None
        return None if deadline is None else max(0.0, (deadline - now()).total_seconds())

    def left_s(self) -> float:
        """Seconds to reckon with."""
        told = self.told_left_s()
        if told is not None:
            return told
        return max(0.0, UNKNOWN_LEFT_S - (time.monotonic() - self._raised_s))

    def has_fresh_hint(self) -> bool:
        """Whether the cloud hinted that it may take the node before long, and nothing was saved since."""
        return not self._is_hint_served and self._run_dir is not None and self._run_dir.is_hinted()

    def acknowledge_hint(self) -> None:
        """A save begins."""
        self._is_hint_served = self._is_hint_served or self.has_fresh_hint()

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.raise_()


NOTICE: Final = Notice()
"""The one of this process, as a process has one handler of SIGTERM: the entry listens, the run heeds."""
