"""Bills and placements: rows for closed jobs, computed values for live ones.

A row is a cache of what follows from the log. It is valid if this version computed it from the
newest event of the job. Otherwise it is computed again, by the rollup task or by the first query.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, Final, TypeVar

from holdfast_worker.protocol.store_usage import NO_USAGE
from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, or_, select

from holdfast.domain.billing.allocation import CostAllocation, allocate_costs
from holdfast.domain.billing.bill import Bill, LatestPoint, compute_bill
from holdfast.domain.billing.incremental_bill import first_open_attempt
from holdfast.domain.billing.rate import MS_PER_HOUR, to_ms
from holdfast.domain.charges.charge_shares import ChargeShares, JobCharges
from holdfast.domain.charges.charges import ChargeBasis, KnownStore, store_url
from holdfast.domain.charges.resource_prices import NO_PRICES, ResourcePrices
from holdfast.domain.events import Event, Outcome, Submitted, TagsChanged
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.selection import MAX_TAG_CHARS
from holdfast.domain.preemptions.placements import (
    PlacementRecord,
    loss_recorded_at,
    placement_records,
)
from holdfast.store.billing.charge_rows import (
    charge_rows,
    end_kept_storage,
    kept_columns,
    ledger_rows,
    node_row,
)
from holdfast.store.billing.job_summaries import LatestPoints
from holdfast.store.billing.live_bills import AllocationRow, LiveBill
from holdfast.store.billing.rollup_cache import RollupCache
from holdfast.store.database import reading, writing
from holdfast.store.journal import RecordedEvent, marks_of
from holdfast.store.queries import Queries
from holdfast.store.retention_queue import (
    known_stores,
    place_in,
    read_places,
    read_requests,
)
from holdfast.store.tables.billing import (
    ledger_hours,
    ledger_placements,
    ledger_shares,
    ledger_tags,
    ledgers,
)
from holdfast.store.tables.jobs import jobs

T = TypeVar("T")

ROLLUP_VERSION: Final = 6
"""Raised whenever the same events result in different rows, so that older rows are computed again."""
BATCH: Final = 20
"""Jobs whose rows are written in one transaction. A lower value adds transactions; a higher value
lets other writers wait longer."""
MAX_PER_REQUEST: Final = 200
"""Jobs for which a query waits. A higher value makes queries after an upgrade take seconds instead
of returning the number of missing jobs."""
MAX_CACHED_JOBS: Final = 2000
"""Live jobs whose closed part is cached. A lower value computes further jobs from their log each
time; a higher value uses more memory, about 100 kB for each."""
ENDED: Final = tuple(str(outcome) for outcome in Outcome)
_DETAILS: Final = (ledger_tags, ledger_shares, ledger_placements, ledger_hours)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHistory:
    """The events of a job that were read, and its submission."""

    job_id: str
    seq: int
    name: str
    owner: str
    project: str
    tags: Mapping[str, str]
    events: tuple[Event, ...]
    """Empty if the closed part was computed, and the rest is in it."""
    recorded_at: Mapping[int, datetime]
    """When the capacity losses among them were recorded, by attempt."""

    @classmethod
    def from_recorded(cls, items: Sequence[RecordedEvent]) -> JobHistory:
        """Create the history of a job with these events."""
        pairs = [(item.event, item.recorded_at) for item in items]
        submitted = items[0].event
        assert isinstance(submitted, Submitted)
        stated_tags: Mapping[str, str] = (submitted.spec.get("holdfast") or {}).get("tags") or {}
        for event, _ in pairs:
            stated_tags = event.tags if isinstance(event, TagsChanged) else stated_tags
        return cls(
            job_id=items[0].job_id,
            seq=items[-1].seq,
            name=submitted.name,
            owner=submitted.by,
            project=submitted.project,
            tags={
                name[:MAX_TAG_CHARS]: value[:MAX_TAG_CHARS] for name, value in stated_tags.items()
            },
            events=tuple(event for event, _ in pairs),
            recorded_at=loss_recorded_at(pairs),
        )


@dataclass(frozen=True)
class LiveJob:
    """A live job with its rows; the closed part is separate from what may still change."""

    history: JobHistory
    latest_points: Mapping[int, LatestPoint]
    bill: Bill
    charges: JobCharges
    live_bill: LiveBill | None = None
    """Its earlier bill; None without one, in which case all of it counts as open."""

    def cacheable(self) -> tuple[JobHistory, LiveBill | None]:
        """What is cached of the job: without its events once the closed part is computed."""
        if self.live_bill is None:
            return self.history, None
        self._closed_parts(self.live_bill)
        return replace(self.history, events=()), self.live_bill

    @property
    def rows(self) -> Sequence[AllocationRow]:
        """The allocation of its bill."""
        return [*self.closed_rows, *self.open_rows]

    @property
    def ended_rows(self) -> Sequence[AllocationRow]:
        """The allocation of an ended job until its last change of what is stored."""
        nodes = self._with_rows(allocate_costs(self.bill))
        shares = self.charges.fixed, self.charges.open_shares(self.bill, None)
        return [*nodes, *(row for of in shares for row in self._charged(of))]

    @property
    def closed_rows(self) -> Sequence[AllocationRow]:
        """Rows of closed attempts."""
        return () if self.live_bill is None else self._closed_parts(self.live_bill)[0]

    @cached_property
    def open_rows(self) -> Sequence[AllocationRow]:
        """Rows of attempts that may still change."""
        shares = [self.charges.open_shares(self.bill, to_ms(self.bill.until))]
        if self.live_bill is None:
            shares.insert(0, self.charges.fixed)
        return [*self.open_node_rows, *(row for of in shares for row in self._charged(of))]

    @cached_property
    def open_node_rows(self) -> Sequence[AllocationRow]:
        """Those of the nodes, without what the job uses beside them."""
        begin = 1 if self.live_bill is None else first_open_attempt(self.bill)
        return self._with_rows(allocate_costs(self.bill, begin))

    @property
    def placements(self) -> Sequence[PlacementRecord]:
        """The records of its placements."""
        return [*self.closed_placements, *self.open_placements]

    @property
    def closed_placements(self) -> Sequence[PlacementRecord]:
        """Records that no later event can change."""
        return () if self.live_bill is None else self._closed_parts(self.live_bill)[1]

    @cached_property
    def open_placements(self) -> Sequence[PlacementRecord]:
        """Records that later events may change."""
        if (live_bill := self.live_bill) is None:
            return self._placement_records(self.history.events)
        self._closed_parts(live_bill)
        return self._placement_records(live_bill.open_events, first_open_attempt(self.bill) - 1)

    def cached(self, question: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for the closed part, computed once for each question."""
        return make() if self.live_bill is None else self.live_bill.cached(question, make)

    def _closed_parts(
        self, live_bill: LiveBill
    ) -> tuple[Sequence[AllocationRow], Sequence[PlacementRecord]]:
        if live_bill.closed is None:
            begin = first_open_attempt(self.bill)
            shares = (share for share in allocate_costs(self.bill) if 0 < share.attempt < begin)
            # The record of the last closed placement depends on the events after it.
            facts = self.history.events
            live_bill.open_events = [
                fact for fact in facts if getattr(fact, "attempt", 0) >= begin - 1
            ]
            placements = [
                item for item in self._placement_records(facts) if item.attempt < begin - 1
            ]
            rows = self._with_rows(shares) + self._charged(self.charges.fixed)
            live_bill.closed = rows, placements
        return live_bill.closed

    def _placement_records(self, facts: Sequence[Event], since: int = 1) -> list[PlacementRecord]:
        return placement_records(
            facts, self.history.recorded_at, self.latest_points, self.bill, since
        )

    def _with_rows(self, shares: Iterable[CostAllocation]) -> list[AllocationRow]:
        return [(share, node_row(self.history.job_id, share)) for share in shares]

    def _charged(self, shares: ChargeShares) -> list[AllocationRow]:
        return list(charge_rows(self.history.job_id, shares))


