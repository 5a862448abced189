"""The interlude between two steps: all ranks decide what they do there, and do it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, NoReturn

from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.data.resumable_loader import ResumableLoader
from holdfast_worker.distributed.desync import LAG, UNKNOWN, DesyncDetector, blame
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.step_vote import StepDecision, Vote, decide
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.shutdown import Shutdown
from holdfast_worker.telemetry.metrics import MetricLogger, nothing_logged
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase


class StepBoundary:
    """What a rank does between its steps: it votes, saves, and leaves when all do."""

    def __init__(
        self,
        ranks: ProcessGroup,
        reports: Reporter,
        departure: Shutdown,
        meter: MetricLogger,
        beat: HeartbeatWriter,
    ) -> None:
        self._ranks = ranks
        self._reports = reports
        self._departure = departure
        self._meter = meter
        self._beat = beat
        self.keeper: Checkpointer | None = None
        """Who saves; None while nothing is tracked, and where there is no store."""
        self.feed: ResumableLoader[Any] | None = None
        """Whose position is saved; None before the loop."""
        self.gradients = DesyncDetector()

    def run(self, step: int) -> None:
        """Do what all ranks decide to do now that so many steps are done.

        Raises:
            SystemExit: they decided to leave.
        """
        self.act(step, self.decide(step))

    def decide(self, step: int) -> StepDecision:
        """What all ranks decide to do now."""
        votes = Vote.of(self._ranks.all_reduce_max(self._vote(step).numbers()))
        keeper = self.keeper
        if not keeper:
            return decide(votes, is_saved=True)
        keeper.observe_votes(votes)
        is_saved = keeper.has_saved(step) and not votes.is_broken
        return decide(votes, is_saved=is_saved, despairs=bool(keeper.fatal_error))

    def act(self, step: int, verdict: StepDecision) -> None:
        """Do what was decided; all ranks do the same.

        Raises:
            SystemExit: that was to leave.
        """
        match verdict:
            case StepDecision.GO_ON:
                return
            case StepDecision.SAVE:
                self._save(step)
            case StepDecision.LEAVE | StepDecision.SAVE_AND_LEAVE | StepDecision.FINISH_AND_LEAVE:
                self._leave_on_notice(step, verdict)
            case StepDecision.GIVE_WAY:
                self._stop_fenced(step)
            case StepDecision.PART:
                self._stop_on_desync(step)
            case StepDecision.STOP:
                assert self.keeper, "nobody despairs who saves nothing"
                self._departure.abort(self.keeper.exit_code, step, self.keeper.fatal_error)

    def save_the_last(self, step: int) -> bool:
        """Whether the state of this step is durable now; it is saved if it has to be.

        Raises:
            SystemExit: a newer placement of the job took over.
        """
        assert self.keeper, "nothing is saved without a keeper"
        is_sound = self._settle(self.keeper, step)
        if self.keeper.has_saved(step) and is_sound:
            return True
        self._save(step)
        return self._settle(self.keeper, step)

    def _vote(self, step: int) -> Vote:
        keeper = self.keeper
        vote = keeper.vote() if keeper else Vote()
        is_due = keeper is not None and (
            keeper.is_due(step) or (NOTICE.has_fresh_hint() and not keeper.has_saved(step))
        )
        left_s = NOTICE.left_s() if NOTICE.is_raised else None
        norm, weight = self.gradients.norms()
        return replace(
            vote,
            is_leaving=NOTICE.is_raised,
            is_due=is_due,
            left_s=left_s,
            norm=norm,
            least_norm=norm,
            weight=weight,
            least_weight=weight,
        )

    def _save(self, step: int) -> None:
        assert self.keeper, "nobody votes for a save without a keeper"
        assert self.feed, "nothing is saved before the loop"
        NOTICE.acknowledge_hint()
        self._beat.enter(Phase.SAVING)
        readings = self._meter.readings() if self._ranks.rank == 0 else nothing_logged
        self.keeper.save(step, asdict(self.feed.position), readings)

    def _settle(self, keeper: Checkpointer, step: int) -> bool:
        """Whether the save under way, or the last one, became durable on all ranks."""
        votes = keeper.settle()
        if votes.is_fenced:
            self._stop_fenced(step)
        return not votes.is_broken

    def _leave_on_notice(self, step: int, verdict: StepDecision) -> NoReturn:
        self._reports.preemption_noticed(step, NOTICE.told_left_s())
        self._meter.report(step)
        if verdict is StepDecision.FINISH_AND_LEAVE:
            assert self.keeper, "nothing is under way without a keeper"
            self._settle(self.keeper, step)
            verdict = self.decide(step)
        if verdict is StepDecision.SAVE_AND_LEAVE:
            self.save_the_last(step)
        self._departure.leave(ExitReason("preempted", Exit.PREEMPTED, step))
        NOTICE.ignore_signals()
        raise SystemExit(Exit.PREEMPTED)

    def _stop_on_desync(self, step: int) -> NoReturn:
        norms, weights = (
            self._ranks.all_gather(UNKNOWN if mine is None else mine)
            for mine in self.gradients.norms()
        )
        self._departure.abort(Exit.APART, step, blame(norms, weights, step - LAG + 1))

    def _stop_fenced(self, step: int) -> NoReturn:
        assert self.keeper, "nobody is fenced who saves nothing"
        self._departure.abort(Exit.FENCED, step, self._ranks.first_message(self.keeper.fenced))
