"""What ends a job that would go on: its limits, and ten placements that came no further.

Pure, and asked at every look at a launch that is not over. A guard tells one sentence, which is what people read when
they ask why the job has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.account import MS_PER_HOUR
from holdfast.domain.events import Guard, GuardTripped
from holdfast.domain.lifecycle import Job, State
from holdfast.domain.limits import MICROS_PER_USD, Limits

SAVE_GRACE_S: Final = 120
"""What a worker gets to save its work and leave, before its nodes are taken from under it. Smaller: a big model is not
saved. Bigger: money is spent after the budget has said no, as the guard of the cost trips so long before the cap."""
FRUITLESS: Final = 10
"""Placements in a row that came no further. Smaller ends jobs in a bad hour of the market; bigger pays for setups."""


def trip(job: Job, limits: Limits, now: datetime) -> GuardTripped | None:
    """The first guard that this job trips now; None while it may go on."""
    if job.state in {State.STOPPING, State.ENDED}:
        return None
    reached = (*_money(job, limits, now), *_time(job, limits, now), *_tries(job, limits))
    if not reached:
        return None
    guard, detail = reached[0]
    return GuardTripped(at=now, guard=guard, detail=detail)


def _money(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    cap, hourly_cap, account = limits.max_cost_micros, limits.max_hourly_cost_micros, job.account
    rate = account.micros_per_hour
    paid = account.paid_micros_by(now)
    if cap is not None and paid + rate * SAVE_GRACE_S * 1000 // MS_PER_HOUR >= cap:
        yield (
            Guard.MAX_COST,
            f"it has cost {_usd(paid)}, which leaves no more than the time to save of max_cost_usd {_usd(cap)}",
        )
    if hourly_cap is not None and rate > hourly_cap:
        yield (
            Guard.MAX_HOURLY_COST,
            f"its nodes cost {_usd(rate)} an hour, and max_hourly_cost_usd is {_usd(hourly_cap)}",
        )


def _time(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    deadline = limits.deadline_at(job.submitted_at)
    if deadline is not None and now >= deadline:
        yield Guard.DEADLINE, f"its deadline was {deadline:%Y-%m-%d %H:%M:%SZ}, and it is not over"
    longest_s = limits.max_duration_s
    if longest_s is not None and job.account.node_ms_by(now) >= longest_s * 1000:
        yield Guard.MAX_DURATION, f"it has had nodes for max_duration {limits.max_duration}"
    waiting = timedelta(0) if job.placed else now - job.account.free_since
    if waiting >= timedelta(seconds=limits.max_wait_s):
        yield Guard.MAX_WAIT, f"it has been without nodes for max_wait {limits.max_wait}"


def _tries(job: Job, limits: Limits) -> Iterator[tuple[Guard, str]]:
    """Launchers count failures, too, but not all of them, and none beyond one launch."""
    if job.failures >= limits.max_failures:
        times = f"{job.failures} time" + "s" * (job.failures != 1)
        words = f": {job.failure}" if job.failure else ""
        yield Guard.MAX_FAILURES, f"the program has failed {times}, which is max_failures{words}"
    # Who never tells anything may have come far, for all we know.
    speaks = job.started_attempt or job.left_attempt
    if speaks and not job.placed and job.attempt - job.advanced_attempt >= FRUITLESS:
        yield (
            Guard.ZERO_PROGRESS,
            f"zero progress: its last {FRUITLESS} placements came no further than step {job.furthest_step}",
        )


def _usd(micros: int) -> str:
    return f"${micros / MICROS_PER_USD:,.2f}"
