"""Managed jobs without Holdfast, launched by SkyPilot's command line."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from e2e.fake_aws.cloud import FakeAws

PATIENCE_S: Final = 600.0
"""Longest wait for a status.

A launch takes 50 s on an idle machine, and five minutes on a busy one.
"""
RETRY_S: Final = 10.0
"""Seconds between two cancellations of all jobs.

A higher value waits longer for late jobs; a lower value keeps the server busy.
"""
ENDS: Final = frozenset(
    {
        *("SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS"),
        *("FAILED_NO_RESOURCE", "FAILED_CONTROLLER"),
    }
)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One change of a job's status."""

    status: str
    at: datetime
    reason: str
    code: str | None
    """None unless SkyPilot records an error, such as USER_JOB_FAILURE."""


class ManagedJob:
    """One managed job of SkyPilot."""

    def __init__(self, cloud: FakeAws, job_id: int) -> None:
        self.cloud = cloud
        self.id = job_id

    @classmethod
    def launch(cls, cloud: FakeAws, task: Mapping[str, Any]) -> ManagedJob:
        """Launch a job, which starts later."""
        file = cloud.paths.run / f"{task['name']}.yaml"
        file.write_text(json.dumps(task))  # JSON is YAML.
        result = cloud.exec(["sky", "jobs", "launch", "--yes", "--detach-run", file])
        found = re.search(r"Managed Job ID: *(?:\x1b\[\d+m)*(\d+)", result.stdout)
        assert found, result.stdout
        return cls(cloud, int(found[1]))

    def history(self) -> list[StatusChange]:
        """The job's recorded status changes, oldest first."""
        rows = _read(
            self.cloud,
            "SELECT new_status, timestamp, reason, code FROM job_events"
            " WHERE spot_job_id = ? ORDER BY timestamp, id",
            self.id,
        )
        return [
            StatusChange(status, datetime.fromisoformat(at).replace(tzinfo=UTC), reason, code)
            for status, at, reason, code in rows
        ]

    def statuses(self) -> list[str]:
        """All statuses of the job, in order."""
        return [change.status for change in self.history()]

    def until(self, status: str, times: int = 1) -> StatusChange:
        """Wait until the job has had a status this many times.

        Raises:
            AssertionError: it has ended with another status, or takes too long.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            turns = [change for change in self.history() if change.status == status]
            if len(turns) >= times:
                return turns[times - 1]
            ended = ENDS & set(self.statuses())
            assert not ended, f"ended before it was {status} {times} times: {self.history()}"
            assert time.monotonic() < deadline_s, f"never {status} {times} times: {self.history()}"
            time.sleep(0.5)

    def cancel(self) -> None:
        """Cancel the job and wait until its machines are terminated."""
        self.cloud.exec(["sky", "jobs", "cancel", "--yes", str(self.id)])
        self.until("CANCELLED")

    def logs(self) -> str:
        """The output of the current machines; that of earlier ones is lost with them."""
        words = ["sky", "jobs", "logs", "--no-follow", str(self.id)]
        return self.cloud.exec(words, check=False).stdout


def cancel_all(cloud: FakeAws) -> None:
    """Cancel all jobs, and wait until no machine is left."""
    deadline_s = time.monotonic() + PATIENCE_S
    asked_s = -RETRY_S
    while (busy := _busy(cloud)) or cloud.instances():
        assert time.monotonic() < deadline_s, f"does not end: {busy} {cloud.instances()}"
        if busy and time.monotonic() - asked_s > RETRY_S:
            # Repeated: a queued launch request creates its job after all others were cancelled.
            cloud.exec(["sky", "jobs", "cancel", "--yes", "--all-users"], check=False)
            asked_s = time.monotonic()
        time.sleep(0.5)


def _busy(cloud: FakeAws) -> list[tuple[Any, ...]]:
    """Jobs that SkyPilot is still working on."""
    # A job that was cancelled before SkyPilot started it stays INACTIVE.
    asked = (
        "SELECT job_info.spot_job_id, schedule_state, status FROM job_info JOIN spot USING (spot_job_id)"
        " WHERE schedule_state NOT IN ('DONE', 'INACTIVE') OR (schedule_state = 'INACTIVE' AND status != 'CANCELLED')"
    )
    return _read(cloud, asked)


def _read(cloud: FakeAws, asked: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of SkyPilot's database; none before it exists."""
    database = cloud.paths.home / ".sky" / "spot_jobs.db"
    if not database.exists():
        return []
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute(asked, values).fetchall()
    finally:
        connection.close()
