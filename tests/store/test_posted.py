"""Workers that do not reach the service: which attempt they are, and what of theirs counts beside those that ask."""

from __future__ import annotations

import pytest
from fakes import FixedClock
from histories import at, finished, launched, lost, ready, submitted
from holdfast.errors import Fenced, NotFound, NotMustered
from holdfast.store.incarnations import JobPosition
from holdfast.store.journal import Journal
from mustering import House, leaves, place, saves, trains
from sqlalchemy import Engine


@pytest.fixture
def house(journal: Journal, engine: Engine, clock: FixedClock) -> House:
    """A job that has been launched."""
    journal.append(journal.submit("job-1", submitted()), [launched(1)])
    return House(engine, journal, clock)


def test_who_posts_is_of_the_attempt_whose_nodes_were_there(house: House) -> None:
    """Three placements, none of which ever reached the service, and a service that was away all the time."""
    house.clock.advance(100)
    house.look(ready(10), lost(20), ready(30, attempt=2), lost(40), ready(50, attempt=3))

    assert [house.posts(who, when) for who, when in [("aa", 15), ("bb", 39), ("cc", 55)]] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert house.posts("dd", 25) == (1, 0), "its nodes were there last"
    assert house.posts("ee", 5) == (1, 0), "clocks differ, and nobody posts before the first nodes"


def test_nobody_knows_who_posts_before_somebody_has_looked_since(house: House) -> None:
    house.look(ready(1))
    seconds = (house.clock.now() - at(0)).total_seconds() + 30

    before = house.posts("aa", seconds)
    house.clock.advance(60)
    house.look()

    assert (before, house.posts("aa", seconds)) == (None, (1, 0))


def test_a_job_that_nobody_watches_any_more_needs_no_look(house: House) -> None:
    house.look(ready(1), finished(50))
    house.watches.remove("job-1")

    assert house.posts("aa", 60) == (1, 0)


def test_who_has_posted_is_numbered_the_same_when_it_reaches_the_service(house: House) -> None:
    """Otherwise all that was taken would be told a second time."""
    house.clock.advance(100)
    house.look(ready(10))
    posted = house.posts("aa", 20)
    house.journal.absorb("job-1", 1, [trains(1), saves(1)], "aa", at(20))

    assert posted == (1, 0)
    assert house.calls("aa") == JobPosition(1, next=3, before=0)
    assert house.calls("aa") == JobPosition(1, next=3, before=0), "also after a lost answer"
    assert house.says("aa", 1, trains(1), saves(1), leaves(1, 3)) == 4


def test_who_only_posts_fences_nobody(house: House) -> None:
    house.look(ready(1))
    house.calls("aa")
    house.look()
    house.calls("aa")
    house.clock.advance(100)
    house.look()

    assert house.posts("bb", 100) == (1, 0)
    assert house.calls("aa") == place(1, 1)
    assert house.says("aa", 1, trains(1)) == 2


def test_who_has_only_posted_has_to_muster_before_it_reports(house: House) -> None:
    house.clock.advance(100)
    house.look(ready(10))
    house.posts("aa", 20)

    with pytest.raises(NotMustered):
        house.says("aa", 1, trains(1))


def test_who_posted_before_its_successor_came_is_fenced_when_it_comes_back(house: House) -> None:
    """Of two that ask for the first time one after the other, nobody could tell which one is the zombie. This one can be told."""
    house.clock.advance(100)
    house.look(ready(10))
    house.posts("aa", 20)
    house.calls("bb")
    house.look(lost(90), ready(95, attempt=2))

    assert house.calls("bb") == place(2, 1)
    with pytest.raises(Fenced):
        house.calls("aa")
    assert house.calls("bb") == place(2, 1)


def test_what_was_posted_before_a_successor_came_counts_however_late(house: House) -> None:
    house.clock.advance(100)
    house.look(ready(10))
    house.posts("aa", 20)
    house.calls("bb")
    came = (house.clock.now() - at(0)).total_seconds()
    house.look(lost(90), ready(95, attempt=2))
    house.calls("bb")

    taken = house.journal.absorb("job-1", 1, [trains(1)], "aa", at(came - 1)).next
    with pytest.raises(Fenced):
        house.journal.absorb("job-1", 1, [saves(1)], "aa", at(came + 1))

    assert taken == 2
    assert house.says("bb", 2, trains(2)) == 2


def test_who_posts_after_another_on_the_same_nodes_is_numbered_after_it(house: House) -> None:
    house.clock.advance(100)
    house.look(ready(10))
    house.posts("aa", 20)
    house.journal.absorb("job-1", 1, [trains(1), saves(1)], "aa", at(20))

    assert house.posts("bb", 60) == (1, 2)
    with pytest.raises(Fenced):
        house.journal.absorb("job-1", 1, [leaves(1, 3)], "aa", at(61))
    assert house.journal.absorb("job-1", 1, [leaves(1, 3)], "bb", at(62)).next == 4


def test_what_a_worker_says_of_its_own_number_holds(house: House) -> None:
    """It has it from us; a database that was restored since may have forgotten it."""
    house.clock.advance(100)
    house.look(ready(10), lost(20), ready(30, attempt=2))
    house.journal.absorb("job-1", 1, [trains(1), saves(1)])

    assert house.musters.posted("job-1", "aa", at(50), (1, 2)) == (1, 2)
    assert house.musters.posted("job-1", "bb", at(50), (2, 5)) == (2, 0), "five that are lost"


def test_nobody_posts_for_a_job_that_nobody_knows(house: House) -> None:
    with pytest.raises(NotFound):
        house.musters.posted("job-2", "aa", at(1), None)
