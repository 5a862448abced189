"""What became of nodes: how often they are taken, where and when, and what that costs."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query

from holdfast.api.auth import TheCaller
from holdfast.api.preemption_schemas import (
    PreemptionOut,
    PreemptionsOut,
    RecoveryOut,
    SurvivalOut,
)
from holdfast.api.services import The
from holdfast.api.windows import TheWindow
from holdfast.domain.chances import FEWEST, Step, garwood
from holdfast.domain.events import TAKEN
from holdfast.store.losses import LossBy, Losses, LossQuestion

router = APIRouter(prefix="/v1")

POINTS: Final = 200
"""Points of the curve that are told. More: an answer that grows with history; fewer: steps that can be seen."""

Word = Annotated[str | None, Query(max_length=200)]


@router.get("/preemptions", response_model=PreemptionsOut, tags=["history"])
def list_preemptions(
    services: The,
    caller: TheCaller,
    window: TheWindow,
    *,
    by: Annotated[LossBy, Query(description="What is told apart.")] = LossBy.ZONE,
    zone: Word = None,
    instance_type: Annotated[str | None, Query(alias="type", max_length=100)] = None,
    project: Word = None,
) -> PreemptionsOut:
    """How often nodes are taken, what notice they get, and how long it takes to come back. Hours are in UTC."""
    question = LossQuestion(
        by=by,
        since=window.since,
        until=window.until,
        zone=zone,
        instance_type=instance_type,
        projects=caller.within(project),
    )
    told = services.losses.ask(question, services.clock.now())
    return PreemptionsOut(
        by=by,
        since=window.since,
        until=window.until,
        preemptions=[_view(losses) for losses in told.sums],
        total=_view(told.total),
        survival=[_point(step) for step in _thinned(told.survival)],
        pending=told.pending,
    )


def _view(losses: Losses) -> PreemptionOut:
    rate, low, high = _rates(losses)
    return PreemptionOut(
        zone=losses.zone,
        hour=losses.hour,
        instance_type=losses.instance_type,
        cause=losses.cause,
        taken=losses.taken,
        causes=dict(sorted(losses.causes.items())),
        node_hours=losses.node_hours,
        per_100_node_hours=rate,
        per_100_node_hours_low=low,
        per_100_node_hours_high=high,
        node_hours_between=100 / rate if rate else None,
        node_hours_between_low=100 / high if high else None,
        node_hours_between_high=100 / low if low else None,
        noticed=losses.amounts["is_noticed"],
        notice_used=losses.amounts["is_notice_used"],
        notice_s=losses.mean_s("notice_ms"),
        recovery=RecoveryOut(
            detect_s=losses.mean_s("detect_ms"),
            wait_s=losses.mean_s("wait_ms"),
            setup_s=losses.mean_s("setup_ms"),
            restore_s=losses.mean_s("restore_ms"),
            redo_s=losses.mean_s("redo_ms"),
        ),
        lost_steps=losses.amounts["lost_steps"],
        lost_ms=losses.amounts["lost_ms"],
        lost_micros=losses.amounts["lost_micros"],
        simulated=losses.simulated,
        is_price_estimate=losses.is_price_estimate,
    )


def _rates(losses: Losses) -> tuple[float | None, float | None, float | None]:
    """Losses in 100 node-hours, and the ends of the interval; None where there are too few to say."""
    says_nothing = losses.cause is not None and losses.cause not in TAKEN
    if says_nothing or losses.taken < FEWEST or not losses.node_ms:
        return None, None, None
    low, high = garwood(losses.taken)
    each = 100 / losses.node_hours
    return losses.taken * each, low * each, high * each


def _thinned(steps: list[Step]) -> list[Step]:
    """At most `POINTS` of them, the last one included."""
    every = -(-len(steps) // POINTS) or 1
    return steps[::-1][::every][::-1]


def _point(step: Step) -> SurvivalOut:
    hours = step.minutes / 60
    return SurvivalOut(hours=hours, share=step.share, at_risk=step.at_risk, taken=step.taken)
