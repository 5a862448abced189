"""The keeper of a run's checkpoints: knows what is tracked, when a save is due, and how the last ones went."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.failure_rate import AttemptHistory
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import PATIENCE_S, ParentJob, RestoreResult, restore
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.schedule import CheckpointSchedule
from holdfast_worker.checkpoint.snapshot import make_room, stage
from holdfast_worker.checkpoint.staging import OptimizerBarrier
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.checkpoint.writer import LOOK_S, AsyncWriter, WriterIdentity
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.state_consistency import first_difference
from holdfast_worker.distributed.step_vote import Vote
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.policies import Cadence, OnFailure
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.telemetry.metrics import Readings, nothing_logged
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

PACED_SHARE: Final = 0.25
"""Of the time between two saves, in which a save is spread out. Larger risks more work to a sudden end, smaller disturbs
the training more: on few cores an upload at full speed takes the processor from it."""

MEASURED: Final = 5
"""One save of so many is not spread out, to see how long one takes. More and it is long unknown that a store has become slow;
fewer disturbs the training more often."""

ALARM: Final = 3
"""Checkpoints in a row that fail before the run says that it cannot save. More trains on without any for longer; fewer takes a
hiccup for the end."""


LOOKED_AT: Final = 32
"""Batches after which a loop that steps its optimizer in half of them or fewer is warned. With fewer, the first skipped steps of a
GradScaler look like an accumulation; with more, the warning comes late."""


class Checkpointer:
    """Checkpoints of what is tracked, in an archive."""

    def __init__(
        self,
        archive: CheckpointRepository,
        tracked: TrackedState,
        ranks: ProcessGroup,
        cadence: Cadence,
        policy: OnFailure,
        *,
        waits: bool = False,
        beat: HeartbeatWriter | None = None,
    ) -> None:
        """`waits`: training stands still until a checkpoint is durable, or is known to have failed. `beat` shows saves."""
        self._archive = archive
        self._tracked = tracked
        self._ranks = ranks
        self._tempo = CheckpointSchedule(cadence)
        self._policy = policy
        self._waits = waits
        self._beat = beat
        self._division = SavePlanner(tracked, ranks)
        self._arena = StagingBuffer()
        self._has_room = False
        self._fence = OptimizerBarrier()
        self._saver: AsyncWriter | None = None
        self._reports: Reporter | None = None
        self._diary: AttemptHistory | None = None
        self._durable_s: float | None = None
        self._saves = 0
        self._saved_step = 0
        self._is_lent = False
        """Whether that step is in a checkpoint of the forebear, and in none of the job's own."""
        self._saved_s = 0.0
        self._safe_step = 0
        self._is_under_way = False
        self._failures = 0
        """Saves in a row that have failed; the same on all ranks, as all of them count the same votes."""
        self.fatal_error = ""
        """That checkpoints cannot be saved any more, and that the run is to stop for it, in words; the same on all ranks.
        Empty: it may go on."""
        self.exit_code = Exit.UNSAVED
        """What the run then ends with."""

    def restore(
        self,
        placement: WriterIdentity,
        reports: Reporter,
        keep: int | None,
        forebear: ParentJob | None = None,
    ) -> RestoreResult:
        """Where to go on, with what is tracked put back there. From here on the epoch of `placement` has begun.

        Raises:
            Mismatch: the checkpoint holds other things.
            StoreError: the store failed any rank.
        """
        until_s = time.monotonic() + PATIENCE_S
        restored = restore(
            self._archive,
            self._ranks,
            self._tracked,
            placement.epoch,
            until_s,
            forebear=forebear,
        )
        if restored.name:
            self._saved_step = self._safe_step = restored.name.step
            self._is_lent = bool(restored.forebear)
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                self._diary = self._archive.diary(placement.epoch, until_s)
        self._reports = reports
        self._saver = AsyncWriter(
            self._archive,
            placement,
            reports,
            keep=keep,
            damaged=restored.damaged,
            lineage=restored.lineage,
            tempo=self._tempo,
            diary=self._diary,
            beat=self._beat,
        )
        return restored

    def end_step(self) -> None:
        """A step is over.

        The first one asks for the memory for snapshots, beside the training, which would stand still for it at the first of
        them; not before, as it is then that an optimizer makes its state.
        """
        self._fence.end_step()
        if self._fence.batches == LOOKED_AT and self._ranks.rank == 0:
            self._warn_of_accumulation(self._fence.stepped)
        if not self._has_room:
            self._has_room = True
            with suppress(UnserializableState):  # The first save refuses it, on all ranks together.
                make_room(self._division, self._arena)

    def _warn_of_accumulation(self, stepped: int) -> None:
        if 0 < stepped <= LOOKED_AT // 2:
            log_info(
                f"an optimizer stepped in {stepped} of the first {LOOKED_AT} batches of steps(). Gradients that are summed over several "
                "batches are in no checkpoint, so a resume may lose a part of a sum: "
                "let the loader give the whole batch, and split it inside the loop"
            )

    def start_the_clock(self) -> None:
        """Training begins: seconds until the first save count from here."""
        self._saved_s = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a save should be proposed. The first rank alone proposes, as clocks differ."""
        since_s = time.monotonic() - self._saved_s
        return self._ranks.rank == 0 and self._tempo.is_due(
            step - self._saved_step, since_s, self._failures
        )

    def vote(self) -> Vote:
        """How this rank's save goes."""
        return Vote(
            is_busy=self._the_saver.is_busy,
            is_broken=self._the_saver.is_broken,
            is_fenced=bool(self._the_saver.fenced),
            durable_s=self._tempo.durable_s,
        )

    def has_saved(self, step: int) -> bool:
        """Whether the state after `step` is in a checkpoint of the job, or on its way into one."""
        return step == self._saved_step and not self._is_lent

    def observe_votes(self, votes: Vote) -> None:
        """Learn from all ranks' votes what a save takes, and whether the one under way can still succeed."""
        self._durable_s = votes.durable_s
        if votes.is_broken:
            self._the_saver.abandon()
        if self._is_under_way and not votes.is_busy and not votes.is_fenced:
            self._is_under_way = False
            self._conclude(is_sound=not votes.is_broken)

    def save(self, step: int, own: Any, readings: Readings = nothing_logged) -> None:
        """Begin a checkpoint of the state after `step`; `own` is what belongs to this rank alone."""
        since_s = time.monotonic() - self._saved_s
        try:
            snapshot = stage(step, self._division, own, self._arena, fence=self._fence)
        except UnserializableState as error:
            # The next vote has all ranks leave for it, also where the others can save.
            self._the_saver.refuse(str(error))
        else:
            pace = pace_of(
                len(snapshot.memory),
                since_s,
                self._durable_s,
                saves=self._saves,
                failures=self._failures,
            )
            self._the_saver.save(snapshot, pace, readings)
        self._saves += 1
        self._is_under_way = True
        self._saved_step, self._is_lent = step, False
        self._saved_s = time.monotonic()
        if self._waits:
            self.settle()

    @property
    def fenced(self) -> str:
        """That a newer placement took over, in words, on the rank that found out; empty elsewhere."""
        return self._the_saver.fenced

    def settle(self) -> Vote:
        """How the last save went on all ranks, once none of them has one under way."""
        while True:
            votes = Vote.of(self._ranks.all_reduce_max(self.vote().numbers()))
            self.observe_votes(votes)
            if not votes.is_busy:
                return votes
            self._the_saver.wait(LOOK_S)

    def wait(self, within_s: float) -> None:
        """Let this rank's save come to an end, for a while."""
        if self._saver:
            self._saver.wait(within_s)

    def failure_reason(self) -> str:
        """Why the last save failed, as the lowest rank says that knows; all ranks ask together."""
        return self._ranks.first_message(self._the_saver.complaint) or "no rank knows why"

    def close(self, left: ExitReason) -> None:
        """Give up a save that is still under way, and leave word in the store of how this attempt ends."""
        self._archive.close()
        self.wait(0)
        if self._diary:
            self._diary.close(left)

    def _conclude(self, *, is_sound: bool) -> None:
        """The save is over, on all ranks."""
        if is_sound:
            if self._failures >= ALARM and self._ranks.rank == 0:
                log_info(f"checkpoints are saved again, after {self._failures} that failed")
            self._failures, self._safe_step = 0, self._saved_step
            return
        self._failures += 1
        refused = self._ranks.first_message(self._the_saver.refused)
        apart = self._ranks.first_message(self._the_saver.apart)
        if refused:
            self.fatal_error, self.exit_code = refused, Exit.USAGE
        elif apart:
            self.fatal_error, self.exit_code = apart, Exit.APART
        elif self._ranks.all_reduce_max([float(self._the_saver.is_unlike)])[0]:
            # Every save would find the same, and what one rank has would be lost with each resume.
            self.fatal_error = first_difference(self._ranks, self._the_saver.stated)
            self.exit_code = Exit.USAGE
        elif self._failures == ALARM:
            self._raise_the_alarm(self.failure_reason())

    def _raise_the_alarm(self, complaint: str) -> None:
        assert self._reports, "restored before anything else"
        safe = f"step {self._safe_step} is the last" if self._safe_step else "none"
        words = (
            f"{ALARM} checkpoints in a row could not be saved, and {safe} that is safe: {complaint}"
        )
        if self._policy is OnFailure.STOP:
            self.fatal_error = words
        if self._ranks.rank == 0:
            log_info(words)
            self._reports.saving_failed(
                self._saved_step, self._failures, self._safe_step, self._policy, complaint
            )

    @property
    def _the_saver(self) -> AsyncWriter:
        assert self._saver, "restored before anything else"
        return self._saver


def pace_of(
    size: int, since_s: float, durable_s: float | None, *, saves: int, failures: int
) -> RateLimit:
    """How fast to upload so many bytes, the last save being `since_s` ago, of which there were so many, and of which the newest
    have failed. `durable_s` is expected at full speed; None before anything was measured."""
    target_s = PACED_SHARE * since_s
    is_measured = saves % MEASURED == 0
    if is_measured or failures or durable_s is None or durable_s >= target_s:
        return RateLimit()
    return RateLimit(size / target_s)
