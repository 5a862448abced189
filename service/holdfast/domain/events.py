"""The facts of a job's life: past tense, frozen, appended, never changed.

`at` is when a thing happened, told by whoever saw it happen; when it was written down is the journal's business.
An event whose `at` is not known exactly carries the time of the look that revealed it, never an invented one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias, get_args

from holdfast_worker.wire import NO_RETRY, Guarantee, OnFailure
from pydantic import AwareDatetime, TypeAdapter

from holdfast.domain.carried import Attempt, Count, Interval, Metric, PassedOver, Seconds


class Source(StrEnum):
    """Who told a fact."""

    USER = "user"
    RECONCILER = "reconciler"
    LAUNCHER = "launcher"
    WORKER = "worker"
    JANITOR = "janitor"
    """Who tidies up checkpoint stores. What it tells says nothing about nodes."""


class Cause(StrEnum):
    """Why the nodes of a placement were lost. Only the first two enter the time between failures."""

    PREEMPTED = "preempted"
    """Taken by the market, and a notice proves it."""
    NODE_FAILED = "node_failed"
    """Gone without a word: a reclaim without notice and a machine that broke look the same."""
    LAUNCHER_RESTARTED = "launcher_restarted"
    LAUNCHER_FORGOT = "launcher_forgot"
    USER_ERROR = "user_error"


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Guard(StrEnum):
    """What ends a job that would go on."""

    MAX_COST = "max_cost"
    MAX_HOURLY_COST = "max_hourly_cost"
    DEADLINE = "deadline"
    MAX_DURATION = "max_duration"
    MAX_WAIT = "max_wait"
    MAX_FAILURES = "max_failures"
    NO_RETRY = "no_retry"
    ZERO_PROGRESS = "zero_progress"


class LeftReason(StrEnum):
    """Why the worker stopped stepping."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


