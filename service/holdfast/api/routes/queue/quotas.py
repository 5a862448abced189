"""Quotas of the service, of projects and users, and the queue of waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import TypeAdapter, ValidationError

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.queue import (
    OwnerUsageOut,
    QueueOut,
    QueuePositionOut,
    QuotaIn,
    QuotaOut,
)
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Usd
from holdfast.domain.queue.admission import (
    PATIENCE,
    QueuePosition,
    evaluate,
    held_by_quota,
)
from holdfast.domain.queue.queue_state import QueueEntry, QueueState, usage_by_owner
from holdfast.domain.queue.quotas import (
    NOTHING_HELD,
    SERVICE_NAME,
    HeldShares,
    Quota,
    QuotaScope,
)
from holdfast.errors import BadLimits, BadRequest, ValidationIssue
from holdfast.services import Services

router = Router(prefix="/v1", tags=["queue"])

Name = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("/quotas", response_model=list[QuotaOut])
def list_quotas(services: TheServices, caller: TheCaller) -> list[QuotaOut]:
    """List the quotas of the service, the caller and their projects, with what is held."""
    state = services.journal.queue.state()
    return [_view(quota, state) for quota in state.quotas if _is_seen(caller, quota)]


@router.put("/quotas/service", response_model=QuotaOut)
def set_service_quota(body: QuotaIn, services: TheServices, actor: TheActor) -> QuotaOut:
    """Set what all jobs together may hold at once. Running jobs keep what they hold."""
    return _set(services, QuotaScope.SERVICE, SERVICE_NAME, body, actor)


@router.put("/quotas/project/{project}", response_model=QuotaOut)
def set_project_quota(
    project: Name, body: QuotaIn, services: TheServices, actor: TheActor
) -> QuotaOut:
    """Set what the jobs of a project may hold at once. Running jobs keep what they hold."""
    services.users.project(project)
    return _set(services, QuotaScope.PROJECT, project, body, actor)


@router.put("/quotas/user/{user}", response_model=QuotaOut)
def set_user_quota(user: Name, body: QuotaIn, services: TheServices, actor: TheActor) -> QuotaOut:
    """Set what the jobs of a user may hold at once. The user need not exist yet."""
    return _set(services, QuotaScope.USER, user, body, actor)


@router.delete("/quotas/service", status_code=204)
def remove_service_quota(services: TheServices, actor: TheActor) -> Response:
    """Remove the quota of the service."""
    return _remove(services, QuotaScope.SERVICE, SERVICE_NAME, actor)


@router.delete("/quotas/project/{project}", status_code=204)
def remove_project_quota(project: Name, services: TheServices, actor: TheActor) -> Response:
    """Remove the quota of a project."""
    return _remove(services, QuotaScope.PROJECT, project, actor)


@router.delete("/quotas/user/{user}", status_code=204)
def remove_user_quota(user: Name, services: TheServices, actor: TheActor) -> Response:
    """Remove the quota of a user."""
    return _remove(services, QuotaScope.USER, user, actor)


@router.get("/queue", response_model=QueueOut)
def show_queue(
    services: TheServices,
    caller: TheCaller,
    *,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> QueueOut:
    """List the waiting jobs of the caller's projects in the order of admission."""
    state, seen = services.journal.queue.state(), caller.visible_projects
    places = [place for place in evaluate(state) if seen is None or place.entry.project in seen]
    shown = places[:limit]
    names = services.queries.names([place.entry.job_id for place in shown])
    holding = [each for each in state.holding if seen is None or each.project in seen]
    return QueueOut(
        jobs=[_position(place, state, names.get(place.entry.job_id, "")) for place in shown],
        total=len(places),
        usage=_usage(state, [place.entry for place in places], holding),
    )


