"""Bills and histories of jobs that have ended, kept in rows that can be added up; those of live jobs, as of now.

A row is a cache of what follows from the log. It is believed while it was made of the job's newest fact by this version's
reckoning; else it is made again, by whoever comes first: the bookkeeper beside the loop, or whoever asks for sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Engine, and_, delete, func, insert, or_, select

from holdfast.domain.chapters import Chapter, chapters_of, losses_recorded
from holdfast.domain.events import Event, Outcome, Submitted
from holdfast.domain.ledger import Bill, Reached, bill
from holdfast.domain.running import open_from
from holdfast.domain.shares import Share, shares_of
from holdfast.domain.tariff import MS_PER_HOUR
from holdfast.store.database import reading, writing
from holdfast.store.journal import Recorded
from holdfast.store.living import Living
from holdfast.store.reading import Reading
from holdfast.store.schema import (
    jobs,
    ledger_hours,
    ledger_placements,
    ledger_shares,
    ledger_tags,
    ledgers,
)

RECKONING: Final = 1
"""Raised whenever the same facts give other rows, so that those of before are made again."""
BATCH: Final = 20
"""Jobs whose rows are written in one transaction. Smaller: more transactions; bigger: other writers wait longer."""
AT_ONCE: Final = 200
"""Jobs that somebody who asks for sums waits for. Bigger: he waits for seconds after an upgrade, instead of being told
how many are missing."""
MOST_IN_MIND: Final = 2000
"""Jobs that have not ended of which it is known what is over. Fewer: those beyond are reckoned from their log each time; more: memory,
some 100 kB for each."""
LONGEST_TAG: Final = 200
"""Characters of a tag, and of its value, that sums tell apart. Bigger: more than an index of PostgreSQL can hold."""
ENDED: Final = tuple(str(outcome) for outcome in Outcome)
_DETAILS: Final = (ledger_tags, ledger_shares, ledger_placements, ledger_hours)


@dataclass(frozen=True, slots=True)
class Known:
    """The facts of a job, as far as they were read."""

    facts: tuple[Event, ...]
    recorded_at: Mapping[int, datetime]
    """When the losses in them were written down, by attempt."""
    seq: int


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One job, of which rows are made."""

    job_id: str
    seq: int
    name: str
    owner: str
    project: str
    tags: Mapping[str, str]
    known: Known
    reached: Mapping[int, Reached]
    account: Bill
    living: Living | None = None
    """What is known of it from before; None where that is nothing."""

    @cached_property
    def rows(self) -> Sequence[tuple[Share, Mapping[str, Any]]]:
        """Its bill in pieces, each with its row of `ledger_shares`."""
        if (living := self.living) is None:
            return self._with_rows(shares_of(self.account))
        begin = open_from(self.account)
        if living.rows is None:
            over = (share for share in shares_of(self.account) if 0 < share.attempt < begin)
            living.rows = self._with_rows(over)
        return [*living.rows, *self._with_rows(shares_of(self.account, begin))]

    @cached_property
    def chapters(self) -> Sequence[Chapter]:
        """What became of its placements."""
        known, recorded_at = self.known, self.known.recorded_at
        if (living := self.living) is None:
            return chapters_of(known.facts, recorded_at, self.reached, self.account)
        # The last one that is over is told with what came after it.
        begin = open_from(self.account) - 1
        if living.chapters is None:
            whole = chapters_of(known.facts, recorded_at, self.reached, self.account)
            living.late = [fact for fact in known.facts if getattr(fact, "attempt", 0) >= begin]
            living.chapters = [chapter for chapter in whole if chapter.attempt < begin]
        late = chapters_of(living.late, recorded_at, self.reached, self.account, begin)
        return [*living.chapters, *late]

    def _with_rows(self, shares: Iterable[Share]) -> list[tuple[Share, Mapping[str, Any]]]:
        return [(share, share_row(self, share)) for share in shares]


