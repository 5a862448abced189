"""Channels of a project: where its news goes, and what was sent there."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from holdfast.api.auth import TheDoer
from holdfast.api.channel_schemas import (
    ChannelIn,
    ChannelName,
    ChannelOut,
    DeliveryOut,
    DeliveryPage,
    NewChannelOut,
)
from holdfast.api.deliveries import Count, Cursor, delivery_view, page_of
from holdfast.api.people_schemas import ProjectName
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.domain.channels import Manner
from holdfast.domain.news import NewsKind
from holdfast.store.channels import Channel

router = Router(prefix="/v1/projects/{project}/channels", tags=["notifications"])


@router.get("", response_model=list[ChannelOut])
def list_channels(project: ProjectName, services: The) -> list[ChannelOut]:
    """The channels of a project, by name."""
    services.people.project(project)
    return [ChannelOut(**_view(channel)) for channel in services.channels.of(project)]


@router.post("", status_code=201, response_model=NewChannelOut)
def add_channel(
    project: ProjectName, body: ChannelIn, services: The, doer: TheDoer
) -> NewChannelOut:
    """Let news of a project go somewhere, from now on. The secret of a webhook is shown this once."""
    services.people.project(project)
    place = services.messenger.place(body.url)
    manner = Manner(
        kinds=frozenset(map(NewsKind, body.kinds)), digest_s=body.digest_s, per_hour=body.per_hour
    )
    channel, secret = services.channels.add(
        project, body.name, body.url, place=place, manner=manner, doer=doer
    )
    return NewChannelOut(**_view(channel), secret=secret)


@router.delete("/{channel}", status_code=204, response_class=Response)
def remove_channel(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> Response:
    """Send nothing there any more, and forget what was sent."""
    services.channels.remove(project, channel, doer)
    return Response(status_code=204)


@router.post("/{channel}/rotate", response_model=NewChannelOut)
def rotate_secret(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> NewChannelOut:
    """Another secret for a webhook. For a day, messages are signed with the one before, too."""
    changed, secret = services.channels.rotate(project, channel, doer)
    return NewChannelOut(**_view(changed), secret=secret)


@router.post("/{channel}/test", status_code=202, response_model=DeliveryOut)
def send_test(
    project: ProjectName, channel: ChannelName, services: The, doer: TheDoer
) -> DeliveryOut:
    """A message to try a channel with: sent within seconds, once. Its delivery tells what became of it."""
    found = services.channels.read(project, channel)
    services.audit.note(doer.did("channel.test", f"{project}/{channel}"))
    text = f"a test of channel {channel}, asked for by {doer.name}"
    return delivery_view(found, services.outbox.test(found, text))


@router.get("/{channel}/deliveries", response_model=DeliveryPage)
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


@router.get("/{channel}/deliveries/{delivery_id}", response_model=DeliveryOut)
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
