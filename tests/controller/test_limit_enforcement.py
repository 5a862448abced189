"""The reconciler enforces limits in time, also during an outage, and lets the worker save."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from holdfast.controller import thread
from holdfast.controller.limit_enforcement import LATE_S
from holdfast.controller.reconciler import BATCH, PollIntervals
from holdfast.domain.access.audit import Actor
from holdfast.domain.budgets import Budget, BudgetScope
from holdfast.domain.events import CancelRequested, Guard, GuardTripped
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.guards import SAVE_GRACE_S
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.observation import Observation
from holdfast.errors import LauncherUnreachable
from holdfast_worker.protocol.reports import Json, ReportKind
from support.events import at, resumed, submitted
from support.fakes import FileLauncher
from support.reconciler import PACE, NewReconcilerHarness, said
from support.sql_log import statements


class UnreachableLauncher(FileLauncher):
    """A launcher that responds unless `dark` is set."""

    dark = False

    async def observe(self, key: str) -> Observation:
        if self.dark:
            raise LauncherUnreachable("no answer for 30 s")
        return await super().observe(key)


def test_job_beyond_its_limits_pauses_with_a_resume_hint(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(limits={"deadline": "4s"})

    for _ in range(4):
        home.sweep()

    job = home.journal.read("job-1")
    assert [type(event).__name__ for event in home.log()][2:] == [
        "NodesReady",
        "GuardTripped",
        "CapacityLost",
        "Paused",
    ]
    assert (job.state, job.detail) == (
        State.PAUSED,
        (
            "the deadline 2026-03-01 12:00:04Z passed before the job finished; "
            "resume with: holdfast resume job-1 --deadline 1h; "
            "without a checkpoint store the job restarts at step 0"
        ),
    )
    assert home.launcher.deeds()[-1]["deed"] == "cancel"


@pytest.mark.parametrize("limits", [{"max_cost_usd": 0.5}, {"deadline": "8m"}])
def test_cost_and_time_limits_trip_during_an_outage(
    new_harness: NewReconcilerHarness, limits: dict[str, Any]
) -> None:
    """The worker still reports, and can be asked to exit.

    A night of nodes costs more than any budget.
    """
    home = new_harness(UnreachableLauncher, limits=limits)
    home.launcher.runs_s = 9999
    home.sweep()
    home.sweep()
    before = home.journal.read("job-1").state

    home.launcher.dark = True
    for _ in range(10):
        home.sweep(60)

    job, [event] = home.journal.read("job-1"), home.log()[3:]
    assert before is State.STARTING
    assert (type(event), job.state) == (GuardTripped, State.PAUSING)
    assert home.reading.last_observation("job-1").error == "no answer for 30 s"
    assert home.launcher.deeds("job-1-1")[-1]["deed"] == "start", (
        "no worker can receive the request"
    )


def test_outage_does_not_count_as_time_without_nodes(new_harness: NewReconcilerHarness) -> None:
    home = new_harness(UnreachableLauncher, limits={"max_wait": "1m"})
    home.sweep()

    home.launcher.dark = True
    for _ in range(10):
        home.sweep(60)

    assert home.journal.read("job-1").state is State.PROVISIONING


def test_rare_polling_does_not_overrun_a_limit(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(pace=PollIntervals(poll_every_s=120), limits={"deadline": "130s"})
    home.launcher.runs_s = 9999
    home.sweep(120)

    home.sweep(10)
    due_at = home.watches.next_due()
    home.sweep()

    assert due_at == at(130)
    assert home.journal.read("job-1").state is State.PAUSING


def test_nodes_are_released_at_the_announced_deadline(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(
        pace=PollIntervals(poll_every_s=600), checkpoint={"store": "file:///tmp/checkpoints"}
    )
    home.launcher.saves_on_cancel = False
    home.launcher.runs_s = 9999
    home.launcher.says = [said(1, ReportKind.TRAINING_STARTED, step=0)]
    home.sweep(600)
    home.sweep(600)
    job = home.journal.read("job-1")
    home.journal.append(job, [CancelRequested(at=home.clock.now())])
    home.sweep(SAVE_GRACE_S)
    due_at, last_deed = home.watches.next_due(), home.launcher.deeds()[-1]["deed"]

    home.sweep()

    assert (due_at, last_deed) == (at(1200 + SAVE_GRACE_S), "start")
    assert home.launcher.deeds()[-1]["deed"] == "cancel"


def test_worker_with_a_store_gets_time_to_save(new_harness: NewReconcilerHarness) -> None:
    store = {"store": "file:///tmp/checkpoints"}
    home = new_harness(checkpoint=store)
    home.launcher.saves_on_cancel = False
    home.launcher.runs_s = 9999
    home.launcher.says = [said(1, ReportKind.TRAINING_STARTED, step=0)]
    home.sweep()
    home.sweep()
    job = home.journal.read("job-1")
    home.journal.append(job, [CancelRequested(at=home.clock.now())])

    home.sweep()
    during_grace = home.launcher.deeds()[-1]["deed"]
    body: dict[str, Json] = {"step": 9, "reason": "preempted", "exit_code": 75}
    home.launcher.says = [*home.launcher.says, said(2, ReportKind.WORKER_LEFT, **body)]
    home.sweep()

    assert (during_grace, home.launcher.deeds()[-1]["deed"]) == ("start", "cancel")


class HangingLauncher(FileLauncher):
    """A launcher whose observations never return."""

    async def observe(self, key: str) -> Observation:
        await asyncio.Event().wait()
        return await super().observe(key)


def test_limits_hold_while_observations_never_return(new_harness: NewReconcilerHarness) -> None:
    """This includes jobs whose observation was not started for lack of capacity."""
    limits = {"deadline": "30s"}
    home = new_harness(HangingLauncher, limits=limits)
    for number in range(BATCH + 1):
        home.journal.submit(f"job-x{number}", submitted(limits=limits))
    ids = home.watches.list_jobs()

    def are_held() -> bool:
        return all(home.journal.read(job_id).state is State.PAUSING for job_id in ids)

    async def run() -> None:
        nudged, stopped = asyncio.Event(), asyncio.Event()
        beating = asyncio.create_task(thread.run(home.reconciler, nudged, stopped, PACE))
        while not are_held():
            home.clock.advance(1)
            nudged.set()
            await asyncio.sleep(0.05)
        beating.cancel()

    asyncio.run(asyncio.wait_for(run(), timeout=120))

    assert {deed["deed"] for deed in home.launcher.deeds()} <= {"start"}


def test_job_is_checked_again_only_at_its_next_limit(new_harness: NewReconcilerHarness) -> None:
    home = new_harness(limits={"deadline": "1h"})
    home.clock.advance(10)
    held = home.reconciler.limit_enforcer

    with statements(home.engine) as during_grace:
        for _ in range(5):
            asyncio.run(held.enforce_all())
    home.clock.advance(3600)
    asyncio.run(held.enforce_all())

    assert sum("jobs.fold" in statement for statement in during_grace) == 1
    assert home.journal.read("job-1").tripped.startswith("the deadline ")


def test_limits_hold_while_the_lease_holder_is_stalled(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(limits={"deadline": "1s"})
    home.watches.claim(Engine.LOCAL, home.clock.now(), PACE.lease_s, 9)

    home.clock.advance(LATE_S + 1)
    asyncio.run(home.reconciler.limit_enforcer.enforce_all())

    assert home.watches.claim(Engine.LOCAL, home.clock.now(), PACE.lease_s, 9) == []
    assert home.journal.read("job-1").tripped.startswith("the deadline ")


def test_raised_budget_applies_at_once(new_harness: NewReconcilerHarness) -> None:
    home = new_harness()
    home.launcher.runs_s = 9999
    budgets, ada = home.journal.budgets, Actor(name="ada")
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1)
    home.step()
    home.clock.advance(5)
    home.step()
    budgets.set_budget(budget, ada.audit_action("budget.set", "x"))
    home.clock.advance(5)
    home.step()
    home.step()
    held = home.journal.read("job-1")

    budgets.set_budget(replace(budget, monthly_micros=10**9), ada.audit_action("budget.set", "x"))
    home.journal.append(held, [resumed(10)])
    home.step()

    job = home.journal.read("job-1")
    assert (held.state, held.guard) == (State.PAUSED, Guard.BUDGET)
    assert (job.state, job.launch) == (State.PROVISIONING, 2)
