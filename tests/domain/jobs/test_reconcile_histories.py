"""Every event of a launch is recorded once and correctly, whenever it is observed.

A course is the complete, true history of a launch. A watch observes courses at some times, gets
what a launcher would return, and records what is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, pairwise
from typing import TypeAlias

from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import (
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    Cause,
    Event,
    Finished,
    LaunchRequested,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    Paused,
    PauseRequested,
    ResumeRequested,
)
from holdfast.domain.jobs.commands import pause_refusal, resume_refusal
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)
from holdfast.domain.jobs.reconcile import Effect, decide
from hypothesis import given
from hypothesis import strategies as st
from support.events import SPOT, at, denial, node_change, placement, submitted, training

LONG_AFTER_S = 100_000
FOREVER_S = 100 * LONG_AFTER_S


@dataclass(frozen=True)
class Course:
    """The true history of one launch, in seconds since it was submitted."""

    placements: tuple[tuple[float, float | None, Cause], ...] = ()
    """Start, loss and cause of each attempt; None if the last one ran until the end."""
    node_changes: tuple[tuple[tuple[float, Cause | None], ...], ...] = ()
    """For each attempt: time of each loss of a single node with its cause, and of each replacement."""
    denials: tuple[float, ...] = ()
    end_s: float = 0
    forgotten: bool = False
    """Whether the launcher forgot it; otherwise its program succeeded."""
    remembers: int = 99
    """Placements that the launcher still remembers."""


@st.composite
def courses(draw: st.DrawFn, *, forgetful: bool) -> Course:
    now_s, placements, denials, node_changes = 0.0, [], [], []
    spans = st.integers(0, 60)
    for _ in range(draw(st.integers(0, 4))):
        for _ in range(draw(st.integers(0, 2))):
            now_s += draw(spans)
            denials.append(now_s)
        ready_s = now_s + draw(spans)
        now_s = ready_s + draw(st.integers(1, 100))
        cause = draw(st.sampled_from([Cause.PREEMPTED, Cause.NODE_FAILED, Cause.USER_ERROR]))
        placements.append((ready_s, now_s, cause))
        node_changes.append(draw(changes_after(ready_s)))
    if placements and draw(st.booleans()):
        placements[-1] = (placements[-1][0], None, placements[-1][2])
    else:
        now_s += draw(spans)
    return Course(
        placements=tuple(placements),
        node_changes=tuple(node_changes),
        denials=tuple(denials),
        end_s=now_s,
        forgotten=draw(st.booleans()),
        remembers=draw(st.integers(1, 2)) if forgetful else 99,
    )


@st.composite
def changes_after(draw: st.DrawFn, ready_s: float) -> tuple[tuple[float, Cause | None], ...]:
    """Losses and replacements of a node, some of them after the loss of the attempt."""
    times = sorted(draw(st.lists(st.integers(0, 120), max_size=4)))
    causes = st.sampled_from([Cause.PREEMPTED, Cause.NODE_FAILED])
    return tuple(
        (ready_s + after_s, None if number % 2 else draw(causes))
        for number, after_s in enumerate(times)
    )


@dataclass
class StartedCourse:
    """A course that has begun, and may be cancelled."""

    course: Course
    began_s: float
    cancelled_s: float | None = None

    @property
    def end_s(self) -> float:
        own_s = self.began_s + self.course.end_s
        return own_s if self.cancelled_s is None else min(own_s, self.cancelled_s)

    @property
    def was_cancelled(self) -> bool:
        return self.cancelled_s is not None and self.cancelled_s <= self.began_s + self.course.end_s

    def placements(self, now_s: float) -> list[Placement]:
        """The attempts until now, as observed now."""
        until_s, begun = min(now_s, self.end_s), []
        all_changes = self.course.node_changes
        for (ready_s, lost_s, cause), changes in zip(
            self.course.placements, all_changes, strict=True
        ):
            if self.began_s + ready_s <= until_s:
                gone = lost_s is not None and self.began_s + lost_s <= until_s
                lost_at = self.began_s + (lost_s or 0) if gone else None
                nodes = placement(self.began_s + ready_s, lost_at, cause=cause)
                past = [
                    node_change(self.began_s + s, why)
                    for s, why in changes
                    if self.began_s + s <= until_s
                ]
                begun.append(replace(nodes, node_changes=tuple(past)))
        return begun

    def denials(self, now_s: float) -> tuple[Denial, ...]:
        until_s = min(now_s, self.end_s)
        return tuple(
            denial(self.began_s + s) for s in self.course.denials if self.began_s + s <= until_s
        )

    def observe(self, now_s: float) -> Observation:
        trail = self.placements(now_s)
        seen = Observation(
            status=LaunchStatus.WAITING,
            since=at(self.began_s),
            placements=len(trail),
            recent_placements=tuple(trail[-self.course.remembers :]),
            denials=self.denials(now_s),
        )
        if trail and trail[-1].lost_at is None:
            seen = replace(seen, status=LaunchStatus.UP, since=trail[-1].ready_at)
        elif trail and trail[-1].lost_at:
            seen = replace(seen, since=trail[-1].lost_at)
        if now_s < self.end_s:
            return seen
        since = at(self.end_s)
        if self.was_cancelled or not self.course.forgotten:
            outcome = Outcome.CANCELLED if self.was_cancelled else Outcome.SUCCEEDED
            return replace(
                seen,
                status=LaunchStatus.ENDED,
                since=since,
                result=LaunchResult(at=since, outcome=outcome),
            )
        return replace(seen, status=LaunchStatus.FORGOTTEN, since=since)


@dataclass
class MiniReconciler:
    """A small reconciler over courses instead of a launcher."""

    courses: list[Course]
    log: list[Event] = field(default_factory=lambda: [submitted()])
    launches: dict[str, StartedCourse] = field(default_factory=dict)
    tombstones: dict[str, float] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        return fold("job-1", self.log)

    def observe(self, now_s: float, *, acts: bool = True) -> tuple[Event, ...]:
        """Record one observation; without `acts` the watch crashes before its effect."""
        job = self.job
        plan = decide(job, self._see(job, now_s) if job.launch else None, at(now_s))
        for event in plan.record:
            job = advance(job, event)
        self.log += plan.record
        if acts and plan.effect is Effect.SUBMIT:
            self._submit(job, now_s)
        elif acts and plan.effect is Effect.CANCEL:
            self._cancel(job.launch_key, now_s)
        return plan.record

    def request(self, request_kind: str, now_s: float) -> None:
        """Pause or resume the job, if its state allows it."""
        if request_kind == "pause" and not pause_refusal(self.job):
            self.append(PauseRequested(at=at(now_s)))
        elif request_kind == "resume" and not resume_refusal(self.job):
            self.append(ResumeRequested(at=at(now_s)))

    def append(self, event: Event) -> None:
        advance(self.job, event)
        self.log.append(event)

    def _see(self, job: Job, now_s: float) -> Observation:
        key = job.launch_key
        if key in self.launches:
            return self.launches[key].observe(now_s)
        if key in self.tombstones:
            since = at(self.tombstones[key])
            ending = LaunchResult(at=since, outcome=Outcome.CANCELLED)
            return Observation(status=LaunchStatus.ENDED, since=since, result=ending)
        return Observation(status=LaunchStatus.ABSENT, since=at(now_s))

    def _submit(self, job: Job, now_s: float) -> None:
        assert job.launch_key not in self.launches, "started twice under one key"
        if job.launch_key not in self.tombstones:
            course = self.courses[job.launch - 1] if job.launch <= len(self.courses) else Course()
            self.launches[job.launch_key] = StartedCourse(course, now_s)

    def _cancel(self, key: str, now_s: float) -> None:
        if key not in self.launches:
            self.tombstones.setdefault(key, now_s)
        elif self.launches[key].cancelled_s is None:
            self.launches[key].cancelled_s = now_s


RecordedEvent: TypeAlias = tuple[type[Event], int, datetime, Cause | None]


def recorded_of(log: list[Event], launch: int) -> Iterator[RecordedEvent]:
    """The recorded events of one launch: its attempts, their losses, its denials."""
    numbers = list(accumulate(isinstance(event, LaunchRequested) for event in log))
    recorded = [event for event, number in zip(log, numbers, strict=True) if number == launch]
    yield from ((NodesReady, e.attempt, e.at, None) for e in recorded if isinstance(e, NodesReady))
    for event in recorded:
        if isinstance(event, CapacityLost) and event.attempt:
            yield (CapacityLost, event.attempt, event.at, event.cause)
    yield from ((CapacityDenied, 0, e.at, None) for e in recorded if isinstance(e, CapacityDenied))
    for event in recorded:
        if isinstance(event, NodeLost | NodeReplaced):
            cause = event.cause if isinstance(event, NodeLost) else None
            yield (type(event), event.attempt, event.at, cause)


OBSERVATIONS = st.lists(
    st.tuples(
        st.integers(1, 150), st.sampled_from(["look", "look", "crash", "train", "pause", "resume"])
    ),
    max_size=15,
)


def watch_all(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> MiniReconciler:
    """Observe `truths` at some times, and then often enough to see every event."""
    watch, now_s = MiniReconciler(truths), 0
    for number, (wait_s, request_kind) in enumerate(observations):
        now_s += wait_s
        if number == cancel_after and watch.job.state not in (State.STOPPING, State.ENDED):
            watch.append(CancelRequested(at=at(now_s)))
        if request_kind == "train":
            watch.append(training(now_s, attempt=watch.job.attempt + number % 2))
        watch.request(request_kind, now_s)
        watch.observe(now_s, acts=request_kind != "crash")
    for number in range(3 * (len(watch.launches) + len(truths)) + 6):
        watch.request("resume", now_s + LONG_AFTER_S * number)
        watch.observe(now_s + LONG_AFTER_S * number)
    return watch


@given(st.lists(courses(forgetful=False), max_size=3), OBSERVATIONS, st.none() | st.integers(0, 14))
def test_placements_losses_and_denials_are_recorded_exactly_once(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> None:
    watch = watch_all(truths, observations, cancel_after)

    assert watch.job.state is State.ENDED
    attempt = 0
    for key, launched in watch.launches.items():
        number = int(key.rpartition("-")[2])
        placements = list(enumerate(launched.placements(FOREVER_S), attempt + 1))
        attempt += len(placements)
        assert list(recorded_of(watch.log, number)) == [
            *((NodesReady, n, nodes.ready_at, None) for n, nodes in placements),
            *(loss for n, nodes in placements if (loss := loss_of(watch, number, n, nodes))),
            *((CapacityDenied, 0, denial.at, None) for denial in launched.denials(FOREVER_S)),
            *(
                (NodeLost if change.cause else NodeReplaced, n, change.at, change.cause)
                for n, nodes in placements
                for change in nodes.node_changes
                if nodes.lost_at is None or change.at <= nodes.lost_at
            ),
        ]


def loss_of(
    watch: MiniReconciler, launch: int, attempt: int, nodes: Placement
) -> RecordedEvent | None:
    launched = watch.launches[f"job-1-{launch}"]
    if nodes.lost_at:
        return (CapacityLost, attempt, nodes.lost_at, nodes.cause)
    if launched.course.forgotten and not launched.was_cancelled:
        return (CapacityLost, attempt, at(launched.end_s), Cause.LAUNCHER_FORGOT)
    numbers = list(accumulate(isinstance(event, LaunchRequested) for event in watch.log))
    pauses = {n for n, fact in zip(numbers, watch.log, strict=True) if isinstance(fact, Paused)}
    if launch in pauses:
        return (CapacityLost, attempt, at(launched.end_s), Cause.PAUSED)
    return None  # Its nodes were released at its end.


@given(st.lists(courses(forgetful=True), max_size=3), OBSERVATIONS, st.none() | st.integers(0, 14))
def test_forgetful_launcher_changes_no_count_or_order(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> None:
    watch = watch_all(truths, observations, cancel_after)

    moves = [e for e in watch.log if isinstance(e, NodesReady | CapacityLost) and e.attempt]
    placed = sum(len(one.placements(FOREVER_S)) for one in watch.launches.values())
    assert [e.attempt for e in moves if isinstance(e, NodesReady)] == [*range(1, placed + 1)]
    assert all(
        isinstance(later, CapacityLost) is isinstance(earlier, NodesReady)
        for earlier, later in pairwise(moves)
    )
    assert all(earlier.at <= later.at for earlier, later in pairwise(moves))
    assert {e.micros_per_hour for e in moves if isinstance(e, NodesReady)} <= {SPOT}


@given(st.lists(courses(forgetful=True), max_size=3), OBSERVATIONS, st.none() | st.integers(0, 14))
def test_repeated_observation_records_no_event_twice(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> None:
    watch, now_s = MiniReconciler(truths), 0
    for number, (wait_s, _) in enumerate(observations):
        now_s += wait_s
        if number == cancel_after and watch.job.state not in (State.STOPPING, State.ENDED):
            watch.append(CancelRequested(at=at(now_s)))
        watch.observe(now_s, acts=False)

        again = watch.observe(now_s, acts=False)

        assert again == ()
        watch.observe(now_s)


@given(st.lists(courses(forgetful=True), max_size=3), OBSERVATIONS, st.none() | st.integers(0, 14))
def test_every_decided_history_can_be_folded(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> None:
    watch = watch_all(truths, observations, cancel_after)

    refolded = fold("job-1", watch.log)

    assert refolded.seq == len(watch.log)
    assert refolded.state is State.ENDED
    assert sum(isinstance(e, Finished) for e in watch.log) == 1
    assert refolded.launch == sum(isinstance(e, LaunchRequested) for e in watch.log)


@given(st.lists(courses(forgetful=True), max_size=3), OBSERVATIONS, st.none() | st.integers(0, 14))
def test_running_cost_of_guards_equals_the_bill(
    truths: list[Course], observations: list[tuple[int, str]], cancel_after: int | None
) -> None:
    watch = watch_all(truths, observations, cancel_after)

    for length in range(1, len(watch.log) + 1):
        log = watch.log[:length]
        job, now = fold("job-1", log), max(event.at for event in log)
        billed = compute_bill(log, {}, now)
        assert job.account.paid_micros_by(now) == billed.paid_micros
        assert job.account.node_ms_by(now) == billed.ms.total
