"""What befalls a managed job at the stand-in, as SkyPilot's controller would write it down."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_worker.protocol.environment import Exit

if TYPE_CHECKING:
    from fake_skypilot.state import Job, SkyPilotState


PREEMPTED, FAILED, LEFT, EMERGENCY, TOLD = "preempted", "failed", "left", "emergency", "told"
"""Why nodes are lost: taken, the program broke, it left on notice, a controller's own error, a plugin's word."""


@dataclass(frozen=True, kw_only=True)
class JobSimulation:
    """How jobs fare."""

    queue_s: float = 2.0
    provision_s: float = 20.0
    setup_s: float = 20.0
    regions: tuple[str, ...] = ("us-east-1", "us-east-2", "eu-north-1")
    denial_rate: float = 0.0
    backoff_s: float = 60.0
    runs_s: float = 300.0
    mtbf_s: float = 0.0
    """Mean time until nodes are lost; 0 for never."""
    losses: tuple[str, ...] = (PREEMPTED,)
    breaks_with: int | None = None
    """What the program exits with each time it has run for `breaks_after_s`; None for a program that works."""
    breaks_after_s: float = 10.0
    restarts: int | None = None
    """How often SkyPilot starts a broken program again; None for as often as the task says."""
    teardown_s: float = 15.0
    cancel_s: float = 10.0
    leaks: float = 0.0
    """Chance that the cluster of a job that ends is left standing."""

    def course(self, truth: SkyPilotState, job: Job) -> Iterator[float]:
        """The life of a job: what happens, and the seconds in between."""
        rng = random.Random(f"{truth.seed}/{job.number}")
        job.schedule = "WAITING"
        yield self.queue_s * rng.random()
        job.schedule = "LAUNCHING"
        job.begin()
        yield from self._place(truth, job, rng)
        yield from _stand(job, "Job has started")
        yield from self._run(truth, job, rng)

    def _run(self, truth: SkyPilotState, job: Job, rng: random.Random) -> Iterator[float]:
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
            yield from self._recover(truth, job, rng, lost)
        self._end(truth, job, rng)

    def _end(self, truth: SkyPilotState, job: Job, rng: random.Random) -> None:
        if self.breaks_with is None:
            job.tell("SUCCEEDED", "Job has succeeded")
            job.finish("SUCCEEDED")
        else:
            reason = f"Job failed: the program failed with exit code {self.breaks_with}."
            job.tell("FAILED", reason)
            job.finish("FAILED")
        truth.take_down(job, None if rng.random() < self.leaks else rng.random() * self.teardown_s)

    def _recover(
        self, truth: SkyPilotState, job: Job, rng: random.Random, lost: str
    ) -> Iterator[float]:
        if lost in {PREEMPTED, TOLD}:
            truth.take_nodes(job)
            yield rng.random() * 15  # Until the controller looks.
        code = self.breaks_with or 1
        reasons = {
            PREEMPTED: (None, "Cluster preempted or failed, recovering"),
            FAILED: ("USER_JOB_FAILURE", f"Job exited with exit code {code}. Restarting the job (attempt 1)"),
            LEFT: ("USER_JOB_FAILURE", f"Job exited with exit codes [0, {int(Exit.PREEMPTED)}]. Restarting the job (x)"),
            EMERGENCY: (None, "Unexpected controller error (emergency recovery attempt 1/10): KeyError: 7"),
            TOLD: ("GPU_UNHEALTHY", "xid 79 on node 1"),
        }  # fmt: skip
        yield from self._again(truth, job, rng, lost, *reasons[lost])

    def restarted(self, truth: SkyPilotState, job: Job) -> Iterator[float]:
        """The life of a job after its controller was restarted and gave up its nodes."""
        rng = random.Random(f"{truth.seed}/{job.number}/{job.runs}/restarted")
        yield 5 + rng.random() * 20
        yield from self._again(truth, job, rng, "restart", None, "Job is resuming after restart")
        yield from self._run(truth, job, rng)

    def _again(
        self,
        truth: SkyPilotState,
        job: Job,
        rng: random.Random,
        lost: str,
        code: str | None,
        reason: str,
    ) -> Iterator[float]:
        job.tell("RECOVERING", reason, code=code)
        job.lose(lost)
        job.status, job.schedule = "RECOVERING", "LAUNCHING"
        keeps = code == "USER_JOB_FAILURE"
        if not keeps:
            truth.take_nodes(job)
            yield 1 + rng.random() * 5
            yield from self._place(truth, job, rng)
        else:
            yield 5 + rng.random() * 20
        yield from _stand(job, "Job has recovered")

    def _place(self, truth: SkyPilotState, job: Job, rng: random.Random) -> Iterator[float]:
        waiting = job.status
        while True:
            for region in rng.sample(self.regions, len(self.regions)):
                truth.provision(job)
                job.note(f"Provisioning on aws in {region}")
                yield self.provision_s * (0.1 + rng.random())
                if rng.random() >= self.denial_rate:
                    job.note(f"Instances launched on aws in {region}")
                    truth.boot(job, region, f"{region}{rng.choice('abc')}")
                    yield 1 + self.setup_s * rng.random() / 2
                    job.note("Setting up SkyPilot runtime on cluster")
                    yield 1 + self.setup_s * rng.random() / 2
                    return
                truth.take_nodes(job)
                job.note(
                    "Provision failed: Reasons for provision failures (for details): none left"
                )
                yield 1.0
            job.tell("PENDING", "Job is in backoff")
            job.status, job.schedule = "PENDING", rng.choice(["ALIVE_BACKOFF", "LAUNCHING"])
            yield self.backoff_s
            job.tell(waiting, "Job is restarting")
            job.status, job.schedule = waiting, "LAUNCHING"


def _stand(job: Job, reason: str) -> Iterator[float]:
    job.tell("RUNNING", reason)
    yield 0.01  # The event is written before the row.
    job.stand()
