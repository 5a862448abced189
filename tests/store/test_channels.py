"""Channels encrypt their secrets, and reveal them only to the sender."""

from __future__ import annotations

import pytest
from holdfast.domain.notifications.channels import ChannelPreferences, Destination, TransportKind
from holdfast.errors import Conflict, NotFound, NotPossibleNow
from holdfast.store.notifications.channels import MAX_CHANNELS, Channels
from holdfast.store.tables.notifications import channels as channels_table
from sqlalchemy import Engine, select
from support.notifications import ADA, URL, WEBHOOK, NotificationHarness, open_notifications


@pytest.fixture
def harness(engine: Engine) -> NotificationHarness:
    return open_notifications(engine)


def test_urls_are_sealed_and_open_for_their_channel_alone(harness: NotificationHarness) -> None:
    one, two = harness.channel(), harness.channel("two")

    with harness.engine.begin() as connection:
        rows = {row.id: row for row in connection.execute(select(channels_table))}
        values = channels_table.update().where(channels_table.c.id == two.id)
        connection.execute(values.values(sealed=rows[one.id].sealed))

    other = Channels(harness.engine, harness.clock, b"another secret")
    target = harness.channels.open(one.id)
    assert "hush" not in str(rows)
    assert "whsec" not in str(rows)
    assert target is not None
    assert target.url == URL
    assert (harness.channels.open(two.id), other.open(one.id)) == (None, None)
    assert harness.channels.open("gone") is None


def test_channel_repr_hides_secrets(harness: NotificationHarness) -> None:
    target = harness.channels.open(harness.channel().id)

    assert target is not None
    assert "hush" not in repr(target)
    assert "whsec" not in repr(target)


def test_a_project_has_only_so_many_channels(harness: NotificationHarness) -> None:
    for number in range(MAX_CHANNELS):
        harness.channel(f"ops-{number}")

    with pytest.raises(Conflict, match="has 50 channels; remove one first"):
        harness.channel("one-more")

    assert harness.channel(project="vision").project == "vision"


def test_both_secrets_are_valid_for_a_day_after_rotation(harness: NotificationHarness) -> None:
    channel, first = harness.channels.add(
        "default", "ops", URL, destination=WEBHOOK, preferences=ChannelPreferences(), actor=ADA
    )
    _, second = harness.channels.rotate("default", "ops", ADA)

    both = harness.channels.open(channel.id)
    harness.clock.advance(24 * 3600)
    one = harness.channels.open(channel.id)

    assert both is not None
    assert one is not None
    assert (both.secrets, one.secrets) == ((second, first), (second,))


def test_invalid_names_and_secrets_are_refused(harness: NotificationHarness) -> None:
    harness.channel()
    chat = Destination(transport=TransportKind.CHAT, shown="slack://hooks.slack.com")
    harness.channels.add(
        "default",
        "chat",
        "slack://x",
        destination=chat,
        preferences=ChannelPreferences(),
        actor=ADA,
    )

    with pytest.raises(Conflict, match="already has a channel ops"):
        harness.channel()
    with pytest.raises(NotPossibleNow, match="only webhooks are signed"):
        harness.channels.rotate("default", "chat", ADA)
    with pytest.raises(NotFound, match="project vision has no channel ops"):
        harness.channels.remove("vision", "ops", ADA)
