"""Guards that pause or stop a job: limits, budgets, crashes, no progress.

Pure, and evaluated at every reconciliation of an active launch. Cost and time accrue even while a launcher does not respond.
Their guards are evaluated then as well and compute in advance when they will trip. Each guard yields one sentence, which users
read as the reason of the pause or failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast_worker.protocol.reports import JobStop

from holdfast.domain.billing.running_cost import MS_PER_HOUR, ms_until
from holdfast.domain.events import Guard, GuardTripped, Outcome
from holdfast.domain.jobfile.limits import Limits, format_usd
from holdfast.domain.jobs.job import Job, State

SAVE_GRACE_S: Final = 120
"""Seconds that a worker gets to save and exit before its nodes are released.

A lower value does not suffice for large models; a higher value spends more after the limit, since the cost guard trips this
long before the cap.
"""
SAME_CRASHES: Final = 3
"""Identical consecutive crashes after which retries stop.

A lower value ends a program for an accident that happened twice; a higher value pays for more setups. A lower `max_failures`
takes precedence.
"""


class BudgetLike(Protocol):
    """The balance of a budget as the guards need it."""

    def blocks_jobs(self, now: datetime, more_per_hour: int) -> bool:
        """Whether the budget's jobs must pause if nodes at `more_per_hour` start."""
        ...

    def ms_until_spent(self, now: datetime) -> int | None:
        """Milliseconds until the budget blocks jobs; None without node costs."""
        ...

    def spent_message(self, now: datetime) -> str:
        """The amount spent and the budget, as a sentence."""
        ...


_UNGUARDED: Final = frozenset({State.PAUSING, State.PAUSED, State.STOPPING, State.ENDED})


def trip(
    job: Job, limits: Limits, now: datetime, budgets: Sequence[BudgetLike] = ()
) -> GuardTripped | None:
    """The first guard that this job trips now, or None; `budgets` pay for the job."""
    seen = (*_waiting(job, limits, now), *_failures(job, limits))
    return _first(
        job, (*_money_and_time(job, limits, now), *_budget(job, budgets, now), *seen), now
    )


def trip_without_observation(
    job: Job, limits: Limits, now: datetime, budgets: Sequence[BudgetLike] = ()
) -> GuardTripped | None:
    """The first cost, time or budget guard that trips while the launcher does not respond."""
    return _first(job, (*_money_and_time(job, limits, now), *_budget(job, budgets, now)), now)


def ms_until_trip(
    job: Job, limits: Limits, now: datetime, budgets: Sequence[BudgetLike] = ()
) -> int | None:
    """Milliseconds until a cost or time guard trips without further events; None if none will."""
    if job.state in _UNGUARDED:
        return None
    cap, longest_s, account = limits.max_cost_micros, limits.max_duration_s, job.account
    deadline = limits.deadline_at(job.submitted_at)
    spans = (
        None if deadline is None else ms_until(deadline, now),
        None if longest_s is None else account.ms_until_node_ms(longest_s * 1000, now),
        None
        if cap is None
        else account.ms_until_paid(cap - grace_micros(account.micros_per_hour), now),
    )
    spent = (budget.ms_until_spent(now) for budget in budgets)
    return min((span for span in (*spans, *spent) if span is not None), default=None)


def grace_ms(job: Job, now: datetime) -> int | None:
    """Milliseconds left for the worker to save and exit; None if it was not asked to."""
    if job.state in {State.PAUSED, State.ENDED}:
        return 0
    if job.stop_asked_at is None:
        return None
    return max(0, ms_until(job.stop_asked_at + timedelta(seconds=SAVE_GRACE_S), now))


def stop_of(job: Job) -> JobStop | None:
    """What becomes of a job that stops; None if it continues, also with another launch."""
    match job.state, job.outcome:
        case ((State.PAUSING | State.PAUSED), _):
            return JobStop.PAUSED
        case State.STOPPING, _:
            return JobStop.FAILED if job.guard else JobStop.CANCELLED
        case State.ENDED, Outcome.CANCELLED:
            return JobStop.CANCELLED
        case State.ENDED, Outcome.FAILED:
            return JobStop.FAILED
        case _:
            return None


def _first(job: Job, reached: Sequence[tuple[Guard, str]], now: datetime) -> GuardTripped | None:
    if job.state in _UNGUARDED or not reached:
        return None
    guard, detail = reached[0]
    return GuardTripped(at=now, guard=guard, detail=detail)


