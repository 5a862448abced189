"""Departure: a rank's last words, said once, in the run directory and in the spool."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final, NoReturn

from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.failure_cause import LONGEST_DETAIL

INTERRUPTED: Final = 130
"""What a shell shows after SIGINT."""


class Shutdown:
    """How a rank leaves. What is said first is the truth; errors that follow from it are not heard."""

    def __init__(
        self, ranks: ProcessGroup, run_dir: RunDir | None, reports: Reporter, *, is_attended: bool
    ) -> None:
        """`is_attended`: a wrapper reports errors. It hears whether a rank elsewhere fell first, as this one cannot."""
        self._ranks = ranks
        self._run_dir = run_dir
        self._reports = reports
        self._is_attended = is_attended
        self._confidants: list[Callable[[ExitReason], None]] = []
        self.is_over = False
        """Whether the last words were said."""
        self.is_failed = False
        """Whether they were about an error."""

    def on_exit(self, confidant: Callable[[ExitReason], None]) -> None:
        """Have somebody else hear the last words, too."""
        self._confidants.append(confidant)

    def leave(self, left: ExitReason) -> None:
        """Say why this rank stops stepping."""
        if self.is_over:
            return
        self.is_over = True
        self.is_failed = left.reason == "failed"
        if self._run_dir:
            self._run_dir.leave(left)
            # Another rank of this node may have fallen first, and drawn this one along.
            first = self._run_dir.left()
            if first and first.reason == left.reason == "failed":
                left = first
        if left.exit_code != Exit.FENCED:
            # Who was replaced has nothing to say about the job any more.
            self._reports.worker_left(left)
        for confidant in self._confidants:
            confidant(left)

    def abort(self, code: Exit, step: int, why: str) -> NoReturn:
        """Leave, on all ranks, for a reason that another try will not change."""
        if self._ranks.rank == 0:
            log_info(why)
        self.leave(ExitReason("failed", code, step, why))
        # All leave together, so nobody is waited for; without it the exit code may become that of an abort.
        self._ranks.leave()
        raise SystemExit(code)

    def watch_for_errors(self, step: Callable[[], int], settle: Callable[[], None]) -> None:
        """From now on an error that ends the script is said too; `settle` runs before it is reported."""
        print_error = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            print_error(kind, error, trace)
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.FAILED
            last_line = traceback.format_exception_only(error)[-1].strip()[:LONGEST_DETAIL]
            left = ExitReason("failed", int(code), step(), last_line, self._ranks.rank)
            if self._run_dir and not self.is_over:
                # At once: the others fall over us within milliseconds, and must find the true reason here.
                self._run_dir.leave(left)
            settle()
            if self._run_dir and self._is_attended and not self.is_over:
                self.is_over = self.is_failed = True
            else:
                self.leave(left)

        sys.excepthook = hook
