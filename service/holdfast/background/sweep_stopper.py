"""Stops jobs of sweeps early, by the median rule of the sweep."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.domain.events import Outcome
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.job import Job
from holdfast.domain.metric_series import SeriesSegment
from holdfast.domain.sweeps.median_rule import StopRule, stop_reason
from holdfast.errors import StaleWrite, StoreUnavailable
from holdfast.ports import Clock
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.metrics import MetricSeries

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
"""Seconds between two rounds. A lower value reads metrics more often; a higher value pays for hopeless jobs for longer."""


class SweepStopper:
    """Compares the jobs of each sweep that has a stop rule."""

    def __init__(
        self, *, journal: Journal, series: MetricSeries, leases: LeaseTable, clock: Clock
    ) -> None:
        self._journal = journal
        self._series = series
        self._leases = leases
        self._clock = clock

    def stop_all(self) -> int:
        """Cancel the jobs that are worse than the median, and return their number.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        stopped = 0
        for sweep in self._journal.sweeps.with_stop_rules():
            rule = sweep.stop_rule
            assert rule is not None
            jobs = self._journal.sweeps.jobs_of(sweep.id)
            completed = [
                self._segments(job, rule) for job in jobs if job.outcome is Outcome.SUCCEEDED
            ]
            training = [job for job in jobs if job.is_training and not job.is_leaving]
            stopped += sum(self._stop(job, rule, completed) for job in training)
        return stopped

    def _stop(self, job: Job, rule: StopRule, completed: list[list[SeriesSegment]]) -> bool:
        why = stop_reason(rule, self._segments(job, rule), completed)
        if why is None:
            return False
        now = self._clock.now()
        try:
            self._journal.append(job, commands.cancel(job, now, why))
        except StaleWrite:
            return False  # The next round compares it again.
        self._leases.make_due(job.id, now)
        return True

    def _segments(self, job: Job, rule: StopRule) -> list[SeriesSegment]:
        return self._series.segments(job.id, rule.metric, {})

    async def run(self) -> None:
        """Compare jobs until cancelled. An error in one round does not stop the later ones."""
        while True:
            await asyncio.sleep(EVERY_S)
            round_ = asyncio.create_task(asyncio.to_thread(self.stop_all))
            await asyncio.wait([round_])
            error = round_.exception()
            if isinstance(error, StoreUnavailable):
                log.warning("jobs of sweeps were not compared: %s", error)
            elif error:
                log.error("unexpected error in the comparison of sweeps", exc_info=error)
