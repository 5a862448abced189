"""Schemas of notification channels and deliveries; shared with the client."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from holdfast.api.schemas.base import Schema
from holdfast.domain.notifications.channels import PER_HOUR

ChannelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
NotificationKindName = Literal[
    "preempted",
    "lost",
    "recovered",
    "saving_failed",
    "gpu_unhealthy",
    "guard",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
    "cleanup_failed",
    "late",
    "no_capacity",
    "budget",
]


class ChannelIn(Schema):
    """A channel to create."""

    name: ChannelName
    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] = Field(
        description="https://..., mailto:..., or an apprise URL of a chat. No response contains it.",
        repr=False,
    )
    kinds: list[NotificationKindName] = Field(
        default_factory=list, max_length=20, description="Kinds of events; empty: all."
    )
    digest_s: int = Field(
        default=0,
        ge=0,
        le=7 * 86_400,
        description="Time for which events are collected into one message; 0: one message per event.",
    )
    per_hour: int = Field(
        default=PER_HOUR,
        ge=1,
        le=1000,
        description="Maximum messages per hour; the rest is delayed.",
    )


class ChannelOut(Schema):
    """A channel. Only scheme and host of its URL are shown."""

    id: str
    project: str
    name: str
    way: str = Field(description="webhook, mail or chat.")
    shown: str = Field(description="Target: scheme and host.")
    kinds: list[str] = Field(description="Empty: all.")
    digest_s: int
    per_hour: int
    made_by: str
    created_at: datetime
    rotated_at: datetime | None = Field(description="When its secret was replaced; null: never.")


class NewChannelOut(ChannelOut):
    """A new channel with its secret, which only this response contains."""

    secret: str | None = Field(
        description="Key of its webhook signatures; null for other channels."
    )


class DeliveryOut(Schema):
    """A message and its delivery state."""

    id: str = Field(description="Id of the message, sent as webhook-id.")
    channel: str = Field(
        description="Name of the channel; notify-1, ... for targets in a job's file."
    )
    shown: str = Field(description="Its target: scheme and host.")
    made_at: datetime
    progress: str = Field(description="waiting, sent, or dead after the last try.")
    due_at: datetime | None = Field(description="Time of the next try; null: no further try.")
    tries: int
    news_count: int = Field(description="Number of events in it.")
    kinds: list[str]
    trouble: str | None = Field(description="Why the last try failed; null if it did not.")
    done_at: datetime | None = Field(description="When it was sent or abandoned.")


class DeliveryPage(Schema):
    """A page of messages, newest first."""

    deliveries: list[DeliveryOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
