"""What was sent: to the places that a job's file names. What was sent to the channels of a project is with these.

Channels of a project: where its news goes, and what was sent there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from fastapi import Query, Response

from holdfast.api.auth.authentication import TheDoer
from holdfast.api.dependencies import The, TheJob
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
from holdfast.domain.notifications.events import NewsKind
from holdfast.store.channels import Channel
from holdfast.store.outbox import Delivery, Outbox

deliveries_router = Router(prefix="/v1/jobs/{job_id}/deliveries", tags=["notifications"])

Count: TypeAlias = Annotated[int, Query(ge=1, le=200)]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=40, description="`next` of the page before.")
]


@deliveries_router.get("", response_model=DeliveryPage)
def list_job_deliveries(
    job: TheJob, services: The, *, limit: Count = 50, cursor: Cursor = None
) -> DeliveryPage:
    """What was sent in the last 30 days to the places that a job's file names, and what waits, newest first."""
    return page_of(services.outbox, services.channels.named_by(job.id), limit, cursor)


def page_of(
    outbox: Outbox, channels: Sequence[Channel], limit: int, cursor: str | None
) -> DeliveryPage:
    """The newest messages of some channels, from those before `cursor` on."""
    rows = outbox.log(*(channel.id for channel in channels), limit=limit + 1, after=cursor)
    by_id = {channel.id: channel for channel in channels}
    return DeliveryPage(
        deliveries=[delivery_view(by_id[row.channel_id], row) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def delivery_view(channel: Channel, delivery: Delivery) -> DeliveryOut:
    """A message as it is told."""
    return DeliveryOut(
        id=delivery.id,
        channel=channel.name,
        shown=channel.place.shown,
        made_at=delivery.made_at,
        progress=delivery.progress.value,
        due_at=delivery.due_at,
        tries=delivery.tries,
        news_count=delivery.news_count,
        kinds=list(delivery.kinds),
        trouble=delivery.trouble,
        done_at=delivery.done_at,
    )


channels_router = Router(prefix="/v1/projects/{project}/channels", tags=["notifications"])


@channels_router.get("", response_model=list[ChannelOut])
def list_channels(project: ProjectName, services: The) -> list[ChannelOut]:
    """The channels of a project, by name."""
    services.people.project(project)
    return [ChannelOut(**_view(channel)) for channel in services.channels.of(project)]


@channels_router.post("", status_code=201, response_model=NewChannelOut)
def add_channel(
    project: ProjectName, body: ChannelIn, services: The, doer: TheDoer
) -> NewChannelOut:
    """Let news of a project go somewhere, from now on. The secret of a webhook is shown this once."""
    services.people.project(project)
    place = services.messenger.place(body.url)
    manner = ChannelPreferences(
        kinds=frozenset(map(NewsKind, body.kinds)), digest_s=body.digest_s, per_hour=body.per_hour
    )
    channel, secret = services.channels.add(
        project, body.name, body.url, place=place, manner=manner, doer=doer
    )
    return NewChannelOut(**_view(channel), secret=secret)


@channels_router.delete("/{channel}", status_code=204, response_class=Response)
def remove_channel(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> Response:
    """Send nothing there any more, and forget what was sent."""
    services.channels.remove(project, channel, doer)
    return Response(status_code=204)


@channels_router.post("/{channel}/rotate", response_model=NewChannelOut)
def rotate_secret(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> NewChannelOut:
    """Another secret for a webhook. For a day, messages are signed with the one before, too."""
    changed, secret = services.channels.rotate(project, channel, doer)
    return NewChannelOut(**_view(changed), secret=secret)


@channels_router.post("/{channel}/test", status_code=202, response_model=DeliveryOut)
def send_test(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> DeliveryOut:
    """A message to try a channel with: sent within seconds, once. Its delivery tells what became of it."""
    found = services.channels.read(project, channel)
    services.audit.note(doer.did("channel.test", f"{project}/{channel}"))
    text = f"a test of channel {channel}, asked for by {doer.name}"
    return delivery_view(found, services.outbox.test(found, text))


@channels_router.get("/{channel}/deliveries", response_model=DeliveryPage)
def list_deliveries(
    project: ProjectName,
    channel: ChannelName,
    services: The,
    *,
    limit: Count = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """What was sent to a channel in the last 30 days, and what waits, newest first."""
    found = services.channels.read(project, channel)
    return page_of(services.outbox, [found], limit, cursor)


@channels_router.get("/{channel}/deliveries/{delivery_id}", response_model=DeliveryOut)
def show_delivery(
    project: ProjectName, channel: ChannelName, delivery_id: str, services: The
) -> DeliveryOut:
    """One message, and what became of it."""
    found = services.channels.read(project, channel)
    return delivery_view(found, services.outbox.read(found.id, delivery_id))


def _view(channel: Channel) -> dict[str, Any]:
    return {
        "id": channel.id,
        "project": channel.project,
        "name": channel.name,
        "way": channel.place.way.value,
        "shown": channel.place.shown,
        "kinds": sorted(kind.value for kind in channel.manner.kinds),
        "digest_s": channel.manner.digest_s,
        "per_hour": channel.manner.per_hour,
        "made_by": channel.made_by,
        "created_at": channel.created_at,
        "rotated_at": channel.rotated_at,
    }
