"""Termination notice of the node, as received by one rank."""

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
    """Whether this process has received a termination notice, and the time that is left.

    Before `install_handlers`, a notice ends the process at once: before the first step there is nothing to save, and a
    script without a `Run` would never check it. After that, the run handles it at the next vote.
    """

    def __init__(self) -> None:
        self.is_raised = False
        self._is_exit_deferred = False
        self._raised_s = 0.0
        self._run_dir: RunDir | None = None
        self._is_hint_acknowledged = False

    def handle_sigterm(self, run_dir: RunDir | None) -> None:
        """Handle SIGTERM as a notice. `run_dir` has the deadline; None if there is none."""
        self._run_dir = run_dir
        signal.signal(signal.SIGTERM, self._on_signal)

    def install_handlers(self) -> None:
        """Defer the exit, as the run checks `is_raised` between steps."""
        self._is_exit_deferred = True

    def remove_handlers(self) -> None:
        """End the process on a notice again, as the run has finished."""
        self._is_exit_deferred = False

    def raise_(self) -> None:
        """Record the notice.

        Raises:
            SystemExit: no run handles it, so the process exits at once.
        """
        if not self.is_raised:
            self.is_raised = True
            self._raised_s = time.monotonic()
        if not self._is_exit_deferred:
            self.ignore_signals()
            raise SystemExit(Exit.PREEMPTED)

    def ignore_signals(self) -> None:
        """Ignore further SIGTERMs during the exit.

        Python removes its handlers before it ends, while Slurm and the wrapper may signal the process again.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def announced_left_s(self) -> float | None:
        """Seconds until the termination of the node; None if the notice named no time."""
        deadline = self._run_dir.deadline() if self._run_dir else None
        return None if deadline is None else max(0.0, (deadline - now()).total_seconds())

    def left_s(self) -> float:
        """Seconds until the termination, estimated if the notice named no time."""
        announced = self.announced_left_s()
        if announced is not None:
            return announced
        return max(0.0, UNKNOWN_LEFT_S - (time.monotonic() - self._raised_s))

    def has_pending_hint(self) -> bool:
        """Whether there is a rebalance recommendation without a save since."""
        return (
            not self._is_hint_acknowledged
            and self._run_dir is not None
            and self._run_dir.is_hinted()
        )

    def acknowledge_hint(self) -> None:
        """Record that a save begins."""
        self._is_hint_acknowledged = self._is_hint_acknowledged or self.has_pending_hint()

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.raise_()


NOTICE: Final = Notice()
"""The notice of this process, which has a single SIGTERM handler.
The entry point installs the handler; the run acts on the notice."""
