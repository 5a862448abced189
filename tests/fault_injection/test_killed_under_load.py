"""Acknowledged reports and submissions survive kills of database and service exactly once."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from holdfast.store.database import open_database
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast_worker.clock import now
from support.live_service import PATIENCE_S, Service
from support.postgres import Cluster, NotInstalled
from support.repetitions import repeat_count
from support.requirements import skip_or_fail

KILLS = repeat_count(3, 10)
WORKERS = 6
BATCH = 20
"""Points of one request."""
LONG = "sleep 600"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A separate PostgreSQL server that the test may kill."""
    try:
        cluster = Cluster()
    except NotInstalled as reason:
        skip_or_fail(str(reason))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@dataclass
class Client:
    """Retries one request until it is answered, as workers and clients do."""

    service: Service
    stop: threading.Event
    failed_requests: int = 0
    """Number of attempts without an answer."""

    def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any] | None:
        """Return the answer; None if the test ends first."""
        url = f"{self.service.environment['HOLDFAST_URL']}{path}"
        while not self.stop.is_set():
            try:
                answer = httpx2.post(url, json=body, headers=headers, timeout=10, verify=False)
            except httpx2.TransportError:
                answer = None
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                assert answer.status_code in {200, 201}, answer.text
                parsed: dict[str, Any] = answer.json()
                return parsed
            self.failed_requests += 1
            self.stop.wait(0.05)
        return None


@dataclass
class Worker:
    """Reports a point for every step of a running job."""

    client: Client
    job: str
    token: str
    acknowledged: int = 0
    """Number of acknowledged reports."""

    def work(self) -> None:
        while not self.client.stop.is_set():
            first = self.acknowledged + 1
            reports = [_point(n) for n in range(first, first + BATCH)]
            body = {"attempt": 1, "reports": reports}
            path = f"/v1/jobs/{self.job}/reports"
            answer = self.client.post(path, body, Authorization=f"Bearer {self.token}")
            if answer:
                self.acknowledged = answer["next"] - 1
            self.client.stop.wait(0.02)


@dataclass
class User:
    """Submits short jobs, each under its own idempotency key."""

    client: Client
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Job ids by idempotency key."""

    def work(self) -> None:
        number = 0
        while not self.client.stop.is_set():
            number += 1
            body = {"task": f"name: short-{number}\nresources: {{infra: local}}\nrun: 'true'\n"}
            headers = {"Idempotency-Key": f"key-{number}"}
            answer = self.client.post("/v1/jobs", body, **headers)
            if answer:
                self.acknowledged[f"key-{number}"] = answer["id"]
            self.client.stop.wait(3)


def test_acknowledged_writes_survive_kills_exactly_once(tmp_path: Path, cluster: Cluster) -> None:
    service = Service(tmp_path)
    service.environment["HOLDFAST_DATABASE_URL"] = cluster.new_database()
    stop = threading.Event()
    try:
        service.start()
        workers = _workers(service, stop)
        user = User(Client(service, stop))
        threads = [threading.Thread(target=each.work) for each in (*workers, user)]
        for thread in threads:
            thread.start()
        rng = random.Random(1)
        for number in range(KILLS):
            _wait_for_all_workers(service, workers, threads)
            stop.wait(rng.uniform(0, 0.5))
            if number % 2:
                _kill_the_database(service, cluster, workers)
            else:
                _kill_the_service(service)
        _wait_for_all_workers(service, workers, threads)
        service.wait(lambda: len(user.acknowledged) > 1, "two short jobs are submitted")
        stop.set()
        for thread in threads:
            thread.join()
        _check(service, workers, user)
    finally:
        stop.set()
        if service.process:
            service.end(signal.SIGKILL)
        service.sweep()


def _check(service: Service, workers: list[Worker], user: User) -> None:
    with httpx2.Client(base_url=service.environment["HOLDFAST_URL"], timeout=60) as http:
        for worker in workers:
            points = http.get(f"/v1/jobs/{worker.job}/metrics?limit=10000").json()
            steps = [point["step"] for point in points]
            # The last request may have been stored although its response was lost.
            assert worker.acknowledged <= len(steps) <= worker.acknowledged + BATCH
            assert steps == list(range(1, len(steps) + 1))
        assert sum(worker.client.failed_requests for worker in workers) >= KILLS
        for key, job_id in user.acknowledged.items():
            _until_ended(service, http, job_id)
            kinds = [each["kind"] for each in http.get(f"/v1/jobs/{job_id}/events").json()]
            assert [kinds.count(kind) for kind in ("Submitted", "Finished")] == [1, 1], key
            assert kinds.count("LaunchRequested") == kinds.count("NodesReady") == 1, key
        names = [job["name"] for job in http.get("/v1/jobs?limit=100").json()["jobs"]]
        short = [name for name in names if name.startswith("short-")]
        assert len(short) == len(set(short)) >= len(user.acknowledged) > 1
    assert service.cli("db", "check").returncode == 0


def _until_ended(service: Service, http: httpx2.Client, job_id: str) -> None:
    def ended() -> bool:
        state: str = http.get(f"/v1/jobs/{job_id}").json()["state"]
        return state == "succeeded"

    service.wait(ended, f"job {job_id} has ended well")


def _workers(service: Service, stop: threading.Event) -> list[Worker]:
    engine = open_database(service.environment["HOLDFAST_DATABASE_URL"])
    tokens = ServiceTokens(engine, (service.home / "secret").read_bytes().strip())
    engine.dispose()
    jobs = [service.submit(name=f"long-{n}", run=LONG) for n in range(WORKERS)]
    return [Worker(Client(service, stop), job, tokens.for_worker(job)) for job in jobs]


def _wait_for_all_workers(
    service: Service, workers: list[Worker], threads: list[threading.Thread]
) -> None:
    """Return once every worker has reported again."""
    before = [worker.acknowledged for worker in workers]

    def has_progressed() -> bool:
        assert all(thread.is_alive() for thread in threads), (
            "a client gave up; see its thread's traceback"
        )
        return all(
            worker.acknowledged > count for worker, count in zip(workers, before, strict=True)
        )

    service.wait(has_progressed, f"the workers report again within {PATIENCE_S:.0f} s")


def _kill_the_service(service: Service) -> None:
    service.end(signal.SIGKILL)
    service.start()


def _kill_the_database(service: Service, cluster: Cluster, workers: list[Worker]) -> None:
    """Stop the database, and start it again once a worker has failed to reach it."""
    before = sum(worker.client.failed_requests for worker in workers)
    cluster.stop()
    service.wait(
        lambda: sum(worker.client.failed_requests for worker in workers) > before,
        "a worker receives no answer",
    )
    cluster.start()


def _point(n: int) -> dict[str, Any]:
    at = now().isoformat()
    return {"n": n, "at": at, "kind": "progress", "body": {"step": n, "values": {"loss": 1 / n}}}
