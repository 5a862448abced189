"""The bill: where every millisecond of a job went, and every micro-dollar.

Each attempt's time is cut into phases that add up exactly:

    waiting | setup | restore | useful + stalled | lost | stalled
            ^ nodes ready     ^ training starts  ^ the newest state that was used again, or may be

Waiting costs nothing; the other phases add up to the provisioned time. Their money, at the price of each moment and for
each group of nodes, adds up to what these nodes cost; what a provider's rules add to it, or take from it, are lines of
their own. Work is *lost* when it was done again, or would have to be: what an attempt did after the checkpoint from which
the job later went on. That is known from the restore itself where there was one (it may have had to fall back), else from
the newest checkpoint. The last attempt of a running or successful job has lost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import Attempt, LatestPoint, gather, without_discarded
from holdfast.domain.billing.phases import (
    Phase,
    Phases,
    Span,
    cost,
    lasted,
    phase_spans,
    unreported,
)
from holdfast.domain.billing.provider_rules import Adjustment, BilledUsage, adjustments
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import (
    CancelRequested,
    Cause,
    Event,
    Finished,
    Paused,
    ResumeRequested,
    Submitted,
)
from holdfast.domain.jobs.job import Job

__all__ = [
    "AttemptBill",
    "Bill",
    "GroupBill",
    "LatestPoint",
    "Phase",
    "Phases",
    "PriceStep",
    "compute_bill",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceStep:
    """What nodes cost from a moment on."""

    at: datetime
    group: int
    micros_per_hour: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBill:
    """The nodes of an attempt that are alike."""

    zone: str
    nodes: int
    is_spot: bool
    tariff: RateSchedule
    on_demand_tariff: RateSchedule
    micros: Phases
    on_demand_micros: Phases
    """The same phases at the price without spot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptBill:
    """One attempt, from the end of the one before it until its own end."""

    attempt: int
    zone: str
    nodes: int
    cloud: str
    """Empty where nobody said whose nodes they are."""
    instance_type: str
    """Empty where nobody said."""
    ready_at: datetime
    ended_at: datetime | None
    """None while the nodes stand."""
    cause: Cause | None
    """Why the nodes were lost; None while they stand, or when the job ended with them."""
    simulated: bool
    price_source: str
    """Who told the price; empty where the launcher sets it itself."""
    price_as_of: datetime | None
    """When that source had it so; None where nobody said."""
    is_price_estimate: bool
    """Whether the price is but taken to be so, and high."""
    first_step: int | None
    """Where training went on; None if it never came to train."""
    last_step: int | None
    """The newest step it is known to have reached; None if it never came to train."""
    lost_steps: int
    notice_s: float | None
    """Warning that the nodes were given; None when there was none, or nobody told how long."""
    waiting_ms: int
    paused_ms: int
    """The part of `waiting_ms` in which the job was paused."""
    begin_ms: int
    """Milliseconds since 1970 at which its paid time begins."""
    spans: tuple[Span, ...]
    """That time in order, without a gap."""
    groups: tuple[GroupBill, ...]
    """Its nodes, by what they cost and where they stand; never empty."""
    price_changes: tuple[PriceStep, ...]
    """After the first price, in order of time."""
    ms: Phases
    micros: Phases
    on_demand_micros: Phases
    """The same phases at the price without spot."""

    @property
    def end_ms(self) -> int:
        """Milliseconds since 1970 at which its paid time ends, or is counted to."""
        return self.begin_ms + self.ms.total


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What a job cost until `until`, and what for."""

    submitted_at: datetime
    until: datetime
    attempts: tuple[AttemptBill, ...]
    adjustments: tuple[Adjustment, ...]
    """What the rules of providers add or take."""
    tail_ms: int
    """Time without nodes after the last attempt."""
    waiting_ms: int
    """Time without nodes, that tail included."""
    paused_ms: int
    """The part of `waiting_ms` in which the job was paused."""
    is_paused: bool
    """Whether the job was paused at `until`."""
    ms: Phases
    micros: Phases
    on_demand_micros: int
    """What the same useful work, with one setup, would have cost on demand; unmeasured time counts as it was paid."""
    lost_steps: int
    simulated: bool
    """True if any price in it is simulated."""
    is_price_estimate: bool
    """True if any price in it is an estimate."""

    @property
    def adjusted_micros(self) -> int:
        """What the rules of providers have moved; less than 0 where they gave more than they took."""
        return sum(line.micros for line in self.adjustments)

    @property
    def paid_micros(self) -> int:
        """Money for all provisioned time, by the rules of providers."""
        return self.micros.total + self.adjusted_micros

    @property
    def wasted_micros(self) -> int:
        """The part of the phases' money that is known to have bought no step forward."""
        return self.micros.wasted

    @property
    def saved_micros(self) -> int:
        """What spot saved against on demand; negative when it did not."""
        return self.on_demand_micros - self.paid_micros

    @property
    def goodput(self) -> float | None:
        """Useful share of the measured time with nodes, 0 to 1; None where none was measured."""
        return self.ms.goodput

    @property
    def goodput_with_waiting(self) -> float | None:
        """Useful share of measured and waiting time, 0 to 1; None where there was neither."""
        whole_ms = self.ms.measured + self.waiting_ms
        return self.ms.useful / whole_ms if whole_ms else None

    @property
    def one_setup(self) -> tuple[int, int]:
        """The attempt whose setup on demand, too, would have needed, and its price there; (0, 0) without useful work."""
        useful = (item for item in self.attempts if item.ms.useful)
        return next(((item.attempt, item.on_demand_micros.setup) for item in useful), (0, 0))

    def on_demand_of(self, item: AttemptBill) -> int:
        """An attempt's part of `on_demand_micros`: they add up to it."""
        attempt, setup = self.one_setup
        unmeasured = item.micros.unmeasured
        return item.on_demand_micros.useful + unmeasured + (setup if attempt == item.attempt else 0)


