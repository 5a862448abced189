"""Shutdown of a rank: its exit reason, recorded once in the run directory and in the spool."""

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
from holdfast_worker.watchdog.failure_cause import MAX_DETAIL_CHARS

INTERRUPTED: Final = 130
"""What a shell shows after SIGINT."""


class Shutdown:
    """Records the exit of a rank. The first reason counts; later errors are consequences of it."""

    def __init__(
        self, ranks: ProcessGroup, run_dir: RunDir | None, reports: Reporter, *, is_attended: bool
    ) -> None:
        """`is_attended`: a wrapper reports errors, as it knows which node failed first."""
        self._ranks = ranks
        self._run_dir = run_dir
        self._reports = reports
        self._is_attended = is_attended
        self._exit_callbacks: list[Callable[[ExitReason], None]] = []
        self._local_callbacks: list[Callable[[ExitReason], None]] = []
        self.is_exit_recorded = False
        """Whether the exit reason is recorded."""
        self.is_failed = False
        """Whether the recorded exit reason is an error."""

    def on_exit(self, callback: Callable[[ExitReason], None], *, is_local: bool = False) -> None:
        """Add a callback that receives the exit reason.

        `is_local`: it needs no other rank, and runs also after an error that a wrapper reports.
        """
        self._exit_callbacks.append(callback)
        if is_local:
            self._local_callbacks.append(callback)

    def record_exit(self, left: ExitReason) -> None:
        """Record why this rank stops stepping; the first call counts."""
        if self.is_exit_recorded:
            return
        self.is_exit_recorded = True
        self.is_failed = left.reason == "failed"
        if self._run_dir:
            self._run_dir.record_exit(left)
            # Another rank of this node may have failed first and caused this failure.
            first = self._run_dir.exit_reason()
            if first and first.reason == left.reason == "failed":
                left = first
        if left.exit_code != Exit.FENCED:
            # A replaced attempt no longer reports for the job.
            self._reports.worker_left(left)
        for callback in self._exit_callbacks:
            callback(left)

    def abort(self, code: Exit, step: int, reason: str) -> NoReturn:
        """Exit, on all ranks, for a reason on which they agree."""
        if self._ranks.rank == 0:
            log_info(reason)
        self.record_exit(ExitReason("failed", code, step, reason))
        # All ranks exit together, so none waits. Without this call the exit code may become that of an abort.
        self._ranks.destroy()
        raise SystemExit(code)

    def install_excepthook(self, step: Callable[[], int], settle: Callable[[], None]) -> None:
        """Install a hook that reports an error that ends the script.

        `settle` runs before the report.
        """
        print_error = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            print_error(kind, error, trace)
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.FAILED
            last_line = traceback.format_exception_only(error)[-1].strip()[:MAX_DETAIL_CHARS]
            left = ExitReason("failed", int(code), step(), last_line, self._ranks.rank)
            if self._run_dir and not self.is_exit_recorded:
                # At once: other ranks fail as a consequence within milliseconds, and must find the cause here.
                self._run_dir.record_exit(left)
            settle()
            if self._run_dir and self._is_attended and not self.is_exit_recorded:
                self.is_exit_recorded = self.is_failed = True
                for callback in self._local_callbacks:
                    callback(self._run_dir.exit_reason() or left)
            else:
                self.record_exit(left)

        sys.excepthook = hook
