"""The queue: in which order waiting jobs are admitted, and what each waits for.

Order: priority, then the owner's fair share, then age. Two rules bound the wait:

* A job that has waited for `PATIENCE` counts with the highest priority of all waiting jobs, so that only fair shares and age
  decide.
* If such a job does not fit, nothing that comes later in the order takes the room it waits for. Before that, smaller jobs may pass it.

The room of a job that is paused for another one of a higher priority is kept for that one in the same way.

The evaluation is a pure function of recorded facts. The journal checks the quotas again in the transaction that records an admission.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events import Admitted
from holdfast.domain.events.values import Demand
from holdfast.domain.queue.queue_state import (
    EXPECTED_RUN,
    QueueEntry,
    QueueState,
    usage_by_owner,
    weight,
)
from holdfast.domain.queue.quotas import (
    NOTHING_HELD,
    HeldShares,
    Quota,
    QuotaKind,
    QuotaScope,
    refusal,
)

PATIENCE: Final = timedelta(hours=24)
"""Wait after which a job counts as urgent. A lower value makes priorities and small gaps worth less; a higher value lets
jobs of low priority, and large ones, wait longer."""
SHOWN_BEFORE: Final = 3
"""Jobs that are named as those before a waiting one. A higher value makes sentences longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePosition:
    """The place of a waiting job in the queue."""

    entry: QueueEntry
    position: int
    """From 1."""
    is_admitted: bool
    """Whether there is room for it now."""
    reason: str = ""
    """What it waits for, as a sentence without full stop; empty if it is admitted."""
    shortage: str = ""
    """`reason` without the jobs before it."""
    quota: Quota | None = None
    """The quota without room; None if it is admitted."""
    behind: tuple[str, ...] = ()
    """The first jobs of its project before it that wait for the same quota."""
    before: int = 0
    """Number of all jobs before it that do."""
    never_fits: bool = False
    """Whether it exceeds a quota even without other jobs."""


