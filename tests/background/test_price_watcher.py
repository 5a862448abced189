"""Price changes while nodes run: each change is recorded once, at its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from holdfast.background.price_watcher import GRACE, PriceWatcher
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import Event, NodesReady, PriceChanged
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery, price_points_within
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from sqlalchemy import Engine
from support.events import at, finished, launched, lost, ready, submitted
from support.fakes import FixedClock

HOUR_S = 3600


@dataclass
class Market:
    """A catalog of one market: the price of a node over time."""

    changes: list[PricePoint] = field(default_factory=list)
    queries: list[PriceQuery] = field(default_factory=list)

    def change(self, seconds: float, micros: int) -> None:
        self.changes.append(PricePoint(at=at(seconds), micros_per_hour=micros))

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[PricePoint]:
        self.queries.append(wanted)
        return price_points_within(self.changes, since, until)


def rented_nodes(seconds: float, *, attempt: int = 1, **other: object) -> NodesReady:
    """Two spot nodes of AWS with a quote of two dollars an hour."""
    nodes = ready(seconds, attempt=attempt, zone="aws/us-east-1/us-east-1a", micros=2_000_000)
    known = {"nodes": 2, "cloud": "aws", "instance_type": "p4d.24xlarge", "is_spot": True}
    return replace(nodes, **{**known, **other})  # type: ignore[arg-type]


@dataclass
class Harness:
    """A journal, a market, and the price watcher between them."""

    journal: Journal
    clock: FixedClock
    market: Market
    watcher: PriceWatcher

    def begin(self, *events: Event) -> None:
        job = self.journal.submit("job-1", submitted())
        self.journal.append(job, [launched(1), *events])

    def run_at(self, seconds: float) -> int:
        self.clock.advance(seconds - (self.clock.now() - at(0)).total_seconds())
        return self.watcher.run_once()

    def recorded_changes(self) -> list[tuple[datetime, int, int]]:
        facts = [item.event for item in self.journal.events("job-1")]
        return [(f.at, f.attempt, f.micros_per_hour) for f in facts if isinstance(f, PriceChanged)]


@pytest.fixture
def harness(engine: Engine, clock: FixedClock, journal: Journal) -> Harness:
    market = Market()
    parts = {"journal": journal, "queries": Queries(engine), "clock": clock}
    return Harness(journal, clock, market, PriceWatcher(catalog=market, **parts))  # type: ignore[arg-type]


def test_price_change_is_recorded_once_at_its_own_time(
    harness: Harness,
) -> None:
    harness.begin(rented_nodes(10))
    harness.market.change(-HOUR_S, 1_100_000)
    harness.market.change(HOUR_S, 1_500_000)

    counts = [harness.run_at(2 * HOUR_S), harness.run_at(2 * HOUR_S + 600)]

    assert counts == [1, 0]
    assert harness.recorded_changes() == [(at(HOUR_S), 1, 3_000_000)]
    assert harness.market.queries[0].zone == "us-east-1a"


def test_earlier_and_unchanged_prices_are_not_recorded(
    harness: Harness,
) -> None:
    harness.begin(rented_nodes(10))
    harness.market.change(5, 1_500_000)
    harness.market.change(10, 1_600_000)
    harness.market.change(HOUR_S, 1_000_000)

    assert harness.run_at(2 * HOUR_S) == 0


def test_unresponsive_market_changes_no_price(harness: Harness) -> None:
    harness.begin(rented_nodes(10))

    assert harness.run_at(HOUR_S) == 0
    assert harness.journal.read("job-1").account.micros_per_hour == 2_000_000


@pytest.mark.parametrize(
    "nodes",
    [
        rented_nodes(10, is_spot=False),
        rented_nodes(10, is_spot=None),
        rented_nodes(10, instance_type=""),
        rented_nodes(10, cloud=""),
        rented_nodes(10, simulated=True),
        replace(rented_nodes(10), zone="local-a"),
    ],
    ids=["on demand", "unknown market", "no type", "no cloud", "simulated", "here"],
)
def test_nodes_without_a_market_are_not_queried(harness: Harness, nodes: NodesReady) -> None:
    harness.begin(nodes)
    harness.market.change(HOUR_S, 9)

    assert harness.run_at(2 * HOUR_S) == 0
    assert harness.market.queries == []


def test_known_moment_with_another_price_is_not_recorded_again(harness: Harness) -> None:
    harness.begin(rented_nodes(0))
    harness.market.change(HOUR_S, 1_500_000)
    harness.run_at(2 * HOUR_S)
    harness.market.changes.clear()
    harness.market.change(HOUR_S, 1_700_000)

    recorded = harness.run_at(2 * HOUR_S + 600)

    assert recorded == 0
    assert harness.recorded_changes() == [(at(HOUR_S), 1, 3_000_000)]


def test_guards_and_bill_follow_to_the_micro_dollar(harness: Harness) -> None:
    harness.begin(rented_nodes(0))
    harness.market.change(HOUR_S, 1_500_001)
    harness.run_at(2 * HOUR_S)

    account = harness.journal.read("job-1").account
    events = [item.event for item in harness.journal.events("job-1")]
    billed = compute_bill(events, {}, at(3 * HOUR_S))

    assert account.micros_per_hour == 3_000_002
    assert account.paid_micros_by(at(3 * HOUR_S)) == 2_000_000 + 2 * 3_000_002
    assert billed.paid_micros == account.paid_micros_by(at(3 * HOUR_S))
    assert [step.micros_per_hour for step in billed.attempts[0].price_changes] == [3_000_002]


def test_price_change_known_after_the_end_is_backdated(harness: Harness) -> None:
    harness.begin(rented_nodes(0))
    harness.run_at(HOUR_S)
    job = harness.journal.read("job-1")
    harness.journal.append(job, [lost(2 * HOUR_S), finished(2 * HOUR_S)])
    harness.market.change(1.5 * HOUR_S, 3_000_000)
    harness.market.change(2 * HOUR_S, 9_000_000)

    assert harness.run_at(2 * HOUR_S + 700) == 1
    ended = harness.journal.read("job-1")
    assert (ended.status, ended.account.paid_micros) == ("succeeded", 3_000_000 + 3_000_000)
    assert harness.journal.refold("job-1") == ended


def test_long_ended_attempts_are_not_queried(harness: Harness) -> None:
    harness.begin(rented_nodes(0), lost(HOUR_S), rented_nodes(2 * HOUR_S, attempt=2))

    harness.run_at(2 * HOUR_S + GRACE.total_seconds())
    query_count = len(harness.market.queries)

    assert query_count == 1
