"""The bill of a job that goes on, a moment later: what is over is taken as it is, and only the open end is reckoned.

That is right once the moment of the first bill lies after all that was told. From then on nothing but the clock moves: the phase
that was open at its end goes on, or the wait for nodes does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from holdfast.domain.attempts import LatestPoint
from holdfast.domain.billing.ledger import AttemptBill, Bill, GroupBill
from holdfast.domain.billing.phases import Phase, Phases, Span
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import CheckpointCommitted, Event, Finished


def is_closed(account: Bill, facts: Iterable[Event]) -> bool:
    """Whether a bill of these facts lies after all of them, so that `later` can go on from it."""
    until_ms = to_ms(account.until)
    return all(not isinstance(fact, Finished) and _told_until(fact) < until_ms for fact in facts)


def _told_until(fact: Event) -> int:
    """The last moment of which a fact tells."""
    if isinstance(fact, CheckpointCommitted):
        return max(to_ms(fact.at), to_ms(fact.snapshot_at) + fact.stall_ms)
    return to_ms(fact.at)


def open_from(account: Bill) -> int:
    """The attempt whose nodes stand; if none do, the number of the next."""
    last = account.attempts[-1:]
    return 1 if not last else last[0].attempt + (last[0].ended_at is not None)


def extend_bill(account: Bill, now: datetime, reached: LatestPoint | None = None) -> Bill | None:
    """The bill of the same facts at a later moment; None where time went back.

    `reached` is the newest point of the attempt that stands, not behind the one that the bill knows.
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
    longer = _longer(last, more_ms, reached)
    useful = longer.on_demand_micros.useful - last.on_demand_micros.useful
    unmeasured = longer.micros.unmeasured - last.micros.unmeasured
    return replace(
        account,
        until=now,
        attempts=(*account.attempts[:-1], longer),
        ms=account.ms + _moved(last.spans[-1].phase, more_ms),
        micros=account.micros + _moved(last.spans[-1].phase, longer.micros.total - last.micros.total),
        on_demand_micros=account.on_demand_micros + useful + unmeasured,
    )  # fmt: skip


def _longer(item: AttemptBill, more_ms: int, reached: LatestPoint | None) -> AttemptBill:
    """An attempt whose nodes have stood for longer, in the phase that they were in."""
    open_span = item.spans[-1]
    end_ms = open_span.end_ms + more_ms
    groups = tuple(_dearer(group, item, open_span.phase, end_ms) for group in item.groups)
    step = item.last_step
    return replace(
        item,
        last_step=max(step, reached.step) if reached and step is not None else step,
        spans=(*item.spans[:-1], Span(open_span.phase, open_span.begin_ms, end_ms)),
        groups=groups,
        ms=item.ms + _moved(open_span.phase, more_ms),
        micros=sum((group.micros for group in groups), Phases()),
        on_demand_micros=sum((group.on_demand_micros for group in groups), Phases()),
    )


def _dearer(group: GroupBill, item: AttemptBill, phase: Phase, end_ms: int) -> GroupBill:
    def cost(tariff: RateSchedule) -> Phases:
        before, after = tariff.micros_at(item.begin_ms, [item.end_ms, end_ms])
        return _moved(phase, after - before)

    return replace(
        group,
        micros=group.micros + cost(group.tariff),
        on_demand_micros=group.on_demand_micros + cost(group.on_demand_tariff),
    )


def _moved(phase: Phase, amount: int) -> Phases:
    """An amount in one phase."""
    return Phases(**{phase.value: amount})
