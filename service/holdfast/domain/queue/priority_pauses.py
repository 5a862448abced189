"""Which running jobs are paused for waiting ones of a higher priority. Pure.

Their work is saved. Only where the quota of their project allows it. The choice is a pure function of recorded facts, like the order of the queue:

* Only the first waiting job of a quota may have others paused. Otherwise the room would go to another one.
* Those of the lowest priority are paused first, and of these the youngest; never one of the same or a higher priority.
* No more than needed, counting jobs that already release their share. If all of them would not suffice, none is paused.
* A job that was paused for another one before runs for `MIN_RUN` before the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.domain.queue.admission import QueuePosition, held_by_quota, quota_keys
from holdfast.domain.queue.queue_state import QueueEntry, QueueState
from holdfast.domain.queue.quotas import HeldShares, Quota, QuotaScope

MIN_RUN: Final = timedelta(minutes=30)
"""Time for which a job holds its share before it is paused again for another one. A lower value spends more on starts and saves
than on training; a higher value lets jobs of high priority wait longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseCandidate:
    """A running job that may be paused, with its share."""

    entry: QueueEntry
    pauses: int = 0
    """How often it was paused for other jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityPause:
    """A job that is to be paused for another one."""

    job_id: str
    for_job: str
    priority: int
    """Of the other job."""


def may_pause(state: QueueState) -> frozenset[str]:
    """The projects whose quota allows pauses for priorities."""
    return frozenset(
        quota.name
        for quota in state.quotas
        if quota.scope is QuotaScope.PROJECT and quota.may_pause_for_priority
    )


def pausable(state: QueueState, positions: Sequence[QueuePosition]) -> list[QueueEntry]:
    """The shares of a lower priority than a waiting job of a project that allows pauses."""
    highest = dict[str, int]()
    for place in positions:
        project = place.entry.project
        if not place.is_admitted and project in may_pause(state):
            highest[project] = max(place.entry.priority, highest.get(project, place.entry.priority))
    return [
        each
        for each in state.holding
        if not each.is_leaving and each.priority < highest.get(each.project, each.priority)
    ]


def choose_pauses(
    state: QueueState,
    positions: Sequence[QueuePosition],
    candidates: Mapping[str, PauseCandidate],
) -> tuple[PriorityPause, ...]:
    """The jobs that are to be paused now; `candidates` are those of `pausable` that may be."""
    return tuple(_Choice(state, candidates).of(positions))


class _Choice:
    """What is left of the quotas while room is made for one waiting job after the other."""

    def __init__(self, state: QueueState, candidates: Mapping[str, PauseCandidate]) -> None:
        self._state = state
        self._quotas = {quota.key: quota for quota in state.quotas}
        staying = [each for each in state.holding if not each.is_leaving]
        self._held = held_by_quota(state.quotas, staying)
        self._allowed = may_pause(state)
        ready = [each for each in candidates.values() if self._has_run(each)]
        self._candidates = [each.entry for each in sorted(ready, key=_order)]

    def of(self, positions: Sequence[QueuePosition]) -> Iterator[PriorityPause]:
        """The pauses for waiting jobs, which are in the order of the queue."""
        contended = set[tuple[QuotaScope, str]]()
        for place in positions:
            waiting = place.entry
            quotas = [self._quotas[key] for key in quota_keys(waiting) if key in self._quotas]
            if place.never_fits:
                continue
            if self._fits(waiting, quotas, ()):
                self._change(quotas, [], waiting)  # There is room, or it is about to be.
                continue
            paused = [] if contended & {quota.key for quota in quotas} else self._paused(waiting)
            if not paused:
                contended |= {quota.key for quota in quotas if any(self._lacking(waiting, quota))}
                continue
            self._change(quotas, paused, waiting)
            self._candidates = [each for each in self._candidates if each not in paused]
            for each in paused:
                yield PriorityPause(
                    job_id=each.job_id, for_job=waiting.job_id, priority=waiting.priority
                )

    def _has_run(self, candidate: PauseCandidate) -> bool:
        admitted_at = candidate.entry.admitted_at
        assert admitted_at is not None, "it holds a share"
        return not candidate.pauses or self._state.at - admitted_at >= MIN_RUN

    def _paused(self, waiting: QueueEntry) -> list[QueueEntry]:
        """The fewest candidates in their order that make room for a job; none if they cannot."""
        quotas = [self._quotas[key] for key in quota_keys(waiting) if key in self._quotas]
        if waiting.project not in self._allowed:
            return []
        chosen = list[QueueEntry]()
        for each in self._candidates:
            lower = each.project == waiting.project and each.priority < waiting.priority
            if lower and any(quota.key in quota_keys(each) for quota in quotas):
                chosen.append(each)
                if self._fits(waiting, quotas, chosen):
                    break
        if not self._fits(waiting, quotas, chosen):
            return []
        for each in list(reversed(chosen)):
            without = [other for other in chosen if other is not each]
            if self._fits(waiting, quotas, without):
                chosen = without
        return chosen

    def _fits(
        self, waiting: QueueEntry, quotas: Sequence[Quota], paused: Sequence[QueueEntry]
    ) -> bool:
        return not any(
            kind
            for quota in quotas
            for kind in quota.lacking(self._without(quota, paused), waiting.demand)
        )

    def _lacking(self, waiting: QueueEntry, quota: Quota) -> Iterator[object]:
        return quota.lacking(self._held[quota.key], waiting.demand)

    def _without(self, quota: Quota, paused: Sequence[QueueEntry]) -> HeldShares:
        held = self._held[quota.key]
        for each in paused:
            if quota.key in quota_keys(each):
                held = held.minus(each.demand)
        return held

    def _change(
        self, quotas: Sequence[Quota], paused: Sequence[QueueEntry], admitted: QueueEntry
    ) -> None:
        for quota in self._quotas.values():
            self._held[quota.key] = self._without(quota, paused)
        for quota in quotas:
            self._held[quota.key] = self._held[quota.key].plus(admitted.demand)


def _order(candidate: PauseCandidate) -> tuple[int, float, str]:
    entry = candidate.entry
    assert entry.admitted_at is not None, "it holds a share"
    return entry.priority, -entry.admitted_at.timestamp(), entry.job_id
