"""A job as computed from its events by `holdfast.domain.jobs.lifecycle`."""

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
    """State of a job. Users see the outcome instead of `ended`."""

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
"""States in which a job releases its nodes but may still have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingDrill:
    """A requested preemption whose loss is not recorded yet."""

    at: datetime
    node: int | None = None
    """The node that the user named; None if the launcher chose one."""
    leaving_attempt: int = 0
    """The attempt whose worker is asked to leave; 0 if the launcher preempts the node."""
    leave_at: datetime | None = None
    """Time by which that worker has to leave; None without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job after a prefix of its log; all fields follow from its events."""

    id: str
    seq: int
    """Number of the last event; the next one is `seq + 1`."""
    name: str
    state: State
    owner: str = ""
    """Name of the submitter; empty if unknown."""
    project: str = DEFAULT_PROJECT
    submitted_at: datetime
    updated_at: datetime
    """Latest time of any event, so that late events do not move it back."""
    outcome: Outcome | None = None
    """Outcome of the job; None until it has ended."""
    exit_code: int | None = None
    """Exit code of the program; None until it is reported."""
    detail: str = ""
    """Reason why the job is pausing, paused, stopping, recovering or ended."""
    leftovers: tuple[str, ...] = ()
    """Orphans that may still run and be billed."""
    account: RunningCost
    stop_asked_at: datetime | None = None
    """Time of the cancel or pause request or the tripped guard; None otherwise."""
    tripped: str = ""
    """Detail of the guard that stopped the job; empty without one."""
    guard: Guard | None = None
    """The guard that stopped the job; None without one."""
    limits: Limits | None = None
    """Limits after the last change; None if those of the job file apply."""
    launch_limits: Limits | None = None
    """Limits at the time of the newest launch."""
    launch: int = 0
    """Number of the newest launch; 0 before the first."""
    launches_before_resume: int = 0
    """Launches before the last resume."""
    is_launched: bool = False
    """Whether nodes may exist or appear under the key of the newest launch."""
    attempt: int = 0
    """Number of attempts so far, over all launches."""
    attempts_before_launch: int = 0
    denials: int = 0
    """Capacity denials recorded in the newest launch."""
    placed: bool = False
    """Whether the nodes of the newest attempt are running, as far as reported."""
    node_changes: int = 0
    """Losses and replacements of single nodes recorded in the newest attempt."""
    lost_nodes: tuple[int, ...] = ()
    """Nodes of the newest attempt that are lost while the others wait for their replacement."""
    preempted_nodes: tuple[int, ...] = ()
    """Those of them whose loss counts as a preemption."""
    drilled_nodes: tuple[int, ...] = ()
    """Those of the preempted nodes whose loss was a drill."""
    started_attempt: int = 0
    """Newest attempt that reported training; may precede its NodesReady."""
    noticed: tuple[int, ...] = ()
    """Attempts with a termination notice whose nodes are not lost yet."""
    left_attempt: int = 0
    """Newest attempt whose worker exited early."""
    hopeless: str = ""
    """Exit reason of that worker if retries cannot succeed; empty otherwise."""
    furthest_step: int = 0
    """Highest step that any attempt has reported."""
    advanced_attempt: int = 0
    """Newest attempt that went beyond all steps reported before."""
    step: int = 0
    """Newest reported step of the newest attempt."""
    total_steps: int | None = None
    """Total steps of the run; None until a worker reports it."""
    last_checkpoint_step: int | None = None
    """Newest step committed to the store; None before the first checkpoint."""
    saving: SaveHealth = field(default_factory=SaveHealth)
    crashes: CrashLoop = field(default_factory=CrashLoop)
    zone: str | None = None
    """Zone of the newest attempt; None before the first."""
    micros_per_hour: int = 0
    """Hourly price of all nodes of the newest attempt, kept after their loss; 0 before the first.

    It is what the next nodes cost, so the loss of a single node does not change it.
    """
    preemptions: int = 0
    """Attempts and single nodes lost to preemption or to a node failure without known cause.

    Drills are included, because the job recovers from them in the same way.
    """
    drills: int = 0
    """Those of them that users requested."""
    pending_drills: tuple[PendingDrill, ...] = ()
    """Drills of the running nodes whose loss is not recorded yet, oldest first."""
    failures: int = 0
    """Attempts that ended with a user error."""
    failure: str = ""
    """Error message of the newest of these attempts."""
    resumes: int = 0
    """Attempts after the first that resumed training."""
    passed_over: int = 0
    """Events of newer versions that this version ignored. Cached rows of such jobs are recomputed."""

    @property
    def launch_key(self) -> str:
        """Key of the newest launch at the launcher."""
        return f"{self.id}-{self.launch}"

    @property
    def placements(self) -> int:
        """Number of placements of the newest launch."""
        return self.attempt - self.attempts_before_launch

    @property
    def warning(self) -> str:
        """Problems that need a user's attention even after the job has ended; empty without any."""
        left = "; ".join(self.leftovers)
        billed = f"nodes may still be billed: {left}" if left else ""
        return "; ".join(filter(None, (billed, self.saving.trouble)))

    @property
    def lost_nodes_text(self) -> str:
        """A sentence about the nodes that are being replaced; empty if all run."""
        if not self.lost_nodes:
            return ""
        *others, last = map(str, self.lost_nodes)
        if not others:
            return f"node {last} was lost; the others wait for its replacement"
        named = f"{', '.join(others)} and {last}"
        return f"nodes {named} were lost; the others wait for their replacement"

    @property
    def is_leaving(self) -> bool:
        """Whether the job releases its nodes but may still have them."""
        return self.state in LEAVING

    @property
    def is_training(self) -> bool:
        """Whether the newest attempt has nodes and is training, as far as reported."""
        return self.placed and self.left_attempt < self.attempt <= self.started_attempt

    @property
    def status(self) -> str:
        """The displayed status: the state, or the outcome after the end."""
        return self.outcome or self.state
