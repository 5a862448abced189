"""The janitor: how often it comes, what it says when it is not let in, and that nothing stops it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from depots import Weather
from histories import at, finished, left, lost, ready
from holdfast.domain.events import Outcome
from holdfast.errors import DepotRefused, DepotUnreachable
from yard import GRACE_S, NewYard, Yard, name


def test_a_store_is_asked_every_minute_while_its_job_trains_and_seldom_while_it_waits(
    new_yard: NewYard,
) -> None:
    asked: list[str] = []
    yard = new_yard(keep=9, before=lambda operation, key: asked.append(operation))
    yard.save_five()

    def looks(minutes: int) -> int:
        before = asked.count("directories")
        for _ in range(minutes):
            yard.visit(60)
        return asked.count("directories") - before

    training_on = looks(5)
    yard.tell(left(1000, step=50), lost(1001))
    told, waiting = looks(1), looks(20)
    yard.tell(ready(3000, attempt=2))
    news = looks(1)

    assert (training_on, told, waiting, news) == (5, 1, 2, 1)


def test_what_becomes_ripe_while_a_job_waits_goes_in_time(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.tell(left(305, step=50), lost(306))

    for _ in range(6):
        yard.visit(60)

    assert yard.committed() == [40, 50]


def test_an_ended_job_is_tidied_until_nothing_is_left_to_do_and_then_never_again(
    new_yard: NewYard,
) -> None:
    yard = new_yard()
    yard.save_five()
    yard.upload(60)
    yard.tell(finished(350))

    for _ in range(40):
        yard.visit(3600)
    tidied_at = yard.tidiness.tidied_at
    last = yard.visit(10 * 86_400)

    assert yard.committed() == yard.data() == [40, 50]
    assert last == 0
    assert tidied_at
    assert tidied_at < yard.clock.now()


def test_a_job_that_ended_before_it_saved_is_looked_at_once_more(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.visit(0)
    yard.tell(finished(5, Outcome.FAILED, exit_code=1))

    visits = [yard.visit(600) for _ in range(5)]

    assert sum(visits) <= 2
    assert visits[-1] == 0


# Stores that cannot be used


def test_who_is_not_let_in_says_so_once_and_comes_back_ever_more_seldom(
    new_yard: NewYard, caplog: pytest.LogCaptureFixture
) -> None:
    weather = Weather(DepotRefused("An error occurred (AccessDenied): Access Denied"))
    yard = new_yard(before=weather)
    yard.save_five()

    with caplog.at_level(logging.WARNING, logger="holdfast.background.retention"):
        visits = [yard.visit(60) for _ in range(12 * 60)]

    trouble = "s3://bucket/runs/job-1: An error occurred (AccessDenied): Access Denied"
    assert (yard.tidiness.trouble, yard.tidiness.since) == (trouble, at(360))
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage() == f"job-1 is not tidied: {trouble}"
    assert 10 < sum(visits) < 25
    weather.error = None
    yard.visit(86_400)
    assert (yard.tidiness.trouble, yard.tidiness.since) == (None, None)
    assert yard.committed() == [40, 50]


def test_a_store_that_is_silent_is_asked_again_soon_and_nothing_is_concluded(
    new_yard: NewYard,
) -> None:
    weather = Weather(DepotUnreachable("Could not connect"))
    yard = new_yard(before=weather)
    yard.save_five()

    visits = [yard.visit(60) for _ in range(3)]

    assert visits == [1, 1, 1]
    assert yard.told_gone() == []
    assert yard.committed() == [10, 20, 30, 40, 50]


def test_who_may_look_and_not_remove_says_so_and_writes_down_nothing(new_yard: NewYard) -> None:
    yard = new_yard(before=Weather(DepotRefused("AccessDenied: DeleteObject"), "delete"))
    yard.save_five()

    yard.visit(GRACE_S)

    assert yard.tidiness.trouble == "s3://bucket/runs/job-1: AccessDenied: DeleteObject"
    assert yard.told_gone() == []


def test_a_removal_that_breaks_off_tells_of_what_is_gone(new_yard: NewYard) -> None:
    def refuse(operation: str, key: str) -> None:
        if (operation, key) == ("delete", name(20).commit_key):
            raise DepotRefused("no")

    yard = new_yard(before=refuse)
    yard.save_five()

    yard.visit(GRACE_S)

    assert yard.committed() == [20, 30, 40, 50]
    assert yard.told_gone() == [("superseded", [10])]


def test_another_store_than_that_of_the_nodes_is_taken_for_one(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.shed.objects.clear()

    yard.visit(GRACE_S)

    assert "none of the 5 checkpoints that were reported is there" in (yard.tidiness.trouble or "")
    assert yard.told_gone() == []


def test_the_store_of_an_ended_job_that_is_gone_for_good_is_given_up(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.tell(finished(350))
    yard.shed.objects.clear()

    visits = [yard.visit(86_400) for _ in range(20)]

    assert sum(visits[:7]) >= 6
    assert sum(visits[10:]) == 0
    assert yard.tidiness.trouble


# In its own tasks


@contextmanager
def tidying(yard: Yard) -> Iterator[None]:
    """The janitor goes about by itself meanwhile."""
    stopped = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    begun = threading.Event()

    async def go_about() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        task = asyncio.create_task(yard.janitor.tidy_on())
        await stopped.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(go_about()))
    thread.start()
    assert begun.wait(30)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stopped.set)
        thread.join(30)


def test_a_bug_in_one_visit_is_not_the_end_of_tidying(
    new_yard: NewYard, caplog: pytest.LogCaptureFixture
) -> None:
    met = threading.Semaphore(0)

    def stumble(operation: str, key: str) -> None:
        yard.clock.advance(3600)  # Its lease is over at once.
        met.release()
        raise ZeroDivisionError("a bug of ours")

    yard = new_yard(before=stumble)

    with tidying(yard):
        assert met.acquire(timeout=30)
        assert met.acquire(timeout=30)

    assert "a bug while job-1 was tidied; its lease brings it back" in caplog.text


def test_it_tidies_by_itself_until_it_is_told_to_stop(new_yard: NewYard) -> None:
    gone = threading.Event()

    def see(operation: str, key: str) -> None:
        if (operation, key) == ("look", "probes/") and yard.data() == [40, 50]:
            gone.set()  # In the visit after the one that has removed the others.

    yard = new_yard(before=see)
    yard.save_five()
    yard.clock.advance(GRACE_S)

    with tidying(yard):
        while not gone.wait(0.05):
            yard.clock.advance(600)

    assert yard.committed() == yard.data() == [40, 50]