@dataclass(frozen=True, slots=True)
class QueueAdmission:
    """Whether the quotas have room for a job that is about to be launched."""

    is_admitted: bool
    demand: Demand | None
    """What it would hold; None if that is unknown, so that it waits."""

    def events(self, queued_at: datetime | None, now: datetime) -> tuple[Admitted, ...]:
        """The admission of a job that waits since `queued_at`; nothing if it waits on."""
        if not self.is_admitted or self.demand is None:
            return ()
        waited = max(timedelta(), now - (queued_at or now))
        return (Admitted(at=now, demand=self.demand, waited_s=waited // timedelta(seconds=1)),)


def evaluate(state: QueueState) -> tuple[QueuePosition, ...]:
    """All waiting jobs in order, each with its admission or what it waits for."""
    room = _Room(state)
    return tuple(
        room.place(entry, number, is_urgent=state.at - entry.queued_at >= PATIENCE)
        for number, entry in enumerate(_ordered(state), 1)
    )


def held_by_quota(
    quotas: Iterable[Quota], holding: Iterable[QueueEntry]
) -> dict[tuple[QuotaScope, str], HeldShares]:
    """What is held of each quota."""
    held = {quota.key: NOTHING_HELD for quota in quotas}
    for each in holding:
        for key in quota_keys(each):
            if key in held:
                held[key] = held[key].plus(each.demand)
    return held


def quota_keys(entry: QueueEntry) -> tuple[tuple[QuotaScope, str], ...]:
    """The keys of the quotas that may count a job, the widest last."""
    return (
        (QuotaScope.USER, entry.owner),
        (QuotaScope.PROJECT, entry.project),
        (QuotaScope.SERVICE, "all"),
    )


def _ordered(state: QueueState) -> Iterator[QueueEntry]:
    """Waiting jobs in the order of admission: each turn counts for its owner, admitted or not."""
    top = max((each.priority for each in state.waiting), default=0)

    def rank(entry: QueueEntry) -> tuple[int, datetime, str]:
        is_urgent = state.at - entry.queued_at >= PATIENCE
        return -(top if is_urgent else entry.priority), entry.queued_at, entry.job_id

    lines = defaultdict[str, deque[QueueEntry]](deque)
    for entry in sorted(state.waiting, key=rank):
        lines[entry.owner].append(entry)
    hours = EXPECTED_RUN / timedelta(hours=1)
    share = defaultdict[str, float](float, usage_by_owner(state))
    for each in state.holding:
        share[each.owner] += weight(each.demand) * hours

    def turn(owner: str) -> tuple[int, float, datetime, str, str]:
        priority, queued_at, job_id = rank(lines[owner][0])
        return priority, share[owner], queued_at, job_id, owner

    turns = [turn(owner) for owner in lines]
    heapq.heapify(turns)
    while turns:
        owner = heapq.heappop(turns)[-1]
        entry = lines[owner].popleft()
        yield entry
        share[owner] += weight(entry.demand) * hours
        if lines[owner]:
            heapq.heappush(turns, turn(owner))


class _Room:
    """What is left of the quotas while jobs are admitted one after the other."""

    def __init__(self, state: QueueState) -> None:
        self._quotas = {quota.key: quota for quota in state.quotas}
        self._held = held_by_quota(state.quotas, state.holding)
        self._reserved: dict[tuple[QuotaScope, str, QuotaKind], str] = {}
        """The urgent job for which the rest of a quota is kept."""
        self._waiting = defaultdict[tuple[QuotaScope, str], int](int)
        """Jobs so far that wait for a quota."""
        self._named = defaultdict[tuple[tuple[QuotaScope, str], str], list[str]](list)
        """The first of them, by project."""
        self._awaits_pauses = {each.paused_for for each in state.holding if each.paused_for}
        """Waiting jobs for which others are pausing."""

    def place(self, entry: QueueEntry, position: int, *, is_urgent: bool) -> QueuePosition:
        """Admit the next job in the order if there is room."""
        quotas = [self._quotas[key] for key in quota_keys(entry) if key in self._quotas]
        if no := refusal(quotas, entry.demand):
            quota = next(each for each in quotas if each.never_fits(entry.demand))
            return QueuePosition(
                entry=entry, position=position, is_admitted=False, reason=f"it {no}", shortage=f"it {no}", quota=quota, never_fits=True
            )  # fmt: skip
        lacking = [
            (quota, kind)
            for quota in quotas
            for kind in quota.lacking(self._held[quota.key], entry.demand)
        ]
        kept = [
            (quota, kind)
            for quota in quotas
            for kind in QuotaKind
            if (*quota.key, kind) in self._reserved and NOTHING_HELD.plus(entry.demand).amount(kind)
        ]
        if not lacking and not kept:
            for quota in quotas:
                self._held[quota.key] = self._held[quota.key].plus(entry.demand)
            return QueuePosition(entry=entry, position=position, is_admitted=True)
        if is_urgent or entry.job_id in self._awaits_pauses:
            for quota, kind in lacking:
                self._reserved.setdefault((*quota.key, kind), entry.job_id)
        return self._waits(entry, position, *(lacking or kept)[0])

    def _waits(
        self, entry: QueueEntry, position: int, quota: Quota, kind: QuotaKind
    ) -> QueuePosition:
        count, named = self._waiting[quota.key], self._named[quota.key, entry.project]
        before = tuple(named)
        self._waiting[quota.key] += 1
        if len(named) < SHOWN_BEFORE:
            named.append(entry.job_id)
        needed = kind.text(NOTHING_HELD.plus(entry.demand).amount(kind))
        limit = kind.text(quota.limit(kind) or 0)
        held = kind.text(self._held[quota.key].amount(kind))
        reason = f"waits for {needed} of {quota.description}, of which {held} of {limit} are held"
        keeper = self._reserved.get((*quota.key, kind))
        if keeper not in {None, entry.job_id}:
            reason += "; the rest is kept for a job that has waited longer"
        if entry.job_id in self._awaits_pauses:
            reason += "; jobs of a lower priority are pausing for it"
        shortage = reason
        if count:
            others = count - len(before)
            more = f"{others:,} {'job' if others == 1 else 'jobs'}{' more' * bool(before)}"
            names = [*before, *([more] if others else [])]
            reason += f"; behind {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"
        return QueuePosition(
            entry=entry,
            position=position,
            is_admitted=False,
            reason=reason,
            shortage=shortage,
            quota=quota,
            behind=before,
            before=count,
        )
