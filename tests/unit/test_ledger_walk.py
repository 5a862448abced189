"""The bill against a slow one that walks through a job's life millisecond by millisecond.

In these lives a step takes one millisecond, so that time and steps can be held against each other: a step that was
done again, or would have to be, is a lost millisecond.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from histories import at, finished, launched, left, lost, ready, restoring, saved, submitted
from holdfast.domain.carried import PassedOver
from holdfast.domain.events import (
    Event,
    NodesReady,
    Outcome,
    RestoreStarted,
    Source,
    TrainingStarted,
    WorkerLeft,
)
from holdfast.domain.ledger import Bill, Phases, Reached, bill
from hypothesis import given
from hypothesis import strategies as st

MS_PER_HOUR = 3_600_000


class Doing(StrEnum):
    WAITING = "waiting"
    SETUP = "setup"
    RESTORE = "restore"
    STEP = "step"
    SNAPSHOT = "snapshot"
    IDLE = "idle"


@dataclass(frozen=True)
class Moment:
    """What a job was doing in one millisecond, and after how many steps."""

    doing: Doing
    attempt: int
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one attempt goes, in milliseconds."""

    wait: int
    setup: int
    restore: int
    """Below zero: the attempt is taken before it gets so far."""
    laps: list[tuple[int, int]]
    """Steps and then the stall of a checkpoint."""
    sprint: int
    """Steps after the last checkpoint."""
    idle: int
    """After the worker has left; below zero when it is killed without a word."""
    damaged: int
    """Newest checkpoints that it finds damaged."""
    micros: int