class Ledgers:
    """What all jobs have cost, and what became of their nodes."""

    def __init__(self, engine: Engine, *, with_rules: bool = True) -> None:
        self._engine = engine
        self._reading = Reading(engine)
        self._with_rules = with_rules
        self._version = 2 * RECKONING + with_rules
        self._known: dict[str, tuple[Known, Living]] = {}
        self._alone = Lock()

    def settle(self, limit: int) -> int:
        """How many jobs that have ended were put into rows: at most `limit`, those that had none or old ones."""
        done = 0
        while done < limit and (stale := self._stale(min(BATCH, limit - done))):
            kept = self._reckon(stale)
            with writing(self._engine) as connection:
                for item in kept:
                    self._write(connection, item)
            done += len(stale)
        return done

    def pending(self) -> int:
        """How many jobs that have ended are not in rows as they are now."""
        with reading(self._engine) as connection:
            count: int = connection.execute(self._stale_jobs(func.count())).scalar_one()
        return count

    def live(self, now: datetime) -> list[Kept]:
        """Those jobs that have not ended, reckoned until `now`."""
        query = select(jobs.c.id, jobs.c.seq).where(jobs.c.status.not_in(ENDED))
        with reading(self._engine) as connection:
            seqs = {row.id: row.seq for row in connection.execute(query)}
        reached = self._reading.reached(seqs)
        with self._alone:
            minded = self._known
        found, unknown = dict[str, Kept](), list[str]()
        for job_id, seq in seqs.items():
            known, living = minded.get(job_id, (None, None))
            points = reached.get(job_id, {})
            account = living.at(now, points) if known and living and known.seq == seq else None
            if known is None or account is None:
                unknown.append(job_id)
            else:
                found[job_id] = self._kept(job_id, known, points, account, living)
        for job_id, items in self._reading.facts(unknown).items():
            known, points = _knowing(items), reached.get(job_id, {})
            account = bill(known.facts, points, now, with_rules=self._with_rules)
            living = Living.of(account, known.facts, points)
            found[job_id] = self._kept(job_id, known, points, account, living)
        with self._alone:
            self._known = {
                job_id: (item.known, item.living)
                for job_id, item in itertools.islice(found.items(), MOST_IN_MIND)
                if item.living
            }
        return [found[job_id] for job_id in seqs if job_id in found]

    def rows_of(self, job_id: str) -> Kept | None:
        """What the rows say of one job that has ended, reckoned from its log instead of read; None if it has no facts."""
        return next(iter(self._reckon([job_id])), None)

    def _stale(self, limit: int) -> list[str]:
        with reading(self._engine) as connection:
            return list(connection.execute(self._stale_jobs(jobs.c.id).limit(limit)).scalars())

    def _stale_jobs(self, what: Any) -> Any:
        mine = and_(ledgers.c.job_id == jobs.c.id, ledgers.c.version == self._version)
        joined = jobs.outerjoin(ledgers, mine)
        old = or_(ledgers.c.seq.is_(None), ledgers.c.seq != jobs.c.seq)
        return select(what).select_from(joined).where(jobs.c.status.in_(ENDED), old)

    def _reckon(self, job_ids: Sequence[str]) -> list[Kept]:
        reached = self._reading.reached(job_ids)
        facts = self._reading.facts(job_ids)
        kept = []
        for job_id, items in facts.items():
            known, points = _knowing(items), reached.get(job_id, {})
            # An end closes all that was open, so that it does not matter when this is asked.
            now = items[-1].recorded_at
            account = bill(known.facts, points, now, with_rules=self._with_rules)
            kept.append(self._kept(job_id, known, points, account))
        return kept

    def _kept(
        self,
        job_id: str,
        known: Known,
        reached: Mapping[int, Reached],
        account: Bill,
        living: Living | None = None,
    ) -> Kept:
        submitted = known.facts[0]
        assert isinstance(submitted, Submitted)
        told: Mapping[str, str] = (submitted.spec.get("holdfast") or {}).get("tags") or {}
        tags = {name[:LONGEST_TAG]: value[:LONGEST_TAG] for name, value in told.items()}
        return Kept(
            job_id=job_id,
            seq=known.seq,
            name=submitted.name,
            owner=submitted.by,
            project=submitted.project,
            tags=tags,
            known=known,
            reached=reached,
            account=account,
            living=living,
        )

    def _write(self, connection: Connection, item: Kept) -> None:
        for table in (ledgers, *_DETAILS):
            connection.execute(delete(table).where(table.c.job_id == item.job_id))
        row = {"job_id": item.job_id, "seq": item.seq, "version": self._version}
        words = {"name": item.name, "owner": item.owner, "project": item.project}
        connection.execute(insert(ledgers).values(**row, **words))
        rows: dict[Any, list[dict[str, Any]]] = {
            ledger_tags: [
                {"job_id": item.job_id, "name": name, "value": value}
                for name, value in item.tags.items()
            ],
            ledger_shares: [dict(row) for _, row in item.rows],
            ledger_placements: [placement_row(item, chapter) for chapter in item.chapters],
            ledger_hours: [row for chapter in item.chapters for row in hour_rows(item, chapter)],
        }
        for table, values in rows.items():
            if values:
                connection.execute(insert(table), values)


def _knowing(items: Sequence[Recorded]) -> Known:
    pairs = [(item.event, item.recorded_at) for item in items]
    return Known(tuple(event for event, _ in pairs), losses_recorded(pairs), items[-1].seq)


def share_row(item: Kept, share: Share) -> dict[str, Any]:
    """A row of `ledger_shares`."""
    phases = ("setup", "restore", "useful", "stalled", "lost")
    return {
        "job_id": item.job_id,
        "attempt": share.attempt,
        "zone": share.zone,
        "day": share.day.isoformat(),
        "waiting_ms": share.waiting_ms,
        **{f"{phase}_ms": getattr(share.ms, phase) for phase in phases},
        "node_ms": share.node_ms,
        **{f"{phase}_micros": getattr(share.micros, phase) for phase in phases},
        "adjusted_micros": share.adjusted_micros,
        "on_demand_micros": share.on_demand_micros,
        "simulated": int(share.simulated),
        "is_price_estimate": int(share.is_price_estimate),
    }


def placement_row(item: Kept, chapter: Chapter) -> dict[str, Any]:
    """A row of `ledger_placements`."""
    names = (
        *("attempt", "zone", "instance_type", "begin_ms", "end_ms", "detect_ms", "wait_ms"),
        *("setup_ms", "restore_ms", "redo_ms", "notice_ms", "lost_steps", "lost_ms", "lost_micros"),
    )
    return {
        "job_id": item.job_id,
        "project": item.project,
        "minutes": (chapter.end_ms - chapter.begin_ms) // 60_000,
        "end_hour": chapter.end_ms // MS_PER_HOUR % 24,
        "cause": chapter.cause.value if chapter.cause else None,
        "is_noticed": int(chapter.is_noticed),
        "is_notice_used": int(chapter.is_notice_used),
        "simulated": int(chapter.simulated),
        "is_price_estimate": int(chapter.is_price_estimate),
        **{name: getattr(chapter, name) for name in names},
    }


def hour_rows(item: Kept, chapter: Chapter) -> Iterable[dict[str, Any]]:
    """Rows of `ledger_hours`."""
    for zone, hour, node_ms in chapter.hours:
        yield {
            "job_id": item.job_id,
            "attempt": chapter.attempt,
            "zone": zone,
            "hour": hour,
            "day_hour": hour % 24,
            "instance_type": chapter.instance_type,
            "project": item.project,
            "node_ms": node_ms,
        }
