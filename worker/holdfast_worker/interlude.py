"""The interlude between two steps: all ranks decide what they do there, and do it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, NoReturn

from holdfast_worker.beat import Beat, Phase
from holdfast_worker.boundary import Verdict, Vote, decide
from holdfast_worker.departure import Departure
from holdfast_worker.feed import Feed
from holdfast_worker.gradients import LAG, UNKNOWN, Gradients, blame
from holdfast_worker.keeper import Keeper
from holdfast_worker.meter import Meter, nothing_logged
from holdfast_worker.notice import NOTICE
from holdfast_worker.ranks import Ranks
from holdfast_worker.reports import Reports
from holdfast_worker.rundir import Left
from holdfast_worker.wire import Exit


class Interlude:
    """What a rank does between its steps: it votes, saves, and leaves when all do."""

    def __init__(
        self, ranks: Ranks, reports: Reports, departure: Departure, meter: Meter, beat: Beat
    ) -> None:
        self._ranks = ranks
        self._reports = reports
        self._departure = departure
        self._meter = meter
        self._beat = beat
        self.keeper: Keeper | None = None
        """Who saves; None while nothing is tracked, and where there is no store."""
        self.feed: Feed[Any] | None = None
        """Whose position is saved; None before the loop."""
        self.gradients = Gradients()

    def hold(self, step: int) -> None:
        """Do what all ranks decide to do now that so many steps are done.

        Raises:
            SystemExit: they decided to leave.
        """
        self.act(step, self.decide(step))

    def decide(self, step: int) -> Verdict:
        """What all ranks decide to do now."""
        votes = Vote.of(self._ranks.most(self._vote(step).numbers()))
        keeper = self.keeper
        if not keeper:
            return decide(votes, is_saved=True)
        keeper.hear(votes)
        is_saved = keeper.has_saved(step) and not votes.is_broken
        return decide(votes, is_saved=is_saved, despairs=bool(keeper.despair))

    def act(self, step: int, verdict: Verdict) -> None:
        """Do what was decided; all ranks do the same.

        Raises:
            SystemExit: that was to leave.
        """
        match verdict:
            case Verdict.GO_ON:
                return
            case Verdict.SAVE:
                self._save(step)
            case Verdict.LEAVE | Verdict.SAVE_AND_LEAVE | Verdict.FINISH_AND_LEAVE:
                self._leave_on_notice(step, verdict)
            case Verdict.GIVE_WAY:
                self._give_way(step)
            case Verdict.PART:
                self._part(step)
            case Verdict.STOP:
                assert self.keeper, "nobody despairs who saves nothing"
                self._departure.give_up(self.keeper.exit_code, step, self.keeper.despair)

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
        NOTICE.serve_hint()
        self._beat.enter(Phase.SAVING)
        readings = self._meter.readings() if self._ranks.rank == 0 else nothing_logged
        self.keeper.save(step, asdict(self.feed.position), readings)

    def _settle(self, keeper: Keeper, step: int) -> bool:
        """Whether the save under way, or the last one, became durable on all ranks."""
        votes = keeper.settle()
        if votes.is_fenced:
            self._give_way(step)
        return not votes.is_broken

    def _leave_on_notice(self, step: int, verdict: Verdict) -> NoReturn:
        self._reports.preemption_noticed(step, NOTICE.told_left_s())
        self._meter.report(step)
        if verdict is Verdict.FINISH_AND_LEAVE:
            assert self.keeper, "nothing is under way without a keeper"
            self._settle(self.keeper, step)
            verdict = self.decide(step)
        if verdict is Verdict.SAVE_AND_LEAVE:
            self.save_the_last(step)
        self._departure.leave(Left("preempted", Exit.PREEMPTED, step))
        NOTICE.deafen()
        raise SystemExit(Exit.PREEMPTED)

    def _part(self, step: int) -> NoReturn:
        norms, weights = (
            self._ranks.each(UNKNOWN if mine is None else mine) for mine in self.gradients.norms()
        )
        self._departure.give_up(Exit.APART, step, blame(norms, weights, step - LAG + 1))

    def _give_way(self, step: int) -> NoReturn:
        assert self.keeper, "nobody is fenced who saves nothing"
        self._departure.give_up(Exit.FENCED, step, self._ranks.first_to_say(self.keeper.fenced))
