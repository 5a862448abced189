"""The bill: every millisecond and every micro-dollar of a job by phase.

`compute_bill` computes the amount paid in these steps:

1. `phase_spans` (`phases.py`) divides the time of each attempt into spans without gaps:

    waiting | setup | restore | useful + stalled | lost | stalled
            ^ nodes ready     ^ training starts  ^ the newest state that was or may be reused

   The time of an attempt without reports is *unmeasured*, or lost with its nodes.
   Waiting costs nothing; the other phases add up to the provisioned time, in whole milliseconds.
2. Each group of identical nodes has a `RateSchedule` (`rate.py`): the price of the whole group,
   nodes x price of one, in integer micro-dollars per hour, with its changes over time. A lost
   node changes it as well, until its replacement. Of changes at one moment the last applies.
3. `RateSchedule.accrue` adds up price x milliseconds from the start of the nodes.
   `RateSchedule.micros` divides this running sum by 3,600,000 ms per hour, rounded down.
4. `cost_by_phase` (`phases.py`): a span costs the running sum at its end minus that at its
   beginning, so that spans add up to the cost of the nodes, however their time is divided.
5. `adjustments` (`provider_rules.py`) adds a line for each charge or credit of the provider, such
   as a minimum time.

`Bill.paid_micros` is the sum of these costs over all attempts, groups and spans, plus all lines.

Work is *lost* if it was or would have to be repeated: everything an attempt did after the
checkpoint from which the job later resumed (`retained_steps` in `domain/attempts.py`). The restore
itself names this checkpoint, since it may have fallen back; without a restore it is the newest
checkpoint. The last attempt of a running or succeeded job has lost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Final

from holdfast.domain.attempts import (
    Attempt,
    LatestPoint,
    NodeLoss,
    RankStart,
    collect_attempts,
    retained_steps,
)
from holdfast.domain.billing.group_bill import (
    GroupBill,
    PriceStep,
    group_bills,
    is_estimate,
    price_steps,
)
from holdfast.domain.billing.phases import (
    Phase,
    Phases,
    Span,
    cost_by_phase,
    duration_by_phase,
    phase_spans,
    unreported,
    useful_ms_within,
)
from holdfast.domain.billing.provider_rules import Adjustment, BilledUsage, adjustments
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.events import (
    CancelRequested,
    Cause,
    Event,
    Finished,
    Paused,
    Requeued,
    ResumeRequested,
    Submitted,
)

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
class AttemptBill:
    """Bill of one attempt, from the end of the previous one until its own end."""

    attempt: int
    zone: str
    nodes: int
    cloud: str
    """Cloud of the nodes; empty if unknown."""
    instance_type: str
    """Instance type; empty if unknown."""
    ready_at: datetime
    ended_at: datetime | None
    """End of the attempt; None while the nodes run."""
    cause: Cause | None
    """Cause of the loss; None while the nodes run or if the job ended with them."""
    is_drill: bool
    """Whether a user requested the loss."""
    simulated: bool
    price_source: str
    """Source of the price; empty if the launcher sets it."""
    price_as_of: datetime | None
    """Date of the price at its source; None if unknown."""
    is_price_estimate: bool
    """Whether the price is a high estimate."""
    first_step: int | None
    """Step at which training started or resumed; None if it did not train."""
    last_step: int | None
    """Newest known step; None if it did not train."""
    lost_steps: int
    """Steps that were or must be repeated: after the loss of the nodes, and after restarts of the ranks."""
    final_lost_steps: int
    """Part of `lost_steps` since the ranks last started."""
    restarted_at: tuple[datetime, ...]
    """Times at which the ranks failed and started again on the nodes."""
    notice_s: float | None
    """Notice before the loss in seconds; None without a notice or a stated duration."""
    waiting_ms: int
    paused_ms: int
    """Part of `waiting_ms` in which the job was paused."""
    begin_ms: int
    """Start of the paid time, in milliseconds since 1970."""
    spans: tuple[Span, ...]
    """The paid time in order, without gaps."""
    groups: tuple[GroupBill, ...]
    """Groups of nodes by price and zone; at least one."""
    price_changes: tuple[PriceStep, ...]
    """Price changes after the first price, in order of time, also by lost and replaced nodes."""
    node_losses: tuple[NodeLoss, ...]
    """Losses of single nodes, in order."""
    hosted_times: tuple[tuple[datetime, datetime | None], ...]
    """Times in which ranks of missing nodes ran on other nodes; None until the end."""
    ms: Phases
    micros: Phases
    on_demand_micros: Phases
    """On-demand cost of the same phases."""

    @property
    def end_ms(self) -> int:
        """End of the paid time so far, in milliseconds since 1970."""
        return self.begin_ms + self.ms.total

    @property
    def degraded_ms(self) -> int:
        """Part of the useful time in which the job trained on fewer nodes than it asked for."""
        times = [(to_ms(a), to_ms(b) if b else self.end_ms) for a, b in self.hosted_times]
        return useful_ms_within(self.spans, times)

    @property
    def starts_ms(self) -> tuple[Phases, ...]:
        """The paid time for each start of the ranks, in order."""
        return tuple(duration_by_phase(spans) for spans in self._spans_by_start())

    def final_loss(self) -> tuple[int, int]:
        """Lost time in milliseconds, and its cost in micro-dollars, since the ranks last started."""
        lost = [span for span in self._spans_by_start()[-1] if span.phase is Phase.LOST]
        costs = (cost_by_phase(lost, group.rate, self.begin_ms).lost for group in self.groups)
        return duration_by_phase(lost).lost, sum(costs)

    def _spans_by_start(self) -> list[list[Span]]:
        """The spans of each start; adjacent spans of two starts may be one in `spans`."""
        at_ms = [min(max(to_ms(at), self.begin_ms), self.end_ms) for at in self.restarted_at]
        bounds = [self.begin_ms, *accumulate(at_ms, max), self.end_ms]
        return [
            [
                Span(span.phase, max(span.begin_ms, begin), min(span.end_ms, end))
                for span in self.spans
                if span.begin_ms < end and span.end_ms > begin
            ]
            for begin, end in pairwise(bounds)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """Cost of a job until `until`, by attempt and phase."""

    submitted_at: datetime
    until: datetime
    attempts: tuple[AttemptBill, ...]
    adjustments: tuple[Adjustment, ...]
    """Amounts that provider rules add or credit."""
    tail_ms: int
    """Time without nodes after the last attempt."""
    waiting_ms: int
    """Time without nodes, including `tail_ms`."""
    paused_ms: int
    """Part of `waiting_ms` in which the job was paused."""
    is_paused: bool
    """Whether the job was paused at `until`."""
    ms: Phases
    micros: Phases
    on_demand_micros: int
    """On-demand cost of the same useful work with one setup; unmeasured time at the price paid."""
    lost_steps: int
    simulated: bool
    """Whether any price is simulated."""
    is_price_estimate: bool
    """Whether any price is an estimate."""

    @property
    def adjusted_micros(self) -> int:
        """Sum of provider adjustments; negative if credits exceed charges."""
        return sum(line.micros for line in self.adjustments)

    @property
    def paid_micros(self) -> int:
        """Cost of all provisioned time after provider rules."""
        return self.micros.total + self.adjusted_micros

    @property
    def wasted_micros(self) -> int:
        """Cost of the phases that produced no progress."""
        return self.micros.wasted

    @property
    def saved_micros(self) -> int:
        """Savings of spot over on-demand; negative if spot cost more."""
        return self.on_demand_micros - self.paid_micros

    @property
    def goodput(self) -> float | None:
        """Useful share of the measured time with nodes, 0 to 1; None without measured time."""
        return self.ms.goodput

    @property
    def goodput_with_waiting(self) -> float | None:
        """Useful share of measured and waiting time, 0 to 1; None without either."""
        whole_ms = self.ms.measured + self.waiting_ms
        return self.ms.useful / whole_ms if whole_ms else None

    @property
    def on_demand_setup(self) -> tuple[int, int]:
        """The attempt whose setup on-demand nodes would also need, and its cost.

        (0, 0) without useful work.
        """
        useful = (item for item in self.attempts if item.ms.useful)
        return next(((item.attempt, item.on_demand_micros.setup) for item in useful), (0, 0))

    def on_demand_share(self, item: AttemptBill) -> int:
        """An attempt's part of `on_demand_micros`; the parts add up to it."""
        attempt, setup = self.on_demand_setup
        unmeasured = item.micros.unmeasured
        return item.on_demand_micros.useful + unmeasured + (setup if attempt == item.attempt else 0)


