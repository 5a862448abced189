"""The simulated course of a managed job, with the events of SkyPilot's controller."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast_worker.protocol.environment import Exit

if TYPE_CHECKING:
    from fake_skypilot.state import Job, SkyPilotState


PREEMPTED, FAILED, LEFT, EMERGENCY, PLUGIN = "preempted", "failed", "left", "emergency", "plugin"
"""Causes of losses: preemption, program error, exit on a notice, controller error, plugin."""


@dataclass(frozen=True, kw_only=True)
class JobSimulation:
    """Parameters of the course of jobs."""

    queue_s: float = 2.0
    provision_s: float = 20.0
    setup_s: float = 20.0
    regions: tuple[str, ...] = ("us-east-1", "us-east-2", "eu-north-1")
    denial_rate: float = 0.0
    backoff_s: float = 60.0
    runs_s: float = 300.0
    mtbf_s: float = 0.0
    """Mean time between losses; 0: no losses."""
    losses: tuple[str, ...] = (PREEMPTED,)
    breaks_with: int | None = None
    """Exit code of the program after `breaks_after_s`; None for a program that succeeds."""
    breaks_after_s: float = 10.0
    keeps_nodes: bool = True
    """Whether a program that starts again does so on the nodes that it had, as with FAILOVER."""
    restarts: int | None = None
    """Number of restarts of a failed program; None: as configured in the task."""
    teardown_s: float = 15.0
    cancel_s: float = 10.0
    leaks: float = 0.0
    """Probability that the cluster of an ended job keeps running."""

    def course(self, state: SkyPilotState, job: Job) -> Iterator[float]:
        """Simulate a job: the effects, and the seconds between them."""
        rng = random.Random(f"{state.seed}/{job.number}")
        job.schedule = "WAITING"
        yield self.queue_s * rng.random()
        job.schedule = "LAUNCHING"
        job.begin()
        yield from self._place(state, job, rng)
        yield from _start_running(job, "Job has started")
        yield from self._run(state, job, rng)

    def _run(self, state: SkyPilotState, job: Job, rng: random.Random) -> Iterator[float]:
        left = self.runs_s if self.breaks_with is None else self.breaks_after_s
        restarts = 0
        while True:
            lasts = rng.expovariate(1 / self.mtbf_s) if self.mtbf_s else left
            if lasts >= left:
                yield left
                allowed = job.restarts_allowed if self.restarts is None else self.restarts
                if self.breaks_with is None or restarts >= allowed:
                    break
                restarts += 1
                lost, left = FAILED, self.breaks_after_s
            else:
                yield lasts
                lost, left = rng.choice(self.losses), left - lasts
            yield from self._recover(state, job, rng, lost)
        self._end(state, job, rng)

    def _end(self, state: SkyPilotState, job: Job, rng: random.Random) -> None:
        if self.breaks_with is None:
            job.add_event("SUCCEEDED", "Job has succeeded")
            job.finish("SUCCEEDED")
        else:
            reason = f"Job failed: the program failed with exit code {self.breaks_with}."
            job.add_event("FAILED", reason)
            job.finish("FAILED")
        state.terminate_later(
            job, None if rng.random() < self.leaks else rng.random() * self.teardown_s
        )

    def _recover(
        self, state: SkyPilotState, job: Job, rng: random.Random, lost: str
    ) -> Iterator[float]:
        if lost in {PREEMPTED, PLUGIN}:
            state.release_nodes(job)
            yield rng.random() * 15  # Until the controller's next check.
        code = self.breaks_with or 1
        reasons = {
            PREEMPTED: (None, "Cluster preempted or failed, recovering"),
            FAILED: ("USER_JOB_FAILURE", f"Job exited with exit code {code}. Restarting the job (attempt 1)"),
            LEFT: ("USER_JOB_FAILURE", f"Job exited with exit codes [0, {int(Exit.PREEMPTED)}]. Restarting the job (x)"),
            EMERGENCY: (None, "Unexpected controller error (emergency recovery attempt 1/10): KeyError: 7"),
            PLUGIN: ("GPU_UNHEALTHY", "xid 79 on node 1"),
        }  # fmt: skip
        yield from self._restart(state, job, rng, lost, *reasons[lost])

    def restarted(self, state: SkyPilotState, job: Job) -> Iterator[float]:
        """Simulate a job after a restart of its controller, which released its nodes."""
        rng = random.Random(f"{state.seed}/{job.number}/{job.runs}/restarted")
        yield 5 + rng.random() * 20
        yield from self._restart(state, job, rng, "restart", None, "Job is resuming after restart")
        yield from self._run(state, job, rng)

    def preempted(self, state: SkyPilotState, job: Job) -> Iterator[float]:
        """Simulate a job whose nodes are preempted now, also before it ran on them."""
        rng = random.Random(f"{state.seed}/{job.number}/{job.placements}/preempted")
        if job.status == "RUNNING":
            yield from self._recover(state, job, rng, PREEMPTED)
        else:
            state.release_nodes(job)
            yield rng.random() * 15
            yield from self._place(state, job, rng)
            yield from _start_running(job, "Job has started")
        yield from self._run(state, job, rng)

    def exited(
        self, state: SkyPilotState, job: Job, code: int, *, restarts: bool
    ) -> Iterator[float]:
        """Simulate a job whose program exits now."""
        rng = random.Random(f"{state.seed}/{job.number}/{job.runs}/exited")
        broken = replace(self, breaks_with=code or None)
        yield rng.random() * 15  # Until the controller's next check.
        if restarts:
            yield from broken._recover(state, job, rng, LEFT if code == Exit.PREEMPTED else FAILED)
            yield from self._run(state, job, rng)
        else:
            broken._end(state, job, rng)

    def _restart(
        self,
        state: SkyPilotState,
        job: Job,
        rng: random.Random,
        lost: str,
        code: str | None,
        reason: str,
    ) -> Iterator[float]:
        job.add_event("RECOVERING", reason, code=code)
        job.record_loss(lost)
        job.status, job.schedule = "RECOVERING", "LAUNCHING"
        keeps = code == "USER_JOB_FAILURE" and self.keeps_nodes
        if not keeps:
            state.release_nodes(job)
            yield 1 + rng.random() * 5
            yield from self._place(state, job, rng)
        else:
            yield 5 + rng.random() * 20
        yield from _start_running(job, "Job has recovered")

    def _place(self, state: SkyPilotState, job: Job, rng: random.Random) -> Iterator[float]:
        waiting = job.status
        while True:
            for region in rng.sample(self.regions, len(self.regions)):
                state.provision(job)
                job.add_cluster_event(f"Provisioning on aws in {region}")
                yield self.provision_s * (0.1 + rng.random())
                if rng.random() >= self.denial_rate:
                    job.add_cluster_event(f"Instances launched on aws in {region}")
                    state.boot(job, region, f"{region}{rng.choice('abc')}")
                    yield 1 + self.setup_s * rng.random() / 2
                    job.add_cluster_event("Setting up SkyPilot runtime on cluster")
                    yield 1 + self.setup_s * rng.random() / 2
                    return
                state.release_nodes(job)
                job.add_cluster_event(
                    "Provision failed: Reasons for provision failures (for details): none left"
                )
                yield 1.0
            job.add_event("PENDING", "Job is in backoff")
            job.status, job.schedule = "PENDING", rng.choice(["ALIVE_BACKOFF", "LAUNCHING"])
            yield self.backoff_s
            job.add_event(waiting, "Job is restarting")
            job.status, job.schedule = waiting, "LAUNCHING"


def _start_running(job: Job, reason: str) -> Iterator[float]:
    job.add_event("RUNNING", reason)
    yield 0.01  # The event is written before the row.
    job.start_running()
