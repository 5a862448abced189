"""A job as computed from its events by `holdfast.domain.jobs.lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from holdfast.domain.billing.running_cost import RunningCost
from holdfast.domain.checkpoints.history import SaveHealth
from holdfast.domain.events import DEFAULT_PROJECT, Guard, LaunchPlacement, Outcome
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.crash_loop import CrashLoop
from holdfast.domain.jobs.plan_status import Pace, PlanStatus


class State(StrEnum):
    """State of a job. Users see the outcome instead of `ended`."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    TRAINING = "training"
    DEGRADED = "degraded"
    RECOVERING = "recovering"
    MOVING = "moving"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"


LEAVING: Final = frozenset({State.MOVING, State.PAUSING, State.STOPPING})
"""States in which a job releases its nodes but may still have them."""

IN_TRAINING: Final = frozenset({State.TRAINING, State.DEGRADED})
"""States in which the newest attempt makes steps, on all its nodes or on fewer."""


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
    nodes: tuple[int, ...] = ()
    """Nodes of the group that leaves; empty if all nodes leave, or if the launcher preempts one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGroup:
    """A node group of the job file, as the newest attempt has it."""

    name: str
    nodes: int
    micros_per_hour: int
    """Price of all its nodes, kept after their loss; 0 before the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherChange:
    """A change of a job's launcher by a resize."""

    before: Engine
    """The launcher of the launches until then."""
    last_launch: int
    """Number of the last of them; 0 if there was none."""


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
    engine: Engine = Engine.SKYPILOT
    """The type of its launcher."""
    launcher_changes: tuple[LauncherChange, ...] = ()
    """Changes of the launcher, oldest first."""
    spec_seq: int = 1
    """Number of the event that holds its job file: its submission, or its newest resize."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the job file, as last changed."""
    sweep: str = ""
    """Id of the sweep that the job belongs to; empty without one."""
    trial: int = 0
    """Number of its combination in the sweep, from 1; 0 without a sweep."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of the sweep's parameters; empty without a sweep."""
    min_nodes: int | None = None
    """Nodes with which training continues after a loss; None if it needs all."""
    submitted_at: datetime
    updated_at: datetime
    """Latest time of any event, so that late events do not move it back."""
    priority: int = 0
    """Priority in the queue; higher ones are admitted first."""
    queued_at: datetime | None = None
    """Since when it waits for a launch, or waited: its submission, or its last resume. None only in tests."""
    wait_began_at: datetime | None = None
    """When it left the queue and began to wait for nodes; None before its first launch."""
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
    paused_for: str = ""
    """Id of the job for whose priority it is pausing; empty otherwise."""
    priority_pauses: int = 0
    """How often it was paused for jobs of a higher priority."""
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
    placement: LaunchPlacement | None = None
    """What the newest launch asks for; None: what the job file says."""
    plan: PlanStatus | None = None
    """The newest plan; None before the first, and without `plan` in the job file."""
    pace: Pace = field(default_factory=Pace)
    launches_before_resume: int = 0
    """Launches before the last resume, and those that ended for a move."""
    is_launched: bool = False
    """Whether nodes may exist or appear under the key of the newest launch."""
    attempt: int = 0
    """Number of attempts so far, over all launches."""
    attempts_before_launch: int = 0
    denials: int = 0
    """Capacity denials recorded in the newest launch."""
    placed: bool = False
    """Whether the nodes of the newest attempt are running, as far as reported."""
    nodes: int = 0
    """Nodes of the newest attempt, including those that are lost and not replaced yet."""
    groups: tuple[JobGroup, ...] = ()
    """Node groups of the newest attempt; empty if the job file has none."""
    node_changes: int = 0
    """Losses and replacements of single nodes recorded in the newest attempt."""
    absent_nodes: tuple[int, ...] = ()
    """Nodes of the newest attempt that have not been there yet."""
    lost_nodes: tuple[int, ...] = ()
    """Nodes of the newest attempt that are lost and not replaced yet."""
    missing_since: datetime | None = None
    """Since when the newest attempt has not trained for lack of nodes; None while it has all that it needs."""
    preempted_nodes: tuple[int, ...] = ()
    """Those of them whose loss counts as a preemption."""
    drilled_nodes: tuple[int, ...] = ()
    """Those of the preempted nodes whose loss was a drill."""
    hosting: tuple[int, ...] = ()
    """Missing nodes of `hosting_attempt` whose ranks run on other nodes, as last reported."""
    hosting_attempt: int = 0
    """Attempt that reported them; may precede its NodesReady. 0 without any."""
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

    def engine_of_launch(self, launch: int) -> Engine:
        """The type of the launcher that a launch was requested from."""
        earlier = (each.before for each in self.launcher_changes if launch <= each.last_launch)
        return next(earlier, self.engine)

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
    def hosted_nodes(self) -> tuple[int, ...]:
        """Nodes of the newest attempt whose ranks run on others until they have moved back."""
        return self.hosting if self.placed and self.hosting_attempt == self.attempt else ()

    @property
    def awaited_nodes(self) -> tuple[int, ...]:
        """Absent and lost nodes without which the newest attempt does not train."""
        missing = sorted({*self.absent_nodes, *self.lost_nodes})
        return tuple(node for node in missing if node not in self.hosted_nodes)

    @property
    def counted_nodes(self) -> tuple[int, ...]:
        """Awaited nodes whose loss counts as a preemption, and the end of the attempt with it.

        Node groups are lost independently, so that each loss counts.
        """
        if self.groups:
            return ()
        return tuple(node for node in self.awaited_nodes if node in self.preempted_nodes)

    @property
    def nodes_by_group(self) -> dict[str, range]:
        """The nodes of each node group, by its name; empty without groups."""
        found, first = dict[str, range](), 0
        for group in self.groups:
            found[group.name] = range(first, first + group.nodes)
            first += group.nodes
        return found

    @property
    def lost_nodes_text(self) -> str:
        """A sentence about nodes that are missing or whose ranks run elsewhere; empty if all run."""
        return "; ".join(filter(None, (self._lost_text, self._absent_text, self._hosted_text)))

    def node_text(self, nodes: Sequence[int]) -> str:
        """At least one node by its number and group: node 0 (head), or nodes 1 and 2 (workers)."""
        groups = self.nodes_by_group.items()
        names = [name for name, mine in groups if any(node in mine for node in nodes)]
        return f"{node_names(nodes)} ({', '.join(names)})" if names else node_names(nodes)

    @property
    def nodes_in_training(self) -> int:
        """Nodes of the newest attempt that run ranks, as last reported."""
        return max(0, self.nodes - len(self.hosted_nodes))

    @property
    def _absent_text(self) -> str:
        """The nodes that have not been there yet."""
        absent = [node for node in self.absent_nodes if node not in self.hosted_nodes]
        return f"waiting for {self.node_text(absent)}" if absent else ""

    @property
    def _lost_text(self) -> str:
        """What the ranks wait for: the new nodes, or their new hosts if enough nodes stand."""
        lost = [node for node in self.lost_nodes if node not in self.hosted_nodes]
        if not lost:
            return ""
        was, its = ("was", "its") if len(lost) == 1 else ("were", "their")
        standing = self.nodes - len({*self.absent_nodes, *self.lost_nodes, *self.hosted_nodes})
        is_elastic = self.min_nodes is not None and standing >= self.min_nodes
        then = (
            f"{its} ranks move to {_hosts(lost)}"
            if is_elastic
            else f"the others wait for {its} replacement"
        )
        return f"{self.node_text(lost)} {was} lost; {then}"

    @property
    def _hosted_text(self) -> str:
        if not self.hosted_nodes:
            return ""
        is_training = self.state is State.DEGRADED and not self.awaited_nodes
        where = f"training on {self.nodes_in_training} of {self.nodes} nodes: "
        return f"{where * is_training}{hosting_text(self.hosted_nodes)}"

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


def node_names(nodes: Sequence[int]) -> str:
    """At least one node by its number: node 1, or nodes 1, 2 and 5."""
    *others, last = map(str, nodes)
    return f"nodes {', '.join(others)} and {last}" if others else f"node {last}"


def hosting_text(nodes: Sequence[int]) -> str:
    """Where the ranks of missing nodes run."""
    return f"the ranks of {node_names(nodes)} run on {_hosts(nodes)}"


def _hosts(nodes: Sequence[int]) -> str:
    return "another node" if len(nodes) == 1 else "other nodes"
