"""Simulated users who submit jobs for days, over the queue alone: no launcher, no database."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from holdfast.domain.events.values import Demand
from holdfast.domain.queue.admission import evaluate
from holdfast.domain.queue.queue_state import (
    DecayedUsage,
    QueueEntry,
    QueueState,
    held_gpu_hours,
)
from holdfast.domain.queue.quotas import Quota, QuotaScope
from support.events import DAWN

TICK = timedelta(minutes=20)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Submission:
    """A job of a simulated user."""

    entry: QueueEntry
    runs_for: timedelta


def submission(
    number: int,
    owner: str,
    at: datetime,
    *,
    gpus: int,
    hours: float,
    priority: int = 0,
) -> Submission:
    entry = QueueEntry(
        job_id=f"job-{number:05}",
        project=f"project-{owner[-1]}",
        owner=owner,
        priority=priority,
        queued_at=at,
        demand=Demand(nodes=max(1, gpus // 8), gpus=gpus, micros_per_hour=gpus * 1_000_000),
    )
    return Submission(entry, hours * HOUR)


def backlog(seed: int, *, users: int, jobs: int, largest: int = 32) -> list[Submission]:
    """Users with more work than fits, of different sizes; the first submits twice as much as the others."""
    rng = random.Random(seed)
    found = []
    for number in range(jobs):
        user = number % (users + 1) % users
        gpus = largest >> (user % 5)
        at = DAWN + timedelta(minutes=rng.randrange(24 * 60))
        hours = rng.uniform(0.7, 1.3) * 40 / gpus
        found.append(submission(number, f"user-{user}", at, gpus=gpus, hours=hours))
    return sorted(found, key=lambda each: each.entry.queued_at)


@dataclass
class QueueSimulation:
    """Admissions over time, at every tick."""

    quotas: tuple[Quota, ...]
    submissions: Sequence[Submission]
    now: datetime = DAWN
    tick: timedelta = TICK
    holding: dict[str, QueueEntry] = field(default_factory=dict)
    waits: dict[str, timedelta] = field(default_factory=dict)
    """Of admitted jobs."""
    hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Accelerator hours held so far, by user."""

    def __post_init__(self) -> None:
        self._runs_for = {each.entry.job_id: each.runs_for for each in self.submissions}
        self._coming = list(reversed(self.submissions))
        self.waiting: dict[str, QueueEntry] = {}
        self._ends: list[tuple[datetime, str]] = []
        self._used: dict[str, DecayedUsage] = {}

    def run(self, until: datetime) -> None:
        while self.now < until:
            self.step()

    def step(self) -> None:
        """End, submit and admit jobs, then advance by a tick."""
        while self._ends and self._ends[0][0] <= self.now:
            self._release(heapq.heappop(self._ends)[1])
        while self._coming and self._coming[-1].entry.queued_at <= self.now:
            entry = self._coming.pop().entry
            self.waiting[entry.job_id] = entry
        for place in evaluate(self.state()):
            if place.is_admitted:
                self._admit(place.entry)
        self._check()
        for entry in self.holding.values():
            self.hours[entry.owner] += entry.demand.gpus * (self.tick / HOUR)
        self.now += self.tick

    def state(self) -> QueueState:
        return QueueState(
            at=self.now,
            quotas=self.quotas,
            waiting=tuple(self.waiting.values()),
            holding=tuple(self.holding.values()),
            used={owner: usage.decayed(self.now) for owner, usage in self._used.items()},
        )

    def _admit(self, entry: QueueEntry) -> None:
        del self.waiting[entry.job_id]
        self.holding[entry.job_id] = replace(entry, admitted_at=self.now)
        self.waits[entry.job_id] = self.now - entry.queued_at
        heapq.heappush(self._ends, (self.now + self._runs_for[entry.job_id], entry.job_id))

    def _release(self, job_id: str) -> None:
        entry = self.holding.pop(job_id)
        assert entry.admitted_at
        before = self._used.get(entry.owner, DecayedUsage(gpu_hours=0, at=self.now))
        held = held_gpu_hours(entry.demand, entry.admitted_at, self.now)
        self._used[entry.owner] = DecayedUsage(
            gpu_hours=before.decayed(self.now) + held, at=self.now
        )

    def _check(self) -> None:
        """No quota is exceeded."""
        for quota in self.quotas:
            mine = [e for e in self.holding.values() if quota.applies_to(e.project, e.owner)]
            exceeded(quota, (entry.demand for entry in mine))


def exceeded(quota: Quota, demands: Iterable[Demand]) -> None:
    """Check that these shares together are within a quota."""
    held = list(demands)
    assert quota.jobs is None or len(held) <= quota.jobs
    assert quota.nodes is None or sum(each.nodes for each in held) <= quota.nodes
    assert quota.gpus is None or sum(each.gpus for each in held) <= quota.gpus
    total = sum(each.micros_per_hour for each in held)
    assert quota.micros_per_hour is None or total <= quota.micros_per_hour


def service_quota(gpus: int) -> Quota:
    return Quota(scope=QuotaScope.SERVICE, name="all", gpus=gpus)