class BillRollups:
    """The costs and placements of all jobs."""

    def __init__(
        self,
        engine: Engine,
        *,
        with_rules: bool = True,
        resource_prices: ResourcePrices = NO_PRICES,
    ) -> None:
        self._engine = engine
        self._resource_prices = resource_prices
        self._charged_by = hashlib.sha256(repr(resource_prices).encode()).hexdigest()
        self._queries = Queries(engine)
        self._latest_points = LatestPoints(self._queries)
        self._with_rules = with_rules
        self._version = 2 * ROLLUP_VERSION + with_rules
        self._live_bills: dict[str, tuple[JobHistory, LiveBill]] = {}
        self._lock = Lock()
        self.cache: Final = RollupCache(engine)
        """Cache of sums over rows."""

    def roll_up(self, limit: int) -> int:
        """Write the rows of closed jobs without current ones, at most `limit`; return their number."""
        done = 0
        while done < limit and (stale := self._stale_ids(min(BATCH, limit - done))):
            self._write_rollups(stale)
            done += len(stale)
        return done

    def roll_up_job(self, job_id: str) -> None:
        """Write the rows of one closed job, unless they are current."""
        if self._stale_ids(1, jobs.c.id == job_id):
            self._write_rollups([job_id])

    def is_rolled_up(self, connection: Connection, job: Job) -> bool:
        """Whether the rows of an ended job are those of its newest event."""
        mine = ledgers.c.job_id == job.id, *self._is_current()
        return connection.execute(select(ledgers.c.seq).where(*mine)).scalar() == job.seq

    def pending(self) -> int:
        """The number of closed jobs without current rows."""
        with reading(self._engine) as connection:
            count: int = connection.execute(self._stale_jobs(func.count())).scalar_one()
        return count

    def live_jobs(self, now: datetime) -> list[LiveJob]:
        """All live jobs, with their bills until `now`."""
        query = select(jobs.c.id, jobs.c.seq).where(jobs.c.status.not_in(ENDED))
        with reading(self._engine) as connection:
            seqs = {row.id: row.seq for row in connection.execute(query)}
        reached = self._latest_points.get(seqs)
        with self._lock:
            cached = self._live_bills
        recharged = self._recharged(cached)
        found, unknown = dict[str, LiveJob](), list[str]()
        for job_id, seq in seqs.items():
            known, live_bill = cached.get(job_id, (None, None))
            points, account = reached[job_id], None
            if known and live_bill and known.seq == seq and job_id not in recharged:
                account = live_bill.bill_at(now, points)
            if known and live_bill and live_bill.charges and account:
                found[job_id] = LiveJob(known, points, account, live_bill.charges, live_bill)
            else:
                unknown.append(job_id)
        facts = self._queries.events(unknown)
        stores = self._known_stores(facts)
        for job_id, items in facts.items():
            item = self._compute(items, reached[job_id], now, stores[job_id])
            live_bill = LiveBill.from_events(
                item.bill, item.history.events, item.latest_points, item.charges
            )
            found[job_id] = replace(item, live_bill=live_bill)
        first = itertools.islice(found.items(), MAX_CACHED_JOBS)
        cacheable = {job_id: item.cacheable() for job_id, item in first}
        with self._lock:
            self._live_bills = {
                job_id: (known, live_bill)
                for job_id, (known, live_bill) in cacheable.items()
                if live_bill
            }
        return [found[job_id] for job_id in seqs if job_id in found]

    def recompute_job(self, job_id: str) -> LiveJob | None:
        """Compute the rows of one closed job from its log; None if it has no events."""
        return next(iter(self._recompute([job_id])), None)

    def end_charges(self, connection: Connection, job_id: str, now: datetime) -> None:
        """Write what the stored checkpoints of a closed job cost until now; later they cost nothing."""
        end_kept_storage(connection, job_id, to_ms(now))

    def _write_rollups(self, job_ids: Sequence[str]) -> None:
        before = self._queries.marks(job_ids)
        kept = self._recompute(job_ids)
        with writing(self._engine) as connection:
            marks = marks_of(connection, job_ids)
            stores = known_stores(
                connection, {item.history.job_id: item.charges.store for item in kept}
            )
            for item in kept:
                # Reports that arrived in the meantime are missing, and points change no event
                # number. Neither do requests to stores.
                job_id = item.history.job_id
                is_current = stores[job_id] == item.charges.known
                if is_current and marks.get(job_id) == before.get(job_id):
                    self._write(connection, item)

    def _stale_ids(self, limit: int, *which: ColumnElement[bool]) -> list[str]:
        stale = self._stale_jobs(jobs.c.id).where(*which).limit(limit)
        with reading(self._engine) as connection:
            return list(connection.execute(stale).scalars())

    def _stale_jobs(self, what: Any) -> Any:
        mine = and_(ledgers.c.job_id == jobs.c.id, *self._is_current())
        joined = jobs.outerjoin(ledgers, mine)
        old = or_(ledgers.c.seq.is_(None), ledgers.c.seq != jobs.c.seq)
        return select(what).select_from(joined).where(jobs.c.status.in_(ENDED), old)

    def _is_current(self) -> tuple[ColumnElement[bool], ...]:
        return ledgers.c.version == self._version, ledgers.c.charged_by == self._charged_by

    def _recompute(self, job_ids: Sequence[str]) -> list[LiveJob]:
        reached = self._queries.latest_points(job_ids)
        facts = self._queries.events(job_ids)
        stores = self._known_stores(facts)
        # An end closes all open parts, so that the time of this call does not matter.
        return [
            self._compute(items, reached.get(job_id, {}), items[-1].recorded_at, stores[job_id])
            for job_id, items in facts.items()
        ]

    def _compute(
        self,
        items: Sequence[RecordedEvent],
        points: Mapping[int, LatestPoint],
        now: datetime,
        store: KnownStore,
    ) -> LiveJob:
        """A job with its bill and charges, from all its events."""
        known = JobHistory.from_recorded(items)
        account = compute_bill(known.events, points, now, with_rules=self._with_rules)
        basis = ChargeBasis.from_events(known.events)
        charges = JobCharges.from_bill(account, basis, self._resource_prices, store)
        return LiveJob(known, points, account, charges)

    def _known_stores(
        self, facts: Mapping[str, Sequence[RecordedEvent]]
    ) -> Mapping[str, KnownStore]:
        stores = {
            job_id: store_url(item.event for item in items) for job_id, items in facts.items()
        }
        with reading(self._engine) as connection:
            return known_stores(connection, stores)

    def _recharged(self, cached: Mapping[str, tuple[JobHistory, LiveBill]]) -> set[str]:
        """Cached jobs whose stores have new requests of the service, or a new place."""
        before = {
            job_id: live_bill.charges
            for job_id, (_, live_bill) in cached.items()
            if live_bill.charges and live_bill.charges.store
        }
        if not before:
            return set()
        with reading(self._engine) as connection:
            requests, places = read_requests(connection, before), read_places(connection)
        return {
            job_id
            for job_id, charges in before.items()
            if requests.get(job_id, NO_USAGE) != charges.known.requests
            or place_in(places, charges.store) != charges.known.place
        }

    def _write(self, connection: Connection, item: LiveJob) -> None:
        known = item.history
        # Before its rows are deleted: a row that is written again gets a new number, even if it was
        # the last.
        last = select(func.coalesce(func.max(ledgers.c.number), 0))
        number = connection.execute(last).scalar_one() + 1
        for table in (ledgers, *_DETAILS):
            connection.execute(delete(table).where(table.c.job_id == known.job_id))
        row = {"job_id": known.job_id, "seq": known.seq, "version": self._version}
        words = {"name": known.name, "owner": known.owner, "project": known.project}
        kept = {"charged_by": self._charged_by, **kept_columns(item.charges.kept)}
        connection.execute(insert(ledgers).values(**row, **words, **kept, number=number))
        rows: dict[Any, list[dict[str, Any]]] = {
            ledger_tags: [
                {"job_id": known.job_id, "name": name, "value": value}
                for name, value in known.tags.items()
            ],
            ledger_shares: ledger_rows(item.ended_rows),
            ledger_placements: [placement_row(known, placement) for placement in item.placements],
            ledger_hours: [
                row for placement in item.placements for row in hour_rows(known, placement)
            ],
        }
        for table, values in rows.items():
            if values:
                connection.execute(insert(table), values)


