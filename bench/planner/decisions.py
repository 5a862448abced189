"""Measures what a plan adds to a decision of the reconciler while its choice stands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from holdfast.domain.events import LaunchRequested, MarketState, NodesReady, Submitted
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.moves import planned_placement
from holdfast.domain.jobs.observation import LaunchStatus, Observation, Placement
from holdfast.domain.jobs.reconcile import ReconcileContext, decide
from holdfast.domain.planning.placement import PlacementPlanner
from holdfast.domain.planning.situation import PlacementPolicy
from holdfast.domain.planning.survival import Survival

from planner.outlook import NOW, place_of

DECISIONS: Final = 2000
LIMITS: Final = Limits(deadline="60h")
PLAN: Final = PlanSpec(work="48h")


def decision_times(places: int, *, sees_all: bool) -> Iterator[tuple[str, float]]:
    """CPU time of a decision about a job on spot nodes, without a plan and with one, in seconds."""
    market = MarketState(
        at=NOW,
        places=tuple(place_of(number) for number in range(places)),
        tick_s=600.0,
        changeover_s=360.0,
        sees_all=sees_all,
    )
    planner = PlacementPlanner(PLAN, LIMITS, market, _POLICY)
    job, seen = _running(planner)
    for name, context in (
        ("without a plan", ReconcileContext(limits=LIMITS)),
        ("with a plan", ReconcileContext(limits=LIMITS, planner=planner)),
    ):
        decide(job, seen, NOW, context)
        began_s = time.process_time()
        for number in range(DECISIONS):
            decide(job, seen, NOW + timedelta(milliseconds=number), context)
        yield name, (time.process_time() - began_s) / DECISIONS


_POLICY: Final[PlacementPolicy] = Survival()


def _running(planner: PlacementPlanner) -> tuple[Job, Observation]:
    """A job whose spot nodes are ready, and the observation that shows them."""
    submitted = Submitted(at=NOW, name="job", spec={}, task="run: train")
    planned = planner.plan(fold("job", [submitted]), NOW)
    asked = planned_placement(fold("job", [submitted, planned]))
    events = [
        submitted,
        planned,
        LaunchRequested(at=NOW, launch=1, placement=asked),
        NodesReady(
            at=NOW,
            attempt=1,
            zone="zone-0",
            nodes=1,
            micros_per_hour=1_000_000,
            on_demand_micros_per_hour=3_000_000,
            simulated=False,
        ),
    ]
    nodes = Placement(
        ready_at=NOW,
        zone="zone-0",
        nodes=1,
        micros_per_hour=1_000_000,
        on_demand_micros_per_hour=3_000_000,
        simulated=False,
    )
    seen = Observation(status=LaunchStatus.UP, since=NOW, placements=1, recent_placements=(nodes,))
    return fold("job", events), seen
