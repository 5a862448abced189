"""Files of local jobs are deleted some time after the end, and never while a process runs."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from holdfast.background.launch_expiry import expire, run_launch_expiry
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.local import launch_dir
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.launchers.local.launcher import LocalLauncher
from holdfast.ports import Launch
from support.events import at
from support.fakes import FixedClock

PLACED = {"zone": "a", "nodes": 1, "micros_per_hour": 5, "on_demand_micros_per_hour": 9}
ENDED = LaunchEntry(
    at(2), LaunchEntryKind.ENDED, {"outcome": Outcome.SUCCEEDED, "exit_code": 0, "detail": ""}
)
RECORD = {"history.jsonl", "lock"}
CLIMATE = MarketParameters(
    seed=0, provision_s=0, denial_rate=0, mtbf_s=0, notice_s=0, spot_micros=1, on_demand_micros=1
)


def launched(home: Path, key: str, *lines: LaunchEntry, nodes_in: Path | None = None) -> LaunchDir:
    """A started launch, with files of every kind."""
    folder = LaunchDir(home / "launches" / key)
    folder.create()
    if nodes_in:
        nodes_in.mkdir()
        folder.link_attempts(nodes_in)
    for line in (
        LaunchEntry(at(0), LaunchEntryKind.BEGUN),
        LaunchEntry(at(1), LaunchEntryKind.PLACED, PLACED),
        *lines,
    ):
        folder.history.append(line)
    for path in (folder.snapshot, folder.spool, folder.node(1, 0).workdir):
        path.mkdir(parents=True)
        (path / "file").write_text("some bytes")
    (folder.node(1, 0).workdir / "link").symlink_to(home)
    folder.node(1, 0).log.write_text("hello")
    folder.log.touch()
    return folder


class FileLauncherStub:
    """A launcher with the files of one launch."""

    def __init__(self) -> None:
        self.is_discarded = threading.Event()

    def keys_with_files(self) -> list[str]:
        return ["job-1"]

    def discard(self, key: str) -> None:
        assert key == "job-1"
        self.is_discarded.set()


def names(folder: LaunchDir) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


@pytest.fixture
def launcher(tmp_path: Path) -> LocalLauncher:
    return LocalLauncher(tmp_path, CLIMATE)


def test_files_of_long_ended_jobs_are_removed(tmp_path: Path, launcher: LocalLauncher) -> None:
    old, new, live = (launched(tmp_path, f"{job}-1", ENDED) for job in ("old", "new", "live"))
    ends: dict[str, datetime] = {"old": at(2), "new": at(9)}

    expire(launcher, ends.get, at(5))

    assert names(old) == RECORD
    assert launcher.keys_with_files() == ["live-1", "new-1"]
    assert all("workdir" in names(folder) for folder in (new, live))


def test_a_service_expires_files_of_launchers_that_keep_any() -> None:
    stub = FileLauncherStub()

    async def run() -> bool:
        expiry = asyncio.create_task(
            run_launch_expiry(
                [(object(), timedelta(days=1)), (stub, timedelta(days=1))],
                {"job": at(2)}.get,
                FixedClock(at(2) + timedelta(days=2)),
            )
        )
        is_discarded = await asyncio.to_thread(stub.is_discarded.wait, 60)
        expiry.cancel()
        return is_discarded

    assert asyncio.run(run())


def test_launch_without_files_stays_known(tmp_path: Path, launcher: LocalLauncher) -> None:
    folder = launched(tmp_path, "job-1", ENDED)
    before = asyncio.run(launcher.observe("job-1"))

    launcher.discard("job-1")
    asyncio.run(
        launcher.submit(
            Launch(key="job-1", job_id="job", first_attempt=1, task={"run": "true"}, max_failures=1)
        )
    )

    assert asyncio.run(launcher.observe("job-1")) == before
    assert before.status is LaunchStatus.ENDED
    assert asyncio.run(launcher.logs("job-1")) == []
    assert names(folder) <= RECORD


def test_unfinished_launch_keeps_its_files(tmp_path: Path, launcher: LocalLauncher) -> None:
    """Its supervisor died, and its processes may run until the launch is observed."""
    folder = launched(tmp_path, "job-1")
    before = names(folder)

    launcher.discard("job-1")

    assert names(folder) == before | {"lock"}


def test_a_launch_keeps_its_files_while_its_lock_is_held(
    tmp_path: Path, launcher: LocalLauncher
) -> None:
    folder = launched(tmp_path, "job-1", ENDED)
    holder = launch_dir.acquire_lock(folder.lock)
    assert holder is not None
    before = names(folder)

    launcher.discard("job-1")

    os.close(holder)
    assert names(folder) == before


def test_launch_that_never_started_cannot_start_later(
    tmp_path: Path, launcher: LocalLauncher
) -> None:
    folder = LaunchDir(tmp_path / "launches" / "job-1")
    folder.snapshot.mkdir(parents=True)

    launcher.discard("job-1")

    assert names(folder) == {"cancel", "lock"}
    assert asyncio.run(launcher.observe("job-1")).status is LaunchStatus.ENDED


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_node_folder_of_confined_job_expires_with_launch(
    tmp_path: Path, launcher: LocalLauncher, is_interrupted: bool
) -> None:
    nodes = tmp_path / "nodes-of-job-1"
    folder = launched(tmp_path, "job-1", ENDED, nodes_in=nodes)
    if is_interrupted:  # It lies between the directory and the link to it.
        for path in sorted(nodes.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        nodes.rmdir()

    launcher.discard("job-1")

    assert not nodes.exists()
    assert names(folder) == RECORD
