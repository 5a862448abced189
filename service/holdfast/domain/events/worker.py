"""Events reported by workers. They change a job's state only for the running attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from holdfast_worker.protocol.environment import NO_RETRY
from holdfast_worker.protocol.gpu_health import SENTENCES, GpuFault
from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure
from pydantic import AwareDatetime, Field, JsonValue

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import (
    Attempt,
    Count,
    Interval,
    MachineNumber,
    Metric,
    Nodes,
    PassedOver,
    Ranks,
    Seconds,
    StoreCounts,
    StorePlace,
)


class LeftReason(StrEnum):
    """Reason why a worker stopped training."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionNoticed(EventBase):
    """The nodes of an attempt received a termination notice."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    left_s: Seconds | None = None
    """Seconds until the node stops; None if the notice did not state it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreStarted(EventBase):
    """The program started and looks for a checkpoint; setup has ended."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    guarantee: ConsistencyGuarantee | None = None
    """Consistency guarantee of the checkpoint store; None without one, or if the worker did not test it."""
    store_place: StorePlace = ""
    """Where the store is, such as aws/us-east-1, aws, own or files; empty if unknown, and in older events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDescribed(EventBase):
    """Manifest of an attempt, reported by its first rank before the first step."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    manifest: Mapping[str, JsonValue]
    """Keys as in `docs/reference/manifest.md`; other keys are kept unchanged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStarted(EventBase):
    """The first step of an attempt begins, after `step` completed steps."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    total_steps: Count | None = None
    """Total steps of the run; None if the script does not state it."""
    world_size: Count = 1
    restored_from: str | None = None
    """Name of the checkpoint; None if training started without one."""
    passed_over: tuple[PassedOver, ...] = ()
    """Newer checkpoints that were corrupt or incomplete, with reasons."""
    held_at: AwareDatetime | None = None
    """Time of the snapshot, if it was in the memory of the nodes and not in the store."""
    keeps_state: bool = False
    """Whether the other nodes keep the state if one is lost, so that it costs no more than the steps since a snapshot."""
    store_usage: StoreCounts | None = None
    """Requests to the store since the ranks started; None in older events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted(EventBase):
    """A checkpoint is complete and durable."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    checkpoint: str
    size_bytes: Count
    stall_ms: Count
    """Milliseconds for which the snapshot stalled training."""
    upload_ms: Count
    """Milliseconds from the end of the snapshot until the commit."""
    snapshot_at: AwareDatetime
    """Time of the snapshot; earlier work is safe."""
    weights_sha256: str
    """Digest of the model's tensors by name, type, shape and bytes."""
    interval: Interval | None = None
    """Checkpoint interval from now on; None if the job file sets it."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Values that the script had logged up to that step, by name."""
    store_usage: StoreCounts | None = None
    """Requests to the store since the ranks started; None in older events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFailed(EventBase):
    """A checkpoint could not be written; training continues and older checkpoints remain."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingFailed(EventBase):
    """Several consecutive checkpoints could not be written.

    The next committed checkpoint clears this.
    """

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    failures: Count
    safe_step: Count
    """Newest step that this attempt knows to be in the store; 0 without one."""
    policy: OnFailure
    """Reaction of the worker."""
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksRestarted(EventBase):
    """A rank failed or nodes were lost, and all ranks have ended and start again.

    They do so on the nodes of the attempt.
    """

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    """Number of completed steps at the failure."""
    exit_code: int
    """Exit code of the failed rank; 128 + n after signal n."""
    detail: str = ""
    node_lost: bool = False
    """Whether nodes were lost, in whose place there are others before the ranks start: no failure of the program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksReplaced(EventBase):
    """Ranks were lost and replaced while the others waited with their state; training continues."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    """Number of completed steps; all of them are kept."""
    ranks: Ranks
    """The replaced ranks; empty if all ranks waited and none was replaced."""
    cause: str
    """Description of the loss."""
    paused_ms: Count
    """Longest time for which a rank waited, in milliseconds; it ends at `at`."""
    hosted_nodes: Nodes = ()
    """The missing nodes whose ranks run on other nodes from now on, in any order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUnhealthy(EventBase):
    """A GPU of an attempt has faults that were not reported before."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    node: MachineNumber
    host: str = ""
    """Name of the machine, as its launcher knows it."""
    gpu: MachineNumber
    """Number of the GPU in its node."""
    name: str = ""
    """Type of the GPU, as its driver reports it."""
    faults: Annotated[tuple[GpuFault, ...], Field(max_length=len(GpuFault))]
    """All its faults so far."""
    detail: str = ""
    """What is wrong, in words, with the numbers of Xid errors."""
    since: AwareDatetime | None = None
    """When the node found it; None if unknown."""

    @property
    def sentence(self) -> str:
        """What happened, without a full stop."""
        where = f" of {self.host}" if self.host else ""
        what = self.detail or "; ".join(SENTENCES[fault] for fault in self.faults)
        return f"GPU {self.gpu}{where} (node {self.node}) {what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesKept(EventBase):
    """The program of an attempt has failed, and its nodes are kept for commands of users.

    They are billed as long.
    """

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    until: AwareDatetime
    """When they end at the latest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLeft(EventBase):
    """The worker of an attempt stopped training."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    reason: LeftReason
    exit_code: int
    detail: str = ""

    @property
    def exited_early(self) -> bool:
        """Whether the worker exited before it was done."""
        return self.reason is not LeftReason.FINISHED

    @property
    def no_retry_reason(self) -> str:
        """Why retries cannot succeed; empty if they can."""
        if self.reason is not LeftReason.FAILED or self.exit_code not in NO_RETRY:
            return ""
        return f"exit code {self.exit_code}: {self.detail}"


WorkerFact: TypeAlias = (
    PreemptionNoticed
    | RestoreStarted
    | RunDescribed
    | TrainingStarted
    | CheckpointCommitted
    | CheckpointFailed
    | SavingFailed
    | RanksRestarted
    | RanksReplaced
    | GpuUnhealthy
    | NodesKept
    | WorkerLeft
)
