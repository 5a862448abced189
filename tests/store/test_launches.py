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
def store(engine: Engine) -> LaunchBook:
    return LaunchBook(engine, b"secret")


def opened(store: LaunchBook, clock: FixedClock) -> Admission:
    return store.open("job-1", "job", clock.now())


def event(n: int) -> EngineEvent:
    return EngineEvent(at=FixedClock().now() + timedelta(seconds=n), status="RUNNING", code=None, reason=f"{n}")  # fmt: skip


def test_a_launch_is_opened_once(store: LaunchBook, clock: FixedClock) -> None:
    first = opened(store, clock)
    clock.advance(5)

    assert opened(store, clock) == first == store.find("job-1")
    assert (first.state, first.generation, first.posted_at) == (TokenState.ISSUED, 1, None)
    assert store.find("job-2") is None


def test_a_token_passes_once(store: LaunchBook, clock: FixedClock) -> None:
    token = store.token(opened(store, clock))

    assert [store.admit(token, clock.now()) for _ in range(3)] == [True, False, False]


def test_one_of_many_concurrent_admissions_passes(store: LaunchBook, clock: FixedClock) -> None:
    token = store.token(opened(store, clock))
    passed: list[bool] = []
    ready = threading.Barrier(8)

    def come() -> None:
        ready.wait()
        passed.append(store.admit(token, clock.now()))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(passed) == [False] * 7 + [True]


