"""Workers that do not know which attempt they are: the newest to ask speaks, and a look says which it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from fakes import FixedClock
from histories import at, finished, launched, lost, paused, ready, submitted, tripped
from holdfast.domain.events import Cause
from holdfast.domain.jobs.job import State
from holdfast.errors import Fenced, NotFound, NotLookedYet, NotMustered
from holdfast.store.database import writing
from holdfast.store.incarnations import JobPosition
from holdfast.store.journal import Journal
from holdfast.store.tables.launches import musters
from mustering import House, leaves, place, saves, trains
from sqlalchemy import Engine, delete, update


@pytest.fixture
def house(journal: Journal, engine: Engine, clock: FixedClock) -> House:
    """A job that has been launched."""
    journal.append(journal.submit("job-1", submitted()), [launched(1)])
    return House(engine, journal, clock)


def test_a_worker_waits_until_somebody_has_looked(house: House) -> None:
    house.look()

    before = house.calls("aa")
    house.look()
    after = house.calls("aa")

    assert (before, after) == (None, place(1, 1))


def test_a_look_that_began_before_the_worker_came_says_nothing(house: House) -> None:
    """It may have seen the nodes of the placement before."""
    house.calls("aa")
    began = house.clock.now()
    house.watches.release("job-1", leased_until=at(0), due_at=at(9), seen_at=began, trouble=None)

    assert house.calls("aa") is None


def test_who_comes_makes_the_job_due_at_once(house: House) -> None:
    house.look()
    due_before = house.watches.next_due()
    house.calls("aa")

    assert due_before == at(9999)
    assert house.watches.next_due() == house.clock.now()


def test_a_worker_that_is_quicker_than_the_news_of_its_nodes_stands_on_the_next(
    house: House,
) -> None:
    house.calls("aa")
    house.look()

    before = house.calls("aa")
    house.look(ready(3))

    assert before == house.calls("aa") == place(1, 1)


def test_a_worker_whose_nodes_are_known_stands_on_them(house: House) -> None:
    house.calls("aa")
    house.look(ready(1), lost(2), ready(3, attempt=2))

    assert house.calls("aa") == place(2, 1)


def test_a_new_placement_has_the_next_number_and_the_old_one_is_fenced(house: House) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.calls("bb")
    house.look(lost(4))

    assert house.calls("bb") == place(2, 1)
    with pytest.raises(Fenced):
        house.calls("aa")
    with pytest.raises(Fenced):
        house.says("aa", 1, trains(1))


def test_an_old_worker_is_fenced_as_soon_as_a_new_one_has_asked(house: House) -> None:
    """Even before anybody knows which attempt the new one is: two that write are worse than none."""
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.says("aa", 1, trains(1))
    house.calls("bb")

    with pytest.raises(Fenced):
        house.says("aa", 1, leaves(1))

    assert house.journal.marks("job-1") == {1: 1}


def test_a_worker_that_is_started_anew_on_the_same_nodes_goes_on_where_the_old_one_was(
    house: House,
) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.says("aa", 1, trains(1), saves(1))
    house.calls("bb")
    house.look()

    assert house.calls("bb") == place(1, 3)
    assert house.says("bb", 1, leaves(1, 3)) == 4


def test_what_comes_next_and_where_its_reports_begin_is_told_at_every_call(house: House) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.says("aa", 1, trains(1))

    assert house.calls("aa") == JobPosition(1, next=2, before=0)


def test_nobody_speaks_for_a_job_that_has_ended(house: House) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.look(finished(5))

    for incarnation in ("aa", "bb"):
        with pytest.raises(Fenced, match="has ended"):
            house.calls(incarnation)
    assert house.says("aa", 1, trains(1)) == 2, "its last words are welcome"


def test_nothing_is_begun_any_more_for_a_job_that_is_leaving(house: House) -> None:
    """A launcher that cannot be told goes on starting it: such a worker would train beyond the budget, and unheard."""
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.look(tripped(3))

    with pytest.raises(Fenced, match="is pausing"):
        house.calls("bb")

    assert house.calls("aa") == place(1, 1)
    assert house.says("aa", 1, trains(1), leaves(1)) == 3


def test_a_worker_that_outlived_a_pause_is_told_to_stop(house: House) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.look(tripped(3), lost(4, cause=Cause.PAUSED), paused(5))

    for incarnation in ("aa", "bb"):
        with pytest.raises(Fenced, match="is paused, and nothing of it is to run"):
            house.calls(incarnation)


def test_a_worker_that_never_asked_is_told_to_ask(house: House) -> None:
    with pytest.raises(NotMustered):
        house.says("zz", 1, trains(1))


def test_a_worker_speaks_for_its_own_attempt_alone(house: House) -> None:
    house.calls("aa")

    with pytest.raises(NotMustered, match="muster"):
        house.says("aa", 1, trains(1))
    house.look(ready(1))
    house.calls("aa")
    with pytest.raises(NotMustered, match="attempt 2"):
        house.says("aa", 2, trains(2))


def test_a_worker_that_a_restored_database_has_forgotten_is_not_told_that_it_was_replaced(
    house: House, engine: Engine
) -> None:
    """It would be killed at once, without a save, and with it every job that has recovered since the last backup."""
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    house.calls("bb")
    house.look(lost(4), ready(5, attempt=2))
    house.calls("bb")
    with writing(engine) as connection:
        connection.execute(delete(musters).where(musters.c.incarnation == "bb"))

    with pytest.raises(NotMustered):
        house.says("bb", 2, trains(2))
    asked = house.calls("bb")
    house.look()

    assert (asked, house.calls("bb")) == (None, place(2, 1))
    assert house.says("bb", 2, trains(2)) == 2
    with pytest.raises(Fenced):
        house.says("aa", 1, trains(1))


def test_a_worker_that_asked_and_of_whose_answer_nothing_is_known_any_more_asks_again(
    house: House, engine: Engine
) -> None:
    house.calls("aa")
    house.look(ready(1))
    house.calls("aa")
    with writing(engine) as connection:
        connection.execute(update(musters).values(attempt=None))

    with pytest.raises(NotMustered):
        house.says("aa", 1, trains(1))

    assert house.calls("aa") == place(1, 1)
    assert house.says("aa", 1, trains(1)) == 2


def test_a_launcher_that_numbers_its_placements_needs_no_muster(house: House) -> None:
    house.calls("aa")

    assert house.journal.absorb("job-1", 1, [trains(1)]).next == 2


def test_nobody_musters_for_a_job_that_nobody_knows(house: House) -> None:
    with pytest.raises(NotFound):
        house.musters.register("job-2", "aa")


def test_what_a_worker_tells_before_its_nodes_are_known_counts_once_they_are(
    house: House,
) -> None:
    house.calls("aa")
    house.look()
    house.calls("aa")
    house.says("aa", 1, trains(1), saves(1), leaves(1, 3))
    early = house.journal.read("job-1")
    house.look(ready(1))
    placed = house.journal.read("job-1")

    assert (early.state, early.last_checkpoint_step) == (State.PROVISIONING, 4)
    assert (placed.state, placed.attempt, placed.step) == (State.TRAINING, 1, 5)
    assert (placed.noticed, placed.left_attempt) == ((1,), 1)
    house.calls("bb")
    house.look(lost(9, cause=Cause.PREEMPTED))
    assert house.calls("bb") == place(2, 1)


def test_many_that_ask_at_once_are_put_in_one_line(house: House) -> None:
    barrier = Barrier(6)

    def call(number: int) -> None:
        barrier.wait()
        with pytest.raises(NotLookedYet):
            house.musters.register("job-1", f"worker-{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(6)))
    house.look()
    answers = 0
    for number in range(6):
        try:
            answers += house.calls(f"worker-{number}") == place(1, 1)
        except Fenced:
            continue

    assert answers == 1
