"""Notification channels of a project, and deliveries to channels and to job file targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from fastapi import Query, Response

from holdfast.api.auth.authentication import TheActor
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.identity import ProjectName
from holdfast.api.schemas.notifications import (
    ChannelIn,
    ChannelName,
    ChannelOut,
    DeliveryOut,
    DeliveryPage,
    NewChannelOut,
)
from holdfast.domain.notifications.channels import ChannelPreferences
from holdfast.domain.notifications.events import NotificationKind
from holdfast.store.notifications.channels import Channel
from holdfast.store.notifications.outbox import Delivery, Outbox

deliveries_router = Router(prefix="/v1/jobs/{job_id}/deliveries", tags=["notifications"])

Count: TypeAlias = Annotated[int, Query(ge=1, le=200)]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=40, description="`next` of the previous page.")
]


@deliveries_router.get("", response_model=DeliveryPage)
def list_job_deliveries(
    job: TheJob, services: TheServices, *, limit: Count = 50, cursor: Cursor = None
) -> DeliveryPage:
    """List the deliveries of the last 30 days to targets in a job's file, newest first.

    Pending ones are included.
    """
    return page_of(services.outbox, services.channels.list_for_job(job.id), limit, cursor)


def page_of(
    outbox: Outbox, channels: Sequence[Channel], limit: int, cursor: str | None
) -> DeliveryPage:
    """Return the newest deliveries of channels before `cursor`."""
    rows = outbox.list_deliveries(
        *(channel.id for channel in channels), limit=limit + 1, after=cursor
    )
    by_id = {channel.id: channel for channel in channels}
    return DeliveryPage(
        deliveries=[delivery_view(by_id[row.channel_id], row) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def delivery_view(channel: Channel, delivery: Delivery) -> DeliveryOut:
    """Convert a delivery."""
    return DeliveryOut(
        id=delivery.id,
        channel=channel.name,
        shown=channel.destination.shown,
        made_at=delivery.made_at,
        progress=delivery.progress.value,
        due_at=delivery.due_at,
        tries=delivery.tries,
        news_count=delivery.notification_count,
        kinds=list(delivery.kinds),
        trouble=delivery.error,
        done_at=delivery.done_at,
    )


channels_router = Router(prefix="/v1/projects/{project}/channels", tags=["notifications"])


@channels_router.get("", response_model=list[ChannelOut])
def list_channels(project: ProjectName, services: TheServices) -> list[ChannelOut]:
    """List the channels of a project by name."""
    services.users.project(project)
    return [ChannelOut(**_view(channel)) for channel in services.channels.list_for_project(project)]


@channels_router.post("", status_code=201, response_model=NewChannelOut)
def add_channel(
    project: ProjectName, body: ChannelIn, services: TheServices, actor: TheActor
) -> NewChannelOut:
    """Create a channel for events of a project from now on.

    Only this response contains the secret of a webhook.
    """
    services.users.project(project)
    destination = services.messenger.destination(body.url)
    preferences = ChannelPreferences(
        kinds=frozenset(map(NotificationKind, body.kinds)),
        digest_s=body.digest_s,
        per_hour=body.per_hour,
    )
    channel, secret = services.channels.add(
        project, body.name, body.url, destination=destination, preferences=preferences, actor=actor
    )
    return NewChannelOut(**_view(channel), secret=secret)


@channels_router.delete("/{channel}", status_code=204, response_class=Response)
def remove_channel(
    project: ProjectName, channel: ChannelName, services: TheServices, actor: TheActor
) -> Response:
    """Remove a channel with its delivery history."""
    services.channels.remove(project, channel, actor)
    return Response(status_code=204)


@channels_router.post("/{channel}/rotate", response_model=NewChannelOut)
def rotate_secret(
    project: ProjectName, channel: ChannelName, services: TheServices, actor: TheActor
) -> NewChannelOut:
    """Replace the secret of a webhook.

    For a day, messages also carry a signature of the old one.
    """
    changed, secret = services.channels.rotate(project, channel, actor)
    return NewChannelOut(**_view(changed), secret=secret)


@channels_router.post("/{channel}/test", status_code=202, response_model=DeliveryOut)
def send_test(
    project: ProjectName, channel: ChannelName, services: TheServices, actor: TheActor
) -> DeliveryOut:
    """Send a test message to a channel once, within seconds. Its delivery shows the result."""
    found = services.channels.read(project, channel)
    services.audit.record(actor.audit_action("channel.test", f"{project}/{channel}"))
    text = f"a test of channel {channel}, requested by {actor.name}"
    return delivery_view(found, services.outbox.send_test(found, text))


@channels_router.get("/{channel}/deliveries", response_model=DeliveryPage)
def list_deliveries(
    project: ProjectName,
    channel: ChannelName,
    services: TheServices,
    *,
    limit: Count = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """List the deliveries to a channel of the last 30 days, newest first.

    Pending ones are included.
    """
    found = services.channels.read(project, channel)
    return page_of(services.outbox, [found], limit, cursor)


@channels_router.get("/{channel}/deliveries/{delivery_id}", response_model=DeliveryOut)
def show_delivery(
    project: ProjectName, channel: ChannelName, delivery_id: str, services: TheServices
) -> DeliveryOut:
    """Show one delivery and its result."""
    found = services.channels.read(project, channel)
    return delivery_view(found, services.outbox.read(found.id, delivery_id))


def _view(channel: Channel) -> dict[str, Any]:
    return {
        "id": channel.id,
        "project": channel.project,
        "name": channel.name,
        "way": channel.destination.transport.value,
        "shown": channel.destination.shown,
        "kinds": sorted(kind.value for kind in channel.preferences.kinds),
        "digest_s": channel.preferences.digest_s,
        "per_hour": channel.preferences.per_hour,
        "made_by": channel.made_by,
        "created_at": channel.created_at,
        "rotated_at": channel.rotated_at,
    }
