"""The checkpointer of a run: starts saves when they are due, and counts failed ones."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.failure_rate import AttemptHistory
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.memory_snapshots import MemorySnapshots
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import STORE_TIMEOUT_S, ParentJob, RestoreResult, restore
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.schedule import CheckpointSchedule
from holdfast_worker.checkpoint.snapshot import Snapshot, reserve_buffer, stage
from holdfast_worker.checkpoint.staging import OptimizerBarrier
from holdfast_worker.checkpoint.state_consistency import first_difference
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.checkpoint.writer import POLL_S, AsyncWriter, WriterIdentity
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.step_vote import StepVote
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.lineage import EpochStart, Lineage
from holdfast_worker.protocol.policies import Cadence, OnFailure
from holdfast_worker.protocol.store_usage import StoreUsage
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.storage.metering import StoreMeter
from holdfast_worker.telemetry.metrics import Readings, no_readings
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

UPLOAD_TIME_SHARE: Final = 0.25
"""Share of the time between two saves over which an upload is spread. A higher value risks
more work at a sudden end; a lower value disturbs training more, because on few cores a full-speed upload competes for
the processor."""

MEASURE_EVERY: Final = 5
"""Every n-th save is uploaded at full speed, to measure it. A higher value notices a
slower store later; a lower value disturbs training more often."""

MAX_FAILED_SAVES: Final = 3
"""Consecutive failed saves after which the run reports that it cannot save. A higher value
trains longer without checkpoints; a lower value reacts to brief outages."""


ACCUMULATION_CHECK_BATCHES: Final = 32
"""Batches after which a loop that steps its optimizer in at most half of them gets a
warning. With a lower value, the steps that a GradScaler skips at first look like gradient accumulation; with a higher
value, the warning comes late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """How far the saves of a run are; equal on all ranks."""

    saved_step: int
    is_from_parent: bool
    durable_step: int
    durable_s: float | None
    saves: int
    failures: int
    damaged: Sequence[str]
    """Names of corrupt checkpoints."""
    starts: Sequence[tuple[int, int]]
    """Epoch and step of each start in the lineage."""


