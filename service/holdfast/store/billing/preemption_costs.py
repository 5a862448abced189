"""How long nodes of a kind have lasted, as far as jobs of this service have had some.

What the market has taken, in other sums than by place: by the warning that it gave, and by the job that paid for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from sqlalchemy import ColumnElement, Connection, case, func, select
from sqlalchemy import Engine as Database

from holdfast.domain.jobfile.spec import Engine, engine_of
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, kind_of
from holdfast.domain.preemptions.placements import PlacementRecord
from holdfast.store import event_log
from holdfast.store.billing.bills import AT_ONCE, BillRollups, LiveJob
from holdfast.store.billing.preemptions import TAKEN_WORDS, LossQuestion, ends_within, meant
from holdfast.store.billing.rollup_cache import Only
from holdfast.store.database import reading
from holdfast.store.tables.billing import ledger_placements, ledgers
from holdfast.store.tables.jobs import job_events, jobs

NEWEST: Final = 200
"""Jobs that are looked through. Smaller forgets last month; bigger holds up whoever submits."""


def historical_lifetimes(database: Database, kind: str) -> HistoricalLifetimes:
    """What the newest jobs on nodes of a kind have had, `kind` being a `kind_of`."""
    newest = (
        select(jobs.c.id, jobs.c.fold, job_events.c.body)
        .join(job_events, (job_events.c.job_id == jobs.c.id) & (job_events.c.seq == 1))
        .order_by(jobs.c.submitted_at.desc())
        .limit(NEWEST)
    )
    node_ms = losses = 0
    with reading(database) as connection:
        for row in connection.execute(newest):
            resources = row.body["spec"].get("resources", {})
            if engine_of(resources) is not Engine.SKYPILOT or kind_of(resources) != kind:
                continue
            job = event_log.load(connection, row.id, row.fold)
            node_ms += job.account.node_ms
            losses += job.preemptions
    return HistoricalLifetimes(node_ms / 1000, losses)


SPANS_S: Final = ((0.0, 10.0), (10.0, 30.0), (30.0, 60.0), (60.0, 120.0), (120.0, None))
"""Warnings that are counted together: more than the one, and no more than the other, in seconds. AWS gives 120, GCP 30."""
_WITHOUT: Final = -1
_UNSAID: Final = -2


@dataclass(frozen=True, slots=True)
class NoticeHistogram:
    """Losses by their warning; a pair is of how many there were, and how many of those had work saved in between."""

    without: int
    unsaid: tuple[int, int]
    """Announced, and nobody said how much time was left."""
    told: tuple[tuple[int, int], ...]
    """By `SPANS_S`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPreemptionCost:
    """What one job has lost with nodes that were taken from it."""

    job_id: str
    name: str
    project: str
    taken: int
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int
    """How long it had no nodes after that, all together."""
    simulated: bool
    is_price_estimate: bool


class PreemptionCostQueries:
    """Sums over placements that were taken: those of jobs that have ended from rows, those of others as of now."""

    def __init__(self, ledgers: BillRollups) -> None:
        self._ledgers = ledgers

    def notices(self, question: LossQuestion, now: datetime) -> NoticeHistogram:
        """How much warning there was, as far as is asked."""
        self._ledgers.settle(AT_ONCE)
        key = "notices", question
        taken, used = self._ledgers.sums.of(key, partial(_read_notices, question), _both)
        taken, used = Counter(taken), Counter(used)
        for item in self._ledgers.live(now):
            for chapter in _taken(item, question):
                number = _span(chapter.notice_ms) if chapter.is_noticed else _WITHOUT
                taken[number] += 1
                used[number] += chapter.is_notice_used
        told = tuple((taken[n], used[n]) for n in range(len(SPANS_S)))
        return NoticeHistogram(taken[_WITHOUT], (taken[_UNSAID], used[_UNSAID]), told)

    def worst(self, question: LossQuestion, now: datetime, limit: int) -> list[JobPreemptionCost]:
        """The jobs whose lost work has cost the most, that one first; at most `limit`."""
        self._ledgers.settle(AT_ONCE)
        key = "tolls", question, limit
        read, more = partial(_read_tolls, question, limit), partial(_worst, limit)
        ended = self._ledgers.sums.of(key, read, more)
        live = (_toll_of(item, _taken(item, question)) for item in self._ledgers.live(now))
        return _worst(limit, ended, [toll for toll in live if toll.taken])


