"""The trace of a job: spans from its submission to its end, which follow from its events.

A job has launches; a launch provisions nodes and has attempts; an attempt starts its program, restores, trains, saves and
releases its nodes. A span is complete once the event that ends it is recorded, and does not change any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Cause,
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    Finished,
    GpuUnhealthy,
    GuardTripped,
    LaunchRequested,
    Moved,
    NodeLost,
    NodeReplaced,
    NodesKept,
    NodesReady,
    Outcome,
    Paused,
    PreemptionNoticed,
    RanksReplaced,
    RanksRestarted,
    Requeued,
    RestoreStarted,
    ResumeRequested,
    Submitted,
    TrainingStarted,
    WorkerLeft,
)

Attributes: TypeAlias = Mapping[str, str | bool | int | float]

JOB: Final = "job"
"""Key of the root span."""

_NO_LOSS: Final = frozenset({Cause.PAUSED, Cause.MOVED, Cause.ENDED})
"""Causes for which no nodes are provisioned in the place of the released ones by the same launch."""
_NOTES: Final[Mapping[type[Event], tuple[str, tuple[str, ...]]]] = {
    PreemptionNoticed: ("preemption notice", ("step", "left_s")),
    CheckpointFailed: ("checkpoint failed", ("step", "detail")),
    RanksReplaced: ("ranks replaced", ("step", "cause", "paused_ms")),
    NodeLost: ("node lost", ("node", "cause")),
    NodeReplaced: ("node replaced", ("node",)),
    NodesKept: ("nodes kept", ("until",)),
    GpuUnhealthy: ("GPU unhealthy", ("node", "host", "gpu", "detail")),
    GuardTripped: ("guard", ("guard", "detail")),
}
"""Events that are marked in a span, with the name of the mark and their fields in it."""


@dataclass(frozen=True, slots=True)
class SpanNote:
    """What happened during a span."""

    name: str
    at: datetime
    attributes: Attributes = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class TraceSpan:
    """A span of a job's trace."""

    key: str
    """Unique within the job, and the same whenever it is computed."""
    parent: str
    """Key of the span around it; empty for the job itself."""
    name: str
    begin: datetime
    end: datetime
    """As `begin` until the span is complete."""
    attributes: dict[str, str | bool | int | float] = field(default_factory=dict)
    notes: list[SpanNote] = field(default_factory=list)
    error: str = ""
    """Why it ended early; empty without an error."""