@dataclass
class Life:
    """A job as it was lived, and what was told of it."""

    moments: list[Moment] = field(default_factory=list)
    log: list[Event] = field(default_factory=lambda: [submitted(0), launched(0)])
    starts: dict[int, int] = field(default_factory=dict)
    """The step at which each attempt that trained began."""
    good: list[tuple[int, str]] = field(default_factory=list)
    """Checkpoints that nobody has found damaged, by step."""
    end: Outcome | None = None
    stands: bool = False

    @property
    def now_s(self) -> float:
        return len(self.moments) / 1000

    def spend(self, amount_ms: int, doing: Doing, attempt: int, step: int = 0) -> None:
        self.moments += [Moment(doing, attempt, step)] * amount_ms

    def live(self, attempt: int, plan: Plan) -> None:
        self.spend(plan.wait, Doing.WAITING, attempt)
        self.log.append(ready(self.now_s, attempt=attempt, micros=plan.micros))
        self.spend(plan.setup, Doing.SETUP, attempt)
        if plan.restore >= 0:
            self.log.append(restoring(self.now_s, attempt=attempt))
            self.spend(plan.restore, Doing.RESTORE, attempt)
        if plan.restore > 0:
            self._train(attempt, plan)

    def _train(self, attempt: int, plan: Plan) -> None:
        self.good.sort()
        passed_over = [
            PassedOver(checkpoint=name, reason="damaged")
            for _, name in self.good[::-1][: plan.damaged]
        ]
        self.good = self.good[: len(self.good) - len(passed_over)]
        step = self.starts[attempt] = self.good[-1][0] if self.good else 0
        self.log.append(
            TrainingStarted(
                at=at(self.now_s), attempt=attempt, step=step, passed_over=tuple(passed_over)
            )
        )
        for steps, stall in plan.laps:
            step = self._step(attempt, step, steps)
            told = saved(self.now_s, attempt=attempt, step=step, stall_ms=stall)
            self.log.append(told)
            self.good.append((step, told.checkpoint))
            self.spend(stall, Doing.SNAPSHOT, attempt, step)
        step = self._step(attempt, step, plan.sprint)
        if plan.idle >= 0:
            self.log.append(left(self.now_s, attempt=attempt, step=step))
            self.spend(plan.idle, Doing.IDLE, attempt, step)

    def _step(self, attempt: int, step: int, steps: int) -> int:
        for _ in range(steps):
            self.spend(1, Doing.STEP, attempt, step)
            step += 1
        return step

    def kept(self, attempt: int) -> float:
        """The step from which the job went on after `attempt`, or would have to."""
        later = [step for n, step in self.starts.items() if n > attempt]
        last = max(n.attempt for n in self.moments)
        if later:
            return min(later)
        if attempt == last and (self.stands or self.end is Outcome.SUCCEEDED):
            return math.inf
        return max((step for step, _ in self.good), default=0)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    life, short = Life(), st.integers(0, 9)
    plans = draw(
        st.lists(
            st.builds(
                Plan,
                wait=short,
                setup=st.integers(1, 9),
                restore=st.integers(-1, 9),
                laps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=3),
                sprint=short,
                idle=st.integers(-2, 4),
                damaged=st.sampled_from([0, 0, 0, 1, 2]),
                micros=st.sampled_from([MS_PER_HOUR, 1, 7_777_777, 123_456_789]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    for attempt, plan in enumerate(plans, 1):
        life.live(attempt, plan)
        if attempt < len(plans):
            life.log.append(lost(life.now_s, attempt=attempt))
    _end(life, len(plans), draw(st.sampled_from([None, "recovers", *Outcome])))
    return life


def _end(life: Life, attempt: int, end: str | None) -> None:
    if end is None:
        life.stands = True
    elif end == "recovers":
        life.log.append(lost(life.now_s, attempt=attempt))
        life.spend(5, Doing.WAITING, attempt)
    else:
        life.end = Outcome(end)
        life.log.append(finished(life.now_s, life.end))


def walked(life: Life, attempt: int) -> Phases:
    """The phases of an attempt, counted moment by moment."""
    kept, counted = life.kept(attempt), Counter[str]()
    for moment in life.moments:
        if moment.attempt == attempt and moment.doing is not Doing.WAITING:
            counted[_phase(moment, kept)] += 1
    return Phases(**counted)


def _phase(moment: Moment, kept: float) -> str:
    match moment.doing:
        case Doing.STEP:
            return "useful" if moment.step < kept else "lost"
        case Doing.SNAPSHOT:
            return "stalled" if moment.step <= kept else "lost"
        case Doing.IDLE:
            return "stalled"
        case _:
            return moment.doing.value


def account(life: Life) -> Bill:
    return bill(life.log, {}, at(life.now_s))


def speaks(life: Life) -> bool:
    return any(isinstance(event, RestoreStarted | TrainingStarted) for event in life.log)


@given(lives())
def test_every_millisecond_is_where_a_walk_through_the_life_finds_it(life: Life) -> None:
    bills = {item.attempt: item for item in account(life).attempts}

    if speaks(life):
        assert {n: item.ms for n, item in bills.items()} == {n: walked(life, n) for n in bills}
    else:
        assert all(item.ms.useful + item.ms.lost == item.ms.total for item in bills.values())
    assert account(life).waiting_ms == sum(m.doing is Doing.WAITING for m in life.moments)


@given(lives())
def test_time_and_money_add_up_exactly_and_nothing_is_negative(life: Life) -> None:
    whole = account(life)

    provisioned = Counter(m.attempt for m in life.moments if m.doing is not Doing.WAITING)
    rates = {e.attempt: e.micros_per_hour for e in life.log if isinstance(e, NodesReady)}
    for item in whole.attempts:
        assert item.ms.total == provisioned[item.attempt]
        assert item.micros.total == provisioned[item.attempt] * rates[item.attempt] // MS_PER_HOUR
        for phases in (item.ms, item.micros, item.on_demand_micros):
            assert min(getattr(phases, name) for name in Phases.__slots__) >= 0
    assert whole.ms.total == sum(provisioned.values())
    assert whole.paid_micros == sum(item.micros.total for item in whole.attempts)
    assert whole.paid_micros == whole.wasted_micros + whole.micros.useful
    assert whole.waiting_ms + whole.ms.total == len(life.moments)


@given(lives())
def test_lost_steps_are_the_lost_milliseconds_of_those_who_told_all(life: Life) -> None:
    told_all = {e.attempt for e in life.log if isinstance(e, WorkerLeft)}

    for item in account(life).attempts:
        redone = [
            m
            for m in life.moments
            if (m.attempt, m.doing) == (item.attempt, Doing.STEP) and m.step >= life.kept(m.attempt)
        ]
        assert item.lost_steps <= len(redone)
        assert item.lost_steps == len(redone) or item.attempt not in told_all


@given(lives(), st.data())
def test_late_and_mad_clocks_change_no_sum(life: Life, data: st.DataObject) -> None:
    """Workers' clocks may be wrong by days; time that was provisioned stays what the launcher said."""
    skew_s = st.integers(-100_000, 100_000)
    mad = [
        replace(e, at=at(data.draw(skew_s))) if e.source is Source.WORKER else e for e in life.log
    ]

    whole = bill(mad, {1: Reached(step=5, at=at(0))}, at(life.now_s))

    assert whole.ms.total == account(life).ms.total
    assert whole.paid_micros == account(life).paid_micros
    for item in whole.attempts:
        assert min(getattr(item.ms, name) for name in Phases.__slots__) >= 0
