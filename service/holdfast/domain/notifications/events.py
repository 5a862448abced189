"""What people are told of: which facts of a job are news, and in what words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.events import (
    TAKEN,
    CapacityLost,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    GuardTripped,
    Outcome,
    Paused,
    SavingFailed,
    TrainingStarted,
)


class NewsKind(StrEnum):
    """What a piece of news is about; a channel may ask for some of them alone."""

    PREEMPTED = "preempted"
    """Nodes were taken by the market, or broke."""
    LOST = "lost"
    """Nodes were lost for another reason."""
    RECOVERED = "recovered"
    """A job trains again after it had lost its nodes, or was paused."""
    SAVING_FAILED = "saving_failed"
    GUARD = "guard"
    """A limit was reached; the job is being paused or stopped."""
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CLEANUP_FAILED = "cleanup_failed"
    """Nodes may still be billed."""
    BUDGET = "budget"
    """So much of a budget is spent."""
    TEST = "test"
    """Somebody pressed the button; sent whatever the channel asks for."""


FACTS: Final = frozenset(
    cls.__name__
    for cls in (
        CapacityLost,
        TrainingStarted,
        SavingFailed,
        GuardTripped,
        Paused,
        Finished,
        CleanupFailed,
    )
)
"""Names of the events that may be news."""

_ENDS: Final = {
    Outcome.SUCCEEDED: NewsKind.SUCCEEDED,
    Outcome.FAILED: NewsKind.FAILED,
    Outcome.CANCELLED: NewsKind.CANCELLED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """One thing that happened."""

    id: str
    """The same whenever it is told again, in whatever message."""
    kind: NewsKind
    at: datetime
    """When it happened."""
    text: str
    """What, as one sentence."""
    job_id: str | None = None
    """None where it is about no job alone."""

    def body(self) -> dict[str, Any]:
        """It as JSON values."""
        return {
            "id": self.id,
            "kind": self.kind.value,
            "at": self.at.isoformat(),
            "job_id": self.job_id,
            "text": self.text,
        }


def news_of(job_id: str, name: str, seq: int, event: Event) -> Notification | None:
    """What people are told of fact number `seq` of a job; None where it is no news."""
    told = _told(event)
    if told is None:
        return None
    kind, words = told
    text = f"{name} ({job_id}) {words}"
    return Notification(id=f"{job_id}-{seq}", kind=kind, at=event.at, text=text, job_id=job_id)


def body_text(item: Mapping[str, Any]) -> str:
    """One piece of news as a line of a message."""
    at = datetime.fromisoformat(item["at"])
    return f"{at:%Y-%m-%d %H:%M}Z {item['text']}"


def _told(event: Event) -> tuple[NewsKind, str] | None:  # noqa: PLR0911 - a row for each fact
    match event:
        case CapacityLost(cause=Cause.PAUSED):
            return None  # `Paused` follows, and says why.
        case CapacityLost(cause=cause, detail=detail) if cause in TAKEN:
            what = "was preempted" if cause is Cause.PREEMPTED else "lost a node"
            return NewsKind.PREEMPTED, _and(f"{what} in attempt {event.attempt}", detail)
        case CapacityLost(cause=cause, detail=detail):
            return NewsKind.LOST, _and(f"lost its nodes ({cause})", detail)
        case TrainingStarted(attempt=attempt, step=step) if attempt > 1:
            return NewsKind.RECOVERED, f"trains again from step {step} in attempt {attempt}"
        case SavingFailed(failures=failures, safe_step=safe, detail=detail):
            lost = f"could not save {failures} times in a row; only step {safe} is safe"
            return NewsKind.SAVING_FAILED, _and(lost, detail)
        case GuardTripped(guard=guard, detail=detail):
            what = "is being paused" if guard.pauses else "is being stopped"
            return NewsKind.GUARD, _and(f"{what} ({guard})", detail)
        case Paused(detail=detail):
            return NewsKind.PAUSED, _and("is paused, and nothing of it is paid for", detail)
        case Finished(outcome=outcome, exit_code=code, detail=detail):
            coded = f" with exit code {code}" if code else ""
            verb = {
                Outcome.SUCCEEDED: "has succeeded",
                Outcome.FAILED: f"has failed{coded}",
                Outcome.CANCELLED: "was cancelled",
            }[outcome]
            return _ENDS[outcome], _and(verb, detail)
        case CleanupFailed(detail=detail):
            return NewsKind.CLEANUP_FAILED, _and("may still have nodes that are billed", detail)
        case _:
            return None


def _and(words: str, detail: str) -> str:
    return f"{words}: {detail}" if detail else words
