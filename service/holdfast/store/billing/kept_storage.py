"""What closed jobs keep in their checkpoint stores, as amounts of sums at any time.

The amount of each job grows with time and is rounded down once, so that sums over jobs equal the sums of their bills. Neither can
the database add them up: the products do not fit into a column. They are a few integers for each job, which are read once. Sums by
day advance all jobs together from midnight to midnight, since there may be a year of days for each job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from holdfast.domain.billing.allocation import MS_PER_DAY, day_of
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.charges.charge_shares import PER_STORAGE, KeptStorage
from holdfast.store.billing.charge_rows import kept_storage
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.rollup_cache import Only, RollupCache
from holdfast.store.tables.billing import ledger_tags, ledgers

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A closed job whose stored checkpoints cost more as time passes."""

    job_id: str
    name: str
    owner: str
    project: str
    kept: KeptStorage


@dataclass(frozen=True, slots=True)
class KeptJobs:
    """All of them, as a cached answer of any size."""

    jobs: tuple[KeptJob, ...]


@dataclass(frozen=True, slots=True)
class TagValues:
    """Their values of a tag by job, as a cached answer of any size."""

    values: dict[str, str]


@dataclass(slots=True)
class KeptAmount:
    """What stored checkpoints add to a sum."""

    key: str
    label: str
    part: str
    job_id: str
    """The job, if the sum is of one job."""
    micros: int = 0
    is_unpriced: bool = False


def kept_amounts(cache: RollupCache, question: CostRequest, now: datetime) -> list[KeptAmount]:
    """The amounts until now by key and part; those of 0 are omitted unless no price is known."""
    found: KeptJobs = cache.get("kept jobs", _read_jobs, lambda a, b: KeptJobs(a.jobs + b.jobs))
    projects = question.projects
    jobs = [job for job in found.jobs if projects is None or job.project in projects]
    if not jobs:
        return []
    tags = _read_tags(cache, question.tag) if GroupBy.TAG in question.dimensions else {}
    begin_ms = _midnight_ms(question.since) if question.since else 0
    end_ms = to_ms(now)
    if question.until is not None:
        end_ms = min(end_ms, _midnight_ms(question.until) + MS_PER_DAY)
    if GroupBy.DAY in question.dimensions:
        return list(_amounts_by_day(jobs, tags, question, begin_ms, end_ms))
    return list(_amounts(jobs, tags, question, begin_ms, end_ms))


def _amounts(
    jobs: Iterable[KeptJob],
    tags: Mapping[str, str],
    question: CostRequest,
    begin_ms: int,
    end_ms: int,
) -> Iterable[KeptAmount]:
    sums: dict[tuple[str, str], KeptAmount] = {}
    by, then_by, is_named = question.by, question.then_by, question.by is GroupBy.JOB
    for job in jobs:
        kept = job.kept
        if end_ms <= kept.since_ms:
            continue
        micros = kept.micros_until(end_ms)
        if begin_ms > kept.since_ms:
            micros -= kept.micros_until(begin_ms)
        is_unpriced = kept.unit_micros is None
        if micros or is_unpriced:
            key, part = _key(job, by, tags), _key(job, then_by, tags) if then_by else ""
            if (known := sums.get((key, part))) is None:
                label = job.name if is_named else ""
                known = sums[key, part] = KeptAmount(key, label, part, job.job_id)
            known.micros += micros
            known.is_unpriced |= is_unpriced
    return sums.values()


def _key(job: KeptJob, by: GroupBy | None, tags: Mapping[str, str]) -> str:
    """Key of a job in one dimension. Stored checkpoints are of no attempt and in no zone."""
    match by:
        case GroupBy.JOB:
            return job.job_id
        case GroupBy.ATTEMPT:
            return f"{job.job_id}/0"
        case GroupBy.USER:
            return job.owner
        case GroupBy.PROJECT:
            return job.project
        case GroupBy.TAG:
            return tags.get(job.job_id, "")
        case _:
            return ""


def _amounts_by_day(
    jobs: Sequence[KeptJob],
    tags: Mapping[str, str],
    question: CostRequest,
    begin_ms: int,
    end_ms: int,
) -> Iterator[KeptAmount]:
    part_of = question.then_by if question.by is GroupBy.DAY else question.by
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(_key(job, part_of, tags), len(numbers)) for job in jobs]
    days = DailyAmounts(len(numbers), begin_ms, end_ms)
    for job, group in zip(jobs, groups, strict=True):
        days.add(job.kept, group)
    for (number, group), micros in sorted(days.sums().items()):
        is_unpriced = days.is_unpriced(number, group)
        if micros or is_unpriced:
            day, part = day_of(number * MS_PER_DAY).isoformat(), list(numbers)[group]
            names = (day, "", part) if question.by is GroupBy.DAY else (part, "", day)
            yield KeptAmount(*names, "", micros, is_unpriced)


