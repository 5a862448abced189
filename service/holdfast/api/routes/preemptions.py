"""Preemption statistics: rates by place and time, notices, recovery and costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from fastapi import Depends, Query

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.preemptions import (
    NoticeOut,
    NoticesOut,
    PreemptionCostOut,
    PreemptionCostsOut,
    PreemptionDayOut,
    PreemptionHistoryOut,
    PreemptionOut,
    PreemptionRecordOut,
    PreemptionsOut,
    RecoveryOut,
    SurvivalOut,
)
from holdfast.api.time_ranges import TheTimeRange, TimeRange
from holdfast.domain.events import PREEMPTION_CAUSES
from holdfast.domain.preemptions.survival import MIN_PREEMPTIONS, SurvivalPoint, poisson_interval
from holdfast.store.billing.preemption_costs import SPANS_S, Preemption
from holdfast.store.billing.preemptions import LossBy, LossRequest, LossTotal

router = Router(prefix="/v1")

POINTS: Final = 200
"""Maximum points of a survival curve.

A higher value makes responses grow with history; a lower one shows visible steps.
"""

FilterText = Annotated[str | None, Query(max_length=200)]
InstanceType = Annotated[str | None, Query(alias="type", max_length=100)]


@dataclass(frozen=True, slots=True)
class PlacementFilter:
    """Filter of placements; None matches all."""

    zone: str | None
    instance_type: str | None
    projects: frozenset[str] | None


def _placement_filter(
    caller: TheCaller,
    zone: FilterText = None,
    instance_type: InstanceType = None,
    project: FilterText = None,
) -> PlacementFilter:
    return PlacementFilter(zone, instance_type, caller.filter_projects(project))


ThePlacementFilter = Annotated[PlacementFilter, Depends(_placement_filter)]


@router.get("/preemptions", response_model=PreemptionsOut, tags=["history"])
def list_preemptions(
    services: TheServices,
    window: TheTimeRange,
    place: ThePlacementFilter,
    *,
    by: Annotated[LossBy, Query(description="Key of the groups.")] = LossBy.ZONE,
    hours: Annotated[
        Literal["1", "2", "3", "4", "6", "8", "12"],
        Query(description="Hours of the day per group, when grouped by hour."),
    ] = "1",
) -> PreemptionsOut:
    """Show how often nodes are preempted, with how much notice, and how long recovery takes.

    Hours are in UTC.
    """
    question = replace(_question(window, place), by=by, hours=int(hours))
    report = services.preemptions.report(question, services.clock.now())
    return PreemptionsOut(
        by=by,
        since=window.since,
        until=window.until,
        preemptions=[_view(losses) for losses in report.totals],
        total=_view(report.total),
        survival=[_point(step) for step in _thinned(report.survival)],
        survival_mean_hours=None if report.mean_minutes is None else report.mean_minutes / 60,
        pending=report.pending,
    )


@router.get("/preemptions/notices", response_model=NoticesOut, tags=["history"])
def list_notices(
    services: TheServices,
    window: TheTimeRange,
    place: ThePlacementFilter,
) -> NoticesOut:
    """Show the notice before preemptions, and how often a checkpoint was saved in time."""
    question = _question(window, place)
    found = services.preemption_costs.notices(question, services.clock.now())
    return NoticesOut(
        since=window.since,
        until=window.until,
        without=found.without_notice,
        unsaid=NoticeOut(
            over_s=None, until_s=None, taken=found.unspecified[0], used=found.unspecified[1]
        ),
        notices=[
            NoticeOut(over_s=over_s, until_s=until_s, taken=taken, used=used)
            for (over_s, until_s), (taken, used) in zip(SPANS_S, found.by_span, strict=True)
        ],
    )


@router.get("/preemptions/jobs", response_model=PreemptionCostsOut, tags=["history"])
def list_tolls(
    services: TheServices,
    window: TheTimeRange,
    place: ThePlacementFilter,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 10,
) -> PreemptionCostsOut:
    """List the jobs with the most expensive lost work."""
    question = _question(window, place)
    found = services.preemption_costs.most_expensive(question, services.clock.now(), limit)
    jobs = [PreemptionCostOut(**asdict(cost)) for cost in found]
    return PreemptionCostsOut(since=window.since, until=window.until, jobs=jobs)


@router.get("/preemptions/history", response_model=PreemptionHistoryOut, tags=["history"])
def list_preemption_history(
    services: TheServices,
    window: TheTimeRange,
    place: ThePlacementFilter,
    *,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> PreemptionHistoryOut:
    """List preemptions by UTC day, and the newest single ones."""
    found = services.preemption_costs.history(_question(window, place), services.clock.now(), limit)
    return PreemptionHistoryOut(
        since=window.since,
        until=window.until,
        days=[PreemptionDayOut(**asdict(day)) for day in found.days],
        preemptions=[_record(one) for one in found.newest],
        left_out=sum(day.taken for day in found.days)
        - sum(not one.is_drill for one in found.newest),
    )


def _record(one: Preemption) -> PreemptionRecordOut:
    values = asdict(one)
    at_ms, notice_ms = values.pop("at_ms"), values.pop("notice_ms")
    values.pop("part")
    values["group"] = values.pop("node_group")
    values["instance_type"] = one.instance_type or None
    return PreemptionRecordOut(
        at=datetime.fromtimestamp(at_ms / 1000, UTC),
        notice_s=None if notice_ms is None else notice_ms / 1000,
        drill=one.is_drill,
        **values,
    )


def _question(window: TimeRange, place: PlacementFilter) -> LossRequest:
    return LossRequest(
        by=LossBy.ZONE,
        since=window.since,
        until=window.until,
        zone=place.zone,
        instance_type=place.instance_type,
        projects=place.projects,
    )


def _view(losses: LossTotal) -> PreemptionOut:
    rate, low, high = _rates(losses)
    return PreemptionOut(
        zone=losses.zone,
        hour=losses.hour,
        instance_type=losses.instance_type,
        cause=losses.cause,
        taken=losses.preempted,
        causes=dict(sorted(losses.causes.items())),
        drills=losses.drills,
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


def _rates(losses: LossTotal) -> tuple[float | None, float | None, float | None]:
    """Return losses per 100 node-hours with the ends of the interval; None if there are too few."""
    is_no_preemption = losses.cause is not None and losses.cause not in PREEMPTION_CAUSES
    if is_no_preemption or losses.preempted < MIN_PREEMPTIONS or not losses.node_ms:
        return None, None, None
    low, high = poisson_interval(losses.preempted)
    each = 100 / losses.node_hours
    return losses.preempted * each, low * each, high * each


def _thinned(steps: list[SurvivalPoint]) -> list[SurvivalPoint]:
    """Reduce a curve to at most `POINTS` points, including the last."""
    every = -(-len(steps) // POINTS) or 1
    return steps[::-1][::every][::-1]


def _point(step: SurvivalPoint) -> SurvivalOut:
    hours = step.minutes / 60
    return SurvivalOut(hours=hours, share=step.share, at_risk=step.at_risk, taken=step.preempted)
