"""The collector: what workers left in their store is taken once, in order, and what cannot be taken stays and is said."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from fakes import FixedClock
from histories import finished, launched, lost, ready, submitted
from holdfast.domain.jobs.job import State
from holdfast.errors import DepotRefused, DepotUnreachable
from holdfast_worker.protocol.report_archive import LONGEST_BYTES, ArchiveKey, sender_of
from holdfast_worker.protocol.reports import Report, ReportKind
from quarters import JOB, Quarters, leaving, report, words
from sqlalchemy import Engine
from statements import statements


@pytest.fixture
def house(engine: Engine, clock: FixedClock) -> Quarters:
    """A job whose first nodes stand."""
    house = Quarters(engine, clock)
    house.look(launched(0), ready(1))
    clock.advance(60)
    return house


def test_what_a_worker_posted_is_taken_and_removed(house: Quarters) -> None:
    house.post(sender_of(1), *words(house.clock, 1, 3))
    house.post(sender_of(1), *words(house.clock, 4, 2))

    taken = house.visit()
    house.post(sender_of(1), leaving(house.clock, 6))
    again = house.visit()

    assert (taken, again) == (2, 1)
    assert house.kinds() == ["TrainingStarted", "WorkerLeft"]
    assert house.steps() == [(1, 2), (1, 3), (1, 4), (1, 5)]
    assert house.shed.keys() == []
    assert house.journal.read(JOB).state is State.TRAINING
    assert house.watches.next_due() == house.clock.now(), "as its nodes can go"


def test_what_came_over_http_too_is_taken_once(house: Quarters) -> None:
    told = [*words(house.clock, 1, 6)]
    house.journal.absorb(JOB, 1, [Report(1, r.n, r.at, r.kind, r.body) for r in told[:4]])
    house.post(sender_of(1), *told[:2])
    house.post(sender_of(1), *told[2:])

    house.visit()

    assert house.kinds() == ["TrainingStarted"]
    assert house.steps() == [(1, step) for step in range(2, 7)]
    assert house.shed.keys() == []


def test_a_stop_between_the_taking_and_the_removal_takes_nothing_twice(house: Quarters) -> None:
    house.post(sender_of(1), *words(house.clock, 1, 3))
    house.weather.error, house.weather.operation = DepotUnreachable("gone"), "delete"
    house.visit()
    left = house.shed.keys()

    house.weather.error = None
    house.collector = house.new_collector()
    house.visit()

    assert left == ["inbox/attempt-1/000000000001-000000000003"]
    assert house.shed.keys() == []
    assert house.kinds() == ["TrainingStarted"]
    assert house.steps() == [(1, 2), (1, 3)]


def test_a_long_silence_is_taken_in_several_transactions(house: Quarters) -> None:
    house.post(sender_of(1), *words(house.clock, 1, 2500))

    house.visit()

    assert house.journal.marks(JOB) == {1: 2500}
    assert house.shed.keys() == []


def test_two_placements_that_never_reached_the_service_are_told_apart(house: Quarters) -> None:
    """Neither has a number. All of it was posted while the service was away."""
    house.post("aa", *words(house.clock, 1, 3))
    house.clock.advance(60)
    house.post("aa", leaving(house.clock, 4))
    house.clock.advance(60)
    gone, here = house.seconds(), house.seconds() + 60
    house.clock.advance(120)
    house.post("bb", *words(house.clock, 1, 2))

    before = house.visit()
    house.look(lost(gone), ready(here, attempt=2))
    after = house.visit()

    assert (before, after) == (0, 3)
    assert house.kinds() == ["TrainingStarted", "WorkerLeft", "TrainingStarted"]
    assert house.steps() == [(1, 2), (1, 3), (2, 2)]
    assert house.journal.read(JOB).attempt == house.journal.read(JOB).started_attempt == 2
    assert house.shed.keys() == []


def test_the_last_words_of_a_placement_are_taken_although_its_successor_is_heard(
    house: Quarters,
) -> None:
    house.post("aa", *words(house.clock, 1, 3))
    house.look()
    house.visit()
    house.post("aa", leaving(house.clock, 4))
    house.clock.advance(30)
    house.collector.musters.posted(JOB, "bb", house.clock.now(), (2, 0))
    house.look(lost(house.seconds()), ready(house.seconds(), attempt=2))

    house.visit()

    assert house.kinds() == ["TrainingStarted", "WorkerLeft"]


def test_what_somebody_posts_who_was_replaced_is_removed_and_not_taken(house: Quarters) -> None:
    house.look()
    house.post("aa", *words(house.clock, 1, 3))
    house.clock.advance(30)
    house.collector.musters.posted(JOB, "bb", house.clock.now(), (1, 0))
    house.clock.advance(30)
    house.post("aa", leaving(house.clock, 4))
    house.look()

    house.visit()

    assert house.kinds() == ["TrainingStarted"]
    assert house.shed.keys() == []


@pytest.mark.parametrize("size", [0, 1, 20, 200, -1])
def test_a_torn_parcel_stays_and_what_follows_it_waits(
    house: Quarters, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Its worker writes it again, the same, after a while."""
    house.post(sender_of(1), *words(house.clock, 1, 2))
    torn = house.post(sender_of(1), *words(house.clock, 3, 2))
    house.post(sender_of(1), *words(house.clock, 5, 2))
    house.post(sender_of(2), *words(house.clock, 1, 1))
    whole = house.shed.objects[torn]
    house.shed.put(torn, whole[0][:size])

    house.visit()
    house.visit()
    left = house.shed.keys()
    house.shed.put(torn, whole[0])
    house.visit(3600)

    assert left == [torn, "inbox/attempt-1/000000000005-000000000006"]
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [JOB]
    assert f"{torn} cannot be read" in caplog.text
    assert house.steps() == [(1, step) for step in range(2, 7)]
    assert house.shed.keys() == []


