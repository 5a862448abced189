"""News waits in line, becomes messages, and is sent at least once, whoever dies in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import at, finished, launched, ready, saved, submitted
from holdfast.domain.notifications.channels import RETRY_S
from holdfast.domain.notifications.events import NewsKind
from holdfast.errors import BadChannel, NotDelivered, NotFound
from holdfast.store.channels import Channels
from holdfast.store.tables.jobs import job_events
from holdfast.store.tables.notifications import channels as channels_table
from holdfast.store.tables.notifications import news_marks
from office import LOSS, URL, WEBHOOK, Office, open_office
from sqlalchemy import Engine, func, select


class Killed(Exception):
    """The service died here."""


@pytest.fixture
def office(engine: Engine) -> Office:
    return open_office(engine)


def fail(*, for_good: bool = False) -> None:
    raise NotDelivered("example.com answered 500", for_good=for_good)


def test_news_of_a_job_goes_to_the_channels_of_its_project(office: Office) -> None:
    mine = office.channel()
    office.channel("theirs", "vision")
    office.job("job-1", *LOSS)

    tried = office.notifier().look_and_wait()

    [(url, secrets, letter)] = office.desk.got
    [delivery] = office.outbox.log(mine.id, limit=9)
    assert tried == 1
    assert (url, len(secrets)) == (URL, 1)
    assert office.desk.told == [["job-1-4"]]
    assert (delivery.id, delivery.progress, delivery.tries) == (letter.id, "sent", 1)
    assert delivery.kinds == ("preempted",)
    assert office.notifier().look_and_wait() == 0


def test_a_channel_is_not_told_what_was_before_it(office: Office) -> None:
    office.job("job-1", *LOSS)
    office.channel()
    office.job("job-2", *LOSS)

    office.notifier().look_and_wait()

    assert office.desk.told == [["job-2-4"]]


def test_a_channel_hears_only_what_it_asked_for(office: Office) -> None:
    office.channel(kinds=frozenset({NewsKind.SUCCEEDED}))
    office.job("job-1", *LOSS, ready(4, attempt=2), finished(9))

    office.notifier().look_and_wait()

    assert office.desk.told == [["job-1-6"]]


def test_a_digest_is_one_message_for_many(office: Office) -> None:
    office.channel(digest_s=600)
    office.job("job-1", *LOSS)
    office.notifier().look_and_wait()
    office.job("job-2", *LOSS)
    office.clock.advance(599)
    early = office.notifier().look_and_wait()
    office.clock.advance(1)

    office.notifier().look_and_wait()

    assert early == 0
    assert office.desk.told == [["job-1-4", "job-2-4"]]


def test_what_is_more_than_a_channel_wants_in_an_hour_comes_in_its_next_message(
    office: Office,
) -> None:
    office.channel(per_hour=2)
    notifier = office.notifier()
    for number in range(5):
        office.job(f"job-{number}", *LOSS)
        notifier.look_and_wait()
    within = len(office.desk.got)
    office.clock.advance(3600)
    notifier.look_and_wait()

    assert within == 2
    assert office.desk.told[2:] == [["job-2-4", "job-3-4", "job-4-4"]]


def test_a_message_that_is_not_taken_is_tried_on_schedule_and_then_given_up(office: Office) -> None:
    channel = office.channel()
    office.desk.trouble = fail
    office.job("job-1", *LOSS)
    notifier, waits = office.notifier(), []
    notifier.look_and_wait()
    for wait_s in RETRY_S:
        office.clock.advance(wait_s - 1)
        waits.append(notifier.look_and_wait())
        office.clock.advance(1)
        waits.append(notifier.look_and_wait())

    [delivery] = office.outbox.log(channel.id, limit=9)
    office.clock.advance(10 * 86_400)
    assert waits == [0, 1] * len(RETRY_S)
    assert (delivery.progress, delivery.tries) == ("dead", len(RETRY_S) + 1)
    assert delivery.trouble == "example.com answered 500"
    assert len({letter for _, _, letter in office.desk.got}) == 1
    assert notifier.look_and_wait() == 0


def test_a_receiver_that_wants_no_more_gets_no_more_of_it(office: Office) -> None:
    channel = office.channel()
    office.desk.trouble = lambda: fail(for_good=True)
    office.job("job-1", *LOSS)

    office.notifier().look_and_wait()

    assert office.outbox.log(channel.id, limit=9)[0].progress == "dead"


def test_a_channel_that_settings_refuse_since_is_told_so(office: Office) -> None:
    def refuse() -> None:
        raise BadChannel("url: this service sends no mail")

    channel = office.channel()
    office.desk.trouble = refuse
    office.job("job-1", *LOSS)

    office.notifier().look_and_wait()

    [delivery] = office.outbox.log(channel.id, limit=9)
    assert (delivery.progress, delivery.trouble) == ("waiting", "url: this service sends no mail")


def test_killed_between_send_and_mark_it_is_sent_again_as_the_same_message(office: Office) -> None:
    """At least once: the receiver knows by the id that it has it already."""

    def die() -> None:
        raise Killed

    channel = office.channel()
    office.job("job-1", *LOSS)
    office.outbox.follow()
    office.outbox.pack()
    office.desk.trouble = die
    [turn] = office.outbox.claim(office.clock.now(), 120, 9)
    with pytest.raises(Killed):
        office.notifier().deliver(turn)
    office.desk.trouble = lambda: None

    others = office.notifier().look_and_wait()
    office.clock.advance(120)
    office.notifier().look_and_wait()

    first, second = (letter for _, _, letter in office.desk.got)
    [delivery] = office.outbox.log(channel.id, limit=9)
    assert others == 0
    assert first == second
    assert (delivery.progress, delivery.tries) == ("sent", 2)


def test_killed_at_its_last_try_it_is_given_up_and_the_log_says_why(office: Office) -> None:
    channel = office.channel()
    office.outbox.test(channel, "a test")
    office.outbox.claim(office.clock.now(), 120, 9)
    office.clock.advance(121)

    tried = office.notifier().look_and_wait()

    [delivery] = office.outbox.log(channel.id, limit=9)
    assert tried == 0
    assert delivery.progress == "dead"
    assert "it may have arrived" in (delivery.trouble or "")


def test_killed_before_the_message_is_made_the_news_still_waits(office: Office) -> None:
    office.channel()
    office.job("job-1", *LOSS)
    office.outbox.follow()

    office.notifier().look_and_wait()

    assert office.desk.told == [["job-1-4"]]


def test_two_replicas_send_a_message_once(office: Office) -> None:
    office.channel()
    office.job("job-1", *LOSS)

    tried = [office.notifier().look_and_wait() for _ in range(2)]

    assert tried == [1, 0]


def test_who_comes_late_does_not_undo_what_another_did(office: Office) -> None:
    channel = office.channel()
    office.job("job-1", *LOSS)
    office.outbox.follow()
    office.outbox.pack()
    [late] = office.outbox.claim(office.clock.now(), 60, 9)
    office.clock.advance(61)
    [turn] = office.outbox.claim(office.clock.now(), 60, 9)
    office.outbox.sent(turn)

    office.outbox.failed(late, "too late", for_good=True)
    office.outbox.failed(late, "too late")

    [delivery] = office.outbox.log(channel.id, limit=9)
    assert (delivery.progress, delivery.trouble, delivery.due_at) == ("sent", None, None)


def test_a_slow_receiver_holds_up_no_other(office: Office) -> None:
    """Of each channel one message is under way at a time, however many wait."""
    slow, quick = office.channel("slow"), office.channel("quick")
    for number in range(3):
        office.job(f"job-{number}", *LOSS)
    office.outbox.follow()
    office.outbox.pack()

    first = office.outbox.claim(office.clock.now(), 60, 9)
    second = office.outbox.claim(office.clock.now(), 60, 9, without=[slow.id])

    assert {turn.channel_id for turn in first} == {slow.id, quick.id}
    assert [turn.channel_id for turn in second] == [quick.id]


def test_what_waits_for_a_receiver_that_is_down_comes_after_all_first_tries(office: Office) -> None:
    """However many there are, and however quickly each of them fails."""
    down = office.channel("down", kinds=frozenset({NewsKind.PREEMPTED}))
    up = office.channel("up", kinds=frozenset({NewsKind.SUCCEEDED}))
    for number in range(3):
        office.job(f"job-{number}", *LOSS)
    office.outbox.follow()
    office.outbox.pack()
    for _ in range(3):
        [turn] = office.outbox.claim(office.clock.now(), 60, 9)
        office.outbox.failed(turn, "connection refused")
    office.clock.advance(60)
    office.journal.append(office.journal.read("job-0"), [ready(4, attempt=2), finished(9)])
    office.outbox.follow()
    office.outbox.pack()

    turns = [office.outbox.claim(office.clock.now(), 60, 1)[0] for _ in range(2)]

    assert [turn.channel_id for turn in turns] == [up.id, down.id]


def test_facts_that_are_no_news_are_not_read_again_at_each_look(office: Office) -> None:
    office.channel()
    saves = [saved(3 + step, step=step) for step in range(1100)]
    office.job("job-1", launched(1), ready(2), *saves)

    looked = office.outbox.follow()

    with office.engine.connect() as connection:
        place = connection.execute(select(news_marks.c.cursor)).scalar_one()
        newest = connection.execute(select(func.max(job_events.c.cursor))).scalar_one()
    assert (looked, place) == (0, newest)


def test_facts_that_nobody_listens_to_are_passed_by(office: Office) -> None:
    saves = [saved(3 + step, step=step) for step in range(1100)]
    office.job("job-1", *LOSS, *saves)

    without_channels = office.outbox.follow()
    office.channel("theirs", "vision")
    office.job("job-2", *LOSS)
    not_theirs = office.outbox.follow()
    office.channel()
    office.job("job-3", *LOSS)
    heard = office.outbox.follow()

    with office.engine.connect() as connection:
        place = connection.execute(select(news_marks.c.cursor)).scalar_one()
    assert (without_channels, not_theirs, heard) == (0, 0, 1)
    assert place > 1100


def test_a_place_that_a_job_file_and_the_project_both_name_is_told_once(office: Office) -> None:
    office.channel()
    places = [(URL, WEBHOOK), (f"{URL}/other", WEBHOOK)]
    rows = office.channels.of_job("job-1", "default", "ada", places)
    job = office.journal.submit("job-1", submitted(), channels=rows)
    office.journal.append(job, LOSS)

    office.notifier().look_and_wait()

    assert sorted(url for url, _, _ in office.desk.got) == [URL, f"{URL}/other"]


def test_a_place_is_told_by_a_job_file_what_the_channel_of_the_project_leaves_out(
    office: Office,
) -> None:
    office.channel(kinds=frozenset({NewsKind.SUCCEEDED}))
    rows = office.channels.of_job("job-1", "default", "ada", [(URL, WEBHOOK)])
    job = office.journal.submit("job-1", submitted(), channels=rows)
    office.journal.append(job, LOSS)

    office.notifier().look_and_wait()

    assert office.desk.told == [["job-1-4"]]


def test_a_replica_with_another_secret_leaves_a_message_to_those_who_have_it(
    office: Office,
) -> None:
    office.channel()
    office.job("job-1", *LOSS)
    stranger = replace(office, channels=Channels(office.engine, office.clock, b"another"))

    stranger.notifier().look_and_wait()
    office.clock.advance(RETRY_S[0])
    office.notifier().look_and_wait()

    assert office.desk.told == [["job-1-4"]]


def test_pages_of_the_log_miss_nothing_that_was_made_at_one_moment(office: Office) -> None:
    channel = office.channel()
    made = {office.outbox.test(channel, "a test").id for _ in range(5)}

    pages = [office.outbox.log(channel.id, limit=2)]
    while len(pages[-1]) == 2:
        pages.append(office.outbox.log(channel.id, limit=2, after=pages[-1][-1].id))

    assert [len(page) for page in pages] == [2, 2, 1]
    assert {delivery.id for page in pages for delivery in page} == made
    with pytest.raises(NotFound):
        office.outbox.log(channel.id, limit=2, after="msg_gone")


def test_places_of_a_job_are_forgotten_a_month_after_it_ended(office: Office) -> None:
    """And not as soon as one has ended that ran for longer: nobody has been told of its end yet."""
    kept = set()
    for job_id in ("job-1", "job-2", "job-3"):
        rows = office.channels.of_job(job_id, "default", "ada", [(f"{URL}/{job_id}", WEBHOOK)])
        job = office.journal.submit(job_id, submitted(), channels=rows)
        office.journal.append(job, LOSS)
        kept |= {rows[0]["id"]} if job_id != "job-1" else set()
    office.journal.append(office.journal.read("job-1"), [ready(4, attempt=2), finished(9)])
    office.notifier().look_and_wait()
    office.notifier().look_and_wait()
    office.clock.advance(31 * 86_400)
    late = [ready(4, attempt=2), finished(31 * 86_400 - 1)]
    office.journal.append(office.journal.read("job-2"), late)

    office.outbox.tidy()

    with office.engine.connect() as connection:
        left = connection.execute(select(channels_table.c.id)).scalars().all()
    assert set(left) == kept


def test_what_is_old_is_forgotten(office: Office) -> None:
    channel = office.channel()
    office.job("job-1", *LOSS)
    office.notifier().look_and_wait()
    office.clock.advance(31 * 86_400)

    office.outbox.tidy()

    assert office.outbox.log(channel.id, limit=9) == []


def test_times_are_those_of_the_clock(office: Office) -> None:
    channel = office.channel()
    office.clock.advance(5)

    office.outbox.test(channel, "a test")

    assert office.outbox.log(channel.id, limit=9)[0].made_at == at(5)
