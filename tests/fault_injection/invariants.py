"""Invariants of a job whose ranks crash: after each attempt, and at its end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fault_injection.fault_schedule import CALM_S, AttemptPlan
from fault_injection.job_driver import FOREVER, KEPT, TOTAL, AttemptResult, Job, Logbook
from holdfast_worker.checkpoint.metadata import CheckpointName
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.cli.checkpoints import verify
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind

SAMPLES, WEIGHTS, MOMENTS = 0, 1, 2
"""Where in a line of a logbook."""

Calm = Callable[[str, int], list[Logbook]]
"""The logbooks of a run that was left alone, for a kind and a number of ranks."""
ENDS = {Exit.DONE, Exit.PREEMPTED, Exit.FAILED, -signal.SIGKILL, -signal.SIGTERM}
"""Of a rank that fell, was told to go (perhaps before it listened), or lost another."""


@dataclass(frozen=True)
class Standing:
    """The store between two legs."""

    archive: CheckpointRepository
    names: list[CheckpointName]
    """Of checkpoints on the lineage, newest first."""
    ranks: dict[CheckpointName, int]
    """How many ranks wrote each."""

    @property
    def newest(self) -> CheckpointName | None:
        """What the next attempt must continue from; None: from the beginning."""
        return self.names[0] if self.names else None


def survey(job: Job) -> Standing:
    """The store as it is, in which every checkpoint is whole, and is that of the step that it says."""
    archive = job.archive()
    lineage = archive.tokens.lineage(FOREVER)
    names = archive.names(FOREVER)
    ranks = {}
    for name in names:
        assert verify(archive, name) is None, f"{name}: {verify(archive, name)}"
        commit = archive.read_commit(name, FOREVER)
        ranks[name] = commit.world_size
        # The rank may have been killed after the snapshot, but not before its step was written down.
        logged = job.logbook(name.epoch, 0)[name.step]
        assert commit.weights_sha256 == logged[WEIGHTS], f"{name} has not the weights of its step"
    return Standing(archive, [name for name in names if not lineage.superseding_start(name)], ranks)


def check_leg(job: Job, leg: AttemptPlan, before: Standing, result: AttemptResult) -> Standing:
    """What must hold after an attempt; the store as it left it."""
    after = survey(job)
    assert set(result.codes) <= ENDS, result
    _check_beginning(job, leg, before)
    for report in job.told(ReportKind.CHECKPOINT_COMMITTED):
        _check_commit(job, after, dict(report.body))
    if before.newest:
        assert after.newest, "all checkpoints are gone"
        assert after.newest.step >= before.newest.step
    is_left = result.codes == [Exit.PREEMPTED] * leg.ranks
    if is_left and job.told(ReportKind.WORKER_LEFT):
        _check_departure(job, after, before)
    return after


def _check_beginning(job: Job, leg: AttemptPlan, before: Standing) -> None:
    """It continued exactly where the newest checkpoint was taken; nothing was passed over, and no step left out."""
    begun = before.newest.step if before.newest else 0
    for started in job.told(ReportKind.TRAINING_STARTED):
        assert started.body["restored_from"] == (str(before.newest) if before.newest else None)
        assert started.body["step"] == begun
        assert started.body["passed_over"] == []
        assert started.body["world_size"] == leg.ranks
    for rank in range(leg.ranks):
        steps = list(job.logbook(job.attempt, rank))
        assert steps == list(range(begun + 1, begun + 1 + len(steps)))
        if (has := job.begun(rank)) and before.newest:
            # Each rank has buffers of its own, unless another number of ranks saved them.
            writer = rank if before.ranks[before.newest] == leg.ranks else 0
            saved = job.logbook(before.newest.epoch, writer)[begun]
            # Of sharded state, each rank has its own moments.
            found = [
                str(begun),
                saved[WEIGHTS],
                saved[MOMENTS] if job.kind == "ddp" else has[MOMENTS],
            ]
            assert has == found, f"rank {rank} did not begin with what was saved"


def _check_commit(job: Job, after: Standing, told: dict[str, Any]) -> None:
    """What was reported is there, or was removed for newer ones."""
    found = {str(name): name for name in after.names}
    newer = [name for name in after.names if name.step > told["step"]]
    assert told["checkpoint"] in found or len(newer) >= 1, f"{told['checkpoint']} is not there"
    assert told["weights_sha256"] == job.logbook(job.attempt, 0)[told["step"]][WEIGHTS]


def _check_departure(job: Job, after: Standing, before: Standing) -> None:
    """Who left in time has saved all that was done."""
    [left] = job.told(ReportKind.WORKER_LEFT)
    noticed = job.told(ReportKind.PREEMPTION_NOTICED)
    if noticed and float(noticed[-1].body["left_s"] or 0) > 2 * CALM_S:
        newest = after.newest
        assert left.body["step"] == (newest.step if newest else 0)
    assert not before.newest or int(left.body["step"]) >= before.newest.step


def check_end(job: Job, calm: Calm, standing: Standing, legs: list[AttemptPlan]) -> None:
    """The job ended as if it had been left alone; in the store is nothing but what is kept."""
    for attempt, leg in enumerate(legs, 1):
        books = [job.logbook(attempt, rank) for rank in range(leg.ranks)]
        _check_samples(books, calm(job.kind, 1))
        if {other.ranks for other in legs} == {leg.ranks}:
            _check_bits(attempt, books, calm(job.kind, leg.ranks))
    assert standing.newest, "no checkpoint of the last step"
    assert standing.newest.step == TOTAL
    [left] = job.told(ReportKind.WORKER_LEFT)
    assert (left.body["reason"], left.body["step"]) == ("finished", TOTAL)
    if job.told(
        ReportKind.CHECKPOINT_COMMITTED
    ):  # Who finds all done saves nothing, and so removes nothing.
        assert len(standing.names) <= KEPT
        owners = {CheckpointName.of_key(key) for key in job.objects()} - {None}
        assert owners == set(standing.names), "something was left behind"


def _check_samples(books: list[Logbook], alone: list[Logbook]) -> None:
    """Every step took the samples that it takes when nothing happens, on however many ranks."""
    for step in set.intersection(*(set(book) for book in books)):
        taken = [sample for book in books for sample in book[step][SAMPLES].split(",")]
        assert sorted(taken) == sorted(alone[0][step][SAMPLES].split(",")), f"at step {step}"


def _check_bits(attempt: int, books: list[Logbook], calm: list[Logbook]) -> None:
    """Every step of every rank was, to the last bit, what it is when nothing happens."""
    for rank, book in enumerate(books):
        for step, words in book.items():
            assert words == calm[rank][step], f"attempt {attempt}, rank {rank}, step {step}"
