"""Which events notify users, and their messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from holdfast.api.schemas.notifications import NotificationKindName
from holdfast.domain.events import (
    KINDS,
    CapacityDenied,
    CapacityLost,
    CapacityType,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    GpuUnhealthy,
    Guard,
    GuardTripped,
    LaunchRequested,
    MarketState,
    Outcome,
    Paused,
    PlanForecast,
    Planned,
    PlanReason,
    SavingFailed,
    TrainingStarted,
)
from holdfast.domain.notifications.events import (
    NOTIFYING_EVENTS,
    NotificationKind,
    notification_for,
)
from holdfast_worker.protocol.gpu_health import GpuFault
from holdfast_worker.protocol.policies import OnFailure
from support.events import DAWN, node_lost, node_replaced

SAVING = SavingFailed(
    at=DAWN, attempt=1, step=9, failures=3, safe_step=5, policy=OnFailure.STOP, detail="full"
)

DOUBTFUL = Planned(
    at=DAWN, capacity=CapacityType.SPOT, places=("aws/us-east-1",), reason=PlanReason.SPOT_IS_AVAILABLE, remaining_s=60.0,
    slack_s=3600.0, net_at=DAWN, changeover_s=10.0, policy="holdfast", policy_version=1, warns=True,
    market=MarketState(at=DAWN, places=(), tick_s=60.0, changeover_s=10.0),
    forecast=PlanForecast(
        runs=128, cost_p10_usd=1.0, cost_p50_usd=1.0, cost_p90_usd=1.0, end_p10=DAWN, end_p50=DAWN, end_p90=DAWN, late=0.12,
        over_budget=0.0, preemptions=0.0, lost_work_s=0.0,
    ),
)  # fmt: skip
DENIED = replace(DOUBTFUL, reason=PlanReason.ON_DEMAND_DENIED)


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (CapacityLost(at=DAWN, attempt=2, cause=Cause.PREEMPTED), "preempted", "was preempted in attempt 2"),
        (CapacityLost(at=DAWN, attempt=2, cause=Cause.NODE_FAILED, detail="gone"), "preempted", "lost a node in attempt 2: gone"),
        (CapacityLost(at=DAWN, attempt=2, cause=Cause.USER_ERROR), "lost", "lost its nodes (user_error)"),
        (node_lost(attempt=2), "preempted", "lost node 1 in attempt 2 (preempted); the launcher replaces it"),
        (node_lost(attempt=2, cause=Cause.LAUNCHER_RESTARTED), "lost", "lost node 1 in attempt 2 (launcher restarted); the launcher replaces it"),
        (node_replaced(attempt=2), "recovered", "replaced node 1 in attempt 2"),
        (TrainingStarted(at=DAWN, attempt=2, step=7), "recovered", "resumed training at step 7 in attempt 2"),
        (SAVING, "saving_failed", "failed to save 3 checkpoints in a row; the last durable step is 5: full"),
        (
            GpuUnhealthy(at=DAWN, attempt=2, node=1, host="hpc07", gpu=3, faults=(GpuFault.OFF_BUS,)),
            "gpu_unhealthy",
            "has a GPU that is not healthy in attempt 2: GPU 3 of hpc07 (node 1) has fallen off the bus",
        ),
        (GuardTripped(at=DAWN, guard=Guard.MAX_COST, detail="$5"), "guard", "is being paused (max_cost): $5"),
        (GuardTripped(at=DAWN, guard=Guard.SAME_CRASH, detail="3"), "guard", "is being stopped (same_crash): 3"),
        (Paused(at=DAWN, detail="by ada"), "paused", "is paused without cost: by ada"),
        (Finished(at=DAWN, outcome=Outcome.SUCCEEDED, exit_code=0), "succeeded", "succeeded"),
        (Finished(at=DAWN, outcome=Outcome.FAILED, exit_code=3), "failed", "failed with exit code 3"),
        (Finished(at=DAWN, outcome=Outcome.CANCELLED, detail="by ada"), "cancelled", "was cancelled: by ada"),
        (CleanupFailed(at=DAWN, detail="node-1"), "cleanup_failed", "may still have billed nodes: node-1"),
        (DENIED, "no_capacity", "needs on-demand nodes, and no place has any: waiting for spot in us-east-1: no place has on-demand nodes now, they are asked for again later"),
        (DOUBTFUL, "late", "misses its deadline in 12 % of simulated runs, and ends about 12:00Z: spot in us-east-1: 1.0 h of slack"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_notifying_events_have_kind_and_text(event: Event, kind: str, text: str) -> None:
    recorded = notification_for("job-1", "tiny", 7, event)

    assert recorded is not None
    assert type(event).__name__ in NOTIFYING_EVENTS
    assert (recorded.id, recorded.kind, recorded.text) == ("job-1-7", kind, f"tiny (job-1) {text}")


@pytest.mark.parametrize(
    "event",
    [
        LaunchRequested(at=DAWN, launch=1),
        TrainingStarted(at=DAWN, attempt=1, step=0),
        CapacityLost(at=DAWN, attempt=1, cause=Cause.PAUSED),
        CapacityLost(at=DAWN, attempt=1, cause=Cause.MOVED),
        replace(DOUBTFUL, warns=False),
        CapacityDenied(at=DAWN, zone="us-east-1"),
    ],
)
def test_routine_events_do_not_notify(event: Event) -> None:
    assert notification_for("job-1", "tiny", 7, event) is None


def test_channel_kinds_are_those_of_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs/howto/notifications.md").read_text()

    assert set(get_args(NotificationKindName)) == set(NotificationKind) - {NotificationKind.TEST}
    assert all(f"`{kind}`" in page for kind in get_args(NotificationKindName))


def test_every_notification_kind_has_a_source() -> None:
    """Notifications of events are tested above; the others come from their observers."""
    assert KINDS.keys() >= NOTIFYING_EVENTS
    assert set(NotificationKind) >= {"budget", "test"}
