"""How the saving of a job stands, as its workers tell it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast_worker.wire import Guarantee, OnFailure

from holdfast.domain.carried import Interval
from holdfast.domain.events import CheckpointCommitted, RestoreStarted, SavingFailed, WorkerFact


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What is known of a job's checkpoints, whichever attempt told it."""

    guarantee: Guarantee | None = None
    """What the store promises; None until a worker has asked it."""
    interval: Interval | None = None
    """How often it saves; None until that was measured, and where the job file says how often."""
    trouble: str = ""
    """That it cannot save any more, and what follows; empty as long as nobody said so, and after the next checkpoint."""

    def after(self, event: WorkerFact) -> Saving:
        """The same after one more fact."""
        match event:
            case RestoreStarted(guarantee=guarantee):
                return replace(self, guarantee=guarantee or self.guarantee)
            case CheckpointCommitted(interval=interval):
                return replace(self, interval=interval, trouble="")
            case SavingFailed():
                return replace(self, trouble=_trouble(event))
            case _:
                return self


def _trouble(event: SavingFailed) -> str:
    safe = f"step {event.safe_step:,} is the last" if event.safe_step else "none"
    follows = "stopped for it" if event.policy is OnFailure.STOP else "trains on and tries again"
    return (
        f"{event.failures} checkpoints in a row could not be saved, and {safe} that is safe; "
        f"attempt {event.attempt} {follows}: {event.detail}"
    )