def _usage(
    state: QueueState, waiting: Sequence[QueueEntry], holding: Sequence[QueueEntry]
) -> list[OwnerUsageOut]:
    """What counts of the users of these jobs, the least first."""
    used = usage_by_owner(state)
    waits = Counter(each.owner for each in waiting)
    held: dict[str, HeldShares] = {}
    for each in holding:
        held[each.owner] = held.get(each.owner, NOTHING_HELD).plus(each.demand)
    owners = sorted({*waits, *held}, key=lambda owner: (used.get(owner, 0.0), owner))
    shares = {owner: held.get(owner, NOTHING_HELD) for owner in owners}
    return [
        OwnerUsageOut(
            owner=owner,
            gpu_hours=round(used.get(owner, 0.0), 3),
            held_jobs=share.jobs,
            held_nodes=share.nodes,
            held_gpus=share.gpus,
            waiting=waits[owner],
        )
        for owner, share in shares.items()
    ]


def _position(place: QueuePosition, state: QueueState, name: str) -> QueuePositionOut:
    entry = place.entry
    return QueuePositionOut(
        position=place.position,
        job_id=entry.job_id,
        name=name,
        project=entry.project,
        owner=entry.owner or None,
        priority=entry.priority,
        queued_at=entry.queued_at,
        nodes=entry.demand.nodes,
        gpus=entry.demand.gpus,
        micros_per_hour=entry.demand.micros_per_hour,
        is_admitted=place.is_admitted,
        is_urgent=state.at - entry.queued_at >= PATIENCE,
        reason=place.reason,
        shortage=place.shortage,
        behind=list(place.behind),
        before=place.before,
        never_fits=place.never_fits,
    )


def _set(services: Services, scope: QuotaScope, name: str, body: QuotaIn, actor: Actor) -> QuotaOut:
    micros = None if body.hourly_usd is None else _micros(body.hourly_usd)
    if body.may_pause_for_priority and scope is not QuotaScope.PROJECT:
        raise BadRequest(
            "may_pause_for_priority: only a project allows pauses for priorities; set it in the quota of the project"
        )
    quota = Quota(
        scope=scope,
        name=name,
        jobs=body.jobs,
        nodes=body.nodes,
        gpus=body.gpus,
        micros_per_hour=micros,
        may_pause_for_priority=body.may_pause_for_priority,
    )
    after = {**body.model_dump(exclude={"hourly_usd"}), "micros_per_hour": micros}
    services.journal.queue.set_quota(
        quota, actor.audit_action("quota.set", f"{scope}/{name}", after=after)
    )
    _wake(services)
    return _view(quota, services.journal.queue.state())


def _remove(services: Services, scope: QuotaScope, name: str, actor: Actor) -> Response:
    waiting = services.journal.queue.state().waiting
    entry = actor.audit_action("quota.remove", f"{scope}/{name}")
    services.journal.queue.remove(scope, name, entry)
    for each in waiting:
        services.leases.make_due(each.job_id, services.clock.now())
    services.nudge()
    return Response(status_code=204)


def _wake(services: Services) -> None:
    """Make jobs due for which there is room now, so that they need not wait for their next poll."""
    for place in evaluate(services.journal.queue.state()):
        if place.is_admitted:
            services.leases.make_due(place.entry.job_id, services.clock.now())
    services.nudge()


def _is_seen(caller: Caller, quota: Quota) -> bool:
    match quota.scope:
        case QuotaScope.SERVICE:
            return True
        case QuotaScope.PROJECT:
            return caller.visible_projects is None or quota.name in caller.visible_projects
        case QuotaScope.USER:
            return caller.may(Action.MANAGE_SERVICE) or caller.name == quota.name


def _micros(usd: float | str) -> int:
    try:
        return int(TypeAdapter(Usd).validate_python(usd) * MICROS_PER_USD)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadLimits((ValidationIssue("#/hourly_usd", message),)) from error


def _view(quota: Quota, state: QueueState) -> QuotaOut:
    held = held_by_quota([quota], state.holding)[quota.key]
    return QuotaOut(
        scope=quota.scope,
        name=quota.name,
        jobs=quota.jobs,
        nodes=quota.nodes,
        gpus=quota.gpus,
        micros_per_hour=quota.micros_per_hour,
        may_pause_for_priority=quota.may_pause_for_priority,
        held_jobs=held.jobs,
        held_nodes=held.nodes,
        held_gpus=held.gpus,
        held_micros_per_hour=held.micros_per_hour,
        waiting=sum(quota.applies_to(each.project, each.owner) for each in state.waiting),
    )
