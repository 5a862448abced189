"""Incremental bills: extend the bill of a running job by computing only its open end.

This is exact if the first bill is later than all events and points. After that only the clock advances: the phase that was open
continues, or the wait for nodes does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from holdfast.domain.attempts import LatestPoint
from holdfast.domain.billing.bill import AttemptBill, Bill, GroupBill
from holdfast.domain.billing.phases import Phase, Phases, Span
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import CheckpointCommitted, Event, Finished


def is_closed(account: Bill, facts: Iterable[Event]) -> bool:
    """Whether a bill is later than all its events, so that `extend_bill` can continue from it."""
    until_ms = to_ms(account.until)
    return all(
        not isinstance(fact, Finished) and _last_timestamp_ms(fact) < until_ms for fact in facts
    )


def _last_timestamp_ms(fact: Event) -> int:
    """The latest time that an event contains."""
    if isinstance(fact, CheckpointCommitted):
        return max(to_ms(fact.at), to_ms(fact.snapshot_at) + fact.stall_ms)
    return to_ms(fact.at)


def first_open_attempt(account: Bill) -> int:
    """Number of the attempt with running nodes, or else of the next attempt."""
    last = account.attempts[-1:]
    return 1 if not last else last[0].attempt + (last[0].ended_at is not None)


def extend_bill(account: Bill, now: datetime, reached: LatestPoint | None = None) -> Bill | None:
    """The bill of the same events at a later time; None if time went backwards.

    `reached` is the newest point of the running attempt, not older than the one in the bill.
    """
    more_ms = to_ms(now) - to_ms(account.until)
    if more_ms < 0:
        return None
    last = account.attempts[-1] if account.attempts else None
    if last is None or last.ended_at is not None:
        waited_ms = account.waiting_ms + more_ms
        paused_ms = account.paused_ms + more_ms * account.is_paused
        tail_ms = account.tail_ms + more_ms
        return replace(
            account, until=now, tail_ms=tail_ms, waiting_ms=waited_ms, paused_ms=paused_ms
        )
    longer = _extend_attempt(last, more_ms, reached)
    useful = longer.on_demand_micros.useful - last.on_demand_micros.useful
    unmeasured = longer.micros.unmeasured - last.micros.unmeasured
    return replace(
        account,
        until=now,
        attempts=(*account.attempts[:-1], longer),
        ms=account.ms + _in_phase(last.spans[-1].phase, more_ms),
        micros=account.micros + _in_phase(last.spans[-1].phase, longer.micros.total - last.micros.total),
        on_demand_micros=account.on_demand_micros + useful + unmeasured,
    )  # fmt: skip


def _extend_attempt(item: AttemptBill, more_ms: int, reached: LatestPoint | None) -> AttemptBill:
    """Extend an attempt whose nodes are still running in the same phase."""
    open_span = item.spans[-1]
    end_ms = open_span.end_ms + more_ms
    groups = tuple(_extend_group(group, item, open_span.phase, end_ms) for group in item.groups)
    step = item.last_step
    return replace(
        item,
        last_step=max(step, reached.step) if reached and step is not None else step,
        spans=(*item.spans[:-1], Span(open_span.phase, open_span.begin_ms, end_ms)),
        groups=groups,
        ms=item.ms + _in_phase(open_span.phase, more_ms),
        micros=sum((group.micros for group in groups), Phases()),
        on_demand_micros=sum((group.on_demand_micros for group in groups), Phases()),
    )


def _extend_group(group: GroupBill, item: AttemptBill, phase: Phase, end_ms: int) -> GroupBill:
    def cost(tariff: RateSchedule) -> Phases:
        before, after = tariff.micros_at(item.begin_ms, [item.end_ms, end_ms])
        return _in_phase(phase, after - before)

    return replace(
        group,
        micros=group.micros + cost(group.rate),
        on_demand_micros=group.on_demand_micros + cost(group.on_demand_rate),
    )


def _in_phase(phase: Phase, amount: int) -> Phases:
    """An amount in one phase."""
    return Phases(**{phase.value: amount})
