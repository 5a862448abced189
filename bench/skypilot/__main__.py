"""Measures the overhead of Holdfast over SkyPilot. See README.md; run it with `make bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import SECRET, HoldfastService, start_gated
from e2e.fake_aws.jobs import ManagedJob, cancel_all
from e2e.fake_aws.paths import API
from holdfast.api.schemas.jobs import TaskIn
from holdfast.client import Client
from holdfast.clock import SystemClock
from holdfast.launchers.skypilot import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import QueueCache
from holdfast.launchers.skypilot.models import read_events
from holdfast.launchers.skypilot.naming import JobNames
from holdfast.store.identity.service_tokens import ServiceTokens

AS_IN_USE = {"HOLDFAST_SKYPILOT_LOOK_EVERY_S": "10", "HOLDFAST_SKYPILOT_LIST_EVERY_S": "30"}
"""The default intervals; tests use shorter ones."""
EVENTS_READ = 20
CHEAP = {"infra": "aws/us-east-1/us-east-1a", "instance_type": "m6i.large", "use_spot": True}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--preemptions", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args()
    cloud = FakeAws()
    with tempfile.TemporaryDirectory() as scratch:
        service = HoldfastService(Path(scratch), cloud.paths)
        service.environment |= AS_IN_USE
        try:
            start_gated(cloud)
            service.start()
            _launches(cloud, service, arguments.launches)
            _preemptions(cloud, service, arguments.preemptions)
            # A thousand jobs that the service never launched would be orphans.
            service.end(signal.SIGTERM)
            _fleet(cloud, arguments.jobs)
        finally:
            if service.process:
                service.end(signal.SIGTERM)
            cloud.stop()


def _launches(cloud: FakeAws, service: HoldfastService, count: int) -> None:
    """Measure from the submission until SkyPilot has the request, for both programs."""
    cloud.deny()
    print(f"\n== from the order until SkyPilot has the request ({count} launches each, seconds)")
    ids, ours, skypilot = [], [], []
    for number in range(count):
        began = datetime.now(UTC)
        ids.append(service.submit(name=f"ours-{number}", resources=CHEAP, run="true"))
        ours.append(_arrival(cloud, began))
        began = datetime.now(UTC)
        ManagedJob.launch(cloud, {"name": f"theirs-{number}", "resources": CHEAP, "run": "true"})
        skypilot.append(_arrival(cloud, began))
    _print("holdfast submit (command to request)", ours)
    _print("sky jobs launch (command to request)", skypilot)
    print(f"   ratio of the medians: {statistics.median(ours) / statistics.median(skypilot):.2f}")
    inner = []
    for number in range(count):
        job_id, seconds = _post_to_request(cloud, service, number)
        ids.append(job_id)
        inner.append(seconds)
    _print("POST /v1/jobs to the request (what the service adds; goal < 1)", inner)
    for job_id in ids:
        service.cli("cancel", job_id)
    for job_id in ids:
        service.wait_for(job_id, "Finished")
    cancel_all(cloud)
    cloud.allow_all()


def _post_to_request(cloud: FakeAws, service: HoldfastService, number: int) -> tuple[str, float]:
    """Submit over HTTP; return the job and the seconds until its request."""
    task = {"name": f"post-{number}", "resources": CHEAP, "run": "true"}
    with Client(service.environment["HOLDFAST_URL"]) as client:
        client.is_healthy()
        began = datetime.now(UTC)
        key = f"bench-{number}-{began.timestamp()}"
        job = client.jobs.submit(TaskIn(task=json.dumps(task), force=True), idempotency_key=key)
        return job.id, _arrival(cloud, began)


def _arrival(cloud: FakeAws, after: datetime) -> float:
    """Seconds until the first launch request that SkyPilot recorded after a time."""
    database = cloud.paths.home / ".sky" / "api_server" / "requests.db"
    query = "select created_at from requests where name = 'sky.jobs.launch' and created_at > ? order by created_at"
    found: list[Any] = []

    def look() -> bool:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as known:
            found[:] = known.execute(query, [after.timestamp()]).fetchall()
        return bool(found)

    _wait(look)
    return float(found[0][0]) - after.timestamp()


def _preemptions(cloud: FakeAws, service: HoldfastService, count: int) -> None:
    """Measure from SkyPilot's record of a loss until Holdfast's."""
    print(f"\n== from SkyPilot's record of a preemption until ours ({count}; goal: at most 15 s)")
    resources = {**CHEAP, "infra": "aws"}
    job_id = service.submit(name="preempted", resources=resources, run="sleep 3600")
    lags = []
    for number in range(1, count + 1):
        service.wait_for(job_id, "NodesReady", number)
        cloud.preempt()
        lost = service.wait_for(job_id, "CapacityLost", number)[-1]
        lost_at, recorded_at = (
            datetime.fromisoformat(lost[word]) for word in ("at", "recorded_at")
        )
        lags.append((recorded_at - lost_at).total_seconds())
    _print("lag", lags)
    service.cli("cancel", job_id)
    service.wait_for(job_id, "Finished")


def _fleet(cloud: FakeAws, count: int) -> None:
    """Measure a sweep over many running jobs in SkyPilot's database."""
    names = JobNames(ServiceTokens(None, SECRET.encode()).deployment)  # type: ignore[arg-type]
    ids = _populate(cloud, names, count)
    print(f"\n== a sweep over {count} running jobs")
    client = SkyPilotClient(API, user=names.user)
    listings = QueueCache(client, names, SystemClock(), every_s=30)

    some = ids[:EVENTS_READ]

    async def measure() -> None:
        with _costs(cloud, "one listing"):
            listing = await listings.refresh()
        assert len(listing.rows) >= count
        lines = 0
        # In sequence: the service sends one request every half second for any number of jobs.
        with _costs(cloud, f"events of {len(some)} jobs", per=len(some)):
            for number in some:
                wanted = {"job_id": number, "limit": 100, "include_cluster_events": True}
                lines += len(read_events(await client.read("/jobs/events", wanted)))
        assert lines >= len(some)

    asyncio.run(measure())
    with _costs(cloud, "sky jobs queue --all, for comparison"):
        cloud.exec(["sky", "jobs", "queue", "--all", "--all-users"])
    print("   (copies of one job, without clusters of their own)")