class Removal(StrEnum):
    """Why a checkpoint was removed."""

    SUPERSEDED = "superseded"
    """The job file does not ask to keep it any more."""
    OFF_LINEAGE = "off_lineage"
    """A later placement went on from an earlier step, so that nobody would resume from it."""
    DEAD_UPLOAD = "dead_upload"
    """It was never whole, and whoever was writing it is gone."""
    FOUND_GONE = "found_gone"
    """It was whole once, and is not in the store any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What all events share."""

    source: ClassVar[Source]
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted(Fact):
    """Somebody asked for this job; the first event of every job."""

    source: ClassVar[Source] = Source.USER
    name: str
    spec: dict[str, Any]
    """The job file as understood, ready to be read back as a `JobSpec`."""
    task: str
    """The rendered task as YAML: what launchers are given."""
    notes: tuple[str, ...] = ()
    """What was put right in the job file, as sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested(Fact):
    """Somebody asked for an end. The job is stopping until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "cancelled on request"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequested(Fact):
    """The reconciler is about to submit launch number `launch`; written before it does so."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardTripped(Fact):
    """A limit of the job was reached. It is stopping as if somebody had asked for it, and will have failed."""

    source: ClassVar[Source] = Source.RECONCILER
    guard: Guard
    detail: str
    """Which limit, and what was counted, as one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityDenied(Fact):
    """A zone had no room. The launcher goes on trying; a denial is data and is never deleted."""

    source: ClassVar[Source] = Source.LAUNCHER
    zone: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesReady(Fact):
    """All nodes stand and are paid for from now on. Begins attempt number `attempt`."""

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: int
    zone: str
    nodes: int
    micros_per_hour: int
    """Price of all nodes together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    """What the same nodes would cost without spot."""
    simulated: bool
    """True where the price is not money that anybody pays (local processes, simulated cloud)."""
    price_source: str = ""
    """Who told the price, for people; empty where the launcher sets it itself, and in events of before."""
    price_as_of: AwareDatetime | None = None
    """When that source had it so; None where `price_source` is empty."""
    is_price_estimate: bool = False
    """Whether nobody told the price, so that it is taken to be high."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityLost(Fact):
    """The nodes of an attempt are gone, or were given up."""

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: Attempt
    """0 when a launch was lost before it had nodes."""
    cause: Cause
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Fact):
    """The job is over and nothing of it runs any more."""

    source: ClassVar[Source] = Source.LAUNCHER
    outcome: Outcome
    exit_code: int | None = None
    """Exit code of the program; None where no program had run or none was told."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanupFailed(Fact):
    """Something of the job may still run, and be paid for, though it should be gone. Changes no state."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """What and where, for whoever has to remove it; one thing is always told in the same words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanedUp(Fact):
    """What was left behind is gone."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """What it was, in the words of its `CleanupFailed`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionNoticed(Fact):
    """The nodes of an attempt were told that they will be taken."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    left_s: Seconds | None = None
    """Seconds until the node goes; None when the notice did not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreStarted(Fact):
    """The program is up and looks for a checkpoint; setup is over."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    guarantee: Guarantee | None = None
    """What the checkpoint store promises; None without one, and from workers that did not ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStarted(Fact):
    """The first step of an attempt begins; `step` steps are behind it."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    total_steps: Count | None = None
    """None when the script does not say how far it goes."""
    world_size: Count = 1
    restored_from: str | None = None
    """Name of the checkpoint; None when training began at the beginning."""
    passed_over: tuple[PassedOver, ...] = ()
    """Newer checkpoints that were damaged or incomplete, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted(Fact):
    """A checkpoint is whole and durable."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    checkpoint: str
    size_bytes: Count
    stall_ms: Count
    """How long training stood still for the snapshot."""
    upload_ms: Count
    """From the end of the snapshot until the commit."""
    snapshot_at: AwareDatetime
    """When the state was taken; work before this moment is safe."""
    weights_sha256: str
    """Digest of the model's tensors by name, type, shape and bytes."""
    interval: Interval | None = None
    """How often it saves from now on; None where the job file says how often."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """What the script had logged up to that step, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFailed(Fact):
    """A checkpoint could not be written; training goes on, older checkpoints stay."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingFailed(Fact):
    """So many checkpoints in a row could not be written. It is over with the next one that is."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    failures: Count
    safe_step: Count
    """Newest step that this attempt knows to be in the store; 0 for none."""
    policy: OnFailure
    """What the worker does about it."""
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLeft(Fact):
    """The worker of an attempt stopped stepping, and why."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    reason: LeftReason
    exit_code: int
    detail: str = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether it left before it was done."""
        return self.reason is not LeftReason.FINISHED

    @property
    def hopeless(self) -> str:
        """Why another try is useless, in words; empty where it is not."""
        if self.reason is not LeftReason.FAILED or self.exit_code not in NO_RETRY:
            return ""
        return f"exit code {self.exit_code}: {self.detail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsRemoved(Fact):
    """Checkpoints, or what was left of them, are not in the store any more: nobody can resume from them."""

    source: ClassVar[Source] = Source.JANITOR
    checkpoints: tuple[str, ...]
    """Their names. Their bytes may take a moment longer to go."""
    removal: Removal
    size_bytes: Count
    """All of them together, as far as it is known."""


LauncherFact: TypeAlias = (
    CapacityDenied | NodesReady | CapacityLost | Finished | CleanupFailed | CleanedUp
)
WorkerFact: TypeAlias = (
    PreemptionNoticed
    | RestoreStarted
    | TrainingStarted
    | CheckpointCommitted
    | CheckpointFailed
    | SavingFailed
    | WorkerLeft
)
Event: TypeAlias = (
    Submitted
    | CancelRequested
    | LaunchRequested
    | GuardTripped
    | LauncherFact
    | WorkerFact
    | CheckpointsRemoved
)

KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}
"""Every event by the name under which it is stored. A name, once written to a log, is never reused."""

WORKER_KINDS: Final = frozenset(
    kind for kind, event in KINDS.items() if event.source is Source.WORKER
)


_ADAPTERS: Final = {kind: TypeAdapter[Any](kind) for kind in KINDS.values()}


def encode(event: Event) -> dict[str, Any]:
    """The body of an event as JSON values; its kind, source and `at` are columns of their own."""
    body: dict[str, Any] = _ADAPTERS[type(event)].dump_python(event, mode="json")
    del body["at"]
    return body


def decode(kind: str, at: datetime, body: dict[str, Any]) -> Event:
    """The event of a stored row.

    Raises:
        KeyError: the kind was never an event of Holdfast.
        pydantic.ValidationError: the body does not fit the kind.
    """
    cls = KINDS[kind]
    names = {item.name for item in fields(cls)}
    event: Event = _ADAPTERS[cls].validate_python(
        {**{k: v for k, v in body.items() if k in names}, "at": at}
    )
    return event
