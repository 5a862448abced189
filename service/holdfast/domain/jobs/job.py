"""A job, as its facts so far have left it. What a fact changes is `holdfast.domain.jobs.lifecycle`'s business alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from holdfast.domain.billing.running_cost import RunningCost
from holdfast.domain.checkpoints.history import SaveHealth
from holdfast.domain.events import DEFAULT_PROJECT, Guard, Outcome
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.crash_loop import CrashLoop


class State(StrEnum):
    """Where a job is. `ended` is shown to people as its outcome."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    TRAINING = "training"
    RECOVERING = "recovering"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"


LEAVING: Final = frozenset({State.PAUSING, State.STOPPING})
"""Where a job is to give its nodes back, and may still have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job after some prefix of its log; every field follows from the facts alone."""

    id: str
    seq: int
    """Number of the last fact; the next one is `seq + 1`."""
    name: str
    state: State
    owner: str = ""
    """Name of who submitted it; empty where nobody said."""
    project: str = DEFAULT_PROJECT
    submitted_at: datetime
    updated_at: datetime
    """Latest time of any fact, so that late facts do not turn it back."""
    outcome: Outcome | None = None
    """None until the job has ended."""
    exit_code: int | None = None
    """None until a program's end was told."""
    detail: str = ""
    """Why the job is pausing, paused, stopping, recovering or ended, in words."""
    leftovers: tuple[str, ...] = ()
    """What may still run, and be billed, though it should be gone."""
    account: RunningCost
    stop_asked_at: datetime | None = None
    """When somebody asked for the end or a pause, or a guard tripped; None while the job is to go on."""
    tripped: str = ""
    """The sentence of the guard that stopped it; empty when none did."""
    guard: Guard | None = None
    """Which one that was; None when none did."""
    limits: Limits | None = None
    """Those that hold since somebody changed them; None: those of the job file."""
    launch_limits: Limits | None = None
    """The same as they were when the newest launch was asked for."""
    launch: int = 0
    """Number of the newest launch; 0 before the first."""
    launches_before_resume: int = 0
    """Launches that were over when the job was last taken up again."""
    is_launched: bool = False
    """Whether anything may stand, or come to stand, under the key of the newest launch."""
    attempt: int = 0
    """Number of placements so far, over all launches."""
    attempts_before_launch: int = 0
    denials: int = 0
    """Capacity denials recorded in the newest launch."""
    placed: bool = False
    """True while the nodes of the newest attempt stand, as far as was told."""
    started_attempt: int = 0
    """Newest attempt that told that it trains; it may be told before its nodes are."""
    noticed: tuple[int, ...] = ()
    """Attempts whose nodes are not lost yet, and whose worker was told that they will be."""
    left_attempt: int = 0
    """Newest attempt whose worker left before it was done."""
    hopeless: str = ""
    """What that worker said if another try is useless; empty otherwise."""
    furthest_step: int = 0
    """Newest step that any attempt has told."""
    advanced_attempt: int = 0
    """Newest attempt that went further than all that was told before it."""
    step: int = 0
    """Newest step of the newest attempt that any fact has told."""
    total_steps: int | None = None
    """None until a worker said how far it goes."""
    last_checkpoint_step: int | None = None
    """Newest step that is safe in the store; None before the first checkpoint."""
    saving: SaveHealth = field(default_factory=SaveHealth)
    crashes: CrashLoop = field(default_factory=CrashLoop)
    zone: str | None = None
    """Where the newest attempt stands or stood; None before the first."""
    micros_per_hour: int = 0
    """What the nodes of the newest attempt cost, also once they are gone; 0 before the first."""
    preemptions: int = 0
    """Placements that were taken away: preempted, or failed without anybody having said why."""
    failures: int = 0
    """Attempts that ended by the user's own error."""
    failure: str = ""
    """What was said of the newest of them."""
    resumes: int = 0
    """Attempts after the first that came to train again."""
    passed_over: int = 0
    """Events of a newer version that this version could not use. A cached row of such a job is never believed."""

    @property
    def launch_key(self) -> str:
        """The key under which the launcher knows the newest launch."""
        return f"{self.id}-{self.launch}"

    @property
    def placements(self) -> int:
        """Placements of the newest launch."""
        return self.attempt - self.attempts_before_launch

    @property
    def warning(self) -> str:
        """What people must know although the job needs nothing more; empty when there is nothing."""
        left = "; ".join(self.leftovers)
        billed = f"nodes may still be billed: {left}" if left else ""
        return "; ".join(filter(None, (billed, self.saving.trouble)))

    @property
    def is_leaving(self) -> bool:
        """Whether it is to give its nodes back, and may still have them."""
        return self.state in LEAVING

    @property
    def trains(self) -> bool:
        """True while the newest attempt stands and steps, as far as was told."""
        return self.placed and self.left_attempt < self.attempt <= self.started_attempt

    @property
    def status(self) -> str:
        """The word that people see: the state, or the outcome once it has ended."""
        return self.outcome or self.state
