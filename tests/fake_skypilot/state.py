"""The state of a fake server: its requests, jobs and clusters."""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import yaml
from holdfast.ports import Clock

from fake_skypilot.job_simulation import JobSimulation
from fake_skypilot.moments import EventClock, Loss

_TOKEN = re.compile(r"hfl_[a-z0-9-]+_\d+_[0-9a-f]{64}")
OVER = frozenset({"SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS", "FAILED_NO_RESOURCE", "FAILED_CONTROLLER"})  # fmt: skip
Policy = Callable[[bytes], tuple[int, str]]
"""Decides a request before its job is created: HTTP status and body.

Raises ConnectionError if it does not respond.
"""


@dataclass
class Cluster:
    """One incarnation of a cluster."""

    name: str
    born_at: datetime
    status: str | None = "INIT"
    """None once it is terminated."""
    gone_at: datetime | None = None
    usd_per_hour: float = 6.0
    nodes: int = 1
    region: str = "-"
    is_late: bool = False
    """Whether it came up after its job had ended, as in SkyPilot's issue 4410."""


@dataclass
class Request:
    """One request, as stored by SkyPilot."""

    number: int
    request_id: str
    name: str
    body: dict[str, Any]
    made_at: datetime
    status: str = "PENDING"
    value: Any = None
    error: dict[str, str] | None = None
    work: Iterator[float] | None = None
    is_known: bool = True
    """False once the server has lost it; its work may continue."""

    @property
    def is_over(self) -> bool:
        return self.status in {"SUCCEEDED", "FAILED", "CANCELLED"}


@dataclass
class Job:
    """One managed job."""

    number: int
    name: str
    token: str | None
    nodes: int
    restarts_allowed: int
    clock: Clock
    made_at: datetime
    tz: tzinfo = UTC
    """Time zone of its events."""
    status: str = "PENDING"
    schedule: str = "INACTIVE"
    events: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    runs: int = 0
    placements: int = 0
    """Number of its placements: launched machines, used or not, or kept ones after a restart."""
    is_fresh: bool = False
    """Whether machines were launched since it last started to run."""
    began_at: datetime | None = None
    running_since: datetime | None = None
    region: str = "-"
    zone: str = "-"
    last_place: tuple[str, str] | None = None
    """Region and zone of the last nodes that it ran on, kept after the cluster is terminated."""
    controller_at: datetime | None = None
    remaining: Iterator[float] | None = None

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def cluster(self) -> str:
        return f"{self.name}-{self.number}"

    def add_event(self, status: str, reason: str, *, code: str | None = None) -> None:
        """Add an event of the job."""
        self._write(status, code, reason, self.clock.now())

    def add_cluster_event(self, reason: str) -> None:
        """Add an event of its cluster, in whole seconds."""
        self._write("STARTING", None, reason, self.clock.now().replace(microsecond=0))

    def _write(self, status: str, code: str | None, reason: str, at: datetime) -> None:
        stamp = at.astimezone(self.tz).replace(tzinfo=None).isoformat()
        row = {"spot_job_id": self.number, "task_id": 0, "new_status": status}
        self.events.append({**row, "code": code, "reason": reason, "timestamp": stamp})

    def record_loss(self, cause: str) -> None:
        self.losses.append(Loss(self.clock.now(), cause))

    def begin(self) -> None:
        self.add_event("STARTING", "Job is starting")
        self.status, self.began_at = "STARTING", self.clock.now()

    def start_running(self) -> None:
        self.status, self.schedule = "RUNNING", "ALIVE"
        self.running_since = self.clock.now()
        self.last_place = (self.region, self.zone)
        self.runs += 1
        self.placements += not self.is_fresh
        self.is_fresh = False

    def finish(self, status: str) -> None:
        self.status, self.schedule = status, "DONE"


