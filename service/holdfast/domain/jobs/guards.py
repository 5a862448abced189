"""What stops a job that would go on: its limits, words after which another try is useless, the same crash again and
again, and placements that come no further.

Pure, and asked at every look at a launch that is not over. Money and time run on while a launcher does not answer; so
their guards are asked then, too, and say beforehand when they will trip. A guard tells one sentence, which is what people
read when they ask why the job was paused or has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast.domain.billing.running_cost import MS_PER_HOUR, ms_until
from holdfast.domain.events import Guard, GuardTripped
from holdfast.domain.jobfile.limits import Limits, dollars
from holdfast.domain.jobs.job import Job, State

SAVE_GRACE_S: Final = 120
"""What a worker gets to save its work and leave, before its nodes are taken from under it. Smaller: a big model is not
saved. Bigger: money is spent after the budget has said no, as the guard of the cost trips so long before the cap."""
SAME_CRASHES: Final = 3
"""Crashes of one kind in a row after which another try is useless. Smaller ends a program for an accident that came twice;
bigger pays for setups. It says nothing beside a `max_failures` that is less."""


class BudgetLike(Protocol):
    """What a budget has left for a job, as a guard asks for it."""

    def holds_back(self, now: datetime, more_per_hour: int) -> bool:
        """Whether jobs of it are to be paused, of which one may get nodes that cost `more_per_hour`."""
        ...

    def ms_until_spent(self, now: datetime) -> int | None:
        """Milliseconds until they will be; None: never, if nothing happens."""
        ...

    def told(self, now: datetime) -> str:
        """What is spent of which budget, as a sentence."""
        ...


_OVER: Final = frozenset({State.PAUSING, State.PAUSED, State.STOPPING, State.ENDED})


def trip(
    job: Job, limits: Limits, now: datetime, purses: Sequence[BudgetLike] = ()
) -> GuardTripped | None:
    """The first guard that this job trips now; None while it may go on. `purses` are what it is paid from."""
    seen = (*_waiting(job, limits, now), *_tries(job, limits))
    return _first(job, (*_running(job, limits, now), *_budget(job, purses, now), *seen), now)


def trip_unseen(
    job: Job, limits: Limits, now: datetime, purses: Sequence[BudgetLike] = ()
) -> GuardTripped | None:
    """The same of money and time alone: what may be said while the launcher says nothing."""
    return _first(job, (*_running(job, limits, now), *_budget(job, purses, now)), now)


def ms_until_trip(
    job: Job, limits: Limits, now: datetime, purses: Sequence[BudgetLike] = ()
) -> int | None:
    """Milliseconds until money or time trips a guard if nothing happens to this job any more; None: they never do."""
    if job.state in _OVER:
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
    budgets = (purse.ms_until_spent(now) for purse in purses)
    return min((span for span in (*spans, *budgets) if span is not None), default=None)


def grace_ms(job: Job, now: datetime) -> int | None:
    """Milliseconds left to a worker to save and leave; None while nobody wants it to."""
    if job.state in {State.PAUSED, State.ENDED}:
        return 0
    if job.stop_asked_at is None:
        return None
    return max(0, ms_until(job.stop_asked_at + timedelta(seconds=SAVE_GRACE_S), now))


def _first(job: Job, reached: Sequence[tuple[Guard, str]], now: datetime) -> GuardTripped | None:
    if job.state in _OVER or not reached:
        return None
    guard, detail = reached[0]
    return GuardTripped(at=now, guard=guard, detail=detail)


def _running(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    """Money and time, which run on though nobody looks."""
    yield from _money(job, limits, now)
    yield from _time(job, limits, now)


def _budget(job: Job, purses: Sequence[BudgetLike], now: datetime) -> Iterator[tuple[Guard, str]]:
    more = 0 if job.placed else job.micros_per_hour
    held = (purse for purse in purses if purse.holds_back(now, more))
    yield from ((Guard.BUDGET, purse.told(now)) for purse in held)


def _money(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    cap, hourly_cap, account = limits.max_cost_micros, limits.max_hourly_cost_micros, job.account
    rate = account.micros_per_hour
    paid = account.paid_micros_by(now)
    if cap is not None and paid + grace_micros(account.micros_per_hour) >= cap:
        yield (
            Guard.MAX_COST,
            f"it has cost {dollars(paid)}, which leaves no more than the time to save of max_cost_usd {dollars(cap)}",
        )
    if hourly_cap is not None and rate > hourly_cap:
        yield (
            Guard.MAX_HOURLY_COST,
            f"its nodes cost {dollars(rate)} an hour, and max_hourly_cost_usd is {dollars(hourly_cap)}",
        )


def _time(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    deadline = limits.deadline_at(job.submitted_at)
    if deadline is not None and now >= deadline:
        yield Guard.DEADLINE, f"its deadline was {deadline:%Y-%m-%d %H:%M:%SZ}, and it is not over"
    longest_s = limits.max_duration_s
    if longest_s is not None and job.account.node_ms_by(now) >= longest_s * 1000:
        yield Guard.MAX_DURATION, f"it has had nodes for max_duration {limits.max_duration}"


def _waiting(job: Job, limits: Limits, now: datetime) -> Iterator[tuple[Guard, str]]:
    """Nodes may have come that nobody has seen, so this is asked with a look alone."""
    waiting = timedelta(0) if job.placed else now - job.account.free_since
    if waiting >= timedelta(seconds=limits.max_wait_s):
        yield Guard.MAX_WAIT, f"it has been without nodes for max_wait {limits.max_wait}"


def _tries(job: Job, limits: Limits) -> Iterator[tuple[Guard, str]]:
    """Launchers count failures, too, but not all of them, and none beyond one launch."""
    is_lost = job.left_attempt < job.attempt or not job.placed
    if job.hopeless and is_lost and job.started_attempt <= job.left_attempt:
        yield Guard.NO_RETRY, f"another try is useless, as its worker left with {job.hopeless}"
    crashes = job.crashes
    if crashes.count >= SAME_CRASHES and (not job.placed or crashes.counted < job.attempt):
        yield (
            Guard.SAME_CRASH,
            f"its last {crashes.count} crashes were the same, with no checkpoint in between: {crashes.words}",
        )
    if job.failures >= limits.max_failures:
        times = f"{job.failures} time" + "s" * (job.failures != 1)
        words = f": {job.failure}" if job.failure else ""
        yield Guard.MAX_FAILURES, f"the program has failed {times}, which is max_failures{words}"
    # Who never tells anything may have come far, for all we know.
    speaks = job.started_attempt or job.left_attempt
    most = limits.max_fruitless
    if speaks and not job.placed and job.attempt - job.advanced_attempt >= most:
        last = f"{most} placements" if most > 1 else "placement"
        found = f"its last {last} left no checkpoint beyond step {job.furthest_step}"
        yield (
            Guard.ZERO_PROGRESS,
            f"zero progress: {found}; steps after the last checkpoint are not counted",
        )


def grace_micros(micros_per_hour: int) -> int:
    """What nodes of this price cost while their worker saves and leaves."""
    return micros_per_hour * SAVE_GRACE_S * 1000 // MS_PER_HOUR
