"""The bill: where every millisecond of a job went, and every micro-dollar.

Each attempt's time is cut into phases that add up exactly:

    waiting | setup | restore | useful + stalled | lost | stalled
            ^ nodes ready     ^ training starts  ^ the newest state that was used again, or may be

Waiting costs nothing; the other phases add up to the provisioned time, and their money to what was paid for it.
Work is *lost* when it was done again, or would have to be: what an attempt did after the checkpoint from which the
job later went on. That is known from the restore itself where there was one (it may have had to fall back), else from
the newest checkpoint. The last attempt of a running or successful job has lost nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.domain.account import MS_PER_HOUR
from holdfast.domain.account import to_ms as _ms
from holdfast.domain.events import (
    CapacityLost,
    Cause,
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    Fact,
    Finished,
    NodesReady,
    Outcome,
    PreemptionNoticed,
    RestoreStarted,
    SavingFailed,
    Submitted,
    TrainingStarted,
    WorkerLeft,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """The newest point that an attempt reported."""

    step: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Amounts by phase of a provisioned time: milliseconds, or micro-dollars."""

    setup: int = 0
    restore: int = 0
    useful: int = 0
    stalled: int = 0
    """Nodes stood without stepping forward: snapshots, and the time after the worker left."""
    lost: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.setup + self.restore + self.useful + self.stalled + self.lost

    def __add__(self, other: Phases) -> Phases:
        return Phases(
            setup=self.setup + other.setup,
            restore=self.restore + other.restore,
            useful=self.useful + other.useful,
            stalled=self.stalled + other.stalled,
            lost=self.lost + other.lost,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptBill:
    """One attempt, from the end of the one before it until its own end."""

    attempt: int
    zone: str
    nodes: int
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
    ms: Phases
    micros: Phases
    on_demand_micros: Phases
    """The same phases at the price without spot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What a job cost until `until`, and what for."""

    until: datetime
    attempts: tuple[AttemptBill, ...]
    waiting_ms: int
    """Time without nodes, the tail after the last attempt included."""
    ms: Phases
    micros: Phases
    on_demand_micros: int
    """What the same useful work, with one setup, would have cost on demand."""
    lost_steps: int
    simulated: bool
    """True if any price in it is simulated."""
    is_price_estimate: bool
    """True if any price in it is an estimate."""

    @property
    def paid_micros(self) -> int:
        """Money for all provisioned time."""
        return self.micros.total

    @property
    def wasted_micros(self) -> int:
        """The part of it that bought no step forward."""
        return self.micros.total - self.micros.useful

    @property
    def saved_micros(self) -> int:
        """What spot saved against on demand; negative when it did not."""
        return self.on_demand_micros - self.paid_micros


@dataclass(slots=True)
class _Attempt:
    """Facts of one attempt, gathered in any order, as reports may be late."""

    ready: NodesReady
    ended_at: datetime | None = None
    cause: Cause | None = None
    restore: RestoreStarted | None = None
    training: TrainingStarted | None = None
    left: WorkerLeft | None = None
    notice: PreemptionNoticed | None = None
    checkpoints: list[CheckpointCommitted] = field(default_factory=list)
    point: Reached | None = None

    @property
    def last_step(self) -> int | None:
        told = [*self.checkpoints, self.training, self.left, self.notice, self.point]
        steps = [item.step for item in told if item is not None]
        return max(steps) if self.training and steps else None


def bill(events: Iterable[Event], reached: Mapping[int, Reached], now: datetime) -> Bill:
    """The bill of a job from all its facts and the newest point of every attempt.

    Pure: the same facts give the same bill to the micro-dollar. `now` closes what is still open.
    """
    facts = tuple(events)
    attempts = _gather(facts, reached)
    finished = next((fact for fact in facts if isinstance(fact, Finished)), None)
    until = finished.at if finished else now
    submitted = next(fact for fact in facts if isinstance(fact, Submitted))
    speaks = any(attempt.restore or attempt.training for attempt in attempts)
    bills: list[AttemptBill] = []
    free_since = _ms(submitted.at)
    for attempt, kept in zip(attempts, _kept(attempts, finished), strict=True):
        start = max(_ms(attempt.ready.at), free_since)
        end = max(_ms(attempt.ended_at or until), start)
        ms = _phases(attempt, kept, start, end) if speaks else _mute(attempt, start, end)
        bills.append(_attempt_bill(attempt, kept, start - free_since, ms))
        free_since = end
    tail = 0 if attempts and attempts[-1].ended_at is None else max(0, _ms(until) - free_since)
    return _sum(bills, until, tail)


def _gather(facts: Sequence[Event], reached: Mapping[int, Reached]) -> list[_Attempt]:
    attempts: dict[int, _Attempt] = {}
    for fact in facts:
        if isinstance(fact, NodesReady):
            attempts[fact.attempt] = _Attempt(fact, point=reached.get(fact.attempt))
    for fact in facts:
        match fact:
            case Finished(at=at):
                for attempt in attempts.values():
                    attempt.ended_at = attempt.ended_at or at
            case (
                CapacityLost()
                | RestoreStarted()
                | TrainingStarted()
                | WorkerLeft()
                | PreemptionNoticed()
                | CheckpointCommitted()
                | CheckpointFailed()
                | SavingFailed()
            ) if fact.attempt in attempts:
                _note(attempts[fact.attempt], fact)
            case _:
                pass
    return [attempts[number] for number in sorted(attempts)]


def _note(
    attempt: _Attempt,
    fact: CapacityLost
    | RestoreStarted
    | TrainingStarted
    | WorkerLeft
    | PreemptionNoticed
    | CheckpointCommitted
    | CheckpointFailed
    | SavingFailed,
) -> None:
    match fact:
        case CapacityLost(at=at, cause=cause):
            attempt.ended_at, attempt.cause = at, cause
        case RestoreStarted():
            attempt.restore = attempt.restore or fact
        case TrainingStarted():
            attempt.training = attempt.training or fact
        case WorkerLeft():
            attempt.left = attempt.left or fact
        case PreemptionNoticed():
            attempt.notice = attempt.notice or fact
        case CheckpointCommitted():
            attempt.checkpoints.append(fact)
        case CheckpointFailed() | SavingFailed():
            pass


def _kept(attempts: Sequence[_Attempt], finished: Finished | None) -> list[float]:
    """Per attempt, the step up to which its work counts; infinite where nothing of it was lost."""
    trainings = [attempt.training for attempt in attempts if attempt.training]
    unusable = {item.checkpoint for training in trainings for item in training.passed_over}
    checkpoints = [c for attempt in attempts for c in attempt.checkpoints]
    committed = max((c.step for c in checkpoints if c.checkpoint not in unusable), default=0)
    standing = bool(attempts) and attempts[-1].ended_at is None
    safe = standing or (finished is not None and finished.outcome is Outcome.SUCCEEDED)
    kept: list[float] = []
    limit: float = math.inf if safe else committed
    for attempt in reversed(attempts):
        kept.append(limit)
        if attempt.training:
            limit = min(limit, attempt.training.step)
        elif limit == math.inf:
            limit = committed  # It stands and has not restored yet; what came before it is known as far.
    return kept[::-1]


def _phases(attempt: _Attempt, kept: float, start: int, end: int) -> Phases:
    """The attempt's provisioned milliseconds by phase. Times of the worker are held within those of its nodes."""

    def when(fact: Fact | None, low: int) -> int:
        return end if fact is None else min(max(_ms(fact.at), low), end)

    training = attempt.training
    restored = when(attempt.restore or training, start)
    trained = when(training, restored)
    if training is None:
        # It came up and never trained: looking for a checkpoint was all it did, if it did that.
        return Phases(setup=restored - start, restore=end - restored)
    left = when(attempt.left, trained)
    safe = [c for c in attempt.checkpoints if c.step <= kept]
    all_told = attempt.left is not None and kept >= (attempt.last_step or 0)
    if kept == math.inf or all_told:  # Who was killed without a word may have gone further.
        keep = left
    elif safe and kept > training.step:
        newest = max(safe, key=lambda c: c.step)
        keep = min(max(_ms(newest.snapshot_at) + newest.stall_ms, trained), left)
    else:
        keep = trained
    stall = min(sum(c.stall_ms for c in safe), keep - trained)
    return Phases(
        setup=restored - start,
        restore=trained - restored,
        useful=keep - trained - stall,
        stalled=stall + end - left,
        lost=left - keep,
    )


def _mute(attempt: _Attempt, start: int, end: int) -> Phases:
    """The phases of a program that tells nothing: useful until its nodes are lost, as it then starts over."""
    return Phases(lost=end - start) if attempt.cause else Phases(useful=end - start)


def _attempt_bill(attempt: _Attempt, kept: float, waiting_ms: int, ms: Phases) -> AttemptBill:
    ready, training, last_step = attempt.ready, attempt.training, attempt.last_step
    first_step = training.step if training else None
    lost_steps = 0
    if first_step is not None and last_step is not None:
        lost_steps = int(max(0, last_step - max(kept, first_step))) if kept < math.inf else 0
    return AttemptBill(
        attempt=ready.attempt,
        zone=ready.zone,
        nodes=ready.nodes,
        ready_at=ready.at,
        ended_at=attempt.ended_at,
        cause=attempt.cause,
        simulated=ready.simulated,
        price_source=ready.price_source,
        price_as_of=ready.price_as_of,
        is_price_estimate=ready.is_price_estimate,
        first_step=first_step,
        last_step=last_step,
        lost_steps=lost_steps,
        notice_s=attempt.notice.left_s if attempt.notice else None,
        waiting_ms=waiting_ms,
        ms=ms,
        micros=price(ms, ready.micros_per_hour),
        on_demand_micros=price(ms, ready.on_demand_micros_per_hour),
    )


def price(ms: Phases, micros_per_hour: int) -> Phases:
    """The phases in micro-dollars. Each is the difference of two rounded sums, so that they add up to the whole."""
    sums = [0]
    for part in (ms.setup, ms.restore, ms.useful, ms.stalled, ms.lost):
        sums.append(sums[-1] + part)
    micros = [total * micros_per_hour // MS_PER_HOUR for total in sums]
    setup, restore, useful, stalled, lost = (
        after - before for before, after in itertools.pairwise(micros)
    )
    return Phases(setup=setup, restore=restore, useful=useful, stalled=stalled, lost=lost)


def _sum(bills: Sequence[AttemptBill], until: datetime, tail_ms: int) -> Bill:
    nothing = Phases()
    # On demand, too, nodes must be set up, but only once.
    setup = next((item.on_demand_micros.setup for item in bills if item.ms.useful), 0)
    return Bill(
        until=until,
        attempts=tuple(bills),
        waiting_ms=sum(item.waiting_ms for item in bills) + tail_ms,
        ms=sum((item.ms for item in bills), nothing),
        micros=sum((item.micros for item in bills), nothing),
        on_demand_micros=sum(item.on_demand_micros.useful for item in bills) + setup,
        lost_steps=sum(item.lost_steps for item in bills),
        simulated=any(item.simulated for item in bills),
        is_price_estimate=any(item.is_price_estimate for item in bills),
    )
