"""How a paused job is taken up again: the command for it, and whether it would be paused again at once. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal
from typing import Final

from holdfast.domain.events import Guard, ResumeRequested
from holdfast.domain.guards import grace_micros, trip
from holdfast.domain.job import Job
from holdfast.domain.lifecycle import advance
from holdfast.domain.limits import MICROS_PER_USD, Limits, seconds

_MORE: Final = 2
"""How many times the old limit the command has that a sentence offers."""
_CENT: Final = Decimal("0.01")
_OPTIONS: Final = {
    Guard.MAX_COST: "--max-cost",
    Guard.MAX_HOURLY_COST: "--max-hourly-cost",
    Guard.DEADLINE: "--deadline",
    Guard.MAX_DURATION: "--max-duration",
}
"""Of `holdfast resume`, for what would trip again if nothing were changed."""


def way_back(job: Job, limits: Limits) -> str:
    """The command that takes a job up again, with the limit that has to be another one, if any has."""
    if job.guard is Guard.BUDGET:
        return f"once its budget has room, holdfast resume {job.id} takes it up again"
    option = _OPTIONS.get(job.guard) if job.guard else None
    words = f" {option} {_more(job, limits)}" if option else ""
    return f"holdfast resume {job.id}{words} takes it up again"


def _more(job: Job, limits: Limits) -> str:
    """A limit of which there would be about as much left as there was in all."""
    deadline = limits.deadline_at(job.submitted_at)
    match job.guard:
        case Guard.MAX_COST if limits.max_cost_usd is not None:
            return _dollars(limits.max_cost_usd * _MORE)
        case Guard.MAX_HOURLY_COST if limits.max_hourly_cost_usd is not None:
            return _dollars(limits.max_hourly_cost_usd * _MORE)
        case Guard.MAX_DURATION if limits.max_duration is not None:
            return _hours(_MORE * timedelta(seconds=seconds(limits.max_duration)))
        case Guard.DEADLINE if deadline is not None:
            return _hours(_MORE * (deadline - job.submitted_at))
        case _:
            return "none"


def why_not(job: Job, limits: Limits, now: datetime) -> str | None:
    """Why a paused job would be paused again at once, and what its limit has to be; None when it would not."""
    resumed = advance(job, ResumeRequested(at=now))
    if tripped := trip(resumed, limits, now):
        return f"it would be stopped again at once, as {tripped.detail}; {_needed(job, tripped.guard, limits, now)}"
    cap, paid = limits.max_cost_micros, job.account.paid_micros
    needed = paid + grace_micros(job.micros_per_hour)
    if cap is not None and cap <= needed:
        return (
            f"it has cost ${_usd(paid)}, and its nodes cost ${_usd(job.micros_per_hour)} an hour, so that "
            f"max_cost_usd ${_usd(cap)} leaves no more than the time to save; {_above(needed)}"
        )
    return None


def _needed(job: Job, guard: Guard, limits: Limits, now: datetime) -> str:
    match guard:
        case Guard.MAX_COST:
            return _above(job.account.paid_micros + grace_micros(job.micros_per_hour))
        case Guard.DEADLINE:
            return f"deadline has to be after {now:%Y-%m-%d %H:%M:%SZ}, or more than {_span(now - job.submitted_at)}"
        case Guard.MAX_DURATION:
            had = timedelta(milliseconds=job.account.node_ms_by(now))
            return f"max_duration has to be more than {_span(had)}"
        case Guard.MAX_FAILURES:
            return f"max_failures has to be at least {max(job.failures, limits.max_failures) + 1}"
        case _:
            return "its limits have to be other ones"


def _hours(span: timedelta) -> str:
    return f"{-(-span // timedelta(hours=1))}h"


def _above(micros: int) -> str:
    return f"max_cost_usd has to be above {_usd(micros)}"


def _span(span: timedelta) -> str:
    return f"{int(span.total_seconds()) // 60 + 1}m"


def _usd(micros: int) -> str:
    """Dollars to the cent, never less than they are."""
    return _dollars(Decimal(micros) / MICROS_PER_USD)


def _dollars(usd: Decimal) -> str:
    rounded = usd.quantize(_CENT, ROUND_UP)
    return f"{rounded.normalize():f}" if rounded == rounded.to_integral() else f"{rounded:f}"
