"""The epitaph: what is reported of ranks that could not say themselves how they left."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_worker.config import Config
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from holdfast_worker.watchdog.failure_cause import of_fall


class ExitReport:
    """The last words of a node's ranks, if none of them can say any: killed at once, or before there was a run."""

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        """Begin before the ranks do: what was said until now is of an earlier run."""
        self._attempt = config.attempt
        self._spool = config.spool
        self._run_dir = run_dir
        self._left_before = self._last_left()

    def write(self, code: int) -> None:
        """Report how the ranks left, unless they did so; `code` is what the wrapper will end with."""
        if not self._spool or self._last_left() > self._left_before:
            return
        left = self._run_dir.left()
        step = left.step if left else self._last_step()
        detail = left.detail if left else self._last_words(code)
        Reporter(Spool(self._spool, self._attempt)).worker_left(
            ExitReason(self._reason(code), code, step, detail)
        )

    def _reason(self, code: int) -> str:
        if code == Exit.DONE:
            return "finished"
        is_preempted = code == Exit.PREEMPTED or self._run_dir.is_noticed()
        return "preempted" if is_preempted else "failed"

    def _last_words(self, code: int) -> str:
        """What befell the rank that fell first: as a rule the message of its error."""
        if code == Exit.DONE:
            return ""
        failure = self._run_dir.failure()
        if not failure:
            return f"the ranks left with exit code {code}"
        return of_fall(failure, None, self._run_dir.last_line(failure.rank), 0, "").detail

    def _last_left(self) -> int:
        """Number of the last report of leaving; 0 without one. Their count would fall, as old reports are removed."""
        lefts = (report.n for report in self._reported() if report.kind == ReportKind.WORKER_LEFT)
        return max(lefts, default=0)

    def _last_step(self) -> int:
        """The last step that anybody reported; 0 if nobody reported any."""
        steps = [report.body["step"] for report in self._reported() if "step" in report.body]
        return int(str(steps[-1])) if steps else 0

    def _reported(self) -> Iterator[Report]:
        if self._spool:
            for report, _ in read_spool(spool_file(self._spool, self._attempt)):
                yield report
