"""Scenario of the demo: a job preempted three times, and an uninterrupted copy.

Their weights are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import yaml

from holdfast.api.schemas.billing import BillOut
from holdfast.api.schemas.jobs import EventOut, JobOut, TaskIn
from holdfast.client import Client
from holdfast.demo.services import BUCKET, DemoServices
from holdfast.prove.experiment import FINAL_STATES, ReportProgress, wait_until

STEPS: Final = 120
NODES: Final = 2
SAVE_EVERY: Final = 15
NOTICE_S: Final = 30.0
REPLACED_AT: Final = 25
"""Step at which node 1 is preempted without notice: node 0 waits for its replacement, and no step is lost."""
NOTICED_AT: Final = 45
"""Step at which node 0 is preempted with notice: the worker saves and exits without losing work."""
KILLED_AT: Final = 70
"""Step at which node 0 is preempted without notice, ten steps after a checkpoint; those steps are recomputed."""


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Result of the scenario."""

    job: JobOut
    bill: BillOut
    events: list[EventOut]
    weights_sha256: str | None
    """Digest of the final weights; None without weights."""
    uninterrupted_sha256: str | None

    @property
    def identical(self) -> bool:
        """Whether both runs ended with bit-for-bit identical weights."""
        return self.weights_sha256 is not None and self.weights_sha256 == self.uninterrupted_sha256

    @property
    def succeeded(self) -> bool:
        """Whether all promises of the demo held."""
        as_promised = (self.job.state, self.job.step, self.job.preemptions, self.job.resumes)
        return self.identical and as_promised == ("succeeded", STEPS, 3, 2)


def run_scenario(services: DemoServices, report_progress: ReportProgress) -> ScenarioResult:
    """Run the scenario.

    Raises:
        Unavailable: the service is unreachable, or a job makes no progress.
    """
    client = services.client
    job = client.jobs.submit(_task("tiny-gpt", services), idempotency_key="interrupted")
    report_progress(
        job,
        f"submitted job {job.id} on {NODES} local nodes, checkpoints to S3 every {SAVE_EVERY} steps",
    )
    wait_until(client, job.id, report_progress, lambda job: job.step >= REPLACED_AT)
    report_progress(
        client.jobs.preempt(job.id, node=1, notice_s=None, force=True),
        "preempted node 1 without notice",
    )
    job = wait_until(client, job.id, report_progress, lambda job: job.step >= NOTICED_AT)
    report_progress(
        client.jobs.preempt(job.id, node=0, notice_s=NOTICE_S, force=True),
        f"preempted node 0 with {NOTICE_S:g} s notice",
    )
    wait_until(
        client, job.id, report_progress, lambda job: job.attempt == 2 and job.step >= KILLED_AT
    )
    report_progress(
        client.jobs.preempt(job.id, node=0, notice_s=None, force=True),
        "preempted node 0 without notice",
    )
    job = wait_until(client, job.id, report_progress, lambda job: job.state in FINAL_STATES)
    report_progress(job, f"finished after {job.preemptions} preemptions and {job.resumes} resumes")
    other = client.jobs.submit(
        _task("tiny-gpt-uninterrupted", services), idempotency_key="uninterrupted"
    )
    report_progress(other, f"now the same job as {other.id}, undisturbed")
    other = wait_until(client, other.id, report_progress, lambda job: job.state in FINAL_STATES)
    report_progress(other, f"the uninterrupted run {other.state}")
    return ScenarioResult(
        job,
        client.jobs.bill(job.id),
        client.jobs.events(job.id),
        _weights(client, job),
        _weights(client, other),
    )


def _task(name: str, services: DemoServices) -> TaskIn:
    task = {
        "name": name,
        "num_nodes": NODES,
        "workdir": str(_example()),
        "resources": {"infra": "local"},
        "run": f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.1",
        "holdfast": {
            "checkpoint": {"store": f"s3://{BUCKET}/checkpoints", "every": f"{SAVE_EVERY} steps"}
        },
    }
    return TaskIn(task=yaml.safe_dump(task, sort_keys=False), base_dir=str(services.folder))


def _example() -> Path:
    """Return the example of an installed wheel, or of the checkout in an editable install."""
    packaged = Path(str(resources.files("holdfast"))) / "_examples"
    return (packaged if packaged.is_dir() else Path(__file__).parents[3] / "examples") / "tiny_gpt"


def _weights(client: Client, job: JobOut) -> str | None:
    """Return the digest of the weights after the last step."""
    saved = client.jobs.checkpoint_page(job.id, states=["complete"]).checkpoints
    final = [item for item in saved if item.step == job.total_steps]
    return final[0].weights_sha256 if final else None
