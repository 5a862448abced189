"""What a worker told. It moves the state of a job only for the attempt that stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, TypeAlias

from holdfast_worker.protocol.environment import NO_RETRY
from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure
from pydantic import AwareDatetime, JsonValue

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Attempt, Count, Interval, Metric, PassedOver, Seconds


class LeftReason(StrEnum):
    """Why the worker stopped stepping."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionNoticed(EventBase):
    """The nodes of an attempt were told that they will be taken."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    left_s: Seconds | None = None
    """Seconds until the node goes; None when the notice did not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreStarted(EventBase):
    """The program is up and looks for a checkpoint; setup is over."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    guarantee: ConsistencyGuarantee | None = None
    """What the checkpoint store promises; None without one, and from workers that did not ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDescribed(EventBase):
    """What the program of an attempt comes from, as its first rank told it before its first step."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    manifest: Mapping[str, JsonValue]
    """Keys as in `docs/reference/manifest.md`; what else there is, is kept as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStarted(EventBase):
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
class CheckpointCommitted(EventBase):
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
class CheckpointFailed(EventBase):
    """A checkpoint could not be written; training goes on, older checkpoints stay."""

    source: ClassVar[Source] = Source.WORKER
    attempt: Attempt
    step: Count
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingFailed(EventBase):
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
class WorkerLeft(EventBase):
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


WorkerFact: TypeAlias = (
    PreemptionNoticed
    | RestoreStarted
    | RunDescribed
    | TrainingStarted
    | CheckpointCommitted
    | CheckpointFailed
    | SavingFailed
    | WorkerLeft
)
