"""Both runs of a proof: one left alone, one whose nodes are taken, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from holdfast.api.proof_schemas import ProofIn, ProofOut
from holdfast.api.schemas import JobOut
from holdfast.client import Client, Refused
from holdfast.errors import Unavailable
from holdfast.proving.testimony import Hearing, Likeness, side_by_side
from holdfast.proving.waiting import ENDS, Tell, until


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What came of it."""

    job: JobOut
    """The one that was interrupted."""
    straight: JobOut
    likeness: Likeness
    certificate: ProofOut


@dataclass(frozen=True, slots=True)
class Trial:
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
        certificate = self.client.ask(
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

    def _heard(self, job: JobOut) -> Hearing:
        heard = Hearing()
        for log in self.client.logs(job.id):
            if log.rank is not None:
                choice = {"attempt": log.attempt, "rank": log.rank}
                heard.hear("".join(self.client.log_text(job.id, choice)).splitlines())
        return heard
