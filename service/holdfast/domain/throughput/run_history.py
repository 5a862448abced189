"""When a job has trained and what interrupted it, from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import Attempt, LatestPoint, RankStart, collect_attempts
from holdfast.domain.events import Event, Moved, Paused, Planned, Resized
from holdfast.domain.events.planning import PlanForecast
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.planning.observations import (
    OBSERVED_KINDS,
    PlaceObservation,
    PlaceObserver,
)


@dataclass(frozen=True, slots=True)
class Interruption:
    """A time without training between two starts of it."""

    downtime_s: float
    lost_steps: int
    """Steps that were made again."""


@dataclass(frozen=True, slots=True)
class RecordedForecast:
    """The newest forecast of a plan."""

    at: datetime
    forecast: PlanForecast


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHistory:
    """Training and interruptions of a job so far."""

    first_training_at: datetime | None = None
    first_step: int = 0
    """Step from which it trained first."""
    trained_s: float = 0.0
    """Time of training in all finished starts of it."""
    training_since: datetime | None = None
    """When the ranks that train began; None if none do."""
    waiting_since: datetime | None = None
    """When training ended without a wish of users; None if it trains, never has, or was paused."""
    losses: int = 0
    """Ends of training by capacity losses and failures, without drills, pauses and moves."""
    interruptions: tuple[Interruption, ...] = ()
    """The past ones, without pauses and moves."""
    planned: RecordedForecast | None = None


def newest_spot_place(spec: JobSpec, facts: Iterable[Event]) -> tuple[str, str] | None:
    """Place and hardware of the newest spot nodes of a job; None if it never had some.

    `spec` is the job file as submitted. Nodes before a resize do not count.
    """
    observer, found = PlaceObserver(spec), None
    for fact in facts:
        if isinstance(fact, Resized):
            found = None
        if isinstance(fact, (*OBSERVED_KINDS, Resized)):
            for shown in observer.see(fact):
                if isinstance(shown, PlaceObservation) and shown.until is None:
                    found = shown.place, shown.hardware
    return found


@dataclass(frozen=True, slots=True)
class _Training:
    """One start of training."""

    start: RankStart
    begin: datetime
    end: datetime | None
    """None while it trains, as far as reported."""
    is_drill: bool


def run_history(facts: Sequence[Event], reached: Mapping[int, LatestPoint]) -> RunHistory:
    """The history of a job from all its events, and the newest point of each attempt."""
    spans = list(_trainings(collect_attempts(facts, reached)))
    wishes = [fact.at for fact in facts if isinstance(fact, Paused | Moved)]
    planned = _newest_forecast(facts)
    if not spans:
        return RunHistory(planned=planned)
    losses, trained_s, found = 0, 0.0, list[Interruption]()
    waiting_since = None
    for span, after in zip(spans, [*spans[1:], None], strict=True):
        if span.end is None:
            continue
        worker_exit = span.start.worker_exit
        is_done = worker_exit is not None and not worker_exit.exited_early
        trained_s += max(0.0, (span.end - span.begin).total_seconds())
        until = after.begin if after else None
        if is_done or any(span.end <= at and (until is None or at <= until) for at in wishes):
            continue
        losses += not span.is_drill
        if after is None:
            waiting_since = span.end
        else:
            found.append(_interruption(span, after))
    return RunHistory(
        first_training_at=spans[0].begin,
        first_step=_first_step(spans[0].start),
        trained_s=trained_s,
        training_since=spans[-1].begin if spans[-1].end is None else None,
        waiting_since=waiting_since,
        losses=losses,
        interruptions=tuple(found),
        planned=planned,
    )


def _trainings(attempts: Iterable[Attempt]) -> Iterator[_Training]:
    for attempt in attempts:
        for start in attempt.starts:
            if start.training is None:
                continue
            ends = [fact.at for fact in (start.restart, start.worker_exit) if fact]
            if attempt.ended_at:
                ends.append(attempt.ended_at)
            begin = start.training.at
            end = max(begin, min(ends)) if ends else None
            yield _Training(start, begin, end, attempt.is_drill and start.restart is None)


def _interruption(before: _Training, after: _Training) -> Interruption:
    assert before.end
    lost = (before.start.last_step or 0) - _first_step(after.start)
    downtime_s = (after.begin - before.end).total_seconds()
    return Interruption(max(0.0, downtime_s), max(0, lost))


def _first_step(start: RankStart) -> int:
    return start.training.step if start.training else 0


def _newest_forecast(facts: Sequence[Event]) -> RecordedForecast | None:
    for fact in reversed(facts):
        if isinstance(fact, Planned) and fact.forecast:
            return RecordedForecast(fact.at, fact.forecast)
    return None
