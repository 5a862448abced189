"""The launch store: a token is granted once, for any callers, retries and failures."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from holdfast.domain.jobs.launch_admission import Admission, EngineEvent, TokenState
from holdfast.store.launches import LaunchBook
from holdfast.store.tables.launches import launches
from sqlalchemy import Engine, select
from support.fakes import FixedClock


@pytest.fixture
def book(engine: Engine) -> LaunchBook:
    return LaunchBook(engine, b"secret")


def opened(book: LaunchBook, clock: FixedClock) -> Admission:
    return book.open("job-1", "job", clock.now())


def event(n: int) -> EngineEvent:
    return EngineEvent(at=FixedClock().now() + timedelta(seconds=n), status="RUNNING", code=None, reason=f"{n}")  # fmt: skip


def test_a_launch_is_opened_once(book: LaunchBook, clock: FixedClock) -> None:
    first = opened(book, clock)
    clock.advance(5)

    assert opened(book, clock) == first == book.find("job-1")
    assert (first.state, first.generation, first.posted_at) == (TokenState.ISSUED, 1, None)
    assert book.find("job-2") is None


def test_a_token_passes_once(book: LaunchBook, clock: FixedClock) -> None:
    token = book.token(opened(book, clock))

    assert [book.admit(token, clock.now()) for _ in range(3)] == [True, False, False]


def test_of_many_who_come_at_once_one_passes(book: LaunchBook, clock: FixedClock) -> None:
    token = book.token(opened(book, clock))
    passed: list[bool] = []
    ready = threading.Barrier(8)

    def come() -> None:
        ready.wait()
        passed.append(book.admit(token, clock.now()))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(passed) == [False] * 7 + [True]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
        lambda token: token.replace("_1_", "_2_"),
        lambda token: token.replace("job-1", "job-2"),
        lambda token: token + "0",
        lambda token: "",
        lambda token: "hfl_job-1_1_",
        lambda token: f" {token}",
        lambda token: f"{token}\n",
    ],
)
def test_a_token_that_was_tampered_with_never_passes(book: LaunchBook, clock: FixedClock, spoil) -> None:  # type: ignore[no-untyped-def] # fmt: skip
    token = book.token(opened(book, clock))
    book.open("job-2", "job", clock.now())

    assert not book.admit(spoil(token), clock.now())
    assert book.admit(token, clock.now())


def test_a_token_of_another_service_never_passes(engine: Engine, clock: FixedClock) -> None:
    ours, theirs = LaunchBook(engine, b"ours"), LaunchBook(engine, b"theirs")
    row = opened(ours, clock)

    assert not ours.admit(theirs.token(row), clock.now())


def test_a_token_is_stored_nowhere(book: LaunchBook, engine: Engine, clock: FixedClock) -> None:
    token = book.token(opened(book, clock))
    book.admit(token, clock.now())

    with engine.connect() as connection:
        rows = repr(connection.execute(select(launches)).all())
    assert token.rpartition("_")[2] not in rows


def test_token_cancelled_before_admission_is_never_admitted(
    book: LaunchBook, clock: FixedClock
) -> None:
    token = book.token(opened(book, clock))
    clock.advance(1)

    row = book.tombstone("job-1", "job", clock.now())

    assert (row.state, row.state_at, row.cancelled_at) == (TokenState.REVOKED, clock.now(), clock.now())  # fmt: skip
    assert not book.admit(token, clock.now())


def test_launch_cancelled_before_opening_stays_cancelled(book: LaunchBook, clock: FixedClock) -> None:  # fmt: skip
    buried = book.tombstone("job-1", "job", clock.now())
    clock.advance(1)

    assert opened(book, clock) == buried == book.tombstone("job-1", "job", clock.now())
    assert not book.mark_posting(buried, clock.now())


def test_admitted_launch_is_cancelled_but_not_revoked(book: LaunchBook, clock: FixedClock) -> None:
    book.admit(book.token(opened(book, clock)), clock.now())

    row = book.tombstone("job-1", "job", clock.now())

    assert (row.state, row.cancelled_at) == (TokenState.CONSUMED, clock.now())


def test_revoked_launch_is_never_admitted_and_not_cancelled(
    book: LaunchBook, clock: FixedClock
) -> None:
    token = book.token(opened(book, clock))
    clock.advance(1)

    row = book.revoke("job-1", clock.now())

    assert (row.state, row.state_at, row.cancelled_at) == (TokenState.REVOKED, clock.now(), None)
    assert not book.admit(token, clock.now())
    assert book.tombstone("job-1", "job", clock.now()).cancelled_at == clock.now()


def test_one_of_two_who_read_the_same_may_post(book: LaunchBook, clock: FixedClock) -> None:
    row = opened(book, clock)

    assert book.mark_posting(row, clock.now())
    assert not book.mark_posting(row, clock.now())
    clock.advance(60)
    again = opened(book, clock)
    assert book.mark_posting(again, clock.now())
    assert not book.mark_posting(again, clock.now())


def test_a_new_question_forgets_the_answer_to_the_old_one(book: LaunchBook, clock: FixedClock) -> None:  # fmt: skip
    book.mark_posting(opened(book, clock), clock.now())
    book.record_request_id("job-1", 1, "req-1")
    assert opened(book, clock).request_id == "req-1"
    clock.advance(60)

    book.mark_posting(opened(book, clock), clock.now())

    assert opened(book, clock).request_id is None


def test_renew_issues_a_new_token_only_for_a_consumed_one(
    book: LaunchBook, clock: FixedClock
) -> None:
    old = opened(book, clock)
    assert not book.renew("job-1", 1, clock.now()), "it may still pass"
    book.mark_posting(old, clock.now())
    book.record_request_id("job-1", 1, "req-1")
    book.admit(book.token(old), clock.now())
    book.record_engine_id("job-1", 1, 7)
    book.append_events("job-1", [event(1)])

    assert book.renew("job-1", 1, clock.now())
    assert not book.renew("job-1", 1, clock.now()), "somebody was quicker"
    new = opened(book, clock)

    assert (new.generation, new.state) == (2, TokenState.ISSUED)
    assert (new.posted_at, new.request_id, new.engine_id) == (None, None, None)
    assert book.append_events("job-1", []) == ()
    assert not book.admit(book.token(old), clock.now())
    assert book.admit(book.token(new), clock.now())


def test_a_renewed_launch_that_was_cancelled_is_not_posted(
    book: LaunchBook, clock: FixedClock
) -> None:
    first = opened(book, clock)
    book.mark_posting(first, clock.now())
    book.admit(book.token(first), clock.now())
    book.tombstone("job-1", "job", clock.now())

    renewed = book.renew("job-1", 1, clock.now())
    row = book.find("job-1")

    assert renewed
    assert row
    assert (row.state, row.generation, row.posted_at) == (TokenState.ISSUED, 2, None)
    assert not book.mark_posting(row, clock.now())


def test_late_records_for_a_renewed_token_change_nothing(
    book: LaunchBook, clock: FixedClock
) -> None:
    old = opened(book, clock)
    book.admit(book.token(old), clock.now())
    book.renew("job-1", 1, clock.now())
    before = opened(book, clock)

    book.record_request_id("job-1", 1, "late")
    book.record_engine_id("job-1", 1, 7)
    assert not book.assume_admitted("job-1", 1, clock.now())

    assert opened(book, clock) == before
    assert not book.mark_posting(old, clock.now())


def test_a_launch_that_was_seen_has_passed(book: LaunchBook, clock: FixedClock) -> None:
    token = book.token(opened(book, clock))

    found = [book.assume_admitted("job-1", 1, clock.now()) for _ in range(2)]

    assert found == [True, False], "the first time it is news"
    assert not book.admit(token, clock.now())


def test_the_first_number_stays(book: LaunchBook, clock: FixedClock) -> None:
    opened(book, clock)

    book.record_engine_id("job-1", 1, 7)
    book.record_engine_id("job-1", 1, 8)

    assert opened(book, clock).engine_id == 7


def test_since_when_a_launch_is_missing_is_remembered(book: LaunchBook, clock: FixedClock) -> None:
    opened(book, clock)

    book.record_missing("job-1", clock.now())
    assert opened(book, clock).missing_since == clock.now()
    book.record_missing("job-1", None)
    assert opened(book, clock).missing_since is None


def test_launch_history_appends_only_new_events_in_arrival_order(
    book: LaunchBook, clock: FixedClock
) -> None:
    opened(book, clock)

    assert book.append_events("job-1", [event(1), event(2)]) == (event(1), event(2))
    assert book.append_events("job-1", [event(2), event(3)]) == (event(1), event(2), event(3))
    assert book.append_events("job-1", [event(0)]) == (event(1), event(2), event(3), event(0))
    assert book.append_events("job-1", []) == (event(1), event(2), event(3), event(0))
    assert book.append_events("job-2", []) == ()
