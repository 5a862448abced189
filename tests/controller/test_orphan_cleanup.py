"""Orphans at a launcher are found, recorded with their job, and cleared once removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from holdfast.controller import orphan_cleanup
from holdfast.controller.reconciler import PollIntervals
from holdfast.controller.thread import run
from holdfast.domain.events import Cause
from holdfast.errors import LauncherUnreachable
from holdfast.ports import OrphanedResource
from support.events import at, finished, launched, lost, ready, submitted
from support.fakes import FileLauncher
from support.reconciler import NewReconcilerHarness, ReconcilerHarness


@dataclass
class OrphaningLauncher(FileLauncher):
    """A launcher with orphans."""

    strangers: tuple[OrphanedResource, ...] = ()
    orphans: list[OrphanedResource] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    live: dict[str, bool | None] = field(default_factory=dict)
    """The result of the last sweep for each of `keys`."""
    silent: bool = False
    swept: asyncio.Event | None = None

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        if self.swept:
            self.swept.set()
        if self.silent:
            raise LauncherUnreachable("no answer for 30 s")
        self.live = {key: is_live(key) for key in self.keys}
        return self.orphans


def orphan(
    key: str | None = "job-1-1", *, what: str = "cluster hf-1 in aws", stopped: bool = False
) -> OrphanedResource:
    return OrphanedResource(key=key, description=what, since=at(70), stopped=stopped)


@pytest.fixture
def home(new_harness: NewReconcilerHarness) -> ReconcilerHarness:
    """A controller with an ended job, and a launcher with orphans."""
    home = new_harness(OrphaningLauncher)
    job = home.journal.read("job-1")
    home.journal.append(job, [launched(1), ready(2), finished(60)])
    return home


def sweep(home: ReconcilerHarness, *orphans: OrphanedResource) -> list[str]:
    """The events recorded by a sweep that finds `strays`."""
    home.launcher.orphans = [*orphans]
    asyncio.run(home.reconciler.orphan_cleaner.sweep())
    return [type(event).__name__ for event in home.log()[4:]]


def test_orphans_that_run_are_counted_until_the_next_sweep(home: ReconcilerHarness) -> None:
    cleaner = home.reconciler.orphan_cleaner
    assert sum(cleaner.running().values()) == 0

    sweep(home, orphan(), orphan(None, what="another"), orphan(what="gone", stopped=True))

    assert sum(cleaner.running().values()) == 2
    home.launcher.silent = True
    sweep(home)
    assert sum(cleaner.running().values()) == 2, "the failed sweep says nothing"
    home.launcher.silent = False
    sweep(home)
    assert sum(cleaner.running().values()) == 0


def test_orphan_of_an_ended_job_is_recorded_once(home: ReconcilerHarness) -> None:
    first, again = sweep(home, orphan()), sweep(home, orphan())

    assert first == again == ["CleanupFailed"]
    job = home.journal.read("job-1")
    assert (job.status, job.warning) == (
        "succeeded",
        "nodes may still be billed: cluster hf-1 in aws",
    )
    assert home.log()[-1].at == at(70)


def test_orphan_is_cleared_on_removal_and_recorded_on_return(
    home: ReconcilerHarness,
) -> None:
    sweep(home, orphan())
    gone = sweep(home, orphan(stopped=True))
    still_gone = sweep(home, orphan(stopped=True))
    warning = home.journal.read("job-1").warning
    back = sweep(home, orphan())

    assert gone == still_gone == ["CleanupFailed", "CleanedUp"]
    assert warning == ""
    assert back == ["CleanupFailed", "CleanedUp", "CleanupFailed"]


def test_orphan_found_and_stopped_at_once_is_recorded(
    home: ReconcilerHarness,
) -> None:
    assert sweep(home, orphan(stopped=True)) == ["CleanupFailed", "CleanedUp"]
    assert sweep(home, orphan(stopped=True)) == ["CleanupFailed", "CleanedUp"]
    assert home.journal.read("job-1").warning == ""


def test_two_orphans_are_two_warnings(home: ReconcilerHarness) -> None:
    sweep(home, orphan(), orphan(what="disk b"))
    sweep(home, orphan(stopped=True), orphan(what="disk b"))

    assert home.journal.read("job-1").warning == "nodes may still be billed: disk b"


def test_orphan_of_an_earlier_launch_is_recorded(
    home: ReconcilerHarness,
) -> None:
    forgotten = lost(3, cause=Cause.LAUNCHER_FORGOT)
    again = [launched(1), ready(2), forgotten, launched(4, launch=2)]
    home.journal.append(home.journal.submit("job-2", submitted()), again)

    sweep(home, orphan("job-2-1"), orphan("job-2-2", what="cluster b"))
    left = home.journal.read("job-2").warning
    sweep(home, orphan("job-2-1", stopped=True), orphan("job-2-2", what="cluster b"))

    assert left == "nodes may still be billed: cluster hf-1 in aws"
    assert home.journal.read("job-2").warning == ""


def test_orphan_without_an_ended_job_is_only_logged(
    home: ReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    home.journal.append(home.journal.submit("job-2", submitted()), [launched(1)])

    sweep(
        home, orphan(None), orphan("job-2-1", what="cluster b"), orphan("job-9-1", what="cluster c")
    )

    assert home.journal.read("job-2").warning == ""
    assert "orphaned resource of an unknown launch: cluster hf-1 in aws" in caplog.text
    assert "orphaned resource of job-2-1: cluster b" in caplog.text
    assert "orphaned resource of job-9-1: cluster c" in caplog.text


def test_newest_launch_is_live_and_an_unrecorded_one_unknown(home: ReconcilerHarness) -> None:
    relaunched = [
        launched(1),
        ready(2),
        lost(3, cause=Cause.LAUNCHER_FORGOT),
        launched(4, launch=2),
    ]
    home.journal.append(home.journal.submit("job-2", submitted()), relaunched)
    home.launcher.keys = ("job-1-1", "job-2-1", "job-2-2", "job-2-3", "job-9-1", "job-2-x")

    sweep(home)

    assert home.launcher.live == {
        "job-1-1": False,
        "job-2-1": False,
        "job-2-2": True,
        "job-2-3": None,
        "job-9-1": None,
        "job-2-x": None,
    }


def test_failed_sweep_records_no_orphans(
    home: ReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    home.launcher.silent = True

    assert sweep(home, orphan()) == []
    assert "orphan sweep at local failed: no answer for 30 s" in caplog.text


def test_launcher_without_sweep_support_is_skipped(new_harness: NewReconcilerHarness) -> None:
    asyncio.run(new_harness().reconciler.orphan_cleaner.sweep())


def test_reconciler_sweeps_periodically(home: ReconcilerHarness) -> None:
    async def advance_loop() -> None:
        nudged, stopped = asyncio.Event(), asyncio.Event()
        home.launcher.swept = asyncio.Event()
        beating = asyncio.create_task(
            run(home.reconciler, nudged, stopped, PollIntervals(sweep_every_s=0.001))
        )
        for _ in range(3):
            await home.launcher.swept.wait()
            home.launcher.swept.clear()
        stopped.set()
        nudged.set()
        await beating

    asyncio.run(asyncio.wait_for(advance_loop(), timeout=120))


def test_error_in_one_sweep_does_not_stop_later_sweeps(caplog: pytest.LogCaptureFixture) -> None:
    class FailingCleanup:
        swept: asyncio.Event

        async def sweep(self) -> None:
            self.swept.set()
            raise ZeroDivisionError("a bug of ours")

    async def advance_loop() -> None:
        failing = FailingCleanup()
        failing.swept = asyncio.Event()
        sweeps = asyncio.create_task(orphan_cleanup.run_sweeps(failing, 0.001))
        for _ in range(3):
            await failing.swept.wait()
            failing.swept.clear()
        sweeps.cancel()

    asyncio.run(asyncio.wait_for(advance_loop(), timeout=120))

    assert "unexpected error in the orphan sweep; next sweep in 0.001 s" in caplog.text
