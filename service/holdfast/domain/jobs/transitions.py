"""State transitions of a job: which event may follow in which state, and the next state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from holdfast.domain.events import (
    Admitted,
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    CheckpointsRemoved,
    CleanedUp,
    CleanupFailed,
    DrillRequested,
    Event,
    Finished,
    GuardTripped,
    LaunchRequested,
    LimitsChanged,
    Moved,
    MoveRequested,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Paused,
    PausedForPriority,
    PauseRequested,
    Planned,
    PriceChanged,
    PriorityChanged,
    RanksReplaced,
    RanksRestarted,
    Requeued,
    Resized,
    ResumeRequested,
    RunsCompared,
    TagsChanged,
    TrainingStarted,
)
from holdfast.domain.jobs.job import State

JobAnnotation: TypeAlias = (
    CleanupFailed
    | CleanedUp
    | CheckpointsRemoved
    | PriceChanged
    | LimitsChanged
    | TagsChanged
    | DrillRequested
    | RunsCompared
    | Planned
    | Admitted
    | PriorityChanged
)
"""Events that do not change the state of a job."""

S = State
LIVE: Final = frozenset(State) - {S.ENDED}
ACTIVE: Final = LIVE - {S.PAUSING, S.PAUSED, S.STOPPING}
"""States of jobs that were not asked to pause or stop."""
LAUNCHED: Final = ACTIVE - {S.QUEUED, S.MOVING}
"""States of jobs with a launch that stands."""
WITH_NODES: Final = (S.STARTING, S.TRAINING, S.DEGRADED, S.MOVING, S.PAUSING, S.STOPPING)
"""States in which nodes can run."""

TRANSITIONS: Final[Mapping[tuple[State, type[Event]], State]] = {
    (S.QUEUED, LaunchRequested): S.PROVISIONING,
    (S.RECOVERING, LaunchRequested): S.PROVISIONING,
    (S.PROVISIONING, CapacityDenied): S.PROVISIONING,
    (S.RECOVERING, CapacityDenied): S.RECOVERING,
    # While the nodes of other groups run.
    (S.STARTING, CapacityDenied): S.STARTING,
    (S.TRAINING, CapacityDenied): S.TRAINING,
    (S.DEGRADED, CapacityDenied): S.DEGRADED,
    (S.MOVING, CapacityDenied): S.MOVING,
    (S.PAUSING, CapacityDenied): S.PAUSING,
    (S.STOPPING, CapacityDenied): S.STOPPING,
    (S.PROVISIONING, NodesReady): S.STARTING,
    (S.RECOVERING, NodesReady): S.STARTING,
    (S.MOVING, NodesReady): S.MOVING,
    (S.PAUSING, NodesReady): S.PAUSING,
    (S.STOPPING, NodesReady): S.STOPPING,
    # While ranks of missing nodes run on other nodes, the state is degraded instead of training.
    (S.STARTING, TrainingStarted): S.TRAINING,
    (S.TRAINING, RanksRestarted): S.STARTING,
    (S.DEGRADED, RanksRestarted): S.STARTING,
    (S.TRAINING, RanksReplaced): S.TRAINING,
    (S.DEGRADED, RanksReplaced): S.TRAINING,
    # A launch can be lost before it ever had nodes.
    (S.PROVISIONING, CapacityLost): S.RECOVERING,
    (S.STARTING, CapacityLost): S.RECOVERING,
    (S.TRAINING, CapacityLost): S.RECOVERING,
    (S.DEGRADED, CapacityLost): S.RECOVERING,
    (S.MOVING, CapacityLost): S.MOVING,
    (S.PAUSING, CapacityLost): S.PAUSING,
    (S.STOPPING, CapacityLost): S.STOPPING,
    # The other nodes keep running.
    **{(state, event): state for state in WITH_NODES for event in (NodeLost, NodeReplaced)},
    **{(state, MoveRequested): S.MOVING for state in LAUNCHED},
    (S.MOVING, Moved): S.QUEUED,
    **{(state, PauseRequested): S.PAUSING for state in ACTIVE},
    **{(state, PausedForPriority): S.PAUSING for state in LAUNCHED},
    # A user's pause of a job that pauses for another one: it does not wait in the queue afterwards.
    (S.PAUSING, PauseRequested): S.PAUSING,
    (S.PAUSING, Paused): S.PAUSED,
    (S.PAUSED, Requeued): S.QUEUED,
    (S.PAUSED, Resized): S.PAUSED,
    (S.PAUSED, ResumeRequested): S.QUEUED,
    **{(state, CancelRequested): S.STOPPING for state in LIVE - {S.STOPPING}},
    # Guards that pause lead to pausing instead.
    **{(state, GuardTripped): S.STOPPING for state in ACTIVE},
    **{(state, Finished): S.ENDED for state in LIVE - {S.PAUSED}},
}
