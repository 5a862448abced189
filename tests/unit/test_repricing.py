"""Prices that change while nodes stand: each change is recorded once, at its own time, and never out of silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from fakes import FixedClock
from histories import at, finished, launched, lost, ready, submitted
from holdfast.background.price_watcher import LATE, PriceWatcher
from holdfast.domain.billing.ledger import compute_bill
from holdfast.domain.events import Event, NodesReady, PriceChanged
from holdfast.domain.pricing.quotes import Change, PriceQuery, within
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from sqlalchemy import Engine

HOUR_S = 3600


@dataclass
class Market:
    """A catalog that knows one market: what a node cost, and when."""

    changes: list[Change] = field(default_factory=list)
    asked: list[PriceQuery] = field(default_factory=list)

    def change(self, seconds: float, micros: int) -> None:
        self.changes.append(Change(at=at(seconds), micros_per_hour=micros))

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[Change]:
        self.asked.append(wanted)
        return within(self.changes, since, until)


def rented(seconds: float, *, attempt: int = 1, **other: object) -> NodesReady:
    """Two spot nodes of AWS, for which two dollars an hour were told."""
    nodes = ready(seconds, attempt=attempt, zone="aws/us-east-1/us-east-1a", micros=2_000_000)
    known = {"nodes": 2, "cloud": "aws", "instance_type": "p4d.24xlarge", "is_spot": True}
    return replace(nodes, **{**known, **other})  # type: ignore[arg-type]


@dataclass
class House:
    """A journal, a market and who looks from the one to the other."""

    journal: Journal
    clock: FixedClock
    market: Market
    repricer: PriceWatcher

    def begin(self, *events: Event) -> None:
        job = self.journal.submit("job-1", submitted())
        self.journal.append(job, [launched(1), *events])

    def look_at(self, seconds: float) -> int:
        self.clock.advance(seconds - (self.clock.now() - at(0)).total_seconds())
        return self.repricer.look()

    def told(self) -> list[tuple[datetime, int, int]]:
        facts = [item.event for item in self.journal.events("job-1")]
        return [(f.at, f.attempt, f.micros_per_hour) for f in facts if isinstance(f, PriceChanged)]


@pytest.fixture
def house(engine: Engine, clock: FixedClock, journal: Journal) -> House:
    market = Market()
    parts = {"journal": journal, "reading": Queries(engine), "clock": clock}
    return House(journal, clock, market, PriceWatcher(catalog=market, **parts))  # type: ignore[arg-type]


def test_a_change_is_recorded_once_for_all_nodes_at_the_time_it_took_effect(house: House) -> None:
    house.begin(rented(10))
    house.market.change(-HOUR_S, 1_100_000)
    house.market.change(HOUR_S, 1_500_000)

    counts = [house.look_at(2 * HOUR_S), house.look_at(2 * HOUR_S + 600)]

    assert counts == [1, 0]
    assert house.told() == [(at(HOUR_S), 1, 3_000_000)]
    assert house.market.asked[0].zone == "us-east-1a"


def test_what_held_before_the_nodes_came_and_what_does_not_change_is_no_change(
    house: House,
) -> None:
    house.begin(rented(10))
    house.market.change(5, 1_500_000)
    house.market.change(10, 1_600_000)
    house.market.change(HOUR_S, 1_000_000)

    assert house.look_at(2 * HOUR_S) == 0


def test_a_market_that_says_nothing_changes_nothing(house: House) -> None:
    house.begin(rented(10))

    assert house.look_at(HOUR_S) == 0
    assert house.journal.read("job-1").account.micros_per_hour == 2_000_000


@pytest.mark.parametrize(
    "nodes",
    [
        rented(10, is_spot=False),
        rented(10, is_spot=None),
        rented(10, instance_type=""),
        rented(10, cloud=""),
        rented(10, simulated=True),
        replace(rented(10), zone="local-a"),
    ],
    ids=["on demand", "unsaid", "no type", "no cloud", "simulated", "here"],
)
def test_nobody_is_asked_about_nodes_without_a_market(house: House, nodes: NodesReady) -> None:
    house.begin(nodes)
    house.market.change(HOUR_S, 9)

    assert house.look_at(2 * HOUR_S) == 0
    assert house.market.asked == []


def test_known_moment_with_another_price_is_not_recorded_again(house: House) -> None:
    house.begin(rented(0))
    house.market.change(HOUR_S, 1_500_000)
    house.look_at(2 * HOUR_S)
    house.market.changes.clear()
    house.market.change(HOUR_S, 1_700_000)

    recorded = house.look_at(2 * HOUR_S + 600)

    assert recorded == 0
    assert house.told() == [(at(HOUR_S), 1, 3_000_000)]


def test_guards_and_bill_follow_to_the_micro_dollar(house: House) -> None:
    house.begin(rented(0))
    house.market.change(HOUR_S, 1_500_001)
    house.look_at(2 * HOUR_S)

    account = house.journal.read("job-1").account
    events = [item.event for item in house.journal.events("job-1")]
    billed = compute_bill(events, {}, at(3 * HOUR_S))

    assert account.micros_per_hour == 3_000_002
    assert account.paid_micros_by(at(3 * HOUR_S)) == 2_000_000 + 2 * 3_000_002
    assert billed.paid_micros == account.paid_micros_by(at(3 * HOUR_S))
    assert [step.micros_per_hour for step in billed.attempts[0].price_changes] == [3_000_002]


def test_a_change_that_is_told_after_the_end_is_put_where_it_belongs(house: House) -> None:
    house.begin(rented(0))
    house.look_at(HOUR_S)
    job = house.journal.read("job-1")
    house.journal.append(job, [lost(2 * HOUR_S), finished(2 * HOUR_S)])
    house.market.change(1.5 * HOUR_S, 3_000_000)
    house.market.change(2 * HOUR_S, 9_000_000)

    assert house.look_at(2 * HOUR_S + 700) == 1
    ended = house.journal.read("job-1")
    assert (ended.status, ended.account.paid_micros) == ("succeeded", 3_000_000 + 3_000_000)
    assert house.journal.refold("job-1") == ended


def test_what_ended_long_ago_is_not_asked_about_any_more(house: House) -> None:
    house.begin(rented(0), lost(HOUR_S), rented(2 * HOUR_S, attempt=2))

    house.look_at(2 * HOUR_S + LATE.total_seconds())
    asked = len(house.market.asked)

    assert asked == 1
