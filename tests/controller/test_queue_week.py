"""2,000 jobs of 20 users over a simulated week, through the journal: quotas hold in the event log."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.controller.queue_admission import AdmissionQueue
from holdfast.domain.access.audit import Actor
from holdfast.domain.events import Admitted, Event, Finished, LaunchRequested, Outcome, Submitted
from holdfast.domain.jobs.reconcile import ReconcileContext, decide
from holdfast.domain.queue.queue_state import QueueEntry, QueueState
from holdfast.domain.queue.quotas import Quota, QuotaScope
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from sqlalchemy import Engine
from support.events import DAWN, submitted
from support.fakes import FixedClock
from support.queue_simulation import QueueSimulation, backlog, exceeded, service_quota

USERS = 20
QUOTAS = (
    service_quota(256),
    *(Quota(scope=QuotaScope.USER, name=f"user-{n}", jobs=30, gpus=128) for n in range(USERS)),
    Quota(scope=QuotaScope.PROJECT, name="project-3", nodes=24, micros_per_hour=60_000_000),
)


class JournaledSimulation(QueueSimulation):
    """A simulation whose queue is that of the journal, and whose admissions are decided by the reconciler's functions."""

    def start(self, engine: Engine) -> None:
        self.clock = FixedClock()
        self.journal = Journal(engine, self.clock)
        self.queue = AdmissionQueue(self.journal.queue, LeaseTable(engine), self.clock)
        for quota in self.quotas:
            entry = Actor(name="admin").audit_action("quota.set", quota.name)
            self.journal.queue.set_quota(quota, entry)

    def step(self) -> None:
        self.clock.advance((self.now - self.clock.now()).total_seconds())
        self.queue.clear()
        for each in self.submissions:
            entry = each.entry
            if self.now - self.tick < entry.queued_at <= self.now:
                event = replace(submitted(), at=entry.queued_at, by=entry.owner, demand=entry.demand, project=entry.project)  # fmt: skip
                self.journal.submit(entry.job_id, event)
        super().step()

    def state(self) -> QueueState:
        return self.journal.queue.state()

    def _admit(self, entry: QueueEntry) -> None:
        job = self.journal.read(entry.job_id)
        context = ReconcileContext(admission=self.queue.admission(job))
        plan = decide(job, None, self.now, context)
        assert [type(event) for event in plan.record] == [Admitted, LaunchRequested]
        self.journal.append(job, plan.record)
        super()._admit(entry)

    def _release(self, job_id: str) -> None:
        end = Finished(at=self.now, outcome=Outcome.SUCCEEDED)
        self.journal.append(self.journal.read(job_id), [end])
        super()._release(job_id)


@pytest.mark.full
def test_no_quota_is_exceeded_in_a_week_of_2000_jobs(sqlite: Engine) -> None:
    simulation = JournaledSimulation(
        QUOTAS, backlog(7, users=USERS, jobs=2000), tick=timedelta(hours=3)
    )
    simulation.start(sqlite)

    simulation.run(DAWN + timedelta(days=7))

    submissions = dict[str, Submitted]()
    held = dict[str, Admitted]()
    kinds = Counter[type[Event]]()
    for item in Queries(sqlite).stream(after=0, limit=100_000):
        kinds[type(item.event)] += 1
        match item.event:
            case Submitted():
                submissions[item.job_id] = item.event
            case Admitted():
                held[item.job_id] = item.event
            case Finished():
                del held[item.job_id]
            case _:
                continue
        for quota in QUOTAS:
            mine = (
                each.demand
                for job_id, each in held.items()
                if quota.applies_to(submissions[job_id].project, submissions[job_id].by)
            )
            exceeded(quota, mine)
    assert kinds[Submitted] == 2000
    assert kinds[Admitted] == kinds[LaunchRequested] > 500
    assert len(simulation.journal.queue.state().holding) == len(held)