def _money_and_time(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    """Guards of cost and time, which accrue without observations."""
    yield from _money(job, limits, now)
    yield from _time(job, limits, now)


def _budget(job: Job, budgets: Sequence[BudgetLike], now: datetime) -> Iterator[tuple[Guard, str]]:
    more = 0 if job.placed else job.micros_per_hour
    held = (budget for budget in budgets if budget.blocks_jobs(now, more))
    yield from ((Guard.BUDGET, budget.spent_message(now)) for budget in held)


def _money(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    cap, hourly_cap, account = limits.max_cost_micros, limits.max_hourly_cost_micros, job.account
    rate = account.micros_per_hour
    paid = account.paid_micros_by(now)
    if cap is not None and paid + grace_micros(account.micros_per_hour) >= cap:
        yield (
            Guard.MAX_COST,
            f"spent {format_usd(paid)} of max_cost_usd {format_usd(cap)}; the rest is reserved for saving",
        )
    if hourly_cap is not None and rate > hourly_cap:
        yield (
            Guard.MAX_HOURLY_COST,
            f"the nodes cost {format_usd(rate)} an hour, above max_hourly_cost_usd {format_usd(hourly_cap)}",
        )


def _time(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    deadline = limits.deadline_at(job.submitted_at)
    if deadline is not None and now >= deadline:
        yield (
            Guard.DEADLINE,
            f"the deadline {deadline:%Y-%m-%d %H:%M:%SZ} passed before the job finished",
        )
    longest_s = limits.max_duration_s
    if longest_s is not None and job.account.node_ms_by(now) >= longest_s * 1000:
        yield Guard.MAX_DURATION, f"the job has had nodes for max_duration {limits.max_duration}"


def _waiting(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    """The max_wait guard, which needs an observation: nodes may be ready but not yet observed.

    It also covers nodes that the others wait for, as the others are billed.
    """
    since = waiting_since(job)
    if since is not None and now - since >= timedelta(seconds=limits.max_wait_s):
        what = f"{job.node_text(job.awaited_nodes)} not there" if job.placed else "no nodes"
        yield Guard.MAX_WAIT, f"{what} within max_wait {limits.max_wait}"


def waiting_since(job: Job) -> datetime | None:
    """Since when the job lacks nodes that it asks for.

    None if it has them, waits in the queue for room in quotas, or its plan lets it wait.
    """
    if job.placed:
        return job.missing_since
    if job.state is State.QUEUED or (job.plan and job.plan.waits):
        return None
    planned_at = job.plan.since if job.plan else None
    return max(filter(None, (job.account.free_since, job.wait_began_at, planned_at)))


def _failures(job: Job, limits: Limits) -> Iterator[tuple[Guard, str]]:
    """Guards of failures and progress, counted over all launches.

    Launchers count within one launch only.
    """
    is_lost = job.left_attempt < job.attempt or not job.placed
    if job.hopeless and is_lost and job.started_attempt <= job.left_attempt:
        yield Guard.NO_RETRY, f"retries cannot succeed: the worker exited with {job.hopeless}"
    crashes = job.crashes
    if crashes.count >= SAME_CRASHES and (not job.placed or crashes.counted < job.attempt):
        yield (
            Guard.SAME_CRASH,
            f"the last {crashes.count} crashes were identical, without a checkpoint in between: {crashes.words}",
        )
    if job.failures >= limits.max_failures:
        times = f"{job.failures} time" + "s" * (job.failures != 1)
        words = f": {job.failure}" if job.failure else ""
        yield Guard.MAX_FAILURES, f"the program failed {times} and reached max_failures{words}"
    # The progress of a program without reports is unknown.
    has_reported = job.started_attempt or job.left_attempt
    most = limits.max_fruitless
    if has_reported and not job.placed and job.attempt - job.advanced_attempt >= most:
        last = f"{most}  attempts" if most > 1 else "attempt"
        found = f"the last {last} made no checkpoint beyond step {job.furthest_step}"
        yield (
            Guard.ZERO_PROGRESS,
            f"no progress: {found}; steps after the last checkpoint are not counted",
        )


def grace_micros(micros_per_hour: int) -> int:
    """Cost of the grace period in which a worker saves and exits."""
    return micros_per_hour * SAVE_GRACE_S * 1000 // MS_PER_HOUR