@pytest.mark.parametrize(
    "tamper",
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
def test_a_token_that_was_tampered_with_never_passes(store: LaunchBook, clock: FixedClock, tamper) -> None:  # type: ignore[no-untyped-def] # fmt: skip
    token = store.token(opened(store, clock))
    store.open("job-2", "job", clock.now())

    assert not store.admit(tamper(token), clock.now())
    assert store.admit(token, clock.now())


def test_a_token_of_another_service_never_passes(engine: Engine, clock: FixedClock) -> None:
    ours, theirs = LaunchBook(engine, b"ours"), LaunchBook(engine, b"theirs")
    row = opened(ours, clock)

    assert not ours.admit(theirs.token(row), clock.now())


def test_a_token_is_stored_nowhere(store: LaunchBook, engine: Engine, clock: FixedClock) -> None:
    token = store.token(opened(store, clock))
    store.admit(token, clock.now())

    with engine.connect() as connection:
        rows = repr(connection.execute(select(launches)).all())
    assert token.rpartition("_")[2] not in rows


def test_token_cancelled_before_admission_is_never_admitted(
    store: LaunchBook, clock: FixedClock
) -> None:
    token = store.token(opened(store, clock))
    clock.advance(1)

    row = store.tombstone("job-1", "job", clock.now())

    assert (row.state, row.state_at, row.cancelled_at) == (TokenState.REVOKED, clock.now(), clock.now())  # fmt: skip
    assert not store.admit(token, clock.now())


def test_launch_cancelled_before_opening_stays_cancelled(store: LaunchBook, clock: FixedClock) -> None:  # fmt: skip
    buried = store.tombstone("job-1", "job", clock.now())
    clock.advance(1)

    assert opened(store, clock) == buried == store.tombstone("job-1", "job", clock.now())
    assert not store.mark_posting(buried, clock.now())


def test_admitted_launch_is_cancelled_but_not_revoked(store: LaunchBook, clock: FixedClock) -> None:
    store.admit(store.token(opened(store, clock)), clock.now())

    row = store.tombstone("job-1", "job", clock.now())

    assert (row.state, row.cancelled_at) == (TokenState.CONSUMED, clock.now())


def test_revoked_launch_is_never_admitted_and_not_cancelled(
    store: LaunchBook, clock: FixedClock
) -> None:
    token = store.token(opened(store, clock))
    clock.advance(1)

    row = store.revoke("job-1", clock.now())

    assert (row.state, row.state_at, row.cancelled_at) == (TokenState.REVOKED, clock.now(), None)
    assert not store.admit(token, clock.now())
    assert store.tombstone("job-1", "job", clock.now()).cancelled_at == clock.now()


def test_one_of_two_concurrent_readers_may_post(store: LaunchBook, clock: FixedClock) -> None:
    row = opened(store, clock)

    assert store.mark_posting(row, clock.now())
    assert not store.mark_posting(row, clock.now())
    clock.advance(60)
    again = opened(store, clock)
    assert store.mark_posting(again, clock.now())
    assert not store.mark_posting(again, clock.now())


def test_new_request_clears_the_previous_response(store: LaunchBook, clock: FixedClock) -> None:  # fmt: skip
    store.mark_posting(opened(store, clock), clock.now())
    store.record_request_id("job-1", 1, "req-1")
    assert opened(store, clock).request_id == "req-1"
    clock.advance(60)

    store.mark_posting(opened(store, clock), clock.now())

    assert opened(store, clock).request_id is None


def test_renew_issues_a_new_token_only_for_a_consumed_one(
    store: LaunchBook, clock: FixedClock
) -> None:
    old = opened(store, clock)
    assert not store.renew("job-1", 1, clock.now()), "it may still be admitted"
    store.mark_posting(old, clock.now())
    store.record_request_id("job-1", 1, "req-1")
    store.admit(store.token(old), clock.now())
    store.record_engine_id("job-1", 1, 7)
    store.append_events("job-1", [event(1)])

    assert store.renew("job-1", 1, clock.now())
    assert not store.renew("job-1", 1, clock.now()), "another replica was faster"
    new = opened(store, clock)

    assert (new.generation, new.state) == (2, TokenState.ISSUED)
    assert (new.posted_at, new.request_id, new.engine_id) == (None, None, None)
    assert store.append_events("job-1", []) == ()
    assert not store.admit(store.token(old), clock.now())
    assert store.admit(store.token(new), clock.now())


def test_a_renewed_launch_that_was_cancelled_is_not_posted(
    store: LaunchBook, clock: FixedClock
) -> None:
    first = opened(store, clock)
    store.mark_posting(first, clock.now())
    store.admit(store.token(first), clock.now())
    store.tombstone("job-1", "job", clock.now())

    renewed = store.renew("job-1", 1, clock.now())
    row = store.find("job-1")

    assert renewed
    assert row
    assert (row.state, row.generation, row.posted_at) == (TokenState.ISSUED, 2, None)
    assert not store.mark_posting(row, clock.now())


def test_late_records_for_a_renewed_token_change_nothing(
    store: LaunchBook, clock: FixedClock
) -> None:
    old = opened(store, clock)
    store.admit(store.token(old), clock.now())
    store.renew("job-1", 1, clock.now())
    before = opened(store, clock)

    store.record_request_id("job-1", 1, "late")
    store.record_engine_id("job-1", 1, 7)
    assert not store.assume_admitted("job-1", 1, clock.now())

    assert opened(store, clock) == before
    assert not store.mark_posting(old, clock.now())


def test_observed_launch_counts_as_admitted(store: LaunchBook, clock: FixedClock) -> None:
    token = store.token(opened(store, clock))

    found = [store.assume_admitted("job-1", 1, clock.now()) for _ in range(2)]

    assert found == [True, False], "the first observation is new"
    assert not store.admit(token, clock.now())


def test_first_engine_id_is_kept(store: LaunchBook, clock: FixedClock) -> None:
    opened(store, clock)

    store.record_engine_id("job-1", 1, 7)
    store.record_engine_id("job-1", 1, 8)

    assert opened(store, clock).engine_id == 7


def test_first_time_a_launch_was_missing_is_stored(store: LaunchBook, clock: FixedClock) -> None:
    opened(store, clock)

    store.record_missing("job-1", clock.now())
    assert opened(store, clock).missing_since == clock.now()
    store.record_missing("job-1", None)
    assert opened(store, clock).missing_since is None


def test_launch_history_appends_only_new_events_in_arrival_order(
    store: LaunchBook, clock: FixedClock
) -> None:
    opened(store, clock)

    assert store.append_events("job-1", [event(1), event(2)]) == (event(1), event(2))
    assert store.append_events("job-1", [event(2), event(3)]) == (event(1), event(2), event(3))
    assert store.append_events("job-1", [event(0)]) == (event(1), event(2), event(3), event(0))
    assert store.append_events("job-1", []) == (event(1), event(2), event(3), event(0))
    assert store.append_events("job-2", []) == ()
