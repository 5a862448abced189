"""The boundary between two steps: all ranks vote, then save or exit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NoReturn, TypeVar

from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.data.resumable_loader import ResumableLoader
from holdfast_worker.distributed.collectives import BoundaryRestarted
from holdfast_worker.distributed.desync import (
    READ_LAG_STEPS,
    UNKNOWN,
    DesyncDetector,
    describe_desync,
)
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.recovery_plan import Place
from holdfast_worker.distributed.step_vote import StepDecision, StepVote, decide
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.recovery.run_recovery import RunRecovery
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.shutdown import Shutdown
from holdfast_worker.telemetry.metrics import MetricLogger, no_readings
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

T = TypeVar("T")


class StepBoundary:
    """Runs between steps: votes with all ranks, then saves or exits."""

    def __init__(
        self,
        ranks: ProcessGroup,
        reports: Reporter,
        shutdown: Shutdown,
        metrics: MetricLogger,
        heartbeat: HeartbeatWriter,
    ) -> None:
        self._ranks = ranks
        self._reports = reports
        self._shutdown = shutdown
        self._metrics = metrics
        self._heartbeat = heartbeat
        self.checkpointer: Checkpointer | None = None
        """None before `Run.track`, and without a store."""
        self.loader: ResumableLoader[Any] | None = None
        """The loader whose position is saved; None before the loop."""
        self.desync_detector = DesyncDetector()
        self.recovery: RunRecovery | None = None
        """None: lost ranks cannot be replaced while the others wait."""

    def run(self, step: int) -> None:
        """Vote after `step` completed steps and carry out the decision of all ranks.

        Raises:
            SystemExit: the decision was to exit.
        """
        self._repeat(lambda: self.act(step, self.decide(step)), Place.STEP, step)

    def decide(self, step: int) -> StepDecision:
        """Vote, and return the decision of all ranks."""
        votes = StepVote.from_numbers(self._ranks.all_reduce_max(self._vote(step).numbers()))
        if self.recovery:
            self._settle(self.recovery, step, votes)
        checkpointer = self.checkpointer
        if not checkpointer:
            return decide(votes, is_saved=True)
        checkpointer.observe_votes(votes)
        is_saved = checkpointer.has_saved(step) and not votes.is_broken
        return decide(votes, is_saved=is_saved, has_save_failed=bool(checkpointer.fatal_error))

    def _settle(self, recovery: RunRecovery, step: int, votes: StepVote) -> None:
        """Have each rank's own state exchanged, and all ranks meet again if some move.

        Raises:
            BoundaryRestarted: they have met again.
        """
        moves = votes.moves and not (votes.is_busy or votes.is_leaving)
        recovery.replication.settle(
            step, votes.own_bytes, has_changed=votes.has_changed or moves, is_late=votes.is_late
        )
        if moves:
            self._ranks.all_reduce_max([0.0])  # Every rank has every state.
            recovery.leave_group()
            self._ranks.all_reduce_max([0.0])  # Waits for the new group.

    def act(self, step: int, decision: StepDecision) -> None:
        """Carry out a decision, as all ranks do.

        Raises:
            SystemExit: the decision was to exit.
        """
        match decision:
            case StepDecision.CONTINUE:
                return
            case StepDecision.SAVE:
                self._save(step)
            case StepDecision.SNAPSHOT:
                assert self.checkpointer, "a vote for a snapshot needs a checkpointer"
                assert self.loader, "snapshots begin with the loop"
                self.checkpointer.save_in_memory(step, asdict(self.loader.position))
            case StepDecision.LEAVE | StepDecision.SAVE_AND_LEAVE | StepDecision.FINISH_AND_LEAVE:
                self._leave_on_notice(step, decision)
            case StepDecision.STOP_FENCED:
                self._stop_fenced(step)
            case StepDecision.STOP_DESYNC:
                self._stop_on_desync(step)
            case StepDecision.STOP_UNSAVED:
                assert self.checkpointer, "a rank gives up on saves only with a checkpointer"
                self._shutdown.abort(
                    self.checkpointer.exit_code, step, self.checkpointer.fatal_error
                )

    def save_last_step(self, step: int) -> bool:
        """Save this step unless it is durable already; True if it is durable on all ranks.

        Raises:
            SystemExit: a newer attempt of the job replaced this one.
        """
        assert self.checkpointer, "saving needs a checkpointer"
        is_durable = self._wait_for_save(self.checkpointer, step)
        if self.checkpointer.has_saved(step) and is_durable:
            return True
        self._save(step)
        return self._wait_for_save(self.checkpointer, step)

    def finish(self, step: int) -> bool:
        """Save the last step; True if it is durable on all ranks.

        Raises:
            SystemExit: a newer attempt of the job replaced this one.
        """
        return self._repeat(lambda: self.save_last_step(step), Place.OUTSIDE, step)

    def _repeat(self, work: Callable[[], T], then: Place, step: int) -> T:
        """Do the work of a boundary, again whenever ranks have been replaced in the meantime."""
        group = self._ranks.recoverable
        if not group:
            return work()
        if self.recovery:
            self.recovery.enter_boundary()
        while True:
            group.enter(Place.BOUNDARY, step)
            generation = group.generation
            try:
                done = work()
                group.enter(then, step)
            except BoundaryRestarted:
                if self.recovery:
                    self.recovery.abandon()
            else:
                if self.recovery and group.generation != generation:
                    # The others have given up the save that this rank may have begun in the meantime.
                    self.recovery.abandon()
                return done

    def _vote(self, step: int) -> StepVote:
        checkpointer = self.checkpointer
        vote = checkpointer.vote() if checkpointer else StepVote()
        is_due = checkpointer is not None and (
            checkpointer.is_due(step)
            or (NOTICE.has_pending_hint() and not checkpointer.has_saved(step))
        )
        left_s = NOTICE.left_s() if NOTICE.is_raised else None
        norm, weight = self.desync_detector.norms()
        own_bytes, has_changed, is_late = (
            self.recovery.replication.check() if self.recovery else (0, False, False)
        )
        return replace(
            vote,
            is_snapshot_due=checkpointer is not None and checkpointer.is_snapshot_due(step),
            own_bytes=own_bytes,
            has_changed=has_changed,
            is_late=is_late,
            moves=self.recovery is not None and self.recovery.moves,
            is_leaving=NOTICE.is_raised,
            is_due=is_due,
            left_s=left_s,
            norm=norm,
            least_norm=norm,
            weight=weight,
            least_weight=weight,
        )

    def _save(self, step: int) -> None:
        assert self.checkpointer, "a vote for a save needs a checkpointer"
        assert self.loader, "saves begin with the loop"
        NOTICE.acknowledge_hint()
        self._heartbeat.enter(Phase.SAVING)
        readings = self._metrics.readings() if self._ranks.rank == 0 else no_readings
        self.checkpointer.save(step, asdict(self.loader.position), readings)

    def _wait_for_save(self, checkpointer: Checkpointer, step: int) -> bool:
        """Wait for the save in progress, if any; True if the last save is durable on all ranks."""
        votes = checkpointer.wait_for_outcome()
        if votes.is_fenced:
            self._stop_fenced(step)
        return not votes.is_broken

    def _leave_on_notice(self, step: int, decision: StepDecision) -> NoReturn:
        self._reports.preemption_noticed(step, NOTICE.announced_left_s())
        self._metrics.report(step)
        if decision is StepDecision.FINISH_AND_LEAVE:
            assert self.checkpointer, "a save in progress needs a checkpointer"
            self._wait_for_save(self.checkpointer, step)
            decision = self.decide(step)
        if decision is StepDecision.SAVE_AND_LEAVE:
            self.save_last_step(step)
        self._shutdown.record_exit(ExitReason("preempted", Exit.PREEMPTED, step))
        NOTICE.ignore_signals()
        raise SystemExit(Exit.PREEMPTED)

    def _stop_on_desync(self, step: int) -> NoReturn:
        norms, weights = (
            self._ranks.all_gather(UNKNOWN if mine is None else mine)
            for mine in self.desync_detector.norms()
        )
        self._shutdown.abort(
            Exit.APART, step, describe_desync(norms, weights, step - READ_LAG_STEPS + 1)
        )

    def _stop_fenced(self, step: int) -> NoReturn:
        assert self.checkpointer, "fencing needs a checkpointer"
        self._shutdown.abort(Exit.FENCED, step, self._ranks.first_message(self.checkpointer.fenced))
