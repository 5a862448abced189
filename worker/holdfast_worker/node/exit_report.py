"""Reports of ranks that have ended without one: their exit, or that they start again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from holdfast_worker.config import Config
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.telemetry.gpu_reports import GpuReports
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from holdfast_worker.watchdog.failure_cause import FailureCause, cause_of_failure


class ExitReport:
    """Reports the exit of a node's ranks that were killed or failed before `Run.start`."""

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        """Create it before the ranks start: earlier exit reports belong to an earlier run."""
        self._attempt = config.attempt
        self._spool = config.spool
        self._run_dir = run_dir
        self._earlier_exit_report = self._last_exit_report()

    def write(self, code: int) -> None:
        """Report the exit of the ranks unless they have; `code` is the exit code of the wrapper."""
        if not self._spool:
            return
        reporter = Reporter(Spool(self._spool, self._attempt))
        # A broken GPU often ends the ranks before rank 0 has reported it.
        GpuReports(self._run_dir, reporter).report_last()
        if self._last_exit_report() > self._earlier_exit_report:
            return
        reporter.worker_left(self.exit_reason(code))

    def exit_reason(self, code: int) -> ExitReason:
        """Why the ranks have ended, with the exit code of the wrapper."""
        left = self._run_dir.exit_reason()
        step = left.step if left else self._last_step()
        detail = left.detail if left else self._failure_detail(code)
        return ExitReason(self._reason(code), code, step, detail)

    def write_restart(self, cause: FailureCause) -> None:
        """Report that the ranks have ended and start again; a later exit is a different one."""
        if not self._spool:
            return
        try:
            reporter = Reporter(Spool(self._spool, self._attempt))
        except (OSError, ValueError) as error:
            log_info(f"the restart is not reported: the spool is unusable: {error}")
            return
        GpuReports(self._run_dir, reporter).report_last()
        reporter.ranks_restarted(
            cause.step, cause.exit_code, cause.detail, is_node_lost=cause.is_node_lost
        )
        self._earlier_exit_report = self._last_exit_report()

    def write_kept(self, until: datetime) -> None:
        """Report that the nodes of a failed program are kept until a time."""
        if self._spool:
            Reporter(Spool(self._spool, self._attempt)).nodes_kept(self._last_step(), until)

    def _reason(self, code: int) -> str:
        if code == Exit.DONE:
            return "finished"
        is_preempted = code == Exit.PREEMPTED or self._run_dir.is_noticed()
        return "preempted" if is_preempted else "failed"

    def _failure_detail(self, code: int) -> str:
        """The failure of the rank that failed first, usually its error message."""
        if code == Exit.DONE:
            return ""
        failure = self._run_dir.failure()
        if not failure:
            return f"the ranks exited with code {code}"
        return cause_of_failure(failure, None, self._run_dir.last_line(failure.rank), 0, "").detail

    def _last_exit_report(self) -> int:
        """Number of the last exit report; 0 without one.

        A count would decrease, as old reports are removed.
        """
        numbers = (report.n for report in self._reported() if report.kind == ReportKind.WORKER_LEFT)
        return max(numbers, default=0)

    def _last_step(self) -> int:
        """The last reported step; 0 without one."""
        steps = [report.body["step"] for report in self._reported() if "step" in report.body]
        return int(str(steps[-1])) if steps else 0

    def _reported(self) -> Iterator[Report]:
        if self._spool:
            for report, _ in read_spool(spool_file(self._spool, self._attempt)):
                yield report
