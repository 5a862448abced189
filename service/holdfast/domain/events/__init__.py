"""The facts of a job's life: past tense, frozen, appended, never changed.

`at` is when a thing happened, told by whoever saw it happen; when it was written down is the journal's business.
An event whose `at` is not known exactly carries the time of the look that revealed it, never an invented one.
"""

from __future__ import annotations

from holdfast.domain.events.base import EventBase, Source, UnknownEvent
from holdfast.domain.events.codec import KINDS, WORKER_KINDS, Event, decode, encode
from holdfast.domain.events.launcher import (
    TAKEN,
    CapacityDenied,
    CapacityLost,
    Cause,
    CleanedUp,
    CleanupFailed,
    Finished,
    LauncherFact,
    NodesReady,
    Outcome,
    Paused,
    PriceChanged,
)
from holdfast.domain.events.requests import (
    DEFAULT_PROJECT,
    CancelRequested,
    LimitsChanged,
    PauseRequested,
    ResumeRequested,
    RunsCompared,
    Submitted,
)
from holdfast.domain.events.service import (
    CheckpointsRemoved,
    Guard,
    GuardTripped,
    LaunchRequested,
    Removal,
)
from holdfast.domain.events.worker import (
    CheckpointCommitted,
    CheckpointFailed,
    LeftReason,
    PreemptionNoticed,
    RestoreStarted,
    RunDescribed,
    SavingFailed,
    TrainingStarted,
    WorkerFact,
    WorkerLeft,
)

__all__ = [
    "DEFAULT_PROJECT",
    "KINDS",
    "TAKEN",
    "WORKER_KINDS",
    "CancelRequested",
    "CapacityDenied",
    "CapacityLost",
    "Cause",
    "CheckpointCommitted",
    "CheckpointFailed",
    "CheckpointsRemoved",
    "CleanedUp",
    "CleanupFailed",
    "Event",
    "EventBase",
    "Finished",
    "Guard",
    "GuardTripped",
    "LaunchRequested",
    "LauncherFact",
    "LeftReason",
    "LimitsChanged",
    "NodesReady",
    "Outcome",
    "PauseRequested",
    "Paused",
    "PreemptionNoticed",
    "PriceChanged",
    "Removal",
    "RestoreStarted",
    "ResumeRequested",
    "RunDescribed",
    "RunsCompared",
    "SavingFailed",
    "Source",
    "Submitted",
    "TrainingStarted",
    "UnknownEvent",
    "WorkerFact",
    "WorkerLeft",
    "decode",
    "encode",
]
