"""Notifications are queued, rendered and sent at least once, also if a process is killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.notifications.channels import RETRY_S
from holdfast.domain.notifications.events import NotificationKind
from holdfast.errors import BadChannel, NotDelivered, NotFound
from holdfast.store.notifications.channels import Channels
from holdfast.store.tables.jobs import job_events
from holdfast.store.tables.notifications import channels as channels_table
from holdfast.store.tables.notifications import news_marks
from sqlalchemy import Engine, func, select
from support.events import at, finished, launched, ready, saved, submitted
from support.notifications import LOSS, URL, WEBHOOK, NotificationHarness, open_notifications


class Killed(Exception):
    """The service was killed here."""


@pytest.fixture
def harness(engine: Engine) -> NotificationHarness:
    return open_notifications(engine)


def fail(*, for_good: bool = False) -> None:
    raise NotDelivered("example.com answered 500", for_good=for_good)


def test_notifications_go_to_the_channels_of_the_project(harness: NotificationHarness) -> None:
    mine = harness.channel()
    harness.channel("theirs", "vision")
    harness.job("job-1", *LOSS)

    tried = harness.notifier().run_once_and_wait()

    [(url, secrets, message)] = harness.desk.got
    [delivery] = harness.outbox.list_deliveries(mine.id, limit=9)
    assert tried == 1
    assert (url, len(secrets)) == (URL, 1)
    assert harness.desk.told == [["job-1-4"]]
    assert (delivery.id, delivery.progress, delivery.tries) == (message.id, "sent", 1)
    assert delivery.kinds == ("preempted",)
    assert harness.notifier().run_once_and_wait() == 0


def test_channel_receives_no_events_from_before_its_creation(harness: NotificationHarness) -> None:
    harness.job("job-1", *LOSS)
    harness.channel()
    harness.job("job-2", *LOSS)

    harness.notifier().run_once_and_wait()

    assert harness.desk.told == [["job-2-4"]]


def test_channel_receives_only_its_subscribed_kinds(harness: NotificationHarness) -> None:
    harness.channel(kinds=frozenset({NotificationKind.SUCCEEDED}))
    harness.job("job-1", *LOSS, ready(4, attempt=2), finished(9))

    harness.notifier().run_once_and_wait()

    assert harness.desk.told == [["job-1-6"]]


def test_a_digest_is_one_message_for_many(harness: NotificationHarness) -> None:
    harness.channel(digest_s=600)
    harness.job("job-1", *LOSS)
    harness.notifier().run_once_and_wait()
    harness.job("job-2", *LOSS)
    harness.clock.advance(599)
    early = harness.notifier().run_once_and_wait()
    harness.clock.advance(1)

    harness.notifier().run_once_and_wait()

    assert early == 0
    assert harness.desk.told == [["job-1-4", "job-2-4"]]


def test_events_over_the_hourly_limit_join_the_next_message(
    harness: NotificationHarness,
) -> None:
    harness.channel(per_hour=2)
    notifier = harness.notifier()
    for number in range(5):
        harness.job(f"job-{number}", *LOSS)
        notifier.run_once_and_wait()
    within = len(harness.desk.got)
    harness.clock.advance(3600)
    notifier.run_once_and_wait()

    assert within == 2
    assert harness.desk.told[2:] == [["job-2-4", "job-3-4", "job-4-4"]]


def test_failed_message_is_retried_on_schedule_then_given_up(
    harness: NotificationHarness,
) -> None:
    channel = harness.channel()
    harness.desk.trouble = fail
    harness.job("job-1", *LOSS)
    notifier, waits = harness.notifier(), []
    notifier.run_once_and_wait()
    for wait_s in RETRY_S:
        harness.clock.advance(wait_s - 1)
        waits.append(notifier.run_once_and_wait())
        harness.clock.advance(1)
        waits.append(notifier.run_once_and_wait())

    [delivery] = harness.outbox.list_deliveries(channel.id, limit=9)
    harness.clock.advance(10 * 86_400)
    assert waits == [0, 1] * len(RETRY_S)
    assert (delivery.progress, delivery.tries) == ("dead", len(RETRY_S) + 1)
    assert delivery.error == "example.com answered 500"
    assert len({message for _, _, message in harness.desk.got}) == 1
    assert notifier.run_once_and_wait() == 0


def test_receiver_that_responds_gone_gets_no_more(harness: NotificationHarness) -> None:
    channel = harness.channel()
    harness.desk.trouble = lambda: fail(for_good=True)
    harness.job("job-1", *LOSS)

    harness.notifier().run_once_and_wait()

    assert harness.outbox.list_deliveries(channel.id, limit=9)[0].progress == "dead"


def test_delivery_refused_by_settings_records_the_reason(harness: NotificationHarness) -> None:
    def refuse() -> None:
        raise BadChannel("url: this service sends no e-mail")

    channel = harness.channel()
    harness.desk.trouble = refuse
    harness.job("job-1", *LOSS)

    harness.notifier().run_once_and_wait()

    [delivery] = harness.outbox.list_deliveries(channel.id, limit=9)
    assert (delivery.progress, delivery.error) == ("waiting", "url: this service sends no e-mail")


def test_kill_between_send_and_mark_resends_the_same_message(
    harness: NotificationHarness,
) -> None:
    """Delivery is at least once: the receiver recognizes the repeated id."""

    def die() -> None:
        raise Killed

    channel = harness.channel()
    harness.job("job-1", *LOSS)
    harness.outbox.enqueue_new_events()
    harness.outbox.create_messages()
    harness.desk.trouble = die
    [turn] = harness.outbox.claim(harness.clock.now(), 120, 9)
    with pytest.raises(Killed):
        harness.notifier().deliver(turn)
    harness.desk.trouble = lambda: None

    others = harness.notifier().run_once_and_wait()
    harness.clock.advance(120)
    harness.notifier().run_once_and_wait()

    first, second = (message for _, _, message in harness.desk.got)
    [delivery] = harness.outbox.list_deliveries(channel.id, limit=9)
    assert others == 0
    assert first == second
    assert (delivery.progress, delivery.tries) == ("sent", 2)


def test_kill_on_the_last_try_gives_up_with_a_logged_reason(
    harness: NotificationHarness,
) -> None:
    channel = harness.channel()
    harness.outbox.send_test(channel, "a test")
    harness.outbox.claim(harness.clock.now(), 120, 9)
    harness.clock.advance(121)

    tried = harness.notifier().run_once_and_wait()

    [delivery] = harness.outbox.list_deliveries(channel.id, limit=9)
    assert tried == 0
    assert delivery.progress == "dead"
    assert "the message may have arrived" in (delivery.error or "")


def test_kill_before_rendering_keeps_the_notification(
    harness: NotificationHarness,
) -> None:
    harness.channel()
    harness.job("job-1", *LOSS)
    harness.outbox.enqueue_new_events()

    harness.notifier().run_once_and_wait()

    assert harness.desk.told == [["job-1-4"]]


def test_two_replicas_send_a_message_once(harness: NotificationHarness) -> None:
    harness.channel()
    harness.job("job-1", *LOSS)

    tried = [harness.notifier().run_once_and_wait() for _ in range(2)]

    assert tried == [1, 0]


def test_late_failure_does_not_overwrite_a_sent_delivery(harness: NotificationHarness) -> None:
    channel = harness.channel()
    harness.job("job-1", *LOSS)
    harness.outbox.enqueue_new_events()
    harness.outbox.create_messages()
    [late] = harness.outbox.claim(harness.clock.now(), 60, 9)
    harness.clock.advance(61)
    [turn] = harness.outbox.claim(harness.clock.now(), 60, 9)
    harness.outbox.mark_sent(turn)

    harness.outbox.mark_failed(late, "too late", for_good=True)
    harness.outbox.mark_failed(late, "too late")

    [delivery] = harness.outbox.list_deliveries(channel.id, limit=9)
    assert (delivery.progress, delivery.error, delivery.due_at) == ("sent", None, None)


def test_slow_receiver_delays_no_other(harness: NotificationHarness) -> None:
    """Each channel has at most one message in flight, however many wait."""
    slow, quick = harness.channel("slow"), harness.channel("quick")
    for number in range(3):
        harness.job(f"job-{number}", *LOSS)
    harness.outbox.enqueue_new_events()
    harness.outbox.create_messages()

    first = harness.outbox.claim(harness.clock.now(), 60, 9)
    second = harness.outbox.claim(harness.clock.now(), 60, 9, without=[slow.id])

    assert {turn.channel_id for turn in first} == {slow.id, quick.id}
    assert [turn.channel_id for turn in second] == [quick.id]


def test_retries_to_a_down_receiver_follow_all_first_tries(
    harness: NotificationHarness,
) -> None:
    """This holds for any number of them, and however quickly each fails."""
    down = harness.channel("down", kinds=frozenset({NotificationKind.PREEMPTED}))
    up = harness.channel("up", kinds=frozenset({NotificationKind.SUCCEEDED}))
    for number in range(3):
        harness.job(f"job-{number}", *LOSS)
    harness.outbox.enqueue_new_events()
    harness.outbox.create_messages()
    for _ in range(3):
        [turn] = harness.outbox.claim(harness.clock.now(), 60, 9)
        harness.outbox.mark_failed(turn, "connection refused")
    harness.clock.advance(60)
    harness.journal.append(harness.journal.read("job-0"), [ready(4, attempt=2), finished(9)])
    harness.outbox.enqueue_new_events()
    harness.outbox.create_messages()

    turns = [harness.outbox.claim(harness.clock.now(), 60, 1)[0] for _ in range(2)]

    assert [turn.channel_id for turn in turns] == [up.id, down.id]


def test_events_without_notifications_are_read_once(
    harness: NotificationHarness,
) -> None:
    harness.channel()
    saves = [saved(3 + step, step=step) for step in range(1100)]
    harness.job("job-1", launched(1), ready(2), *saves)

    enqueued = harness.outbox.enqueue_new_events()

    with harness.engine.connect() as connection:
        place = connection.execute(select(news_marks.c.cursor)).scalar_one()
        newest = connection.execute(select(func.max(job_events.c.cursor))).scalar_one()
    assert (enqueued, place) == (0, newest)


def test_events_without_subscribers_are_skipped(harness: NotificationHarness) -> None:
    saves = [saved(3 + step, step=step) for step in range(1100)]
    harness.job("job-1", *LOSS, *saves)

    without_channels = harness.outbox.enqueue_new_events()
    harness.channel("theirs", "vision")
    harness.job("job-2", *LOSS)
    not_theirs = harness.outbox.enqueue_new_events()
    harness.channel()
    harness.job("job-3", *LOSS)
    recorded = harness.outbox.enqueue_new_events()

    with harness.engine.connect() as connection:
        place = connection.execute(select(news_marks.c.cursor)).scalar_one()
    assert (without_channels, not_theirs, recorded) == (0, 0, 1)
    assert place > 1100


def test_url_in_both_job_file_and_project_is_notified_once(
    harness: NotificationHarness,
) -> None:
    harness.channel()
    places = [(URL, WEBHOOK), (f"{URL}/other", WEBHOOK)]
    rows = harness.channels.rows_for_job("job-1", "default", "ada", places)
    job = harness.journal.submit("job-1", submitted(), channels=rows)
    harness.journal.append(job, LOSS)

    harness.notifier().run_once_and_wait()

    assert sorted(url for url, _, _ in harness.desk.got) == [URL, f"{URL}/other"]


def test_job_file_channel_gets_kinds_that_the_project_omits(
    harness: NotificationHarness,
) -> None:
    harness.channel(kinds=frozenset({NotificationKind.SUCCEEDED}))
    rows = harness.channels.rows_for_job("job-1", "default", "ada", [(URL, WEBHOOK)])
    job = harness.journal.submit("job-1", submitted(), channels=rows)
    harness.journal.append(job, LOSS)

    harness.notifier().run_once_and_wait()

    assert harness.desk.told == [["job-1-4"]]


def test_replica_with_another_secret_leaves_a_message_to_others(
    harness: NotificationHarness,
) -> None:
    harness.channel()
    harness.job("job-1", *LOSS)
    stranger = replace(harness, channels=Channels(harness.engine, harness.clock, b"another"))

    stranger.notifier().run_once_and_wait()
    harness.clock.advance(RETRY_S[0])
    harness.notifier().run_once_and_wait()

    assert harness.desk.told == [["job-1-4"]]


def test_delivery_pages_include_all_messages_of_one_moment(
    harness: NotificationHarness,
) -> None:
    channel = harness.channel()
    made = {harness.outbox.send_test(channel, "a test").id for _ in range(5)}

    pages = [harness.outbox.list_deliveries(channel.id, limit=2)]
    while len(pages[-1]) == 2:
        pages.append(harness.outbox.list_deliveries(channel.id, limit=2, after=pages[-1][-1].id))

    assert [len(page) for page in pages] == [2, 2, 1]
    assert {delivery.id for page in pages for delivery in page} == made
    with pytest.raises(NotFound):
        harness.outbox.list_deliveries(channel.id, limit=2, after="msg_gone")


def test_job_channels_are_deleted_a_month_after_the_job_ended(harness: NotificationHarness) -> None:
    """A channel stays if its job has just ended after a longer run.

    Its end was not notified yet.
    """
    kept = set()
    for job_id in ("job-1", "job-2", "job-3"):
        rows = harness.channels.rows_for_job(
            job_id, "default", "ada", [(f"{URL}/{job_id}", WEBHOOK)]
        )
        job = harness.journal.submit(job_id, submitted(), channels=rows)
        harness.journal.append(job, LOSS)
        kept |= {rows[0]["id"]} if job_id != "job-1" else set()
    harness.journal.append(harness.journal.read("job-1"), [ready(4, attempt=2), finished(9)])
    harness.notifier().run_once_and_wait()
    harness.notifier().run_once_and_wait()
    harness.clock.advance(31 * 86_400)
    late = [ready(4, attempt=2), finished(31 * 86_400 - 1)]
    harness.journal.append(harness.journal.read("job-2"), late)

    harness.outbox.delete_old()

    with harness.engine.connect() as connection:
        left = connection.execute(select(channels_table.c.id)).scalars().all()
    assert set(left) == kept


def test_old_deliveries_are_deleted(harness: NotificationHarness) -> None:
    channel = harness.channel()
    harness.job("job-1", *LOSS)
    harness.notifier().run_once_and_wait()
    harness.clock.advance(31 * 86_400)

    harness.outbox.delete_old()

    assert harness.outbox.list_deliveries(channel.id, limit=9) == []


def test_times_come_from_the_clock(harness: NotificationHarness) -> None:
    channel = harness.channel()
    harness.clock.advance(5)

    harness.outbox.send_test(channel, "a test")

    assert harness.outbox.list_deliveries(channel.id, limit=9)[0].made_at == at(5)
