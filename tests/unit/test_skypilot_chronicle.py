"""A launch's history is read by the page: what is known is not read again, and nothing in between is missed."""

from __future__ import annotations

import pytest
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.launchers.skypilot.cached_reads import PAGE, EventCache
from skyhouse import NewHouse, SkyHouse, do
from skystand import Job, Nature


@pytest.fixture
def house(new_house: NewHouse) -> SkyHouse:
    """One with a job that nobody has looked at."""
    house = new_house(Nature(queue_s=1e9))
    house.submit()
    house.pass_time(10)
    return house


def tell(house: SkyHouse, job: Job, count: int) -> None:
    """Let so much more happen to a job."""
    for _ in range(count):
        house.pass_time(1)
        job.tell("PENDING", f"Job is in backoff at {house.clock.now()}")


def readings(house: SkyHouse) -> list[int | None]:
    """How much was asked for, each time."""
    return [body["limit"] for body in house.posted("/jobs/events")]


def test_a_long_history_is_read_as_a_whole_only_where_a_page_does_not_reach_what_is_known(
    house: SkyHouse,
) -> None:
    [job] = house.jobs()
    chronicle = EventCache(house.launcher._door, house.book)
    lengths = []
    for news in (5, 3 * PAGE, 1, PAGE // 2, 2 * PAGE):
        tell(house, job, news)
        lengths.append(len(do(chronicle.read("job-1", job.number))) == len(job.events))

    assert all(lengths)
    assert readings(house) == [PAGE, PAGE, None, PAGE, PAGE, PAGE, None]


def test_it_is_told_in_the_order_in_which_it_happened(house: SkyHouse) -> None:
    [job] = house.jobs()
    chronicle = EventCache(house.launcher._door, house.book)
    told: tuple[EngineEvent, ...] = ()
    for news in (5, 2 * PAGE, 10):
        tell(house, job, news)
        told = do(chronicle.read("job-1", job.number))

    assert list(told) == sorted(told, key=lambda event: event.at)
    assert house.book.told("job-1") == told


def test_who_peeks_sees_the_same_and_leaves_no_trace(house: SkyHouse) -> None:
    [job] = house.jobs()
    chronicle = EventCache(house.launcher._door, house.book)
    tell(house, job, 5)
    known = do(chronicle.read("job-1", job.number))
    tell(house, job, 5)

    peeked = do(chronicle.peek("job-1", job.number))

    assert house.book.told("job-1") == known
    assert peeked == do(chronicle.read("job-1", job.number))