def compute_bill(
    events: Iterable[Event],
    reached: Mapping[int, LatestPoint],
    now: datetime,
    *,
    with_rules: bool = True,
) -> Bill:
    """Compute the bill of a job from all its events and the newest point of each attempt.

    Pure: the same events yield the same bill to the micro-dollar. `now` closes open spans. `with_rules` applies provider rules.
    """
    facts = tuple(events)
    attempts = collect_attempts(facts, reached)
    finished = next((fact for fact in facts if isinstance(fact, Finished)), None)
    until = finished.at if finished else now
    submitted = next(fact for fact in facts if isinstance(fact, Submitted))
    speaks = any(attempt.restore or attempt.training for attempt in attempts)
    bills: list[AttemptBill] = []
    stays: list[BilledUsage] = []
    free_since = to_ms(submitted.at)
    pauses = list(_pauses(facts, until))
    for attempt, kept in zip(attempts, retained_steps(attempts, finished), strict=True):
        start = max(to_ms(attempt.ready.at), free_since)
        end = max(to_ms(attempt.ended_at or until), start)
        spans = (
            phase_spans(attempt, kept, start, end) if speaks else unreported(attempt, start, end)
        )
        waiting = Waiting.within(free_since, start, pauses)
        item = _attempt_bill(attempt, kept, waiting, start, spans)
        bills.append(item)
        stays.append(BilledUsage(attempt, start, end, [group.rate for group in item.groups]))
        free_since = end
    has_nodes = bool(attempts) and attempts[-1].ended_at is None
    tail = Waiting.within(free_since, free_since if has_nodes else to_ms(until), pauses)
    lines = tuple(adjustments(stays)) if with_rules else ()
    return _total_bill(bills, submitted.at, until, tail, lines)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time without nodes."""

    ms: int
    paused_ms: int
    """Part in which the job was paused."""
    is_paused: bool
    """Whether the job was paused at the end."""

    @classmethod
    def within(cls, begin_ms: int, end_ms: int, pauses: Sequence[tuple[int, int]]) -> Waiting:
        """Time between two moments; the earlier bound applies if they are out of order."""
        end_ms = max(begin_ms, end_ms)
        paused = [max(0, min(end, end_ms) - max(begin, begin_ms)) for begin, end in pauses]
        return cls(end_ms - begin_ms, sum(paused), bool(paused) and pauses[-1][1] > end_ms)


_PAUSE_ENDS: Final = (ResumeRequested, Requeued, CancelRequested, Finished)
"""Events after which a job is not paused any more."""


def _pauses(facts: Iterable[Event], until: datetime) -> Iterator[tuple[int, int]]:
    """Pauses of the job in milliseconds since 1970; an open pause ends after `until`."""
    since = None
    for fact in facts:
        if isinstance(fact, Paused):
            since = to_ms(fact.at)
        elif since is not None and isinstance(fact, _PAUSE_ENDS):
            yield since, to_ms(fact.at)
            since = None
    if since is not None:
        yield since, to_ms(until) + 1


def _lost_steps(start: RankStart, kept: float) -> int:
    """Steps of a start of the ranks that were or must be repeated."""
    if start.training is None or start.last_step is None or kept == math.inf:
        return 0
    return int(max(0, start.last_step - max(kept, start.training.step)))


def _attempt_bill(
    attempt: Attempt,
    kept: Sequence[float],
    waiting: Waiting,
    begin_ms: int,
    spans: tuple[Span, ...],
) -> AttemptBill:
    ready, training = attempt.ready, attempt.training
    lost_steps = [
        _lost_steps(start, steps) for start, steps in zip(attempt.starts, kept, strict=True)
    ]
    groups = group_bills(attempt, spans, begin_ms)
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
        is_drill=attempt.is_drill,
        simulated=ready.simulated,
        price_source=ready.price_source,
        price_as_of=ready.price_as_of,
        is_price_estimate=ready.is_price_estimate or any(map(is_estimate, held)),
        first_step=training.step if training else None,
        last_step=attempt.last_step,
        lost_steps=sum(lost_steps),
        final_lost_steps=lost_steps[-1],
        restarted_at=tuple(start.restart.at for start in attempt.starts if start.restart),
        notice_s=attempt.notice.left_s if attempt.notice else None,
        waiting_ms=waiting.ms,
        paused_ms=waiting.paused_ms,
        begin_ms=begin_ms,
        spans=spans,
        groups=groups,
        price_changes=tuple(price_steps(held)),
        node_losses=tuple(attempt.node_losses),
        hosted_times=tuple(attempt.hosted_times),
        ms=duration_by_phase(spans),
        micros=sum((group.micros for group in groups), Phases()),
        on_demand_micros=sum((group.on_demand_micros for group in groups), Phases()),
    )


def _total_bill(
    bills: Sequence[AttemptBill],
    submitted_at: datetime,
    until: datetime,
    tail: Waiting,
    lines: tuple[Adjustment, ...],
) -> Bill:
    nothing = Phases()
    # On-demand nodes also need a setup, but only one.
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


def current_step(attempt: int, step: int, account: Bill) -> int:
    """The newest step of the newest attempt. A reported point may be newer than all events."""
    current = account.attempts[-1] if account.attempts else None
    if current is None or current.attempt != attempt:
        return step
    return max(step, current.last_step or 0)
