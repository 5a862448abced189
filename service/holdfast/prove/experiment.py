"""Both runs of an equivalence experiment, and the certificate.

One is uninterrupted; nodes of the other are preempted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from holdfast.api.schemas.diagnostics import ProofIn, ProofOut
from holdfast.api.schemas.jobs import JobOut
from holdfast.client import Client, Refused
from holdfast.domain.events import CapacityLost, NodeLost, NodeReplaced
from holdfast.errors import Unavailable
from holdfast.prove.step_logs import StepComparison, StepLogs, compare_steps

TIMEOUT_S: Final = 300.0
"""Seconds to wait for one state.

A lower value fails on a busy laptop; a higher value hides a job that hangs.
"""
_POLL_S: Final = 0.2
FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled"})

ReportProgress = Callable[[JobOut, str], None]
"""Displays progress: the current job, and the latest event or an empty text."""


def wait_until(
    client: Client, job_id: str, report_progress: ReportProgress, reached: Callable[[JobOut], bool]
) -> JobOut:
    """Wait until `reached` is true of a job and return the job.

    Raises:
        Unavailable: the job ended before that, or makes no progress.
    """
    deadline = time.monotonic() + TIMEOUT_S
    state = ""
    while True:
        job = client.jobs.get(job_id)
        report_progress(
            job,
            f"{job.state}{f': {job.detail}' if job.detail else ''}" if job.state != state else "",
        )
        state = job.state
        if reached(job):
            return job
        if state in FINAL_STATES:
            raise Unavailable(f"job {job_id} {state} too early: {job.detail}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"job {job_id} makes no progress: {state} at step {job.step}, {job.detail}"
            )
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of an equivalence experiment."""

    job: JobOut
    """The interrupted job."""
    uninterrupted: JobOut
    comparison: StepComparison
    certificate: ProofOut


@dataclass(frozen=True, slots=True)
class EquivalenceExperiment:
    """Two runs of one job file."""

    client: Client
    submit: Callable[[str], JobOut]
    """Submits a job file and returns the job."""
    report_progress: ReportProgress

    def run(self, task: Mapping[str, Any], kills: Sequence[int], notice_s: float | None) -> Proof:
        """Run the experiment.

        Raises:
            Unavailable: the service is unreachable, a run makes no progress, or a run ended before its nodes could be
                preempted.
        """
        name = task["name"]
        uninterrupted = self._wait_for_end(
            self._submit({**task, "name": f"{name}-straight"}, "undisturbed")
        )
        job = self._submit({**task, "name": name}, "with preemptions")
        for number, step in enumerate(kills, 1):
            self._preempt(job.id, number, step, notice_s)
        job = self._wait_for_end(job)
        comparison = compare_steps(self._step_logs(uninterrupted), self._step_logs(job))
        body = ProofIn(
            against=uninterrupted.id,
            batches=comparison.batches,
            other_batches=comparison.other_batches,
            values=comparison.values,
            other_values=comparison.other_values,
        )
        certificate = self.client.diagnostics.record_proof(job.id, body)
        return Proof(
            job=job, uninterrupted=uninterrupted, comparison=comparison, certificate=certificate
        )

    def _submit(self, task: Mapping[str, Any], what: str) -> JobOut:
        job = self.submit(yaml.safe_dump(dict(task), sort_keys=False))
        self.report_progress(job, f"submitted job {job.id}, {what}")
        return job

    def _wait_for_end(self, job: JobOut) -> JobOut:
        job = wait_until(
            self.client, job.id, self.report_progress, lambda job: job.state in FINAL_STATES
        )
        if job.state != "succeeded":
            raise Unavailable(
                f"job {job.id} {job.state}, so there is no result to compare: {job.detail}"
            )
        return job

    def _preempt(self, job_id: str, number: int, step: int, notice_s: float | None) -> None:
        """Preempt a node once the job has reached a step with the ranks on all its nodes.

        A degraded job, whose ranks have not moved to the new node yet, does not have them.
        Node 1 is the first and node 0 the last: after its loss all ranks start again, and other nodes are replaced alone.
        """
        late = f"job {job_id} ended before {number} preemptions; give it more work, with --steps or --step-ms"
        job = wait_until(
            self.client,
            job_id,
            self.report_progress,
            lambda job: (
                (job.state == "training" and job.step >= step and self._has_all_nodes(job_id))
                or job.state in FINAL_STATES
            ),
        )
        if job.state in FINAL_STATES:
            raise Unavailable(late)
        node = number % job.nodes
        try:
            # Lost steps are part of the experiment.
            job = self.client.jobs.preempt(job_id, node=node, notice_s=notice_s, force=True)
        except Refused as refusal:
            raise Unavailable(f"{late} ({refusal.detail})") from refusal
        how = "without notice" if notice_s is None else f"with {notice_s:g} s notice"
        self.report_progress(job, f"preempted node {node} {how}")
        wait_until(
            self.client,
            job_id,
            self.report_progress,
            lambda job: job.preemptions >= number or job.state in FINAL_STATES,
        )

    def _has_all_nodes(self, job_id: str) -> bool:
        """Whether each node that was lost alone has been replaced."""
        missing = 0
        for event in self.client.jobs.events(job_id):
            if event.kind == CapacityLost.__name__:
                missing = 0
            missing += (event.kind == NodeLost.__name__) - (event.kind == NodeReplaced.__name__)
        return not missing

    def _step_logs(self, job: JobOut) -> StepLogs:
        logs = StepLogs()
        for log in self.client.jobs.logs(job.id):
            if log.rank is not None:
                choice = {"attempt": log.attempt, "node": log.node, "rank": log.rank}
                logs.parse("".join(self.client.jobs.log_text(job.id, choice)).splitlines())
        return logs
