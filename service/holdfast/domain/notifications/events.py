"""Notifications: which events of a job notify users, and their text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    CapacityLost,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    GpuUnhealthy,
    GuardTripped,
    NodeLost,
    NodeReplaced,
    Outcome,
    Paused,
    Planned,
    PlanReason,
    SavingFailed,
    TrainingStarted,
)
from holdfast.domain.planning.plan_sentences import ChosenNodes, choice_sentence, moment, percent


class NotificationKind(StrEnum):
    """Kind of a notification; channels can select kinds."""

    PREEMPTED = "preempted"
    """Nodes were preempted or failed."""
    LOST = "lost"
    """Nodes were lost for another reason."""
    RECOVERED = "recovered"
    """A job trains again after a capacity loss or pause, or has all its nodes again."""
    SAVING_FAILED = "saving_failed"
    GPU_UNHEALTHY = "gpu_unhealthy"
    """A GPU of a job has a fault."""
    GUARD = "guard"
    """A guard tripped; the job is pausing or stopping."""
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CLEANUP_FAILED = "cleanup_failed"
    """Nodes may still be billed."""
    LATE = "late"
    """The deadline of a planned job has become doubtful."""
    NO_CAPACITY = "no_capacity"
    """A planned job needs on-demand nodes, and no place has any."""
    BUDGET = "budget"
    """A percentage of a budget is spent."""
    TEST = "test"
    """A test requested by a user; sent regardless of the channel's preferences."""


NOTIFYING_EVENTS: Final = frozenset(
    cls.__name__
    for cls in (
        CapacityLost,
        NodeLost,
        NodeReplaced,
        Planned,
        TrainingStarted,
        SavingFailed,
        GpuUnhealthy,
        GuardTripped,
        Paused,
        Finished,
        CleanupFailed,
    )
)
"""Names of the events that can cause notifications."""

_ENDS: Final = {
    Outcome.SUCCEEDED: NotificationKind.SUCCEEDED,
    Outcome.FAILED: NotificationKind.FAILED,
    Outcome.CANCELLED: NotificationKind.CANCELLED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """One notification."""

    id: str
    """Id that is the same in every message that contains the notification."""
    kind: NotificationKind
    at: datetime
    """Time of the event."""
    text: str
    """Description as one sentence."""
    job_id: str | None = None
    """The job; None if it concerns no single job."""

    def body(self) -> dict[str, Any]:
        """The notification as JSON values."""
        return {
            "id": self.id,
            "kind": self.kind.value,
            "at": self.at.isoformat(),
            "job_id": self.job_id,
            "text": self.text,
        }


def notification_for(job_id: str, name: str, seq: int, event: Event) -> Notification | None:
    """The notification for event `seq` of a job; None if it causes none."""
    described = _describe(event)
    if described is None:
        return None
    kind, words = described
    text = f"{name} ({job_id}) {words}"
    return Notification(id=f"{job_id}-{seq}", kind=kind, at=event.at, text=text, job_id=job_id)


def body_text(item: Mapping[str, Any]) -> str:
    """One notification as a line of a message."""
    at = datetime.fromisoformat(item["at"])
    return f"{at:%Y-%m-%d %H:%M}Z {item['text']}"


def _describe(event: Event) -> tuple[NotificationKind, str] | None:  # noqa: PLR0911 - a row for each fact
    match event:
        case CapacityLost() | NodeLost() | NodeReplaced():
            return _describe_capacity(event)
        case TrainingStarted(attempt=attempt, step=step) if attempt > 1:
            return (
                NotificationKind.RECOVERED,
                f"resumed training at step {step} in attempt {attempt}",
            )
        case SavingFailed(failures=failures, safe_step=safe, detail=detail):
            lost = (
                f"failed to save {failures} checkpoints in a row; the last durable step is {safe}"
            )
            return NotificationKind.SAVING_FAILED, _with_detail(lost, detail)
        case GpuUnhealthy(attempt=attempt):
            words = f"has a GPU that is not healthy in attempt {attempt}: {event.sentence}"
            return NotificationKind.GPU_UNHEALTHY, words
        case GuardTripped(guard=guard, detail=detail):
            what = "is being paused" if guard.pauses else "is being stopped"
            return NotificationKind.GUARD, _with_detail(f"{what} ({guard})", detail)
        case Paused(detail=detail):
            return NotificationKind.PAUSED, _with_detail("is paused without cost", detail)
        case Finished(outcome=outcome, exit_code=code, detail=detail):
            coded = f" with exit code {code}" if code else ""
            verb = {
                Outcome.SUCCEEDED: "succeeded",
                Outcome.FAILED: f"failed{coded}",
                Outcome.CANCELLED: "was cancelled",
            }[outcome]
            return _ENDS[outcome], _with_detail(verb, detail)
        case CleanupFailed(detail=detail):
            return NotificationKind.CLEANUP_FAILED, _with_detail(
                "may still have billed nodes", detail
            )
        case Planned():
            return _describe_plan(event)
        case _:
            return None


def _describe_plan(event: Planned) -> tuple[NotificationKind, str] | None:
    chosen = choice_sentence(ChosenNodes.of_plan(event), since=False)
    if event.reason is PlanReason.ON_DEMAND_DENIED:
        return (
            NotificationKind.NO_CAPACITY,
            f"needs on-demand nodes, and no place has any: {chosen}",
        )
    if event.warns and event.forecast:
        end, late = moment(event.forecast.end_p50, event.at), percent(event.forecast.late)
        words = f"misses its deadline in {late} of simulated runs, and ends about {end}: {chosen}"
        return NotificationKind.LATE, words
    return None


def _describe_capacity(
    event: CapacityLost | NodeLost | NodeReplaced,
) -> tuple[NotificationKind, str] | None:
    match event:
        case CapacityLost(cause=Cause.PAUSED | Cause.MOVED):
            return None  # `Paused` follows and contains the reason; a move is part of a plan.
        case CapacityLost(cause=cause, detail=detail) if cause in PREEMPTION_CAUSES:
            what = "was preempted" if cause is Cause.PREEMPTED else "lost a node"
            what = "was preempted in a drill" if event.drill else what
            words = _with_detail(f"{what} in attempt {event.attempt}", detail)
            return NotificationKind.PREEMPTED, words
        case CapacityLost(cause=cause, detail=detail):
            return NotificationKind.LOST, _with_detail(f"lost its nodes ({cause})", detail)
        case NodeLost():
            return _describe_node_loss(event)
        case NodeReplaced():
            return _describe_replacement(event)


def _describe_node_loss(event: NodeLost) -> tuple[NotificationKind, str] | None:
    if event.cause is Cause.ENDED or event.with_node is not None:
        return None  # It was not lost, or its group is reported with its first node.
    is_preemption = event.cause in PREEMPTION_CAUSES
    kind = NotificationKind.PREEMPTED if is_preemption else NotificationKind.LOST
    how = "drill" if event.drill else event.cause.replace("_", " ")
    words = f"lost node {event.node} in attempt {event.attempt} ({how})"
    return kind, f"{_with_detail(words, event.detail)}; the launcher replaces it"


def _describe_replacement(event: NodeReplaced) -> tuple[NotificationKind, str] | None:
    group = event.placed
    if group is not None and event.nodes < group.nodes:
        return None  # Its group is reported with its last node.
    what = f"has the nodes of group {group.name}" if group else f"replaced node {event.node}"
    return NotificationKind.RECOVERED, f"{what} in attempt {event.attempt}"


def _with_detail(words: str, detail: str) -> str:
    return f"{words}: {detail}" if detail else words
