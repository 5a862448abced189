"""Actions on several jobs at once: what each would do to each job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from holdfast.domain.events import Event, TagsChanged
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.selection import changed_tags
from holdfast.errors import NotPossibleNow

MAX_SELECTED: Final = 1000
"""Jobs of one action. A lower value needs several actions for a large sweep; a higher value holds a request for longer."""


class BulkAction(StrEnum):
    """What is done to each job of a selection."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    LABEL = "label"


class JobResult(StrEnum):
    """What an action has done to one job, or would do."""

    DONE = "done"
    REFUSED = "refused"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkRequest:
    """An action with what it needs for each job."""

    action: BulkAction
    reason: str
    by: str
    """Name of the user who acts."""
    tags: Mapping[str, str | None] = field(default_factory=dict)
    """Changes of tags; None removes one. Only for `label`."""

    def decide(self, job: Job, limits: Limits, now: datetime) -> Sequence[Event]:
        """The events of the action on a job with these limits; none if it changes nothing.

        Raises:
            HoldfastError: the action is not possible.
        """
        match self.action:
            case BulkAction.CANCEL:
                return commands.cancel(job, now, self.reason, self.by)
            case BulkAction.PAUSE:
                return commands.pause(job, now, self.reason, self.by)
            case BulkAction.RESUME:
                return commands.resume(job, limits, {}, now, reason=self.reason, by=self.by)
            case BulkAction.LABEL:
                after = changed_tags(job.tags, self.tags)
                changed = TagsChanged(at=now, tags=after, by=self.by)
                return () if after == job.tags else (changed,)
            case BulkAction.RETRY:
                if no := commands.retry_refusal(job, job.last_checkpoint_step):
                    raise NotPossibleNow(f"job {job.id} cannot be retried: {no}")
                return ()
            case _:
                assert_never(self.action)

    def unchanged_reason(self, job: Job) -> str:
        """Why the action changes nothing."""
        if self.action is BulkAction.LABEL:
            return "it has these tags already"
        return "it has ended" if job.state is State.ENDED else f"it is {job.status} already"
