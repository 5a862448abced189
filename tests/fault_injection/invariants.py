"""Invariants of a job whose ranks crash: after each attempt, and at its end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fault_injection.fault_schedule import GRACE_S, AttemptPlan
from fault_injection.job_driver import FOREVER, KEPT, TOTAL, AttemptResult, Job, Logbook
from holdfast_worker.checkpoint.metadata import CheckpointName
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.cli.checkpoints import verify
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind

SAMPLES, WEIGHTS, MOMENTS = 0, 1, 2
"""Positions in a line of a logbook."""

UninterruptedRun = Callable[[str, int], list[Logbook]]
"""Returns the logbooks of an uninterrupted run of a kind with a number of ranks."""
ENDS = {Exit.DONE, Exit.PREEMPTED, Exit.FAILED, -signal.SIGKILL, -signal.SIGTERM}
"""Exit codes of ranks that crashed, received a notice or a signal, or lost another rank."""


@dataclass(frozen=True)
class StoreState:
    """The checkpoint store between two attempts."""

    repository: CheckpointRepository
    names: list[CheckpointName]
    """Checkpoints on the lineage, newest first."""
    ranks: dict[CheckpointName, int]
    """The number of ranks that wrote each checkpoint."""

    @property
    def newest(self) -> CheckpointName | None:
        """What the next attempt must continue from; None: from the beginning."""
        return self.names[0] if self.names else None


def read_store(job: Job) -> StoreState:
    """Read the store; check that each checkpoint is complete and belongs to its step."""
    repository = job.repository()
    lineage = repository.tokens.lineage(FOREVER)
    names = repository.names(FOREVER)
    ranks = {}
    for name in names:
        assert verify(repository, name) is None, f"{name}: {verify(repository, name)}"
        commit = repository.read_commit(name, FOREVER)
        ranks[name] = commit.world_size
        # The rank may have been killed after the snapshot, but only after it had logged the step.
        logged = job.logbook(name.epoch, 0)[name.step]
        assert commit.weights_sha256 == logged[WEIGHTS], f"{name} has not the weights of its step"
    return StoreState(
        repository, [name for name in names if not lineage.superseding_start(name)], ranks
    )


def check_attempt(
    job: Job, plan: AttemptPlan, before: StoreState, result: AttemptResult
) -> StoreState:
    """Check the invariants after an attempt; return the store as the attempt left it."""
    after = read_store(job)
    assert set(result.codes) <= ENDS, result
    _check_beginning(job, plan, before)
    for report in job.attempt_reports(ReportKind.CHECKPOINT_COMMITTED):
        _check_commit(job, after, dict(report.body))
    if before.newest:
        assert after.newest, "all checkpoints are gone"
        assert after.newest.step >= before.newest.step
    is_left = result.codes == [Exit.PREEMPTED] * plan.ranks
    if is_left and job.attempt_reports(ReportKind.WORKER_LEFT):
        _check_exit(job, after, before)
    return after


def _check_beginning(job: Job, plan: AttemptPlan, before: StoreState) -> None:
    """Check that the attempt continued exactly at the newest checkpoint."""
    first_step = before.newest.step if before.newest else 0
    for started in job.attempt_reports(ReportKind.TRAINING_STARTED):
        assert started.body["restored_from"] == (str(before.newest) if before.newest else None)
        assert started.body["step"] == first_step
        assert started.body["passed_over"] == []
        assert started.body["world_size"] == plan.ranks
    for rank in range(plan.ranks):
        steps = list(job.logbook(job.attempt, rank))
        assert steps == list(range(first_step + 1, first_step + 1 + len(steps)))
        if (initial := job.initial_state(rank)) and before.newest:
            # Each rank has its own buffers, unless a different number of ranks saved them.
            writer = rank if before.ranks[before.newest] == plan.ranks else 0
            saved = job.logbook(before.newest.epoch, writer)[first_step]
            # With sharded state, each rank has its own moments.
            found = [
                str(first_step),
                saved[WEIGHTS],
                saved[MOMENTS] if job.kind == "ddp" else initial[MOMENTS],
            ]
            assert initial == found, f"rank {rank} did not begin with what was saved"


def _check_commit(job: Job, after: StoreState, body: dict[str, Any]) -> None:
    """Check that a reported checkpoint exists or was replaced by newer ones."""
    found = {str(name): name for name in after.names}
    newer = [name for name in after.names if name.step > body["step"]]
    assert body["checkpoint"] in found or len(newer) >= 1, f"{body['checkpoint']} is not there"
    assert body["weights_sha256"] == job.logbook(job.attempt, 0)[body["step"]][WEIGHTS]


def _check_exit(job: Job, after: StoreState, before: StoreState) -> None:
    """Check that an attempt that exited in time saved its last step."""
    [left] = job.attempt_reports(ReportKind.WORKER_LEFT)
    noticed = job.attempt_reports(ReportKind.PREEMPTION_NOTICED)
    if noticed and float(noticed[-1].body["left_s"] or 0) > 2 * GRACE_S:
        newest = after.newest
        assert left.body["step"] == (newest.step if newest else 0)
    assert not before.newest or int(left.body["step"]) >= before.newest.step


def check_end(
    job: Job, uninterrupted: UninterruptedRun, state: StoreState, plans: list[AttemptPlan]
) -> None:
    """Check that the job ended like an uninterrupted run, with the retained checkpoints only."""
    for attempt, plan in enumerate(plans, 1):
        logbooks = [job.logbook(attempt, rank) for rank in range(plan.ranks)]
        _check_samples(logbooks, uninterrupted(job.kind, 1))
        if {other.ranks for other in plans} == {plan.ranks}:
            _check_bits(attempt, logbooks, uninterrupted(job.kind, plan.ranks))
    assert state.newest, "no checkpoint of the last step"
    assert state.newest.step == TOTAL
    [left] = job.attempt_reports(ReportKind.WORKER_LEFT)
    assert (left.body["reason"], left.body["step"]) == ("finished", TOTAL)
    if job.attempt_reports(
        ReportKind.CHECKPOINT_COMMITTED
    ):  # An attempt that finds all steps done saves and removes nothing.
        assert len(state.names) <= KEPT
        owners = {CheckpointName.of_key(key) for key in job.objects()} - {None}
        assert owners == set(state.names), "something was left behind"


def _check_samples(logbooks: list[Logbook], uninterrupted: list[Logbook]) -> None:
    """Check that every step used the same samples as that of an uninterrupted run."""
    for step in set.intersection(*(set(logbook) for logbook in logbooks)):
        samples = [sample for logbook in logbooks for sample in logbook[step][SAMPLES].split(",")]
        assert sorted(samples) == sorted(uninterrupted[0][step][SAMPLES].split(",")), (
            f"at step {step}"
        )


def _check_bits(attempt: int, logbooks: list[Logbook], uninterrupted: list[Logbook]) -> None:
    """Check that every step of every rank is bit-identical to that of an uninterrupted run."""
    for rank, logbook in enumerate(logbooks):
        for step, values in logbook.items():
            assert values == uninterrupted[rank][step], (
                f"attempt {attempt}, rank {rank}, step {step}"
            )