class Checkpointer:
    """Saves and restores tracked state in a checkpoint repository."""

    def __init__(
        self,
        repository: CheckpointRepository,
        tracked: TrackedState,
        ranks: ProcessGroup,
        cadence: Cadence,
        policy: OnFailure,
        *,
        waits: bool = False,
        heartbeat: HeartbeatWriter | None = None,
    ) -> None:
        """`waits`: training blocks until each checkpoint is durable or has failed.

        `heartbeat` shows running saves.
        """
        self._repository = repository
        self._tracked = tracked
        self._ranks = ranks
        self._schedule = CheckpointSchedule(cadence)
        self._policy = policy
        self._waits = waits
        self._heartbeat = heartbeat
        self._planner = SavePlanner(tracked, ranks)
        self._buffer = StagingBuffer()
        self._is_buffer_reserved = False
        self._barrier = OptimizerBarrier()
        self._writer: AsyncWriter | None = None
        self._reports: Reporter | None = None
        self._identity: WriterIdentity | None = None
        self._history: AttemptHistory | None = None
        self._durable_s: float | None = None
        self._saves = 0
        self._saved_step = 0
        self._is_from_parent = False
        """Whether the saved step is in a checkpoint of the parent job and in none of this job."""
        self._is_uncertain = False
        """Whether ranks may disagree about the last save, because one was lost since then."""
        self._saved_s = 0.0
        self._durable_step = 0
        self._is_under_way = False
        self._failures = 0
        """Consecutive failed saves; equal on all ranks, because all count the same votes."""
        self.memory: MemorySnapshots | None = None
        """None: snapshots are only in the store."""
        self._is_in_memory = False
        """Whether a snapshot is being copied into memory, as far as the ranks have agreed."""
        self._is_copy_due = False
        """Whether the next snapshot for the store is copied into memory as well."""
        self._memory_step = 0
        self._memory_saves = 0
        self._memory_s = 0.0
        self._memory_failures = 0
        self.fatal_error = ""
        """Why checkpoints can no longer be saved and the run must stop; equal on all ranks. Empty:
        continue."""
        self.exit_code = Exit.UNSAVED
        """The exit code of the run if `fatal_error` is set."""

    def restore(
        self,
        identity: WriterIdentity,
        reports: Reporter,
        keep: int | None,
        parent_job: ParentJob | None = None,
    ) -> RestoreResult:
        """Restore the tracked state and return where to continue.

        The epoch of `identity` begins here.

        Raises:
            StateMismatch: the checkpoint holds different objects.
            StoreError: the store failed on any rank.
        """
        until_s = time.monotonic() + STORE_TIMEOUT_S
        restored = restore(
            self._repository,
            self._ranks,
            self._tracked,
            identity.epoch,
            until_s,
            parent_job=parent_job,
            memory=self.memory.repository if self.memory else None,
        )
        self._saved_step = self._durable_step = restored.durable_step
        self._is_from_parent = bool(restored.parent_job)
        if self.memory and restored.name:
            self._memory_step = restored.name.step
            if restored.held_at:
                self.memory.adopt(restored.name)
                self._is_in_memory = True
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                self._history = self._repository.attempt_history(identity.epoch, until_s)
        self._open_writer(identity, reports, keep, restored.damaged, restored.lineage)
        return replace(restored, store_usage=self._gather_usage())

    @property
    def meter(self) -> StoreMeter:
        """Counts the requests of this process to the store."""
        return self._repository.meter

    def _gather_usage(self) -> StoreUsage:
        """Requests of all ranks to the store so far, on rank 0; a collective call."""
        texts = self._ranks.gather_text(json.dumps(self.meter.read().dump()))
        for rank, text in enumerate(texts):
            self._repository.usage.observe(rank, StoreUsage.parse(json.loads(text)))
        return self._repository.usage.read()

    def progress(self) -> SaveProgress:
        """What a rank needs to take part in the saves of the others."""
        return SaveProgress(
            saved_step=self._saved_step,
            is_from_parent=self._is_from_parent,
            durable_step=self._durable_step,
            durable_s=self._durable_s,
            saves=self._saves,
            failures=self._failures,
            damaged=[str(name) for name in self._active_writer.damaged],
            starts=[(start.epoch, start.step) for start in self._active_writer.lineage.starts],
        )

    def join(
        self, identity: WriterIdentity, reports: Reporter, keep: int | None, progress: SaveProgress
    ) -> None:
        """Take part in the saves of other ranks, in place of a lost one.

        Raises:
            StoreError: the store failed.
        """
        if self._ranks.rank == 0:
            until_s = time.monotonic() + STORE_TIMEOUT_S
            self._history = self._repository.attempt_history(identity.epoch, until_s)
            self._repository.usage.succeed(range(1, self._ranks.world_size))
        parsed = (CheckpointName.parse(name) for name in progress.damaged)
        damaged = [name for name in parsed if name is not None]
        lineage = Lineage(frozenset(EpochStart(*start) for start in progress.starts))
        self._open_writer(identity, reports, keep, damaged, lineage)
        self._saved_step, self._is_from_parent = progress.saved_step, progress.is_from_parent
        self._durable_step, self._durable_s = progress.durable_step, progress.durable_s
        self._saves, self._failures = progress.saves, progress.failures
        self._is_uncertain = True

    def abandon(self) -> None:
        """Give up the save in progress, whose shard on a lost rank is missing."""
        self._is_uncertain = True
        if self._is_under_way:
            self._is_under_way = False
            self._active_writer.cancel()

    def _open_writer(
        self,
        identity: WriterIdentity,
        reports: Reporter,
        keep: int | None,
        damaged: Collection[CheckpointName],
        lineage: Lineage,
    ) -> None:
        self._reports, self._identity = reports, identity
        self._writer = AsyncWriter(
            self._repository,
            identity,
            reports,
            keep=keep,
            damaged=damaged,
            lineage=lineage,
            schedule=self._schedule,
            history=self._history,
            heartbeat=self._heartbeat,
        )

    def end_step(self) -> None:
        """Register the end of a step.

        The first call reserves the staging buffer in the background, so that the first snapshot does not wait for it.
        An earlier call would miss the optimizer state, which exists after the first step.
        """
        self._barrier.end_step()
        if self._barrier.batches == ACCUMULATION_CHECK_BATCHES and self._ranks.rank == 0:
            self._warn_of_accumulation(self._barrier.stepped)
        if not self._is_buffer_reserved:
            self._is_buffer_reserved = True
            with suppress(UnserializableState):  # The first save raises it on all ranks together.
                reserve_buffer(self._planner, self._buffer)

    def _warn_of_accumulation(self, stepped: int) -> None:
        if 0 < stepped <= ACCUMULATION_CHECK_BATCHES // 2:
            log_info(
                f"an optimizer stepped in {stepped} of the first {ACCUMULATION_CHECK_BATCHES} batches of steps(). Gradients accumulated over several "
                "batches are not checkpointed, so a resume may lose part of a sum: "
                "have the loader return the whole batch and split it inside the loop"
            )

    def start_timer(self) -> None:
        """Start the clock for the first save, as training begins."""
        self._saved_s = self._memory_s = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether to propose a save. Only rank 0 proposes, because clocks differ."""
        since_s = time.monotonic() - self._saved_s
        return self._ranks.rank == 0 and self._schedule.is_due(
            step - self._saved_step, since_s, self._failures
        )

    def is_snapshot_due(self, step: int) -> bool:
        """Whether to propose a snapshot in memory. Only rank 0 proposes, because clocks differ."""
        since_s = time.monotonic() - self._memory_s
        return (
            self._ranks.rank == 0
            and self.memory is not None
            and self.memory.schedule.is_due(
                step - self._memory_step, since_s, self._memory_failures
            )
        )

    def vote(self) -> StepVote:
        """The state of this rank's save, for the step vote."""
        memory = self.memory
        return StepVote(
            is_copying=memory is not None and memory.is_copying,
            has_copy_failed=memory is not None and memory.has_failed,
            lacks_room=memory is not None and bool(memory.refusal),
            is_busy=self._active_writer.is_busy,
            is_broken=self._active_writer.is_broken,
            is_fenced=bool(self._active_writer.fenced),
            durable_s=self._schedule.durable_s,
            saves=self._active_writer.saves,
            failures=self._failures,
        )

    def has_saved(self, step: int) -> bool:
        """Whether the state after `step` is in a checkpoint of this job or is being saved."""
        return step == self._saved_step and not (self._is_from_parent or self._is_uncertain)

    def durable_step(self) -> int:
        """The step of the newest durable checkpoint; 0 without one."""
        return self._durable_step

    def observe_votes(self, votes: StepVote) -> None:
        """Update the save outcome from all ranks' votes; cancel a save that cannot succeed."""
        self._durable_s = votes.durable_s
        # After the loss of a rank, some ranks may have begun or ended a save that others have not.
        self._active_writer.saves, self._failures = votes.saves, votes.failures
        self._is_copy_due = votes.is_snapshot_due
        self._observe_memory(votes)
        if votes.is_broken:
            self._active_writer.cancel()
        if self._is_under_way and not votes.is_busy and not votes.is_fenced:
            self._is_under_way = False
            self._record_outcome(is_sound=not votes.is_broken)

    def _observe_memory(self, votes: StepVote) -> None:
        """Update the outcome of the snapshot in memory from all ranks' votes."""
        if not self.memory or not self._is_in_memory:
            return
        if votes.has_copy_failed:
            self.memory.cancel()
        if votes.is_copying:
            return
        self._is_in_memory = False
        self._memory_failures = self._memory_failures + 1 if votes.has_copy_failed else 0
        if votes.lacks_room:
            refusal = self._ranks.first_message(self.memory.refusal)
            if self._ranks.rank == 0:
                log_info(
                    f"snapshots are not kept in memory, and a restart loads the newest checkpoint: {refusal}"
                )
            self.memory.discard()
            self._close_memory()

    def _close_memory(self) -> None:
        if self.memory:
            self.memory.close()
            self.memory = None

    def save_in_memory(self, step: int, own: Any) -> None:
        """Begin to copy the state after `step` into memory; `own` is the state of this rank alone."""
        try:
            snapshot = stage(step, self._planner, own, self._buffer, barrier=self._barrier)
        except UnserializableState:  # The next save reports it.
            snapshot = None
        self._copy(step, snapshot)

    def _copy(self, step: int, snapshot: Snapshot | None) -> None:
        """Begin to copy a snapshot into memory; None fails it."""
        if not self.memory or not self._identity:
            return
        self._memory_saves += 1
        self._is_in_memory = True
        self._memory_step, self._memory_s = step, time.monotonic()
        if snapshot:
            self.memory.save(self._identity.name(step, self._memory_saves), snapshot)
        else:
            self.memory.fail()

    def save(self, step: int, own: Any, readings: Readings = no_readings) -> None:
        """Begin a checkpoint of the state after `step`; `own` is the state of this rank alone."""
        if self._is_in_memory:
            # The run is about to end, and the staging buffer is needed for its last checkpoint.
            self._close_memory()
        since_s = time.monotonic() - self._saved_s
        try:
            snapshot = stage(step, self._planner, own, self._buffer, barrier=self._barrier)
        except UnserializableState as error:
            # After the next vote all ranks exit, including those that could save.
            self._active_writer.refuse(str(error))
        else:
            rate_limit = upload_rate(
                len(snapshot.memory),
                since_s,
                self._durable_s,
                saves=self._saves,
                failures=self._failures,
            )
            self._active_writer.save(snapshot, rate_limit, readings)
            if self._is_copy_due:
                self._copy(step, snapshot)
        self._saves += 1
        self._is_under_way = True
        self._saved_step, self._is_from_parent, self._is_uncertain = step, False, False
        self._saved_s = time.monotonic()
        if self._waits:
            self.wait_for_outcome()

    @property
    def fenced(self) -> str:
        """Message that a newer attempt took over, on the rank that noticed; otherwise empty."""
        return self._active_writer.fenced

    def wait_for_outcome(self) -> StepVote:
        """Wait until no rank is saving; return the votes on the last save."""
        while True:
            votes = StepVote.from_numbers(self._ranks.all_reduce_max(self.vote().numbers()))
            self.observe_votes(votes)
            if not votes.is_busy:
                return votes
            self._active_writer.wait(POLL_S)

    def wait(self, within_s: float) -> None:
        """Wait up to `within_s` for this rank's save to end."""
        if self.memory:
            self.memory.wait(within_s)
        if self._writer:
            self._writer.wait(within_s)

    def failure_reason(self) -> str:
        """Why the last save failed, from the lowest rank that knows; a collective call."""
        return (
            self._ranks.first_message(self._active_writer.failure_reason)
            or "no rank reported a reason"
        )

    def close(self, exit_reason: ExitReason) -> None:
        """Abort a running save and record in the store how this attempt ends."""
        self._close_memory()
        self._repository.close()
        self.wait(0)
        if self._history:
            self._history.close(exit_reason)

    def _record_outcome(self, *, is_sound: bool) -> None:
        """Count the outcome of a save that has ended on all ranks."""
        if is_sound:
            if self._failures >= MAX_FAILED_SAVES and self._ranks.rank == 0:
                log_info(
                    f"saving checkpoints works again after {self._failures} consecutive failures"
                )
            self._failures, self._durable_step = 0, self._saved_step
            return
        self._failures += 1
        refused = self._ranks.first_message(self._active_writer.refusal)
        divergence = self._ranks.first_message(self._active_writer.divergence)
        if refused:
            self.fatal_error, self.exit_code = refused, Exit.USAGE
        elif divergence:
            self.fatal_error, self.exit_code = divergence, Exit.APART
        elif self._ranks.all_reduce_max([float(self._active_writer.is_inconsistent)])[0]:
            # Every save would fail alike, and a resume would lose the state of one rank.
            self.fatal_error = first_difference(self._ranks, self._active_writer.statement)
            self.exit_code = Exit.USAGE
        elif self._failures == MAX_FAILED_SAVES:
            self._report_failed_saves(self.failure_reason())

    def _report_failed_saves(self, reason: str) -> None:
        assert self._reports, "restore() must run first"
        safe = (
            f"the last durable checkpoint is step {self._durable_step}"
            if self._durable_step
            else "no checkpoint is durable"
        )
        message = f"{MAX_FAILED_SAVES} consecutive checkpoints failed; {safe}: {reason}"
        if self._policy is OnFailure.STOP:
            self.fatal_error = message
        if self._ranks.rank == 0:
            log_info(message)
            self._reports.saving_failed(
                self._saved_step, self._failures, self._durable_step, self._policy, reason
            )

    @property
    def _active_writer(self) -> AsyncWriter:
        assert self._writer, "restore() must run first"
        return self._writer


def upload_rate(
    size: int, since_s: float, durable_s: float | None, *, saves: int, failures: int
) -> RateLimit:
    """Choose the upload rate of `size` bytes; the last of `saves` saves began `since_s` ago.

    `failures` of the newest saves failed. `durable_s` is the expected duration at full speed; None before a measurement.
    """
    target_s = UPLOAD_TIME_SHARE * since_s
    is_measured = saves % MEASURE_EVERY == 0
    if is_measured or failures or durable_s is None or durable_s >= target_s:
        return RateLimit()
    return RateLimit(size / target_s)
