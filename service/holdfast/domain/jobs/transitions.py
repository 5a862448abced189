"""Which event may follow in which state of a job, and the state after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.domain.events import (
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    Event,
    Finished,
    GuardTripped,
    LaunchRequested,
    NodesReady,
    Paused,
    PauseRequested,
    ResumeRequested,
    TrainingStarted,
)
from holdfast.domain.jobs.job import State

S = State
LIVE: Final = frozenset(State) - {S.ENDED}
GOING: Final = LIVE - {S.PAUSING, S.PAUSED, S.STOPPING}
"""What nobody has asked to leave."""

TRANSITIONS: Final[Mapping[tuple[State, type[Event]], State]] = {
    (S.QUEUED, LaunchRequested): S.PROVISIONING,
    (S.RECOVERING, LaunchRequested): S.PROVISIONING,
    (S.PROVISIONING, CapacityDenied): S.PROVISIONING,
    (S.RECOVERING, CapacityDenied): S.RECOVERING,
    (S.PAUSING, CapacityDenied): S.PAUSING,
    (S.STOPPING, CapacityDenied): S.STOPPING,
    (S.PROVISIONING, NodesReady): S.STARTING,
    (S.RECOVERING, NodesReady): S.STARTING,
    (S.PAUSING, NodesReady): S.PAUSING,
    (S.STOPPING, NodesReady): S.STOPPING,
    (S.STARTING, TrainingStarted): S.TRAINING,
    # A launch can be lost before it ever had nodes.
    (S.PROVISIONING, CapacityLost): S.RECOVERING,
    (S.STARTING, CapacityLost): S.RECOVERING,
    (S.TRAINING, CapacityLost): S.RECOVERING,
    (S.PAUSING, CapacityLost): S.PAUSING,
    (S.STOPPING, CapacityLost): S.STOPPING,
    **{(state, PauseRequested): S.PAUSING for state in GOING},
    (S.PAUSING, Paused): S.PAUSED,
    (S.PAUSED, ResumeRequested): S.QUEUED,
    **{(state, CancelRequested): S.STOPPING for state in LIVE - {S.STOPPING}},
    # Of those guards that pause: pausing.
    **{(state, GuardTripped): S.STOPPING for state in GOING},
    **{(state, Finished): S.ENDED for state in LIVE - {S.PAUSED}},
}
