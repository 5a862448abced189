"""Event classes of a job: immutable records in the past tense, appended and never changed.

`at` is when a thing happened according to its observer; the journal records when it was written. If the exact time is unknown,
`at` is the time of the observation that revealed it.
"""

from __future__ import annotations

from holdfast.domain.events.base import EventBase, Source, UnknownEvent
from holdfast.domain.events.codec import KINDS, WORKER_KINDS, Event, decode, encode
from holdfast.domain.events.launcher import (
    PREEMPTION_CAUSES,
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
    RanksReplaced,
    RanksRestarted,
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
    "PREEMPTION_CAUSES",
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
    "RanksReplaced",
    "RanksRestarted",
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
