"""Random faults of SkyPilot with node groups: no group starts twice, and nothing runs after its job ended.

A seed determines one scenario. FAULT_SEEDS sets the number of scenarios.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_skypilot import FaultyTransport
from fake_skypilot import Job as SkyJob
from fault_injection.faulty_ports import Crash
from fault_injection.faulty_skypilot import FaultySkyPilot
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import DrillRequested, Finished
from holdfast.domain.jobs.drills import group_drills, request_drill
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.errors import StaleWrite, StoreUnavailable
from holdfast.launchers.skypilot import NodeGroupLauncher
from holdfast.launchers.skypilot.group_history import GroupShape
from holdfast.launchers.skypilot.naming import group_key
from holdfast.ports import Launcher
from holdfast.store.launches import LaunchBook
from holdfast_worker.protocol.environment import Exit
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS
from support.skypilot.launcher import NAMES, launcher_over

SEEDS = max(1, FAULT_SEEDS // 12)
MOVES = 500
MAX_SWEEPS = 300
GROUPS = (GroupShape("head", 1), GroupShape("workers", 2))


class FaultyNodeGroups(FaultySkyPilot):
    """Jobs with two node groups, and the faults between them and SkyPilot."""

    id_prefix = "j0123456789a"

    def __init__(
        self, seed: int, engine: Engine, faulty_engine: Engine, folder: Path, *, gated: bool
    ) -> None:
        super().__init__(seed, engine, faulty_engine, folder, gated=gated)
        self._drills: dict[tuple[str, datetime], tuple[SkyJob, int, datetime]] = {}
        """Drills that node 0 has heard of: the managed job, its run, and when that ends."""

    async def move(self) -> None:
        if self.rng.random() < 0.05:
            self._request_drill()
        self._run_workers()
        await super().move()

    def _request_drill(self) -> None:
        jobs = [job for job in self.folds.values() if job.placed and job.groups]
        if not jobs:
            return
        job = self.rng.choice(jobs)
        notice_s, group = self.rng.choice([None, 30.0, 60.0]), self.rng.choice(GROUPS).name
        now = self.clock.now()
        if {*job.nodes_by_group[group]} & {*job.absent_nodes, *job.lost_nodes}:
            return
        request = request_drill(
            job, now, node=None, notice_s=notice_s, through_worker=True, group=group
        )
        with suppress(StaleWrite, StoreUnavailable, Crash):
            self.api.append(job, request)

    def _run_workers(self) -> None:
        """What the wrappers do: those of a group exit when a drill that node 0 has heard of is due."""
        now = self.clock.now()
        for job in self.folds.values():
            by_group = [self._managed(job, number) for number in range(len(GROUPS))]
            head = by_group[0]
            if head is None or head.status != "RUNNING":
                continue
            for drill in group_drills(job, job.attempt, now):
                managed = by_group[0 if 0 in drill.nodes else 1]
                if managed and (job.id, drill.requested_at) not in self._drills:
                    due = now + timedelta(seconds=drill.within_s)
                    self._drills[job.id, drill.requested_at] = managed, managed.runs, due
        for managed, run, due in self._drills.values():
            # A run ends once. What follows it is another one, which does not know of the drill.
            if now >= due and managed.runs == run and managed.status == "RUNNING":
                self._end_run(managed)

    def _end_run(self, managed: SkyJob) -> None:
        if self.state.jobs.get(managed.number) is managed:
            managed.runs += 1  # The program has exited, and SkyPilot has not noticed it yet.
            self.state.exit_program(managed, Exit.PREEMPTED, restarts=True)

    def _managed(self, job: Job, number: int) -> SkyJob | None:
        name = NAMES.job_name(group_key(job.launch_key, number))
        return next(iter(self.state.live(name)), None)

    def _nodes(self) -> dict[str, Any]:
        groups = [{"name": shape.name, "num_nodes": shape.nodes} for shape in GROUPS]
        return {"holdfast": {"groups": groups}}

    def _launcher(self, line: FaultyTransport, book: LaunchBook) -> Launcher:
        managed = launcher_over(line, book, self.folder, self.clock)
        return NodeGroupLauncher(managed, memory=book, groups_of=lambda _: GROUPS, clock=self.clock)

    def names_of(self, job: Job, launches: range) -> set[str]:
        return {
            NAMES.job_name(group_key(f"{job.id}-{launch}", number))
            for launch in launches
            for number in range(len(GROUPS))
        }


async def run_scenario(seed: int, engines: list[Engine], folder: Path, *, gated: bool) -> None:
    service = FaultyNodeGroups(seed, *engines, folder, gated=gated)
    for _ in range(MOVES):
        await service.move()
    await service.disable_faults()
    for number in range(MAX_SWEEPS):
        if all(job.state is State.ENDED for job in service.folds.values()):
            break
        if number == 40:
            service.cancel_all()
        replica = service.replicas[number % 2]
        await replica.reconciler.sweep()
        await replica.reconciler.orphan_cleaner.sweep()
        service.clock.advance(30)
        service.check()
    for job_id in service.folds:
        _check_history(service, job_id)


def _check_history(service: FaultyNodeGroups, job_id: str) -> None:
    """Check that the job ended once, and that its bill and its running cost agree."""
    log = [item.event for item in service.journal.events(job_id)]
    job = service.folds[job_id]
    requests = sum(isinstance(fact, DrillRequested) for fact in log)

    assert job.drills <= min(requests, job.preemptions)
    assert job.state is State.ENDED
    assert service.journal.read(job_id) == fold(job_id, log)
    assert sum(isinstance(fact, Finished) for fact in log) == 1
    service.check_gone(job)
    now = service.clock.now()
    bill = compute_bill(log, {}, now, with_rules=False)
    assert bill.paid_micros == job.account.paid_micros_by(now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_group_starts_twice_with_admission_plugin(
    fast_sqlite: list[Engine], tmp_path: Path, seed: int
) -> None:
    asyncio.run(run_scenario(seed, fast_sqlite, tmp_path, gated=True))


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 4)))
def test_groups_end_without_admission_plugin(
    fast_sqlite: list[Engine], tmp_path: Path, seed: int
) -> None:
    asyncio.run(run_scenario(seed, fast_sqlite, tmp_path, gated=False))
