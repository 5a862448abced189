"""Channels keep what is secret, and give it to whoever sends alone."""

from __future__ import annotations

import pytest
from holdfast.domain.notifications.channels import ChannelPreferences, Destination, TransportKind
from holdfast.errors import Conflict, NotFound, NotPossibleNow
from holdfast.store.channels import MOST_CHANNELS, Channels
from holdfast.store.tables.notifications import channels as channels_table
from office import ADA, URL, WEBHOOK, Office, open_office
from sqlalchemy import Engine, select


@pytest.fixture
def office(engine: Engine) -> Office:
    return open_office(engine)


def test_urls_are_sealed_and_open_for_their_channel_alone(office: Office) -> None:
    one, two = office.channel(), office.channel("two")

    with office.engine.begin() as connection:
        rows = {row.id: row for row in connection.execute(select(channels_table))}
        values = channels_table.update().where(channels_table.c.id == two.id)
        connection.execute(values.values(sealed=rows[one.id].sealed))

    other = Channels(office.engine, office.clock, b"another secret")
    target = office.channels.open(one.id)
    assert "hush" not in str(rows)
    assert "whsec" not in str(rows)
    assert target is not None
    assert target.url == URL
    assert (office.channels.open(two.id), other.open(one.id)) == (None, None)
    assert office.channels.open("gone") is None


def test_what_is_secret_is_in_no_traceback(office: Office) -> None:
    target = office.channels.open(office.channel().id)

    assert target is not None
    assert "hush" not in repr(target)
    assert "whsec" not in repr(target)


def test_a_project_has_only_so_many_channels(office: Office) -> None:
    for number in range(MOST_CHANNELS):
        office.channel(f"ops-{number}")

    with pytest.raises(Conflict, match="has 50 channels; remove one first"):
        office.channel("one-more")

    assert office.channel(project="vision").project == "vision"


def test_for_a_day_after_a_rotation_both_secrets_hold(office: Office) -> None:
    channel, first = office.channels.add(
        "default", "ops", URL, place=WEBHOOK, manner=ChannelPreferences(), doer=ADA
    )
    _, second = office.channels.rotate("default", "ops", ADA)

    both = office.channels.open(channel.id)
    office.clock.advance(24 * 3600)
    one = office.channels.open(channel.id)

    assert both is not None
    assert one is not None
    assert (both.secrets, one.secrets) == ((second, first), (second,))


def test_names_and_secrets_that_cannot_be(office: Office) -> None:
    office.channel()
    chat = Destination(way=TransportKind.CHAT, shown="slack://hooks.slack.com")
    office.channels.add(
        "default", "chat", "slack://x", place=chat, manner=ChannelPreferences(), doer=ADA
    )

    with pytest.raises(Conflict, match="has a channel ops already"):
        office.channel()
    with pytest.raises(NotPossibleNow, match="only webhooks are signed"):
        office.channels.rotate("default", "chat", ADA)
    with pytest.raises(NotFound, match="project vision has no channel ops"):
        office.channels.remove("vision", "ops", ADA)