class _DailyJob(NamedTuple):
    """A job from its first midnight on."""

    first: int
    """The day that begins then."""
    group: int
    rate: int
    """Growth in a millisecond: micro-dollars times `PER_STORAGE`."""
    rest: int
    """What the rounding left of the amount until then."""
    daily: tuple[int, int]
    """Quotient and remainder of a whole day."""


class DailyAmounts:
    """Amounts of stored checkpoints by day, in groups, from one time to another.

    A day is a number of days since 1970. Each job has a remainder of a micro-dollar at midnight, and its amount of a whole day is
    the same quotient each time, or one micro-dollar more. Both are exact in 64 bits, because the divisor is less than 2**62.
    """

    def __init__(self, groups: int, begin_ms: int, end_ms: int) -> None:
        self._groups = groups
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._sums: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._unpriced: dict[int, int] = {}
        self._jobs: list[_DailyJob] = []

    def add(self, kept: KeptStorage, group: int) -> None:
        """Add the stored checkpoints of a job."""
        begin_ms = max(self._begin_ms, kept.since_ms)
        if begin_ms >= self._end_ms:
            return
        first = begin_ms // MS_PER_DAY
        if kept.unit_micros is None:
            self._unpriced[group] = min(first, self._unpriced.get(group, first))
            return
        rate = kept.kept_bytes * kept.unit_micros
        rest = (kept.rest + rate * (begin_ms - kept.since_ms)) % PER_STORAGE
        midnight_ms = -(-begin_ms // MS_PER_DAY) * MS_PER_DAY
        until_ms = min(midnight_ms, self._end_ms)
        micros, rest = divmod(rest + rate * (until_ms - begin_ms), PER_STORAGE)
        self._sums[first, group] += micros
        if midnight_ms >= self._end_ms:
            return
        daily = divmod(rate * MS_PER_DAY, PER_STORAGE)
        self._jobs.append(_DailyJob(midnight_ms // MS_PER_DAY, group, rate, rest, daily))

    def is_unpriced(self, day: int, group: int) -> bool:
        """Whether a group stored something on a day for which no price is known."""
        return day >= self._unpriced.get(group, day + 1)

    def sums(self) -> dict[tuple[int, int], int]:
        """Micro-dollars by day and group; to be called once, after the last job."""
        last, left_ms = divmod(self._end_ms, MS_PER_DAY)
        for group, first in self._unpriced.items():
            for day in range(first, last + (left_ms > 0)):
                self._sums[day, group] += 0
        if self._jobs:
            self._add_whole_days(last, left_ms)
        return dict(self._sums)

    def _add_whole_days(self, last: int, left_ms: int) -> None:
        """Add the days from the first midnight of each job on, the last of which has `left_ms`."""
        jobs = sorted(self._jobs, key=lambda job: job.first)
        firsts = [job.first for job in jobs]
        groups = _integers(job.group for job in jobs)
        rests = _integers(job.rest for job in jobs)
        quotients, remainders = (
            _integers(part) for part in zip(*(job.daily for job in jobs), strict=True)
        )
        for day in range(firsts[0], last):
            count = bisect_right(firsts, day)
            rests[:count] += remainders[:count]
            carries = (rests[:count] >= PER_STORAGE).astype(np.int64)
            rests[:count] -= PER_STORAGE * carries
            micros = np.zeros(self._groups, np.int64)
            np.add.at(micros, groups[:count], quotients[:count] + carries)
            for group, amount in enumerate(micros.tolist()):
                self._sums[day, group] += amount
        if left_ms:
            for job, rest in zip(jobs, rests.tolist(), strict=True):
                self._sums[last, job.group] += (rest + job.rate * left_ms) // PER_STORAGE


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _midnight_ms(day: date) -> int:
    return to_ms(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _read_jobs(connection: Connection, only: Only) -> KeptJobs:
    query = select(ledgers).where(ledgers.c.kept_bytes > 0)
    if only is not None:
        query = query.where(ledgers.c.job_id.in_(only))
    return KeptJobs(
        tuple(
            KeptJob(row.job_id, row.name, row.owner, row.project, kept_storage(row))
            for row in connection.execute(query)
        )
    )


def _read_tags(cache: RollupCache, name: str) -> Mapping[str, str]:
    """The values of a tag of closed jobs, by job."""

    def read(connection: Connection, only: Only) -> TagValues:
        query = select(ledger_tags.c.job_id, ledger_tags.c.value).where(ledger_tags.c.name == name)
        query = query.join(ledgers, ledgers.c.job_id == ledger_tags.c.job_id)
        query = query.where(ledgers.c.kept_bytes > 0)
        if only is not None:
            query = query.where(ledger_tags.c.job_id.in_(only))
        return TagValues({row.job_id: row.value for row in connection.execute(query)})

    found: TagValues = cache.get(
        ("kept tags", name), read, lambda a, b: TagValues({**a.values, **b.values})
    )
    return found.values
