"""A sweep, and what its jobs may spend together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from holdfast.domain.billing.running_cost import MS_PER_HOUR, to_ms
from holdfast.domain.jobfile.limits import format_usd
from holdfast.domain.jobs.guards import grace_micros
from holdfast.domain.jobs.job import Job
from holdfast.domain.sweeps.median_rule import StopRule


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Several jobs of one file, which share a budget and take turns."""

    id: str
    name: str
    project: str
    owner: str
    created_at: datetime
    params: dict[str, list[str]]
    """Values by parameter."""
    jobs: int
    """Number of its combinations."""
    parallel: int | None = None
    """Jobs that may have nodes at once; None: all."""
    max_cost_micros: int | None = None
    """Maximum cost of all jobs together; None: no maximum."""
    removed_micros: int = 0
    """Cost of its jobs that were removed."""
    was_reached: bool = False
    """Whether that maximum has paused jobs: the rest would only pay for another setup."""
    stop_rule: StopRule | None = None
    """When jobs are stopped early; None: never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepBalance:
    """Amount spent of the maximum cost of a sweep at one time."""

    sweep: Sweep
    at: datetime
    spent_micros: int
    """Cost of all its jobs until `at`."""
    micros_per_hour: int
    """Hourly price of all nodes that run at `at`."""
    usual_micros_per_hour: int
    """Highest hourly price of one of its jobs so far, which a job without nodes is expected to cost; 0 before the first."""
    expected_micros_per_hour: int = 0
    """Price of the job that this balance is about, if it had no nodes yet."""

    def of_job(self, job: Job) -> Self:
        """The balance for the decisions about one job of the sweep."""
        is_new = not job.placed and not job.micros_per_hour
        return replace(self, expected_micros_per_hour=self.usual_micros_per_hour * is_new)

    def blocks_jobs(self, now: datetime, more_per_hour: int) -> bool:
        """Whether the jobs must pause if nodes at `more_per_hour` start."""
        most = self.sweep.max_cost_micros
        if most is None:
            return False
        more = more_per_hour or self.expected_micros_per_hour
        needed = grace_micros(self.micros_per_hour) + grace_micros(more)
        return self.sweep.was_reached or self._spent_by(now) + needed >= most

    def ms_until_spent(self, now: datetime) -> int | None:
        """Milliseconds until the jobs pause at the current price; None without nodes."""
        most = self.sweep.max_cost_micros
        if most is None or not self.micros_per_hour:
            return None
        left = most - grace_micros(self.micros_per_hour) - self.spent_micros
        return -(-left * MS_PER_HOUR // self.micros_per_hour) - (to_ms(now) - to_ms(self.at))

    def spent_message(self, now: datetime) -> str:
        """The amount spent, and how to raise it, as a sentence."""
        most = format_usd(self.sweep.max_cost_micros or 0)
        return (
            f"the budget of sweep {self.sweep.id} ({most}) is spent: {format_usd(self._spent_by(now))}, and the rest is reserved "
            f"for saving; to raise it: holdfast sweeps set {self.sweep.id} --max-cost USD"
        )

    def _spent_by(self, now: datetime) -> int:
        run_ms = max(0, to_ms(now) - to_ms(self.at))
        return self.spent_micros + run_ms * self.micros_per_hour // MS_PER_HOUR
