"""What was sent: to the places that a job's file names. What was sent to the channels of a project is with these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from fastapi import Query

from holdfast.api.channel_schemas import DeliveryOut, DeliveryPage
from holdfast.api.routing import Router
from holdfast.api.services import The, TheJob
from holdfast.store.channels import Channel
from holdfast.store.outbox import Delivery, Outbox

router = Router(prefix="/v1/jobs/{job_id}/deliveries", tags=["notifications"])

Count: TypeAlias = Annotated[int, Query(ge=1, le=200)]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=40, description="`next` of the page before.")
]


@router.get("", response_model=DeliveryPage)
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