def compute_bill(
    events: Iterable[Event],
    reached: Mapping[int, LatestPoint],
    now: datetime,
    *,
    with_rules: bool = True,
) -> Bill:
    """The bill of a job from all its facts and the newest point of every attempt.

    Pure: the same facts give the same bill to the micro-dollar. `now` closes what is still open. `with_rules` says
    whether the rules of providers are asked.
    """
    facts = tuple(events)
    attempts = gather(facts, reached)
    finished = next((fact for fact in facts if isinstance(fact, Finished)), None)
    until = finished.at if finished else now
    submitted = next(fact for fact in facts if isinstance(fact, Submitted))
    speaks = any(attempt.restore or attempt.training for attempt in attempts)
    bills: list[AttemptBill] = []
    stays: list[BilledUsage] = []
    free_since = to_ms(submitted.at)
    pauses = list(_pauses(facts, until))
    for attempt, step in zip(attempts, without_discarded(attempts, finished), strict=True):
        start = max(to_ms(attempt.ready.at), free_since)
        end = max(to_ms(attempt.ended_at or until), start)
        spans = (
            phase_spans(attempt, step, start, end) if speaks else unreported(attempt, start, end)
        )
        waiting = Waiting.within(free_since, start, pauses)
        item = _attempt_bill(attempt, step, waiting, start, spans)
        bills.append(item)
        stays.append(BilledUsage(attempt, start, end, [group.tariff for group in item.groups]))
        free_since = end
    has_nodes = bool(attempts) and attempts[-1].ended_at is None
    tail = Waiting.within(free_since, free_since if has_nodes else to_ms(until), pauses)
    lines = tuple(adjustments(stays)) if with_rules else ()
    return _sum(bills, submitted.at, until, tail, lines)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Some milliseconds without nodes."""

    ms: int
    paused_ms: int
    """The part in which the job was paused."""
    is_paused: bool
    """Whether it was paused at the end."""

    @classmethod
    def within(cls, begin_ms: int, end_ms: int, pauses: Sequence[tuple[int, int]]) -> Waiting:
        """The time between two moments, of which the first counts where they are not in order."""
        end_ms = max(begin_ms, end_ms)
        paused = [max(0, min(end, end_ms) - max(begin, begin_ms)) for begin, end in pauses]
        return cls(end_ms - begin_ms, sum(paused), bool(paused) and pauses[-1][1] > end_ms)


def _pauses(facts: Iterable[Event], until: datetime) -> Iterator[tuple[int, int]]:
    """When the job was paused, in milliseconds since 1970; a pause that lasts has an end beyond `until`."""
    since = None
    for fact in facts:
        if isinstance(fact, Paused):
            since = to_ms(fact.at)
        elif since is not None and isinstance(fact, ResumeRequested | CancelRequested | Finished):
            yield since, to_ms(fact.at)
            since = None
    if since is not None:
        yield since, to_ms(until) + 1


def _groups(attempt: Attempt, spans: Sequence[Span], begin_ms: int) -> tuple[GroupBill, ...]:
    groups = []
    for number, part in enumerate(attempt.ready.parts):
        paid = RateSchedule.flat(attempt.ready.at, part.micros_per_hour)
        full = RateSchedule.flat(attempt.ready.at, part.on_demand_micros_per_hour)
        for change in attempt.changes:
            if change.group == number:
                paid = paid.changed(change.at, change.micros_per_hour)
                full = full.changed(change.at, change.on_demand_micros_per_hour)
        groups.append(
            GroupBill(
                zone=part.zone,
                nodes=part.nodes,
                is_spot=part.is_spot,
                tariff=paid,
                on_demand_tariff=full,
                micros=cost(spans, paid, begin_ms),
                on_demand_micros=cost(spans, full, begin_ms),
            )
        )
    return tuple(groups)


def _attempt_bill(
    attempt: Attempt, kept_step: float, waiting: Waiting, begin_ms: int, spans: tuple[Span, ...]
) -> AttemptBill:
    ready, training, last_step = attempt.ready, attempt.training, attempt.last_step
    first_step = training.step if training else None
    lost_steps = 0
    if first_step is not None and last_step is not None:
        lost_steps = (
            int(max(0, last_step - max(kept_step, first_step))) if kept_step < math.inf else 0
        )
    groups = _groups(attempt, spans, begin_ms)
    held = [change for change in attempt.changes if change.at > ready.at]
    return AttemptBill(
        attempt=ready.attempt,
        zone=ready.zone,
        nodes=ready.nodes,
        cloud=ready.cloud,
        instance_type=ready.instance_type,
        ready_at=ready.at,
        ended_at=attempt.ended_at,
        cause=attempt.cause,
        simulated=ready.simulated,
        price_source=ready.price_source,
        price_as_of=ready.price_as_of,
        is_price_estimate=ready.is_price_estimate or any(c.is_price_estimate for c in held),
        first_step=first_step,
        last_step=last_step,
        lost_steps=lost_steps,
        notice_s=attempt.notice.left_s if attempt.notice else None,
        waiting_ms=waiting.ms,
        paused_ms=waiting.paused_ms,
        begin_ms=begin_ms,
        spans=spans,
        groups=groups,
        price_changes=tuple(
            PriceStep(
                at=change.at,
                group=change.group,
                micros_per_hour=change.micros_per_hour,
                source=change.price_source,
            )
            for change in sorted(held, key=lambda c: c.at)
        ),
        ms=lasted(spans),
        micros=sum((group.micros for group in groups), Phases()),
        on_demand_micros=sum((group.on_demand_micros for group in groups), Phases()),
    )


def _sum(
    bills: Sequence[AttemptBill],
    submitted_at: datetime,
    until: datetime,
    tail: Waiting,
    lines: tuple[Adjustment, ...],
) -> Bill:
    nothing = Phases()
    # On demand, too, nodes must be set up, but only once.
    setup = next((item.on_demand_micros.setup for item in bills if item.ms.useful), 0)
    micros = sum((item.micros for item in bills), nothing)
    useful = sum(item.on_demand_micros.useful for item in bills)
    return Bill(
        submitted_at=submitted_at,
        until=until,
        attempts=tuple(bills),
        adjustments=lines,
        tail_ms=tail.ms,
        waiting_ms=sum(item.waiting_ms for item in bills) + tail.ms,
        paused_ms=sum(item.paused_ms for item in bills) + tail.paused_ms,
        is_paused=tail.is_paused,
        ms=sum((item.ms for item in bills), nothing),
        micros=micros,
        on_demand_micros=useful + micros.unmeasured + setup,
        lost_steps=sum(item.lost_steps for item in bills),
        simulated=any(item.simulated for item in bills),
        is_price_estimate=any(item.is_price_estimate for item in bills),
    )


def step_of(job: Job, account: Bill) -> int:
    """The newest step of the newest attempt. A reported point may be newer than any fact."""
    current = account.attempts[-1] if account.attempts else None
    if current is None or current.attempt != job.attempt:
        return job.step
    return max(job.step, current.last_step or 0)
