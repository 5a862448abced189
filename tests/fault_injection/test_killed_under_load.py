"""The database and the service are killed while workers report and people submit: what was acknowledged is there, once."""

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

KILLS = repeat_count(4, 10)
WORKERS = 6
BATCH = 20
"""Points in a request."""
LONG = "sleep 600"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that may be killed: no other test has anything in it."""
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
    """Sends one request again and again until it is answered, as a worker's courier and a person do."""

    service: Service
    over: threading.Event
    unanswered: int = 0
    """Tries that came to nothing."""

    def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any] | None:
        """The answer; None if all is over before there is one."""
        url = f"{self.service.environment['HOLDFAST_URL']}{path}"
        while not self.over.is_set():
            try:
                answer = httpx2.post(url, json=body, headers=headers, timeout=10, verify=False)
            except httpx2.TransportError:
                answer = None
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                assert answer.status_code in {200, 201}, answer.text
                parsed: dict[str, Any] = answer.json()
                return parsed
            self.unanswered += 1
            self.over.wait(0.05)
        return None


@dataclass
class Worker:
    """Reports a point for every step of a job that continues."""

    client: Client
    job: str
    token: str
    acknowledged: int = 0
    """Reports that the service has acknowledged."""

    def work(self) -> None:
        while not self.client.over.is_set():
            first = self.acknowledged + 1
            reports = [_point(n) for n in range(first, first + BATCH)]
            body = {"attempt": 1, "reports": reports}
            path = f"/v1/jobs/{self.job}/reports"
            answer = self.client.post(path, body, Authorization=f"Bearer {self.token}")
            if answer:
                self.acknowledged = answer["next"] - 1
            self.client.over.wait(0.02)


@dataclass
class Person:
    """Submits short jobs, each under a key of its own."""

    client: Client
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Ids by key."""

    def work(self) -> None:
        number = 0
        while not self.client.over.is_set():
            number += 1
            body = {"task": f"name: short-{number}\nresources: {{infra: local}}\nrun: 'true'\n"}
            headers = {"Idempotency-Key": f"key-{number}"}
            answer = self.client.post("/v1/jobs", body, **headers)
            if answer:
                self.acknowledged[f"key-{number}"] = answer["id"]
            self.client.over.wait(3)


def test_acknowledged_writes_survive_kills_exactly_once(tmp_path: Path, cluster: Cluster) -> None:
    service = Service(tmp_path)
    service.environment["HOLDFAST_DATABASE_URL"] = cluster.new_database()
    over = threading.Event()
    try:
        service.start()
        workers = _workers(service, over)
        person = Person(Client(service, over))
        threads = [threading.Thread(target=each.work) for each in (*workers, person)]
        for thread in threads:
            thread.start()
        chances = random.Random(1)
        for number in range(KILLS):
            _wait_for_all_workers(service, workers, threads)
            over.wait(chances.uniform(0, 0.5))
            if number % 2:
                _kill_the_database(service, cluster, workers)
            else:
                _kill_the_service(service)
        _wait_for_all_workers(service, workers, threads)
        over.set()
        for thread in threads:
            thread.join()
        _check(service, workers, person)
    finally:
        over.set()
        if service.process:
            service.end(signal.SIGKILL)
        service.sweep()


def _check(service: Service, workers: list[Worker], person: Person) -> None:
    with httpx2.Client(base_url=service.environment["HOLDFAST_URL"], timeout=60) as http:
        for worker in workers:
            points = http.get(f"/v1/jobs/{worker.job}/metrics?limit=10000").json()
            steps = [point["step"] for point in points]
            # The last request may have been taken without its answer being heard.
            assert worker.acknowledged <= len(steps) <= worker.acknowledged + BATCH
            assert steps == list(range(1, len(steps) + 1))
        assert sum(worker.client.unanswered for worker in workers) >= KILLS
        for key, job_id in person.acknowledged.items():
            _until_ended(service, http, job_id)
            kinds = [each["kind"] for each in http.get(f"/v1/jobs/{job_id}/events").json()]
            assert [kinds.count(kind) for kind in ("Submitted", "Finished")] == [1, 1], key
            assert kinds.count("LaunchRequested") == kinds.count("NodesReady") == 1, key
        names = [job["name"] for job in http.get("/v1/jobs?limit=100").json()["jobs"]]
        short = [name for name in names if name.startswith("short-")]
        assert len(short) == len(set(short)) >= len(person.acknowledged) > 1
    assert service.cli("db", "check").returncode == 0


def _until_ended(service: Service, http: httpx2.Client, job_id: str) -> None:
    def ended() -> bool:
        state: str = http.get(f"/v1/jobs/{job_id}").json()["state"]
        return state == "succeeded"

    service.wait(ended, f"job {job_id} has ended well")


def _workers(service: Service, over: threading.Event) -> list[Worker]:
    engine = open_database(service.environment["HOLDFAST_DATABASE_URL"])
    tokens = ServiceTokens(engine, (service.home / "secret").read_bytes().strip())
    engine.dispose()
    jobs = [service.submit(name=f"long-{n}", run=LONG) for n in range(WORKERS)]
    return [Worker(Client(service, over), job, tokens.for_worker(job)) for job in jobs]


def _wait_for_all_workers(
    service: Service, workers: list[Worker], threads: list[threading.Thread]
) -> None:
    """Return once every worker has reported again."""
    before = [worker.acknowledged for worker in workers]

    def heard() -> bool:
        assert all(thread.is_alive() for thread in threads), "a client gave up; its thread says why"
        return all(
            worker.acknowledged > count for worker, count in zip(workers, before, strict=True)
        )

    service.wait(heard, f"the workers are heard again within {PATIENCE_S:.0f} s")


def _kill_the_service(service: Service) -> None:
    service.end(signal.SIGKILL)
    service.start()


def _kill_the_database(service: Service, cluster: Cluster, workers: list[Worker]) -> None:
    """Have it back once a worker has noticed."""
    before = sum(worker.client.unanswered for worker in workers)
    cluster.stop()
    service.wait(
        lambda: sum(worker.client.unanswered for worker in workers) > before,
        "a worker goes unanswered",
    )
    cluster.start()


def _point(n: int) -> dict[str, Any]:
    at = now().isoformat()
    return {"n": n, "at": at, "kind": "progress", "body": {"step": n, "values": {"loss": 1 / n}}}