def _read_notices(
    question: LossQuestion, connection: Connection, only: Only
) -> tuple[Counter[int], Counter[int]]:
    """How many losses there were by their warning, and how many of those had work saved."""
    table = ledger_placements.c
    span = case(
        (table.is_noticed == 0, _WITHOUT),
        (table.notice_ms.is_(None), _UNSAID),
        *((table.notice_ms <= 1000 * until, n) for n, (_, until) in enumerate(SPANS_S) if until),
        else_=len(SPANS_S) - 1,
    ).label("span")
    query = select(span, func.count(), func.sum(table.is_notice_used)).group_by("span")
    query = query.where(*_meant(question, only))
    taken, used = Counter[int](), Counter[int]()
    for number, count, saved in connection.execute(query):
        taken[number], used[number] = int(count), int(saved)
    return taken, used


def _both(
    known: tuple[Counter[int], Counter[int]], more: tuple[Counter[int], Counter[int]]
) -> tuple[Counter[int], Counter[int]]:
    return known[0] + more[0], known[1] + more[1]


def _read_tolls(
    question: LossQuestion, limit: int, connection: Connection, only: Only
) -> list[JobPreemptionCost]:
    table = ledger_placements.c
    lost = func.sum(table.lost_micros)
    sums = [func.count(), *(func.sum(c) for c in (table.lost_steps, table.lost_ms)), lost]
    sums += [func.coalesce(func.sum(table.wait_ms), 0)]
    sums += [func.max(table.simulated), func.max(table.is_price_estimate)]
    query = select(table.job_id, ledgers.c.name, ledgers.c.project, *sums)
    query = query.join(ledgers, ledgers.c.job_id == table.job_id).where(*_meant(question, only))
    query = query.group_by(table.job_id, ledgers.c.name, ledgers.c.project)
    query = query.order_by(lost.desc(), func.count().desc(), table.job_id).limit(limit)
    return [_toll(*row) for row in connection.execute(query)]


def _meant(question: LossQuestion, only: Only) -> Iterator[ColumnElement[bool]]:
    yield ledger_placements.c.cause.in_(TAKEN_WORDS)
    yield from meant(ledger_placements, question, only)
    yield from ends_within(question)


def _worst(
    limit: int, known: Iterable[JobPreemptionCost], more: Iterable[JobPreemptionCost]
) -> list[JobPreemptionCost]:
    """The first of both; nobody is in both."""
    order = sorted([*known, *more], key=lambda toll: (-toll.lost_micros, -toll.taken, toll.job_id))
    return order[:limit]


def _taken(item: LiveJob, question: LossQuestion) -> list[PlacementRecord]:
    """The placements of a job that lives which were taken, as far as is asked."""
    if question.projects is not None and item.known.project not in question.projects:
        return []
    return [
        chapter
        for chapter in item.chapters
        if chapter.is_preempted
        and question.zone in (None, chapter.zone)
        and question.instance_type in (None, chapter.instance_type)
        and question.takes(chapter.end_ms)
    ]


def _toll_of(item: LiveJob, chapters: Iterable[PlacementRecord]) -> JobPreemptionCost:
    toll = _toll(item.known.job_id, item.known.name, item.known.project, *([0] * 7))
    for chapter in chapters:
        toll = replace(
            toll,
            taken=toll.taken + 1,
            lost_steps=toll.lost_steps + chapter.lost_steps,
            lost_ms=toll.lost_ms + chapter.lost_ms,
            lost_micros=toll.lost_micros + chapter.lost_micros,
            wait_ms=toll.wait_ms + (chapter.wait_ms or 0),
            simulated=toll.simulated or chapter.simulated,
            is_price_estimate=toll.is_price_estimate or chapter.is_price_estimate,
        )
    return toll


def _span(notice_ms: int | None) -> int:
    if notice_ms is None:
        return _UNSAID
    within = (
        n
        for n, (_, until_s) in enumerate(SPANS_S)
        if until_s is None or notice_ms <= 1000 * until_s
    )
    return next(within)


def _toll(job_id: str, name: str, project: str, *sums: int) -> JobPreemptionCost:
    taken, lost_steps, lost_ms, lost_micros, wait_ms, simulated, is_price_estimate = map(int, sums)
    return JobPreemptionCost(
        job_id=job_id,
        name=name,
        project=project,
        taken=taken,
        lost_steps=lost_steps,
        lost_ms=lost_ms,
        lost_micros=lost_micros,
        wait_ms=wait_ms,
        simulated=bool(simulated),
        is_price_estimate=bool(is_price_estimate),
    )
