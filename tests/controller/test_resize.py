"""A resized job is launched once, at its new launcher, whatever fails in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.domain.events import Resized
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.observation import Observation
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Launch
from support.events import at, pausing, resumed
from support.fakes import FileLauncher, FixedClock
from support.reconciler import NewReconcilerHarness, ReconcilerHarness


class FailingLauncher(FileLauncher):
    """A launcher at which one call fails, before or after it takes effect."""

    fails_at = ""
    launches: tuple[Launch, ...] = ()

    async def submit(self, launch: Launch) -> None:
        self._fail_once("before submit")
        self.launches = (*self.launches, launch)
        await super().submit(launch)
        self._fail_once("after submit")

    async def observe(self, key: str) -> Observation:
        self._fail_once("observe")
        return await super().observe(key)

    def _fail_once(self, where: str) -> None:
        if self.fails_at == where:
            self.fails_at = ""
            raise LauncherUnreachable("the connection was lost")


def resized() -> Resized:
    spec = {"name": "tiny-gpt", "run": "true", "num_nodes": 4, "resources": {"infra": "aws"}}
    return Resized(at=at(60), spec=spec, task="name: tiny-gpt\nnum_nodes: 4\nrun: 'true'\n")


def paused(home: ReconcilerHarness) -> Job:
    """The job after a launch and a pause."""
    home.sweep()
    home.journal.append(home.journal.read("job-1"), [pausing(5)])
    for _ in range(3):
        home.watches.make_due("job-1", home.clock.now())
        home.sweep()
    job = home.journal.read("job-1")
    assert (job.state, job.launch) == (State.PAUSED, 1)
    return job


@pytest.mark.parametrize("fails_at", ["", "before submit", "after submit", "observe"])
def test_resized_job_is_launched_once(
    new_harness: NewReconcilerHarness, tmp_path: Path, fails_at: str
) -> None:
    cloud = FailingLauncher(tmp_path / "cloud.jsonl", FixedClock(), runs_s=10_000)
    home = new_harness(cloud=cloud)
    cloud.clock = home.clock
    job = paused(home)
    cloud.fails_at = fails_at

    home.journal.append(job, [resized(), resumed(61)])
    home.watches.make_due("job-1", home.clock.now())
    for _ in range(5):
        home.sweep(20)

    after = home.journal.read("job-1")
    assert (after.engine, after.launch, after.placed) == (Engine.SKYPILOT, 2, True)
    assert [deed["key"] for deed in cloud.deeds() if deed["deed"] == "start"] == ["job-1-2"]
    assert {launch.task["num_nodes"] for launch in cloud.launches} == {4}
    assert {deed["key"] for deed in home.launcher.deeds()} == {"job-1-1"}
    assert after == home.journal.refold("job-1")


def test_job_that_is_resized_but_not_resumed_is_not_launched(
    new_harness: NewReconcilerHarness, tmp_path: Path
) -> None:
    cloud = FailingLauncher(tmp_path / "cloud.jsonl", FixedClock())
    home = new_harness(cloud=cloud)
    job = paused(home)

    home.journal.append(job, [resized()])
    home.watches.make_due("job-1", home.clock.now())
    home.sweep()

    assert home.journal.read("job-1").state is State.PAUSED
    assert cloud.deeds() == []


def test_lists_find_a_job_by_its_new_launcher(new_harness: NewReconcilerHarness) -> None:
    home = new_harness()
    job = paused(home)

    home.journal.append(job, [resized(), resumed(61)])

    assert home.watches.count(Engine.SKYPILOT) == 1
    assert home.watches.count(Engine.LOCAL) == 0
