"""Sentences about requests of people and decisions of the service, in the timeline. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from holdfast.domain.events import (
    Admitted,
    CancelRequested,
    CleanupFailed,
    DrillRequested,
    Event,
    GuardTripped,
    LimitsChanged,
    Moved,
    MoveRequested,
    Paused,
    PausedForPriority,
    PauseRequested,
    PlanFact,
    Planned,
    PriorityChanged,
    Requeued,
    Resized,
    ResumeRequested,
    Submitted,
    TagsChanged,
    current_submission,
)
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.planning.plan_sentences import ChosenNodes, choice_sentence, percent


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence about an event or about the current state."""

    at: datetime | None
    """Time of the event; None for the current state."""
    text: str


def request_sentences(  # noqa: C901, PLR0912 - one for each kind
    facts: Sequence[Event],
) -> Iterator[Sentence]:
    """One sentence for each request of a user, and each decision of the service."""
    for fact in facts:
        match fact:
            case Submitted(at=at, name=name, by=by):
                parent = parent_job(job_spec([fact]))
                source = f" to continue job {parent}" if parent else ""
                yield Sentence(at, f'Job "{name}" submitted{actor_text(by)}{source}.')
            case CancelRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"Cancellation requested{actor_text(by)}: {reason}.")
            case GuardTripped(at=at, detail=detail):
                yield Sentence(at, f"Limit reached: {detail}. Asked the worker to save.")
            case PauseRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"Pause requested{actor_text(by)}: {reason}.")
            case Paused(at=at):
                yield Sentence(at, "Paused: all nodes are released, and no costs accrue.")
            case PausedForPriority(at=at, reason=reason):
                yield Sentence(at, f"Pausing: {reason}. Asked the worker to save.")
            case Requeued(at=at):
                yield Sentence(at, "Waits in the queue again, and starts when there is room.")
            case _ if isinstance(fact, _Change):
                yield Sentence(fact.at, _change_text(fact))
            case Resized(at=at, changes=changes, by=by):
                yield Sentence(at, f"Resized{actor_text(by)}: {', '.join(changes)}.")
            case ResumeRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"Resume requested{actor_text(by)}: {reason}.")
            case _ if isinstance(fact, PlanFact):
                yield Sentence(fact.at, _plan_text(fact))
            case CleanupFailed(at=at, detail=detail):
                yield Sentence(at, f"Cleanup failed, and resources may still be billed: {detail}.")
            case _:
                pass


def actor_text(by: str) -> str:
    """Who did it, to follow a verb; empty without a name."""
    return f" by {by}" if by else ""


_Change: TypeAlias = LimitsChanged | TagsChanged | DrillRequested | Admitted | PriorityChanged


def _change_text(fact: _Change) -> str:
    if isinstance(fact, Admitted):
        return _admission_text(fact)
    who = actor_text(fact.by)
    if isinstance(fact, PriorityChanged):
        return f"Priority changed{who}; it is now {fact.priority}."
    if isinstance(fact, TagsChanged):
        named = ", ".join(f"{name}={value}" for name, value in fact.tags.items())
        return f"Tags changed{who}; they are now: {named or 'none'}."
    if isinstance(fact, LimitsChanged):
        after = ((name, fact.limits.get(name)) for name in fact.changed)
        new = (f"{name} is now {'none' if limit is None else limit}" for name, limit in after)
        return f"Limits changed{who}: {', '.join(new)}."
    node = "a node" if fact.node is None else f"node {fact.node}"
    node = f"node group {fact.group}" if fact.group else node
    how = f"with {fact.notice_s:g} s of notice" if fact.notice_s else "without notice"
    return f"Drill requested{who}: preempt {node} {how}."


def _admission_text(fact: Admitted) -> str:
    waited = f" after {duration_text(fact.waited_s * 1000)} in the queue" if fact.waited_s else ""
    amounts = ((fact.demand.nodes, "node"), (fact.demand.gpus, "GPU"))
    held = " and ".join(f"{n:,} {unit}{'s' * (n != 1)}" for n, unit in amounts if n)
    return f"Admitted{waited}: the quotas have room for {held}."


def _plan_text(fact: PlanFact) -> str:
    match fact:
        case Planned():
            late = f"; {percent(fact.forecast.late)} late" if fact.forecast and fact.net_at else ""
            return f"Plan: {choice_sentence(ChosenNodes.of_plan(fact), since=False)}{late}."
        case MoveRequested(reason=reason):
            return f"Move requested: {reason}. Asked the worker to save."
        case Moved(launch=launch):
            return f"Launch {launch} has ended: the next one may be requested."


def job_spec(facts: Sequence[Event]) -> JobSpec:
    """The job file with the resources of its newest resize."""
    return JobSpec.from_stored(current_submission(facts).spec)


def parent_job(spec: JobSpec) -> str | None:
    """The job that this one continues until it has its own checkpoint; None without one."""
    checkpoint = spec.holdfast.checkpoint
    return checkpoint.from_job if checkpoint else None


def short_duration_text(ms: int) -> str:
    """A duration in milliseconds, with tenths of seconds below a minute."""
    return f"{ms / 1000:.1f} s" if ms < 60_000 else duration_text(ms)


def duration_text(ms: int) -> str:
    """A duration in milliseconds, in its two largest units."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
