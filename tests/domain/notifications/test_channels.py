"""The due time of a channel's next message, and its contents."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from holdfast.domain.notifications.channels import (
    MAX_LISTED,
    MAX_TEXT_CHARS,
    RETRY_S,
    ChannelPreferences,
    Message,
    batch_sizes,
    next_retry_at,
    payload,
)
from holdfast.domain.notifications.events import Notification, NotificationKind
from support.events import DAWN


def at(seconds: float) -> datetime:
    return DAWN + timedelta(seconds=seconds)


def bodies(count: int) -> list[dict[str, str]]:
    return [
        Notification(id=f"n{n}", kind=NotificationKind.LOST, at=at(n), text=f"thing {n}").body()
        for n in range(count)
    ]


def test_notifications_are_sent_singly_below_the_limit() -> None:
    assert batch_sizes([at(0), at(1), at(2)], [], ChannelPreferences(), at(3)) == [1, 1, 1]


def test_notifications_over_the_hourly_limit_are_batched() -> None:
    manner = ChannelPreferences(per_hour=4)

    assert batch_sizes([at(0)] * 9, [at(0)], manner, at(3)) == [9]
    assert batch_sizes([at(0)] * 3, [at(0)], manner, at(3)) == [1, 1, 1]


def test_full_channel_waits_an_hour_from_its_first_message() -> None:
    made, manner = [at(0), at(60)], ChannelPreferences(per_hour=2)

    assert batch_sizes([at(61)], made, manner, at(3599)) == []
    assert batch_sizes([at(61), at(62)], made, manner, at(3600)) == [2]


def test_digest_is_due_one_interval_after_oldest_event() -> None:
    manner = ChannelPreferences(digest_s=600)

    assert batch_sizes([at(0), at(599)], [], manner, at(599)) == []
    assert batch_sizes([at(0), at(599)], [], manner, at(600)) == [2]
    assert batch_sizes([], [], manner, at(600)) == []


def test_digest_is_throttled() -> None:
    assert batch_sizes([at(0)], [at(0)], ChannelPreferences(digest_s=60, per_hour=1), at(70)) == []


def test_retries_follow_the_schedule_and_end() -> None:
    waits = [next_retry_at(n, at(0)) for n in range(1, len(RETRY_S) + 1)]

    assert waits == [at(seconds) for seconds in RETRY_S]
    assert next_retry_at(len(RETRY_S) + 1, at(0)) is None


def test_a_message_lists_the_newest_and_counts_the_rest() -> None:
    message = Message(id="m", payload=payload("vision", "ops", bodies(MAX_LISTED + 7), at(99)))

    body = json.loads(message.payload)

    assert body["type"] == "holdfast.news"
    assert body["timestamp"] == at(99).isoformat()
    assert body["data"]["news"][0]["text"] == "thing 7"
    assert (len(body["data"]["news"]), body["data"]["left_out"]) == (MAX_LISTED, 7)
    assert message.subject == f"[vision] {MAX_LISTED + 7} notifications from Holdfast"
    assert message.text.splitlines()[-1] == "and 7 more; list them with holdfast events"


def test_truncated_message_keeps_newest_and_counts_omitted() -> None:
    message = Message(id="m", payload=payload("vision", "ops", bodies(40), at(99)))

    result = message.truncated(200)

    assert len(result) <= 200
    assert "thing 39" in result
    assert "thing 0" not in result
    assert (
        result.splitlines()[-1]
        == f"and {40 - (len(result.splitlines()) - 1)} more; list them with holdfast events"
    )
    assert message.truncated(100_000) == message.text
    assert len(message.truncated(10)) == 10


def test_single_notification_is_the_subject() -> None:
    message = Message(id="m", payload=payload("vision", "ops", bodies(1), at(99)))

    assert message.subject == "[vision] thing 0"
    assert message.text.endswith("Z thing 0")


def test_long_text_is_truncated() -> None:
    long = Notification(id="n", kind=NotificationKind.FAILED, at=at(0), text="x" * 9000).body()

    parsed = json.loads(payload("vision", "ops", [long], at(0)))

    assert len(parsed["data"]["news"][0]["text"]) == MAX_TEXT_CHARS


def test_channel_without_kinds_receives_all() -> None:
    assert ChannelPreferences().accepts(NotificationKind.BUDGET)
    assert not ChannelPreferences(kinds=frozenset({NotificationKind.FAILED})).accepts(
        NotificationKind.BUDGET
    )