class JobTrace:
    """Collects the spans of one job from its events, in the order of their numbers."""

    def __init__(self) -> None:
        self.seq = 0
        """Number of the last event."""
        self._job: TraceSpan | None = None
        self._wait: TraceSpan | None = None
        """In the queue, or paused."""
        self._launch: TraceSpan | None = None
        self._provision: TraceSpan | None = None
        self._attempt: TraceSpan | None = None
        self._phase: TraceSpan | None = None
        """What the newest attempt does."""
        self._number = 0
        """Number of the newest attempt."""
        self._complete: list[TraceSpan] = []

    def add(self, event: Event) -> Sequence[TraceSpan]:
        """Take the next event, and return the spans that it completes, inner ones first."""
        self.seq += 1
        self._complete = []
        self._follow_job(event)
        self._follow_nodes(event)
        self._follow_worker(event)
        if type(event) in _NOTES:
            self._note(event)
        return self._complete

    def _follow_job(self, event: Event) -> None:
        at = event.at
        match event:
            case Submitted():
                self._job = self._open(JOB, "", at, {"name": event.name, "project": event.project})
                if event.by:
                    self._job.attributes["owner"] = event.by
                self._wait = self._open("queue", JOB, at)
            case ResumeRequested() | Requeued():
                self._end(self._wait, at)
                self._wait = self._open("queue", JOB, at)
            case LaunchRequested():
                self._end_launch(at)
                self._end(self._wait, at)
                self._wait = None
                key = f"launch-{event.launch}"
                self._launch = self._open("launch", JOB, at, {"launch": event.launch}, key=key)
                self._provision = self._open("provision", key, at)
            case Moved():
                self._end_launch(at)
                self._wait = self._open("queue", JOB, at)
            case Paused():
                self._end_launch(at)
                self._end(self._wait, at)
                self._wait = self._open("paused", JOB, at, {"detail": event.detail})
            case Finished():
                self._end_launch(at)
                self._end(self._wait, at)
                self._wait = None
                if self._job:
                    self._job.attributes["outcome"] = event.outcome.value
                is_failed = event.outcome is Outcome.FAILED
                self._end(self._job, at, (event.detail or "failed") if is_failed else "")
            case _:
                pass

    def _follow_nodes(self, event: Event) -> None:
        at = event.at
        match event:
            case CapacityDenied():
                if self._provision:
                    note = SpanNote("no capacity", at, {"zone": event.zone, "detail": event.detail})
                    self._provision.notes.append(note)
            case NodesReady():
                self._end_attempt(at)
                self._end(self._provision, at)
                self._provision, self._number = None, event.attempt
                self._attempt = self._open(
                    "attempt",
                    self._launch.key if self._launch else JOB,
                    at,
                    {
                        "attempt": event.attempt,
                        "zone": event.zone,
                        "nodes": event.nodes,
                        "usd_per_hour": event.micros_per_hour / 1e6,
                    },
                    key=f"attempt-{event.attempt}",
                )
                if event.instance_type:
                    self._attempt.attributes["instance_type"] = event.instance_type
                self._begin_phase("start", at)
            case CapacityLost():
                if event.attempt in {0, self._number}:
                    cause = event.cause.value
                    self._end_attempt(
                        at, "" if event.cause in _NO_LOSS else event.detail or cause, cause
                    )
                if self._launch and event.cause not in _NO_LOSS and not self._provision:
                    self._provision = self._open("provision", self._launch.key, at)
            case _:
                pass

    def _follow_worker(self, event: Event) -> None:
        """Follow reports, those of earlier attempts only if they are complete in themselves."""
        at = event.at
        match event:
            case CheckpointCommitted():
                span = self._open(
                    "save",
                    f"attempt-{event.attempt}",
                    event.snapshot_at - timedelta(milliseconds=event.stall_ms),
                    {
                        "step": event.step,
                        "checkpoint": event.checkpoint,
                        "size_bytes": event.size_bytes,
                        "stall_ms": event.stall_ms,
                    },
                )
                self._end(span, at)
            case RestoreStarted() if self._is_newest(event.attempt):
                self._begin_phase("restore", at)
            case TrainingStarted() if self._is_newest(event.attempt):
                if self._phase and event.restored_from:
                    self._phase.attributes["checkpoint"] = event.restored_from
                begun = {"step": event.step, "world_size": event.world_size}
                self._begin_phase("train", at, begun)
            case RanksRestarted() if self._is_newest(event.attempt):
                self._end_phase(at, event.detail or f"exit code {event.exit_code}", event.step)
                self._begin_phase("start", at)
            case WorkerLeft() if self._is_newest(event.attempt):
                is_failed = event.exit_code != 0 and event.reason == "failed"
                self._end_phase(at, (event.detail or "failed") if is_failed else "", event.step)
                self._begin_phase("release", at)
            case _:
                pass

    def _is_newest(self, attempt: int) -> bool:
        return self._attempt is not None and attempt == self._number

    def _note(self, event: Event) -> None:
        name, fields = _NOTES[type(event)]
        found = {each: getattr(event, each) for each in fields}
        shown = {
            each: value if isinstance(value, bool | int | float) else str(value)
            for each, value in found.items()
            if value is not None
        }
        if holder := self._attempt or self._job:
            holder.notes.append(SpanNote(name, event.at, shown))

    def _open(
        self,
        name: str,
        parent: str,
        at: datetime,
        attributes: Attributes | None = None,
        *,
        key: str = "",
    ) -> TraceSpan:
        """A span that begins with the current event; `key`: by default, from that event."""
        key = key or (JOB if not parent else f"{name}-{self.seq}")
        return TraceSpan(
            key=key, parent=parent, name=name, begin=at, end=at, attributes={**(attributes or {})}
        )

    def _end(self, span: TraceSpan | None, at: datetime, error: str = "") -> None:
        if span:
            # Times of workers and launchers come from other clocks.
            span.end, span.error = max(span.begin, at), error
            self._complete.append(span)

    def _begin_phase(self, name: str, at: datetime, attributes: Attributes | None = None) -> None:
        self._end_phase(at)
        self._phase = self._open(name, f"attempt-{self._number}", at, attributes)

    def _end_phase(self, at: datetime, error: str = "", step: int | None = None) -> None:
        if self._phase and step is not None:
            self._phase.attributes["last_step"] = step
        self._end(self._phase, at, error)
        self._phase = None

    def _end_attempt(self, at: datetime, error: str = "", cause: str = "") -> None:
        self._end_phase(at)
        if self._attempt and cause:
            self._attempt.attributes["cause"] = cause
        self._end(self._attempt, at, error)
        self._attempt = None

    def _end_launch(self, at: datetime) -> None:
        self._end_attempt(at)
        self._end(self._provision, at)
        self._end(self._launch, at)
        self._provision = self._launch = None
