"""The facts of a job's life: past tense, frozen, appended, never changed.

`at` is when a thing happened, told by whoever saw it happen; when it was written down is the journal's business.
An event whose `at` is not known exactly carries the time of the look that revealed it, never an invented one.
"""

from __future__ import annotations

from holdfast.domain.events.asked import (
    DEFAULT_PROJECT,
    CancelRequested,
    LimitsChanged,
    PauseRequested,
    ResumeRequested,
    RunsCompared,
    Submitted,
)
from holdfast.domain.events.fact import Fact, Source
from holdfast.domain.events.intent import Guard, GuardTripped, LaunchRequested
from holdfast.domain.events.placement import (
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
from holdfast.domain.events.stored import KINDS, WORKER_KINDS, Event, decode, encode
from holdfast.domain.events.told import (
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
from holdfast.domain.events.unknown import UnknownEvent
from holdfast.domain.events.upkeep import CheckpointsRemoved, Removal

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
    "Fact",
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
