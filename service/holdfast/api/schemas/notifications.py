"""What travels over the API about notifications: channels, and what was sent. The client reads these, too."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from holdfast.api.schemas.base import Schema
from holdfast.domain.notifications.channels import PER_HOUR

ChannelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
KindWord = Literal[
    "preempted",
    "lost",
    "recovered",
    "saving_failed",
    "guard",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
    "cleanup_failed",
    "budget",
]


class ChannelIn(Schema):
    """A channel as it is to be."""

    name: ChannelName
    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] = Field(
        description="https://..., mailto:..., or what apprise calls a chat. It is shown to nobody again.",
        repr=False,
    )
    kinds: list[KindWord] = Field(
        default_factory=list, max_length=20, description="Of news that it wants; empty: all."
    )
    digest_s: int = Field(
        default=0,
        ge=0,
        le=7 * 86_400,
        description="How long news is gathered for one message; 0: each goes by itself.",
    )
    per_hour: int = Field(
        default=PER_HOUR, ge=1, le=1000, description="Messages in an hour; what is more waits."
    )


class ChannelOut(Schema):
    """A channel. Of its URL, only scheme and host are shown."""

    id: str
    project: str
    name: str
    way: str = Field(description="webhook, mail or chat.")
    shown: str = Field(description="Where it leads: scheme and host.")
    kinds: list[str] = Field(description="Empty: all.")
    digest_s: int
    per_hour: int
    made_by: str
    created_at: datetime
    rotated_at: datetime | None = Field(description="When its secret was changed; null: never.")


class NewChannelOut(ChannelOut):
    """A channel whose secret is shown, this once."""

    secret: str | None = Field(
        description="With which its webhooks are signed; null where they are none."
    )


class DeliveryOut(Schema):
    """A message, and what became of it."""

    id: str = Field(description="Of the message; webhooks carry it as webhook-id.")
    channel: str = Field(
        description="Name of the channel; notify-1, ... where a job's file names the place."
    )
    shown: str = Field(description="Where that leads: scheme and host.")
    made_at: datetime
    progress: str = Field(description="waiting, sent, or dead once it is given up.")
    due_at: datetime | None = Field(description="When it is sent next; null: not any more.")
    tries: int
    news_count: int = Field(description="Pieces of news in it.")
    kinds: list[str]
    trouble: str | None = Field(description="Why the last try failed; null if it did not.")
    done_at: datetime | None = Field(description="When it was sent, or given up.")


class DeliveryPage(Schema):
    """Some messages, newest first."""

    deliveries: list[DeliveryOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
