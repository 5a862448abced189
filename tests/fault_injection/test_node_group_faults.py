"""Random faults of SkyPilot with node groups: no group starts twice, and nothing runs after its job ended.

A seed determines one scenario. FAULT_SEEDS sets the number of scenarios.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_skypilot import FaultyTransport
from fault_injection.faulty_skypilot import FaultySkyPilot
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import Finished
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.launchers.skypilot import NodeGroupLauncher
from holdfast.launchers.skypilot.group_history import GroupShape
from holdfast.launchers.skypilot.naming import group_key
from holdfast.ports import Launcher
from holdfast.store.launches import LaunchBook
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