@contextmanager
def _costs(cloud: FakeAws, what: str, per: int = 1) -> Iterator[None]:
    """Print the duration of a block, and the CPU time here and in SkyPilot's server."""
    began, ours, skypilot = time.perf_counter(), _cpu(), cloud.api_server_cpu_s()
    yield
    seconds = time.perf_counter() - began
    here, there = _cpu() - ours, cloud.api_server_cpu_s() - skypilot
    each = f", {seconds / per:.2f} s each" if per > 1 else ""
    print(
        f"   {what}: {seconds:.2f} s{each}; CPU here {here:.2f} s, of SkyPilot's server {there:.2f} s"
    )


def _populate(cloud: FakeAws, names: JobNames, count: int) -> list[int]:
    """Insert copies of a job as running jobs with its history."""
    database = cloud.paths.home / ".sky" / "spot_jobs.db"
    with closing(sqlite3.connect(database, timeout=60)) as known:
        (like,) = known.execute(
            "select max(spot_job_id) from job_events where new_status='RECOVERING'"
        ).fetchone()
        assert like is not None, "no job was preempted whose history could be copied"
        first = known.execute("select max(spot_job_id) from job_info").fetchone()[0] + 1
        ids = list(range(first, first + count))
        for table, changes in (
            ("job_info", {"schedule_state": "ALIVE"}),
            ("spot", {"status": "RUNNING", "end_at": None}),
            ("job_events", {}),
        ):
            rows = _rows(known, table, like)
            for number in ids:
                own = (
                    {"name": names.job_name(f"jbench{number:07}-1")} if table == "job_info" else {}
                )
                _insert(
                    known, table, [{**row, **changes, **own, "spot_job_id": number} for row in rows]
                )
        known.execute(
            "delete from job_events where spot_job_id >= ? and new_status like 'CANCEL%'", [first]
        )
        known.commit()
    return ids


def _rows(known: sqlite3.Connection, table: str, like: int) -> list[dict[str, Any]]:
    """Rows of one job in a table of SkyPilot, without generated keys."""
    columns = [row[1] for row in known.execute(f"pragma table_info({table})")]
    given = set() if table == "job_info" else {"job_id", "id"}
    kept = [name for name in columns if name not in given]
    query = f"select {', '.join(kept)} from {table} where spot_job_id = ?"
    return [dict(zip(kept, row, strict=True)) for row in known.execute(query, [like])]


def _insert(known: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        marks = ", ".join("?" for _ in row)
        known.execute(
            f"insert into {table} ({', '.join(row)}) values ({marks})", list(row.values())
        )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _print(what: str, seconds: list[float]) -> None:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    print(f"   {what}: median {middle:.2f} s (from {low:.2f} to {high:.2f})")


def _wait(true: Callable[[], bool], within_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline_s:
            raise subprocess.TimeoutExpired("waiting for SkyPilot", within_s)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