def test_a_parcel_that_is_too_long_is_not_read(
    house: Quarters, caplog: pytest.LogCaptureFixture
) -> None:
    house.shed.put(ArchiveKey("attempt-1", 1, 1).key, b"x" * (LONGEST_BYTES + 1))

    house.visit()

    assert "it has 1048577 bytes, and 1048576 are allowed" in caplog.text


@pytest.mark.parametrize(
    "place",
    [
        '"attempt":1e999,"before":0',
        '"attempt":1,"before":1e999',
        f'"attempt":{10**23},"before":0',
        f'"attempt":1,"before":{10**23}',
        '"attempt":0,"before":0',
        '"attempt":1,"before":-3',
    ],
)
def test_a_parcel_of_a_place_that_cannot_be_stays_and_holds_up_no_other_worker(
    house: Quarters, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Below 1 its reports would be passed over and removed; what no number of the database is ends the visit."""
    key = house.post("aa", *words(house.clock, 1, 2), place=(1, 0))
    whole = house.shed.objects[key][0]
    house.shed.put(key, whole.replace(b'"attempt":1,"before":0', place.encode(), 1))
    house.post("bb", *words(house.clock, 1, 2), place=(2, 0))

    house.visit()

    assert house.shed.keys() == [key]
    assert f"{key} cannot be read, and what was posted after it waits" in caplog.text
    assert house.steps() == [(2, 2)]


def test_a_parcel_that_claims_more_reports_than_memory_could_hold_is_counted(
    house: Quarters, caplog: pytest.LogCaptureFixture
) -> None:
    key = house.post(sender_of(1), *words(house.clock, 1, 2))
    bold = ArchiveKey(sender_of(1), 1, 999_999_999_999).key
    house.shed.put(bold, house.shed.objects.pop(key)[0])

    house.visit()

    assert f"{bold} cannot be read" in caplog.text
    assert "it does not hold the reports 1 to 999999999999" in caplog.text


def test_a_gap_is_waited_for(house: Quarters, caplog: pytest.LogCaptureFixture) -> None:
    """It may be on its way over HTTP."""
    told = [*words(house.clock, 1, 6)]
    house.post(sender_of(1), *told[3:])
    house.visit()
    before = house.shed.keys()
    house.journal.absorb(JOB, 1, [Report(1, r.n, r.at, r.kind, r.body) for r in told[:3]])

    for _ in range(20):
        house.visit()

    assert before == ["inbox/attempt-1/000000000004-000000000006"]
    assert "waits for reports 1 to 3, which are not there" in caplog.text
    assert house.steps() == [(1, step) for step in range(2, 7)]


def test_reports_that_make_no_sense_hold_up_no_other_worker(
    house: Quarters, caplog: pytest.LogCaptureFixture
) -> None:
    bad = report(1, ReportKind.TRAINING_STARTED, house.clock.now(), step="three")
    house.post(sender_of(1), bad)
    house.post(sender_of(2), *words(house.clock, 1, 2))

    house.visit()

    assert (
        "cannot be taken, nor what was posted after it: report 1 (training_started)" in caplog.text
    )
    assert house.steps() == [(2, 2)]


def test_a_job_that_is_heard_costs_no_request(house: Quarters) -> None:
    house.visit()
    house.looks.clear()
    for n in range(1, 11):
        point = report(n, ReportKind.PROGRESS, house.clock.now(), step=n, values={})
        house.journal.absorb(JOB, 1, [Report(1, point.n, point.at, point.kind, point.body)])
        house.visit()

    assert house.looks == []


def test_jobs_that_are_heard_are_asked_for_at_once(house: Quarters) -> None:
    """One after the other, a thousand took the service so long that whoever reported meanwhile waited for a fifth of a second."""
    asked_of, told = [], list[str]([JOB])
    for count in (1, 20):
        for job_id in (f"job-{count}-{i}" for i in range(count)):
            job = house.journal.submit(job_id, submitted(checkpoint={"store": "s3://bucket/runs"}))
            house.journal.append(job, [launched(0), ready(1)])
            told.append(job_id)
        house.visit(600)
        for job_id in told:
            n = 1 + house.journal.marks(job_id).get(1, 0)
            point = report(n, ReportKind.PROGRESS, house.clock.now(), step=n, values={})
            house.journal.absorb(job_id, 1, [Report(1, n, point.at, point.kind, point.body)])
        with statements(house.engine) as asked:
            house.visit(600)
        asked_of.append(len(asked))

    assert asked_of[0] == asked_of[1]


def test_a_box_in_which_nothing_is_is_looked_into_more_and_more_seldom(house: Quarters) -> None:
    for _ in range(120):
        house.visit()

    assert 12 <= len(house.looks) <= 16


def test_new_nodes_are_looked_after_soon(house: Quarters) -> None:
    for _ in range(60):
        house.visit()
    house.looks.clear()
    house.look(lost(house.seconds()), ready(house.seconds(), attempt=2))
    house.clock.advance(300)

    house.visit()
    house.visit()

    assert len(house.looks) >= 1
    house.post(sender_of(2), *words(house.clock, 1, 2))
    assert sum(house.visit() for _ in range(4)) == 1


def test_a_job_without_a_store_and_one_that_was_never_launched_are_left_alone(
    engine: Engine, clock: FixedClock
) -> None:
    house = Quarters(engine, clock, checkpoint=None)
    house.visit()
    house.look(launched(0), ready(1))
    house.visit()
    house.visit()

    assert house.looks == []


def test_what_was_posted_last_is_taken_after_the_end(house: Quarters) -> None:
    house.visit()
    house.look(finished(house.seconds()))
    house.watches.remove(JOB)
    house.clock.advance(60)
    house.post(sender_of(1), *words(house.clock, 1, 2))

    taken = sum(house.visit() for _ in range(20))
    for _ in range(120):
        house.visit()
    house.looks.clear()
    house.visit(3600)

    assert taken == 1
    assert house.looks == []
    assert house.journal.read(JOB).state is State.ENDED


def test_a_service_that_was_away_looks_after_jobs_that_ended_meanwhile(house: Quarters) -> None:
    house.look(finished(house.seconds()))
    house.watches.remove(JOB)
    house.post(sender_of(1), *words(house.clock, 1, 2))

    house.collector = house.new_collector()

    assert house.visit() == 1


@pytest.mark.parametrize("error", [DepotRefused("no"), DepotUnreachable("gone")])
def test_a_store_that_cannot_be_used_is_said_once_and_tried_again(
    house: Quarters, caplog: pytest.LogCaptureFixture, error: DepotRefused | DepotUnreachable
) -> None:
    house.post(sender_of(1), *words(house.clock, 1, 2))
    house.weather.error = error
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            house.visit()
    house.weather.error = None

    taken = sum(house.visit() for _ in range(40))

    assert taken == 1
    assert [r.getMessage() for r in caplog.records] == [
        f"the reports of {JOB} cannot be collected: {error.detail}"
    ]


def test_the_clock_of_the_store_may_be_wrong(engine: Engine, clock: FixedClock) -> None:
    """It dates what is posted; an hour more or less would give it to another attempt."""
    house = Quarters(engine, clock)
    house.look(launched(0), ready(1), lost(5), ready(6, attempt=2), lost(50), ready(60, attempt=3))
    clock.advance(30)
    fast = FixedClock(clock.now() + timedelta(hours=1))
    house.shed.clock = fast
    house.post("aa", *words(clock, 1, 2))
    clock.advance(60)
    fast.advance(60)
    house.look()

    house.visit(0)

    assert house.steps() == [(2, 2)]
