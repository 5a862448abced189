"""A job, watched until it has come somewhere.

Both runs of a proof: one left alone, one whose nodes are taken, and what comes of it.
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
from holdfast.errors import Unavailable
from holdfast.prove.step_logs import StepComparison, StepLogs, side_by_side

PATIENCE_S: Final = 300.0
"""How long one thing is waited for. Smaller fails on a busy laptop; bigger hides a job that hangs."""
_POLL_S: Final = 0.2
ENDS: Final = frozenset({"succeeded", "failed", "cancelled"})

Tell = Callable[[JobOut, str], None]
"""Shows where the story is: the job now, and what just happened or an empty text."""


def until(client: Client, job_id: str, tell: Tell, reached: Callable[[JobOut], bool]) -> JobOut:
    """The job once `reached` is true of it.

    Raises:
        Unavailable: it ended before that, or does not get on.
    """
    deadline = time.monotonic() + PATIENCE_S
    state = ""
    while True:
        job = client.job(job_id)
        tell(
            job,
            f"{job.state}{f': {job.detail}' if job.detail else ''}" if job.state != state else "",
        )
        state = job.state
        if reached(job):
            return job
        if state in ENDS:
            raise Unavailable(f"job {job_id} {state} before its time: {job.detail}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"job {job_id} does not get on: {state} at step {job.step}, {job.detail}"
            )
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What came of it."""

    job: JobOut
    """The one that was interrupted."""
    straight: JobOut
    likeness: StepComparison
    certificate: ProofOut


@dataclass(frozen=True, slots=True)
class EquivalenceExperiment:
    """Two runs of one job file."""

    client: Client
    submit: Callable[[str], JobOut]
    """Submits a job file and gives the job."""
    tell: Tell

    def run(self, task: Mapping[str, Any], kills: Sequence[int], notice_s: float | None) -> Proof:
        """The proof.

        Raises:
            Unavailable: the service went away, or a run did not get on; or one was over before its nodes could be taken.
        """
        name = task["name"]
        straight = self._end(self._begin({**task, "name": f"{name}-straight"}, "left alone"))
        job = self._begin({**task, "name": name}, "whose nodes will be taken")
        for number, step in enumerate(kills, 1):
            self._take(job.id, number, step, notice_s)
        job = self._end(job)
        likeness = side_by_side(self._heard(straight), self._heard(job))
        body = ProofIn(
            against=straight.id,
            batches=likeness.batches,
            other_batches=likeness.other_batches,
            values=likeness.values,
            other_values=likeness.other_values,
        )
        certificate = self.client.get(
            ProofOut, "POST", f"/v1/jobs/{job.id}/proofs", json=body.model_dump()
        )
        return Proof(job=job, straight=straight, likeness=likeness, certificate=certificate)

    def _begin(self, task: Mapping[str, Any], what: str) -> JobOut:
        job = self.submit(yaml.safe_dump(dict(task), sort_keys=False))
        self.tell(job, f"submitted job {job.id}, {what}")
        return job

    def _end(self, job: JobOut) -> JobOut:
        job = until(self.client, job.id, self.tell, lambda job: job.state in ENDS)
        if job.state != "succeeded":
            raise Unavailable(
                f"job {job.id} {job.state}, so that there is nothing to compare: {job.detail}"
            )
        return job

    def _take(self, job_id: str, attempt: int, step: int, notice_s: float | None) -> None:
        """Take a node of this attempt once it has come to a step."""
        late = f"job {job_id} was over before its nodes could be taken {attempt} times; give it more to do, with --steps or --step-ms"
        job = until(
            self.client,
            job_id,
            self.tell,
            lambda job: (job.attempt >= attempt and job.step >= step) or job.state in ENDS,
        )
        if job.state in ENDS:
            raise Unavailable(late)
        try:
            job = self.client.preempt(job_id, node=attempt % job.nodes, notice_s=notice_s)
        except Refused as refusal:
            raise Unavailable(f"{late} ({refusal.detail})") from refusal
        how = "without a word" if notice_s is None else f"with {notice_s:g} s of notice"
        self.tell(job, f"took node {attempt % job.nodes} {how}")
        until(
            self.client, job_id, self.tell, lambda job: job.attempt > attempt or job.state in ENDS
        )

    def _heard(self, job: JobOut) -> StepLogs:
        heard = StepLogs()
        for log in self.client.logs(job.id):
            if log.rank is not None:
                choice = {"attempt": log.attempt, "rank": log.rank}
                heard.hear("".join(self.client.log_text(job.id, choice)).splitlines())
        return heard
