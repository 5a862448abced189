"""What became of nodes: how often they are taken, where and when, and what that costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Final, Literal

from fastapi import Depends, Query

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.preemptions import (
    NoticeOut,
    NoticesOut,
    PreemptionCostOut,
    PreemptionCostsOut,
    PreemptionOut,
    PreemptionsOut,
    RecoveryOut,
    SurvivalOut,
)
from holdfast.api.time_ranges import TheWindow, TimeRange
from holdfast.domain.events import TAKEN
from holdfast.domain.preemptions.survival import FEWEST, SurvivalPoint, poisson_interval
from holdfast.store.billing.preemption_costs import SPANS_S
from holdfast.store.billing.preemptions import LossBy, Losses, LossQuestion

router = Router(prefix="/v1")

POINTS: Final = 200
"""Points of the curve that are told. More: an answer that grows with history; fewer: steps that can be seen."""

Word = Annotated[str | None, Query(max_length=200)]
Kind = Annotated[str | None, Query(alias="type", max_length=100)]


@dataclass(frozen=True, slots=True)
class PlacementFilter:
    """Of which placements is asked; what is None does not matter."""

    zone: str | None
    instance_type: str | None
    projects: frozenset[str] | None


def _place(
    caller: TheCaller, zone: Word = None, instance_type: Kind = None, project: Word = None
) -> PlacementFilter:
    return PlacementFilter(zone, instance_type, caller.within(project))


ThePlace = Annotated[PlacementFilter, Depends(_place)]


@router.get("/preemptions", response_model=PreemptionsOut, tags=["history"])
def list_preemptions(
    services: The,
    window: TheWindow,
    place: ThePlace,
    *,
    by: Annotated[LossBy, Query(description="What is told apart.")] = LossBy.ZONE,
    hours: Annotated[
        Literal["1", "2", "3", "4", "6", "8", "12"],
        Query(description="Hours of the day that are taken as one, where hours are told apart."),
    ] = "1",
) -> PreemptionsOut:
    """How often nodes are taken, what notice they get, and how long it takes to come back. Hours are in UTC."""
    question = replace(_question(window, place), by=by, hours=int(hours))
    told = services.losses.ask(question, services.clock.now())
    return PreemptionsOut(
        by=by,
        since=window.since,
        until=window.until,
        preemptions=[_view(losses) for losses in told.sums],
        total=_view(told.total),
        survival=[_point(step) for step in _thinned(told.survival)],
        survival_mean_hours=None if told.mean_minutes is None else told.mean_minutes / 60,
        pending=told.pending,
    )


@router.get("/preemptions/notices", response_model=NoticesOut, tags=["history"])
def list_notices(
    services: The,
    window: TheWindow,
    place: ThePlace,
) -> NoticesOut:
    """How much warning there was before nodes were taken, and how often it was enough."""
    question = _question(window, place)
    found = services.tolls.notices(question, services.clock.now())
    return NoticesOut(
        since=window.since,
        until=window.until,
        without=found.without,
        unsaid=NoticeOut(over_s=None, until_s=None, taken=found.unsaid[0], used=found.unsaid[1]),
        notices=[
            NoticeOut(over_s=over_s, until_s=until_s, taken=taken, used=used)
            for (over_s, until_s), (taken, used) in zip(SPANS_S, found.told, strict=True)
        ],
    )


@router.get("/preemptions/jobs", response_model=PreemptionCostsOut, tags=["history"])
def list_tolls(
    services: The,
    window: TheWindow,
    place: ThePlace,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 10,
) -> PreemptionCostsOut:
    """The jobs whose work that was lost with their nodes has cost the most."""
    question = _question(window, place)
    found = services.tolls.worst(question, services.clock.now(), limit)
    jobs = [PreemptionCostOut(**asdict(toll)) for toll in found]
    return PreemptionCostsOut(since=window.since, until=window.until, jobs=jobs)


def _question(window: TimeRange, place: PlacementFilter) -> LossQuestion:
    return LossQuestion(
        by=LossBy.ZONE,
        since=window.since,
        until=window.until,
        zone=place.zone,
        instance_type=place.instance_type,
        projects=place.projects,
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
    low, high = poisson_interval(losses.taken)
    each = 100 / losses.node_hours
    return losses.taken * each, low * each, high * each


def _thinned(steps: list[SurvivalPoint]) -> list[SurvivalPoint]:
    """At most `POINTS` of them, the last one included."""
    every = -(-len(steps) // POINTS) or 1
    return steps[::-1][::every][::-1]


def _point(step: SurvivalPoint) -> SurvivalOut:
    hours = step.minutes / 60
    return SurvivalOut(hours=hours, share=step.share, at_risk=step.at_risk, taken=step.taken)
