"""Managed jobs, by the plainest means: launched with SkyPilot's command line, watched in its own database."""

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
"""Longest wait for a job to get anywhere. A launch takes 50 s on an idle machine, and five minutes on a very busy one."""
ASK_AGAIN_S: Final = 10.0
"""Between two cancels of everything. Longer waits for a job that came late; shorter keeps the server busy with them."""
ENDS: Final = frozenset(
    {
        *("SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS"),
        *("FAILED_NO_RESOURCE", "FAILED_CONTROLLER"),
    }
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One change of a job's status."""

    status: str
    at: datetime
    reason: str
    code: str | None
    """None unless SkyPilot blames somebody, as in USER_JOB_FAILURE."""


class ManagedJob:
    """One job of SkyPilot's."""

    def __init__(self, cloud: FakeAws, job_id: int) -> None:
        self.cloud = cloud
        self.id = job_id

    @classmethod
    def launch(cls, cloud: FakeAws, task: Mapping[str, Any]) -> ManagedJob:
        """A job that was taken on; it starts later."""
        file = cloud.place.run / f"{task['name']}.yaml"
        file.write_text(json.dumps(task))  # JSON is YAML.
        result = cloud.exec(["sky", "jobs", "launch", "--yes", "--detach-run", file])
        found = re.search(r"Managed Job ID: *(?:\x1b\[\d+m)*(\d+)", result.stdout)
        assert found, result.stdout
        return cls(cloud, int(found[1]))

    def history(self) -> list[Turn]:
        """What SkyPilot wrote down of it, oldest first."""
        rows = _read(
            self.cloud,
            "SELECT new_status, timestamp, reason, code FROM job_events"
            " WHERE spot_job_id = ? ORDER BY timestamp, id",
            self.id,
        )
        return [
            Turn(status, datetime.fromisoformat(at).replace(tzinfo=UTC), reason, code)
            for status, at, reason, code in rows
        ]

    def statuses(self) -> list[str]:
        """Every status it had, in order."""
        return [turn.status for turn in self.history()]

    def until(self, status: str, times: int = 1) -> Turn:
        """The moment at which it had reached a status so many times.

        Raises:
            AssertionError: it has ended in another, or takes too long.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            turns = [turn for turn in self.history() if turn.status == status]
            if len(turns) >= times:
                return turns[times - 1]
            ended = ENDS & set(self.statuses())
            assert not ended, f"ended before it was {status} {times} times: {self.history()}"
            assert time.monotonic() < deadline_s, f"never {status} {times} times: {self.history()}"
            time.sleep(0.5)

    def cancel(self) -> None:
        """Its end, and that of its machines."""
        self.cloud.exec(["sky", "jobs", "cancel", "--yes", str(self.id)])
        self.until("CANCELLED")

    def logs(self) -> str:
        """What its present machines have printed; those of earlier ones are gone with them."""
        words = ["sky", "jobs", "logs", "--no-follow", str(self.id)]
        return self.cloud.exec(words, check=False).stdout


def cancel_all(cloud: FakeAws) -> None:
    """Every job has ended, and no machine is left."""
    deadline_s = time.monotonic() + PATIENCE_S
    asked_s = -ASK_AGAIN_S
    while (busy := _busy(cloud)) or cloud.instances():
        assert time.monotonic() < deadline_s, f"does not end: {busy} {cloud.instances()}"
        if busy and time.monotonic() - asked_s > ASK_AGAIN_S:
            # Again and again: a launch request that still waits in line makes its job after all others are cancelled.
            cloud.exec(["sky", "jobs", "cancel", "--yes", "--all-users"], check=False)
            asked_s = time.monotonic()
        time.sleep(0.5)


def _busy(cloud: FakeAws) -> list[tuple[Any, ...]]:
    """Jobs that SkyPilot still does something about."""
    # One that was cancelled before SkyPilot began it stays INACTIVE for ever.
    asked = (
        "SELECT job_info.spot_job_id, schedule_state, status FROM job_info JOIN spot USING (spot_job_id)"
        " WHERE schedule_state NOT IN ('DONE', 'INACTIVE') OR (schedule_state = 'INACTIVE' AND status != 'CANCELLED')"
    )
    return _read(cloud, asked)


def _read(cloud: FakeAws, asked: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of SkyPilot's database; none before there is one."""
    database = cloud.place.home / ".sky" / "spot_jobs.db"
    if not database.exists():
        return []
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute(asked, values).fetchall()
    finally:
        connection.close()