class SkyPilotState:
    """One server with its database and cloud."""

    def __init__(self, clock: Clock, simulation: JobSimulation, *, seed: int = 0, policy: Policy | None = None) -> None:  # fmt: skip
        self.clock = EventClock(clock)
        self.simulation = simulation
        self.simulations: dict[str, JobSimulation] = {}
        """Parameters of single jobs, by name."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.policy = policy
        self.tz: tzinfo = UTC
        """Time zone of the server.

        On SQLite, events have local times, and other times are seconds since 1970.
        """
        self.has_module = False
        """Whether the policy is Holdfast's plugin, which is called only for Holdfast's launches."""
        self.requests: dict[str, Request] = {}
        self.jobs: dict[int, Job] = {}
        self.clusters: list[Cluster] = []
        self.unlisted: list[Cluster] = []
        """Running clusters that the server has no record of."""
        self.admitted: list[str] = []
        """Admitted launch tokens in order."""
        self.delay_s = 1.0
        self.upload_s = 0.5
        self.fails_after_row = 0.0
        self.fails_before_row = 0.0
        self.policy_lost = 0.0
        """Probability that the response of the policy is lost."""
        self.late_clusters = 0.0
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []
        self._count = itertools.count(1)
        self._numbers = itertools.count(1)

    # Time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        at = self.clock.now() + timedelta(seconds=seconds)
        heapq.heappush(self._heap, (at, next(self._count), action))

    def catch_up(self) -> None:
        """Execute all due events, each at its time."""
        now = self.clock.now()
        while self._heap and self._heap[0][0] <= now:
            self.clock.at, _, action = heapq.heappop(self._heap)
            action()
        self.clock.at = None

    def _simulate(self, job: Job, remaining: Iterator[float]) -> None:
        """Let a job continue by this course until a request replaces it."""
        job.remaining = remaining

        def advance() -> None:
            if job.remaining is not remaining or self.jobs.get(job.number) is not job:
                return
            pause = next(remaining, None)
            if pause is not None:
                self.after(pause, advance)

        advance()

    def preempt(self, job: Job) -> None:
        """Take the nodes of a job now."""
        simulation = self.simulations.get(job.name, self.simulation)
        self._simulate(job, simulation.preempted(self, job))

    def exit_program(self, job: Job, code: int, *, restarts: bool = False) -> None:
        """Let the program of a job exit now; `restarts`: SkyPilot starts it again."""
        simulation = self.simulations.get(job.name, self.simulation)
        self._simulate(job, simulation.exited(self, job, code, restarts=restarts))

    # Requests

    def ask(self, name: str, body: dict[str, Any]) -> Request:
        """Queue a request."""
        number = next(self._count)
        request_id = f"{self.rng.getrandbits(32):08x}-0000-4000-8000-{number:012x}"
        request = Request(number, request_id, name, body, self.clock.now())
        self.requests[request_id] = request
        return request

    def run(self, request: Request, work: Iterator[float], delay_s: float | None = None) -> None:
        """Execute a request after a delay."""
        request.work = work

        def advance() -> None:
            if request.work is not work:
                return
            request.status = "RUNNING"
            try:
                pause = next(work)
            except StopIteration as done:
                request.status, request.value, request.work = "SUCCEEDED", done.value, None
            except Failure as failure:
                request.status, request.error, request.work = "FAILED", failure.body, None
            else:
                self.after(pause, advance)

        self.after(self.rng.random() * self.delay_s if delay_s is None else delay_s, advance)

    def launch(self, body: dict[str, Any]) -> Iterator[float]:
        """Work of a launch request, which does not check for an existing job."""
        task = yaml.safe_load(body["task"])
        name = str(body["name"])
        token = self.call_policy("jobs.launch", body["task"])
        yield self.rng.random() * self.upload_s
        if self.rng.random() < self.fails_before_row:
            raise Failure("RuntimeError", "Failed to sync files")
        recovery = (task.get("resources") or {}).get("job_recovery") or {}
        allowed = recovery.get("max_restarts_on_errors", 0) if isinstance(recovery, dict) else 0
        job = Job(
            number=next(self._numbers),
            name=name,
            token=token,
            nodes=int(task.get("num_nodes") or 1),
            restarts_allowed=int(allowed),
            clock=self.clock,
            made_at=self.clock.now(),
            tz=self.tz,
        )
        self.jobs[job.number] = job
        job.add_event("PENDING", "Job submitted to queue")
        yield self.rng.random() * self.upload_s
        if self.rng.random() < self.fails_after_row:
            raise Failure("PermissionError", "[Errno 13] Permission denied: '/root/.sky/x'")
        # A controller starts pending jobs, but not those cancelled in the meantime.
        if not job.is_over:
            self._simulate(job, self.simulations.get(name, self.simulation).course(self, job))
        return {"job_id": [job.number], "handle": base64.b64encode(b"x").decode()}

    def call_policy(self, request_name: str, task: str) -> str | None:
        """Call the policy, if any; return the admitted launch token."""
        found = _TOKEN.search(task)
        token = found[0] if found and request_name == "jobs.launch" else None
        is_counted = token or "hfl_probe-0_" in task
        if self.policy is None or (self.has_module and not is_counted):
            self.admitted += [token] if token else []
            return token
        words = {
            "request_name": request_name,
            "task": task,
            "skypilot_config": "{}",
            "at": "server",
        }
        try:
            code, result = self.policy(json.dumps(json.dumps(words)).encode())
        except ConnectionError as error:
            raise Failure("RestfulPolicyError", f"Failed to call admin policy URL http://h/v1/skypilot/policy/{'5' * 32}: {error}") from None  # fmt: skip
        if code == 400:
            raise Failure("UserRequestRejectedByPolicy", f"\x1b[31mUser request is rejected by admin policy RestfulAdminPolicy(policy_url=http://h/v1/skypilot/policy/{'5' * 32})\x1b[0m: {result}")  # fmt: skip
        if code != 200:
            raise Failure("RestfulPolicyError", f"Failed to call admin policy URL: {code}")
        json.loads(json.loads(result))
        self.admitted += [token] if token else []
        if self.rng.random() < self.policy_lost:
            raise Failure("RestfulPolicyError", "Failed to call admin policy URL: timed out")
        return token

    def cancel(self, numbers: list[int]) -> Iterator[float]:
        """Work of a cancel request, which always succeeds."""
        for number in numbers:
            job = self.jobs.get(number)
            if job is None or job.is_over:
                continue
            if job.status == "PENDING":
                # As in SkyPilot: recorded in advance, even if the job is not cancelled then.
                job.add_event("CANCELLED", "Job has been cancelled")
                if job.schedule in {"INACTIVE", "WAITING"}:
                    job.remaining, job.status = None, "CANCELLED"
                    continue
            if job.status != "CANCELLING":
                self.after(self.rng.random() * 5, lambda job=job: self._stop(job))
        yield 0.01

    def _stop(self, job: Job) -> None:
        if not job.is_over and job.status != "CANCELLING":
            self._simulate(job, self._stopping(job))

    def _stopping(self, job: Job) -> Iterator[float]:
        was = job.status
        job.status = "CANCELLING"
        job.add_event("CANCELLING", "Job is cancelling")
        yield self.rng.random() * self.simulation.cancel_s
        late = was in {"RECOVERING", "STARTING", "PENDING"} and self.rng.random() < self.late_clusters  # fmt: skip
        self.release_nodes(job)
        yield 0.01
        job.finish("CANCELLED")
        job.add_event("CANCELLED", "Job is cancelled")
        if late:
            yield 20 + self.rng.random() * 60
            cluster = self.provision(job)
            cluster.is_late, cluster.status = True, "UP"

    # Clusters

    def provision(self, job: Job) -> Cluster:
        self.release_nodes(job)
        cluster = Cluster(job.cluster, self.clock.now(), nodes=job.nodes)
        self.clusters.append(cluster)
        return cluster

    def boot(self, job: Job, region: str, zone: str) -> None:
        job.region, job.zone = region, zone
        job.placements, job.is_fresh = job.placements + 1, True
        for cluster in self.running_clusters(job.cluster):
            cluster.status, cluster.region = "UP", region

    def release_nodes(self, job: Job) -> None:
        self.terminate(job.cluster)
        job.region = job.zone = "-"

    def terminate_later(self, job: Job, seconds: float | None) -> None:
        """Terminate the cluster of an ended job later; never if `seconds` is None."""
        if seconds is not None:
            self.after(seconds, lambda: self.terminate(job.cluster))

    def terminate(self, name: str) -> None:
        for cluster in self.running_clusters(name):
            cluster.status, cluster.gone_at = None, self.clock.now()

    def running_clusters(self, name: str | None = None) -> list[Cluster]:
        """Clusters that exist and cost money."""
        return [c for c in self.clusters if c.status and name in (None, c.name)]

    def live(self, name: str) -> list[Job]:
        """Jobs of this name that have not ended."""
        return [job for job in self.jobs.values() if job.name == name and not job.is_over]

    # Failures

    def kill(self, how: str) -> None:
        """Kill the server and start it again.

        `how`: its requests are `forgotten` (SQLite), marked as `interrupted`, or executed `again`
        (PostgreSQL).
        """
        for request in [r for r in self.requests.values() if not r.is_over]:
            if how == "forgotten" and self.rng.random() < 0.2:
                continue  # A worker of the server may survive and finish its work.
            request.work = None
            if how == "again" and request.name == "sky.jobs.launch":
                request.status = "PENDING"
                self.run(request, self.launch(request.body))
            else:
                failure = Failure("RequestInterruptedError", "interrupted by an API server restart")
                request.status, request.error = "FAILED", failure.body
        for request in self.requests.values():
            request.is_known = request.is_known and how != "forgotten"
        for job in self.jobs.values():
            job.controller_at = self.clock.now()
            if job.status == "RUNNING" and self.rng.random() < 0.2:
                simulation = self.simulations.get(job.name, self.simulation)
                self._simulate(job, simulation.restarted(self, job))

    def lose_everything(self) -> None:
        """Replace the database: numbers start at 1 again, and running clusters are unlisted."""
        self.unlisted += self.running_clusters()
        self.clusters.clear()
        self.jobs.clear()
        for request in self.requests.values():
            request.is_known = False
        self._numbers = itertools.count(1)

    def lose_jobs(self) -> None:
        """Recreate the database of jobs but not that of clusters: their nodes run without a job."""
        self.jobs.clear()


class Failure(Exception):
    """The failure of a request."""

    def __init__(self, kind: str, message: str) -> None:
        self.body = {"object": "gASV", "type": kind, "message": message}
        super().__init__(message)
