"""Totals over jobs contain what is beside the nodes, and equal the sum of the bills to the micro-dollar."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from holdfast.domain.access.audit import Actor, AuditAction
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.charges.charges import Category, Charges, compute_charges, store_url
from holdfast.domain.charges.resource_prices import NO_PRICES, ResourcePrices
from holdfast.domain.events import CheckpointsRemoved, Event, Outcome, Removal, RestoreStarted
from holdfast.domain.events.values import StoreCounts
from holdfast.domain.jobs.job import Job
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostQueries, CostReport
from holdfast.store.database import writing
from holdfast.store.job_removal import Removals
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.retention_queue import RetentionQueue, enqueue
from holdfast_worker.protocol.store_usage import StoreUsage
from sqlalchemy import Engine
from support.events import DAWN, at, finished, launched, lost, ready, saved, submitted
from support.fakes import FixedClock

ADA = Actor(name="ada")
HOUR_S = 3600
DAY_S = 24 * HOUR_S
PRICES = ResourcePrices.parse(
    {
        "storage": {"aws": 0.023, "gcp": "0.0199"},
        "requests": {"aws": {"put": 0.005, "get": 0.000407, "list": 0.005, "delete": 0}},
        "egress": {"aws": {"aws": 0.02, "*": 0.09}},
        "disks": {"aws": {"medium": {"gib": 0.08, "disk": 6.22}}},
    },
    "prices",
)
STORES = ("s3://bucket/runs", "s3://bucket2/runs", "gs://team/runs", "file:///shared", None)
REQUESTS = (
    *(CostRequest(by=by, tag="team" if by is GroupBy.TAG else "") for by in GroupBy),
    *(CostRequest(by=by, limit=2) for by in (GroupBy.JOB, GroupBy.ATTEMPT)),
    CostRequest(by=GroupBy.DAY, then_by=GroupBy.PROJECT),
    CostRequest(by=GroupBy.DAY, then_by=GroupBy.TAG, tag="team", projects=frozenset({"p1"})),
    CostRequest(by=GroupBy.USER, since=DAWN.date() + timedelta(days=2)),
    CostRequest(by=GroupBy.JOB, since=DAWN.date() + timedelta(days=4), limit=3),
    CostRequest(by=GroupBy.ZONE, until=DAWN.date() + timedelta(days=1)),
)


def job_events(draw: random.Random, since_s: float) -> Iterator[Event]:
    """The events of a job in order of time, from its first launch to its last loss."""
    seconds, number, used = since_s, 0, StoreCounts()
    yield launched(seconds)
    for attempt in range(1, draw.randint(2, 4)):
        used = StoreCounts()
        seconds += draw.randrange(10, HOUR_S)
        zone = draw.choice(["us-east-1a", "us-west-2b"])
        stood = ready(seconds, attempt=attempt, zone=zone, nodes=draw.randint(1, 3))
        yield replace(stood, cloud=draw.choice(["aws", "gcp"]))
        if draw.random() < 0.7:
            place = draw.choice(["aws/us-east-1", "aws/eu-west-1"])
            yield RestoreStarted(at=at(seconds + 1), attempt=attempt, store_place=place)
        for _ in range(draw.randint(1, 3)):
            seconds += draw.randrange(10, 20 * HOUR_S)
            number += 1
            used = StoreCounts(
                puts=used.puts + draw.randrange(999),
                gets=used.gets + draw.randrange(7),
                uploaded_bytes=used.uploaded_bytes + draw.randrange(10**10),
            )
            size, name = draw.randrange(10**11), f"c{number}"
            yield saved(
                seconds, attempt=attempt, step=number, name=name, size_bytes=size, store_usage=used
            )
            if number > 1 and draw.random() < 0.6:
                seconds += draw.randrange(5, HOUR_S)
                yield removed(seconds, f"c{number - 1}")
        seconds += draw.randrange(10, 9 * HOUR_S)
        yield lost(seconds, attempt=attempt)


def removed(seconds: float, name: str) -> CheckpointsRemoved:
    return CheckpointsRemoved(
        at=at(seconds), checkpoints=(name,), removal=Removal.SUPERSEDED, size_bytes=1
    )


@dataclass
class Fleet:
    """Jobs whose events arrive as time passes, with the cached and the recomputed totals."""

    engine: Engine
    clock: FixedClock
    draw: random.Random
    prices: ResourcePrices = PRICES
    coming: dict[str, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal = Journal(self.engine, self.clock)
        self.queue = RetentionQueue(self.engine)
        self.rollups = self.new_rollups()

    def new_rollups(self) -> BillRollups:
        return BillRollups(self.engine, resource_prices=self.prices)

    def begin(self, number: int) -> None:
        """Submit a job to one of the stores."""
        now_s, draw = (self.clock.now() - DAWN).total_seconds(), self.draw
        store, tags = draw.choice(STORES), {"team": draw.choice("ab")} if number % 3 else {}
        checkpoint = {"checkpoint": {"store": store}} if store else {}
        infra = draw.choice(["aws", "aws", "local"])
        first = submitted(now_s, name=f"run-{number}", infra=infra, tags=tags, **checkpoint)
        job_id = f"job-{number:02}"
        first = replace(first, by=f"user-{number % 3}", project=f"p{number % 2}")
        self.journal.submit(job_id, first)
        with writing(self.engine) as connection:
            enqueue(connection, job_id, self.clock.now())
        events = list(job_events(draw, now_s + 5))
        ends_s = (events[-1].at - DAWN).total_seconds()
        events.append(finished(ends_s + draw.randrange(2 * HOUR_S)))
        if draw.random() < 0.3:
            events.append(removed(ends_s + 3 * DAY_S, "c1"))
        self.coming[job_id] = events

    def advance(self, seconds: float) -> None:
        """Let time pass, with the events that happen until then."""
        self.clock.advance(seconds)
        for job_id, events in self.coming.items():
            while events and events[0].at <= self.clock.now():
                self.journal.append(self.journal.read(job_id), [events.pop(0)])
            if self.draw.random() < 0.3:
                used = StoreUsage(lists=self.draw.randrange(999), gets=self.draw.randrange(99))
                self.queue.add_requests(job_id, used, self.clock.now().date())

    def charges(self) -> dict[str, Charges]:
        """The charges of every job, from all its events."""
        found = {}
        for job_id, items in Queries(self.engine).events(list(self.coming)).items():
            facts, now = [item.event for item in items], self.clock.now()
            known = self.queue.known_store(job_id, store_url(facts))
            account = compute_bill(facts, {}, now)
            found[job_id] = compute_charges(account, facts, self.prices, now, known)
        return found

    def totals(self, question: CostRequest, rollups: BillRollups | None = None) -> CostReport:
        costs = CostQueries(self.engine, rollups or self.rollups)
        found = costs.totals(question, self.clock.now())
        assert found.pending == 0
        return found


@pytest.fixture
def fleet(engine: Engine, clock: FixedClock) -> Fleet:
    """Jobs of which some have ended and others run."""
    clock.advance((DAWN - clock.now()).total_seconds())
    fleet = Fleet(engine, clock, random.Random(5))
    for number in range(16):
        fleet.begin(number)
        fleet.advance(9 * HOUR_S)
    return fleet


def by_category(charges: Charges) -> dict[str, int]:
    return {
        f"{name}_micros": sum(line.micros for line in charges.lines if line.category is name)
        for name in Category
    }


@pytest.mark.parametrize("by", [*GroupBy])
def test_every_grouping_adds_up_to_the_whole_bills(fleet: Fleet, by: GroupBy) -> None:
    charges = fleet.charges().values()

    found = fleet.totals(CostRequest(by=by, tag="team" if by is GroupBy.TAG else ""))

    assert {job.status for job in Queries(fleet.engine).jobs(limit=99).jobs} > {Outcome.SUCCEEDED}
    for name, micros in found.total.charges.items():
        assert micros == sum(by_category(one)[name] for one in charges) > 0
        assert micros == sum(cost.charges[name] for cost in found.totals)
    assert found.total.charged_micros == sum(one.micros for one in charges)
    assert found.total.total_micros == found.total.paid_micros + found.total.charged_micros
    assert found.total.has_unpriced
    assert any(cost.has_unpriced for cost in found.totals)
    assert found.total.jobs == 16


def test_totals_by_job_equal_the_charges_of_each_bill(fleet: Fleet) -> None:
    found = {cost.key: cost for cost in fleet.totals(CostRequest(by=GroupBy.JOB)).totals}

    for job_id, charges in fleet.charges().items():
        assert found[job_id].charges == by_category(charges)
        assert found[job_id].has_unpriced == charges.has_unpriced
        assert found[job_id].jobs == 1


def test_days_add_up_and_equal_windows_of_one_day(fleet: Fleet) -> None:
    fleet.advance(40 * DAY_S)

    days = fleet.totals(CostRequest(by=GroupBy.DAY)).totals

    assert len(days) > 40
    assert sum(day.charged_micros for day in days) == sum(
        charges.micros for charges in fleet.charges().values()
    )
    for day in (days[0], days[5], days[20], days[-1]):
        [number] = {
            (at(n * DAY_S)).date() for n in range(60) if str(at(n * DAY_S).date()) == day.key
        }
        window = CostRequest(by=GroupBy.JOB, since=number, until=number)
        assert fleet.totals(window).total.charges == day.charges
        assert fleet.totals(window).total.has_unpriced == day.has_unpriced


def test_past_days_keep_their_amounts(fleet: Fleet) -> None:
    fleet.coming = {job_id: [] for job_id in fleet.coming}  # Nothing more happens.
    before = fleet.totals(CostRequest(by=GroupBy.DAY, then_by=GroupBy.USER)).totals
    fleet.clock.advance(3 * DAY_S + 1.234)

    after = fleet.totals(CostRequest(by=GroupBy.DAY, then_by=GroupBy.USER)).totals

    today = max(cost.key for cost in before)
    past = {cost.group_key: cost for cost in before if cost.key < today}
    assert len(past) > 5
    assert past == {cost.group_key: cost for cost in after if cost.key < today}


@pytest.mark.parametrize("seed", range(3))
def test_cached_charges_match_a_recomputation(engine: Engine, clock: FixedClock, seed: int) -> None:
    clock.advance((DAWN - clock.now()).total_seconds())
    fleet = Fleet(engine, clock, random.Random(seed))
    for number in range(6):
        fleet.begin(number)
        fleet.advance(fleet.draw.randrange(20 * HOUR_S))
        if number == 3:
            fleet.queue.set_place("s3://bucket2", "aws/us-west-2")
        for question in REQUESTS:
            assert fleet.totals(question) == fleet.totals(question, fleet.new_rollups())
        fleet.clock.advance(fleet.draw.choice([0, 0.5, 7000]))
        total = fleet.totals(CostRequest(by=GroupBy.TAG, tag="team")).total
        assert total.charged_micros == sum(one.micros for one in fleet.charges().values())


def test_limited_list_counts_the_omitted_jobs(fleet: Fleet) -> None:
    fleet.advance(30 * DAY_S)
    since = fleet.clock.now().date() - timedelta(days=2)
    for by in (GroupBy.JOB, GroupBy.ATTEMPT):
        every = fleet.totals(CostRequest(by=by, since=since))
        for limit in (1, 3, len(every.totals)):
            found = fleet.totals(CostRequest(by=by, since=since, limit=limit))
            assert len(found.totals) + found.left_out == len(every.totals)
            assert found.total == every.total
    assert every.total.charged_micros > 0


def test_changed_prices_apply_to_ended_jobs(fleet: Fleet) -> None:
    fleet.totals(CostRequest(by=GroupBy.JOB))
    doubled = {place: 2 * micros for place, micros in PRICES.storage.items()}
    fleet.prices = replace(PRICES, storage=doubled)
    fleet.rollups = fleet.new_rollups()

    found = fleet.totals(CostRequest(by=GroupBy.JOB)).total

    assert found.charged_micros == sum(one.micros for one in fleet.charges().values())


def test_unknown_prices_are_stated(fleet: Fleet) -> None:
    fleet.prices = NO_PRICES
    fleet.rollups = fleet.new_rollups()

    found = fleet.totals(CostRequest(by=GroupBy.PROJECT))

    assert found.total.charged_micros == 0
    assert all(cost.has_unpriced for cost in found.totals)


def test_charges_of_a_removed_job_end_with_it(fleet: Fleet) -> None:
    fleet.advance(40 * DAY_S)
    removals = Removals(fleet.engine, fleet.clock)
    ended = sorted(fleet.coming)[:8]
    before = [fleet.totals(question) for question in REQUESTS]

    def action(job: Job) -> AuditAction:
        return ADA.audit_action("job.remove", job.id)

    for job_id in ended:
        removals.remove(job_id, action, fleet.rollups)

    assert [fleet.totals(question) for question in REQUESTS] == before
    fleet.clock.advance(9 * DAY_S)
    later = {cost.key: cost for cost in fleet.totals(CostRequest(by=GroupBy.JOB)).totals}
    same = {cost.key: cost for cost in before[0].totals}
    assert all(later[job_id].charges == same[job_id].charges for job_id in ended)
    assert sum(later[job_id].charged_micros for job_id in ended) > 0
