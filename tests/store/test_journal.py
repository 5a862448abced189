"""The journal keeps every event once and in order, with concurrent writers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from holdfast.domain.events import CancelRequested, Event
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.selection import JobFilter
from holdfast.errors import IdempotencyMismatch, IllegalTransition, NotFound, StaleWrite
from holdfast.store.ids import made_at, new_job_id
from holdfast.store.journal import Journal, SubmissionRequest
from holdfast.store.queries import Queries
from holdfast.store.tables.jobs import jobs
from sqlalchemy import Engine, func, select, update
from support.events import DAWN, at, finished, launched, lost, ready, saved, submitted, training
from support.fakes import FixedClock

LIFE: list[Event] = [
    launched(1),
    ready(2),
    training(3),
    saved(4, step=100),
    lost(5),
    ready(6, attempt=2),
    training(7, attempt=2, step=100),
    finished(8),
]


def test_job_is_the_fold_of_its_events(journal: Journal, clock: FixedClock) -> None:
    job = journal.submit("job-1", submitted())
    clock.advance(60)
    for event in LIFE:
        job = journal.append(job, [event])

    log = journal.events("job-1")

    assert [item.event for item in log] == [submitted(), *LIFE]
    assert [item.seq for item in log] == [*range(1, 10)]
    assert [item.cursor for item in log] == [*range(1, 10)]
    assert {item.recorded_at for item in log} == {DAWN, at(60)}
    assert {item.job_id for item in log} == {"job-1"}
    assert journal.read("job-1") == job == fold("job-1", [item.event for item in log])


def test_related_events_are_written_atomically(journal: Journal) -> None:
    job = journal.submit("job-1", submitted())

    with pytest.raises(IllegalTransition):
        journal.append(job, [launched(1), ready(2), launched(3, launch=2)])

    assert journal.read("job-1") == job
    assert len(journal.events("job-1")) == 1


def test_appending_no_events_writes_nothing(journal: Journal) -> None:
    job = journal.submit("job-1", submitted())

    assert journal.append(job, []) == job
    assert len(journal.events("job-1")) == 1


def test_append_based_on_stale_state_is_rejected(engine: Engine, clock: FixedClock) -> None:
    one, other = Journal(engine, clock), Journal(engine, clock)
    one.submit("job-1", submitted())
    read_by_one, read_by_other = one.read("job-1"), other.read("job-1")
    other.append(read_by_other, [CancelRequested(at=at(1))])

    with pytest.raises(StaleWrite, match="job-1"):
        one.append(read_by_one, [launched(2)])

    assert [item.kind for item in one.events("job-1")] == ["Submitted", "CancelRequested"]
    assert one.read("job-1").status == "stopping"


def test_one_of_many_concurrent_appends_succeeds(engine: Engine, clock: FixedClock) -> None:
    job = Journal(engine, clock).submit("job-1", submitted())
    barrier = Barrier(8)

    def write(_: int) -> bool:
        barrier.wait()
        try:
            Journal(engine, clock).append(job, [launched(1)])
        except StaleWrite:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(write, range(8)))

    assert sum(written) == 1
    assert len(Journal(engine, clock).events("job-1")) == 2


def test_unknown_job_is_not_found(journal: Journal) -> None:
    asks: list[Callable[[], object]] = [
        lambda: journal.read("job-1"),
        lambda: journal.events("job-1"),
        lambda: journal.submission("job-1"),
        lambda: journal.rebuild("job-1"),
        lambda: journal.ingest("job-1", 1, []),
    ]

    for ask in asks:
        with pytest.raises(NotFound, match="there is no job job-1"):
            ask()


def test_events_after_a_sequence_number_are_returned(journal: Journal) -> None:
    job = journal.submit("job-1", submitted())
    journal.append(job, [launched(1), ready(2)])

    assert [item.seq for item in journal.events("job-1", after_seq=2)] == [3]


def test_submission_is_preserved(journal: Journal) -> None:
    job = journal.submit("job-1", submitted(name="tiny", task="run: |\n  echo 'no'\n"))
    journal.append(job, [launched(1)])

    assert journal.submission("job-1") == submitted(name="tiny", task="run: |\n  echo 'no'\n")


@pytest.mark.parametrize("text", ["\0", "\ud83d", "😀", "'; DROP TABLE jobs; --", "\u2028", "\r\n"])
def test_any_text_is_read_back_unchanged(journal: Journal, text: str) -> None:
    job = journal.submit("job-1", submitted(name=text, task=text))
    journal.append(job, [CancelRequested(at=at(1), reason=text)])

    assert journal.submission("job-1").task == text
    assert journal.read("job-1").detail == text


def test_corrupt_cached_row_is_rebuilt_from_the_log(journal: Journal, engine: Engine) -> None:
    job = journal.submit("job-1", submitted())
    true = journal.append(job, [launched(1), ready(2)])
    with engine.begin() as connection:
        wrong = {"status": "ended", "fold": {"id": "job-1"}}
        connection.execute(update(jobs).values(**wrong))

    rebuilt = journal.rebuild("job-1")

    assert rebuilt == true == journal.read("job-1")
    assert Queries(engine).jobs(limit=5, where=JobFilter(statuses=("starting",))).jobs == (true,)


# Submitting


def test_the_same_request_twice_is_one_job(journal: Journal) -> None:
    request = SubmissionRequest("key-1", "ab" * 32)
    first = journal.submit("job-1", submitted(), request)
    journal.append(first, [launched(1)])

    again = journal.submit("job-2", submitted(9), request)

    assert again == journal.read("job-1")
    with pytest.raises(NotFound):
        journal.read("job-2")


def test_a_key_of_another_request_is_refused(journal: Journal) -> None:
    journal.submit("job-1", submitted(), SubmissionRequest("key-1", "ab" * 32))

    with pytest.raises(IdempotencyMismatch):
        journal.submit("job-2", submitted(), SubmissionRequest("key-1", "cd" * 32))

    with pytest.raises(NotFound):
        journal.read("job-2")


def test_one_request_sent_many_times_at_once_is_one_job(engine: Engine, clock: FixedClock) -> None:
    request = SubmissionRequest("key-1", "ab" * 32)
    barrier = Barrier(8)

    def submit(number: int) -> str:
        barrier.wait()
        return Journal(engine, clock).submit(f"job-{number}", submitted(), request).id

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(submit, range(8)))

    assert len(answers) == 1
    assert len(Queries(engine).jobs(limit=50).jobs) == 1


def test_duplicate_job_id_is_not_reused(journal: Journal) -> None:
    journal.submit("job-1", submitted(name="first"))

    with pytest.raises(StaleWrite):
        journal.submit("job-1", submitted(name="second"))

    assert journal.read("job-1").name == "first"


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [new_job_id(at(second)) for second in range(1000) for _ in range(3)]

    assert len(set(ids)) == len(ids)
    assert [one[:8] for one in ids] == sorted(one[:8] for one in ids)
    assert {len(one) for one in ids} == {13}


def test_job_id_encodes_its_creation_time() -> None:
    assert [made_at(new_job_id(at(second))) for second in (0, 1.9)] == [at(0), at(1)]
    assert [made_at(name) for name in ("job-1", "", "j00000000000", "j0000000l00000")] == [None] * 4


# Order


def test_cursors_grow_in_the_order_of_commits(engine: Engine, clock: FixedClock) -> None:
    """No event may get a position behind those already read.

    A reader of the stream by cursor would miss it.
    """
    barrier, seen = Barrier(5), list[int]()

    def write(number: int) -> None:
        journal = Journal(engine, clock)
        barrier.wait()
        for turn in range(10):
            job = journal.submit(f"job-{number}-{turn}", submitted())
            journal.append(job, [launched(1), ready(2)])

    def follow() -> None:
        barrier.wait()
        deadline_s = time.monotonic() + 60
        while len(seen) < 4 * 10 * 3 and time.monotonic() < deadline_s:
            seen.extend(
                item.cursor
                for item in Queries(engine).stream(after=seen[-1] if seen else 0, limit=1000)
            )

    with ThreadPoolExecutor(5) as pool:
        for done in [*(pool.submit(write, number) for number in range(4)), pool.submit(follow)]:
            done.result(timeout=60)

    assert seen == [*range(1, 4 * 10 * 3 + 1)]


def test_job_row_is_the_fold_of_its_log_with_concurrent_writers(
    engine: Engine, clock: FixedClock
) -> None:
    journal = Journal(engine, clock)
    journal.submit("job-1", submitted())
    barrier = Barrier(4)

    def write(_: int) -> None:
        barrier.wait()
        for turn in range(10):
            while True:
                try:
                    journal.append(journal.read("job-1"), [training(turn)])
                    break
                except StaleWrite:
                    continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    log = journal.events("job-1")
    assert len(log) == 41
    assert journal.read("job-1") == fold("job-1", [item.event for item in log])
    with engine.connect() as connection:
        assert connection.execute(select(func.max(jobs.c.seq))).scalar() == 41
