"""A local launch is started once, also if its key is submitted twice at the same time."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.local import launch_dir, submission
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.ports import Launch

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LAUNCH = Launch(key="job-1", job_id="job", first_attempt=1, task={"run": "true"}, max_failures=1)


@pytest.fixture
def folder(tmp_path: Path) -> LaunchDir:
    return LaunchDir(tmp_path / "launches" / "job-1")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of launches whose supervisor was started."""
    keys: list[str] = []

    def start(folder: LaunchDir, spec: LaunchSpec, holder: int) -> None:
        keys.append(folder.path.name)

    monkeypatch.setattr(submission, "_start", start)
    monkeypatch.setattr(submission, "_wait_for_start", lambda folder: None)
    return keys


def submit(folder: LaunchDir, home: Path) -> None:
    submission.submit(folder, LAUNCH, MarketParameters(), home, None)


def test_launch_is_started(folder: LaunchDir, started: list[str], tmp_path: Path) -> None:
    submit(folder, tmp_path)

    assert started == ["job-1"]


def test_cancelled_launch_is_not_started(
    folder: LaunchDir, started: list[str], tmp_path: Path
) -> None:
    folder.tombstone(NOW)

    submit(folder, tmp_path)

    assert started == []


def test_launch_cancelled_while_waiting_for_a_lock_never_starts(
    folder: LaunchDir, started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same applies if another submitter has started the launch in the meantime."""

    def acquire(path: Path) -> int | None:
        folder.tombstone(NOW)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    monkeypatch.setattr(launch_dir, "acquire_lock", acquire)

    submit(folder, tmp_path)

    assert started == []


def test_launch_whose_lock_is_held_is_not_started(
    folder: LaunchDir, started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "LIMIT_S", 0.1)
    folder.create()
    holder = launch_dir.acquire_lock(folder.lock)
    assert holder is not None

    with pytest.raises(LauncherUnreachable, match="another service has held the lock"):
        submit(folder, tmp_path)

    os.close(holder)
    assert started == []