def placement_row(known: JobHistory, placement: PlacementRecord) -> dict[str, Any]:
    """A row of `ledger_placements`."""
    names = (
        *("attempt", "part", "node", "node_group", "zone", "instance_type"),
        *("begin_ms", "end_ms"),
        *("detect_ms", "wait_ms"),
        *("setup_ms", "restore_ms", "redo_ms", "notice_ms", "lost_steps", "lost_ms", "lost_micros"),
    )
    return {
        "job_id": known.job_id,
        "project": known.project,
        "minutes": (placement.end_ms - placement.begin_ms) // 60_000,
        "end_hour": placement.end_ms // MS_PER_HOUR % 24,
        "cause": placement.listed_cause,
        "is_noticed": int(placement.is_noticed),
        "is_notice_used": int(placement.is_notice_used),
        "simulated": int(placement.simulated),
        "is_price_estimate": int(placement.is_price_estimate),
        **{name: getattr(placement, name) for name in names},
    }


def hour_rows(known: JobHistory, placement: PlacementRecord) -> Iterable[dict[str, Any]]:
    """Rows of `ledger_hours`."""
    for zone, hour, node_ms in placement.hours:
        yield {
            "job_id": known.job_id,
            "attempt": placement.attempt,
            "zone": zone,
            "hour": hour,
            "day_hour": hour % 24,
            "instance_type": placement.instance_type,
            "project": known.project,
            "node_ms": node_ms,
        }
