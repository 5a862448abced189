"""The events of a job by attempt, collected in any order, because reports may be late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from holdfast.domain.events import (
    CapacityLost,
    Cause,
    CheckpointCommitted,
    Event,
    Finished,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    PreemptionNoticed,
    PriceChanged,
    RanksReplaced,
    RanksRestarted,
    RestoreStarted,
    TrainingStarted,
    WorkerLeft,
)

RateChange: TypeAlias = PriceChanged | NodeLost | NodeReplaced
"""An event that changes the price of a group of nodes from its time on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatestPoint:
    """The newest point that an attempt reported."""

    step: int
    at: datetime


@dataclass(slots=True)
class RankStart:
    """A start of the ranks on the nodes of an attempt, with its events.

    An attempt has several if its ranks failed and started again.
    """

    restore: RestoreStarted | None = None
    training: TrainingStarted | None = None
    worker_exit: WorkerLeft | None = None
    notices: list[PreemptionNoticed] = field(default_factory=list)
    """Termination notices in order of arrival; several if nodes were replaced in the meantime."""
    checkpoints: list[CheckpointCommitted] = field(default_factory=list)
    replacements: list[RanksReplaced] = field(default_factory=list)
    restart: RanksRestarted | None = None
    """The failure after which the ranks started again; None for the last start of an attempt."""
    point: LatestPoint | None = None

    @property
    def notice(self) -> PreemptionNoticed | None:
        """The first termination notice."""
        return self.notices[0] if self.notices else None

    @property
    def last_step(self) -> int | None:
        """Newest known step; None if it did not train."""
        sources = [*self.checkpoints, self.training, self.worker_exit, self.restart]
        reported = (*sources, *self.notices, *self.replacements, self.point)
        steps = [item.step for item in reported if item is not None]
        return max(steps) if self.training and steps else None


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """The loss of a single node while the others kept running, and its replacement."""

    lost: NodeLost
    replaced: NodeReplaced | None
    """None if it was not replaced, as far as reported."""


@dataclass(slots=True)
class Attempt:
    """One attempt with its events."""

    ready: NodesReady
    ended_at: datetime | None = None
    """End of the attempt; None while its nodes run, as far as reported."""
    lost: CapacityLost | None = None
    starts: list[RankStart] = field(default_factory=lambda: [RankStart()])
    """Starts of the ranks in order; at least one."""
    changes: list[RateChange] = field(default_factory=list)
    """Changes of price, and of the nodes that run, in order of arrival."""

    @property
    def cause(self) -> Cause | None:
        """Cause of the capacity loss; None while the nodes run or if the job ended with them."""
        return self.lost.cause if self.lost else None

    @property
    def is_drill(self) -> bool:
        """Whether a user requested the loss of the nodes."""
        return self.lost is not None and self.lost.drill

    @property
    def restore(self) -> RestoreStarted | None:
        """The first restore."""
        return self.starts[0].restore

    @property
    def training(self) -> TrainingStarted | None:
        """The first start of training."""
        return next((start.training for start in self.starts if start.training), None)

    @property
    def replacements(self) -> list[RanksReplaced]:
        """Replacements of ranks in order of arrival."""
        return [replaced for start in self.starts for replaced in start.replacements]

    @property
    def hosted_nodes(self) -> tuple[int, ...]:
        """Missing nodes whose ranks run on other nodes, as last reported."""
        return self.replacements[-1].hosted_nodes if self.replacements else ()

    @property
    def hosted_times(self) -> list[tuple[datetime, datetime | None]]:
        """Times with ranks of missing nodes on other nodes; the last is open if they still are."""
        times, since = list[tuple[datetime, datetime | None]](), None
        for event in self.replacements:
            if event.hosted_nodes:
                since = since or event.at
            elif since is not None:
                times.append((since, event.at))
                since = None
        return [*times, (since, None)] if since else times

    @property
    def node_losses(self) -> list[NodeLoss]:
        """Losses of nodes in order, each with the next replacement of its node.

        Without nodes that were released because their program had ended.
        """
        changes = [change for change in self.changes if not isinstance(change, PriceChanged)]
        replaced, losses = dict[int, NodeReplaced](), list[NodeLoss]()
        for change in reversed(changes):
            if isinstance(change, NodeReplaced):
                replaced[change.node] = change
            elif change.cause is not Cause.ENDED:
                losses.append(NodeLoss(change, replaced.get(change.node)))
        return losses[::-1]

    @property
    def notice(self) -> PreemptionNoticed | None:
        """The first termination notice after the last loss of a node that was replaced."""
        replaced = [loss.lost.at for loss in self.node_losses if loss.replaced]
        return self.notice_between(replaced[-1] if replaced else None, None)

    def notice_between(
        self, since: datetime | None, until: datetime | None
    ) -> PreemptionNoticed | None:
        """The first termination notice after `since` and until `until`; None: without bound."""
        return next(
            (
                notice
                for start in self.starts
                for notice in start.notices
                if (since is None or notice.at > since) and (until is None or notice.at <= until)
            ),
            None,
        )

    @property
    def checkpoints(self) -> list[CheckpointCommitted]:
        """All checkpoints in order."""
        return [saved for start in self.starts for saved in start.checkpoints]

    @property
    def last_step(self) -> int | None:
        """Newest known step; None if it did not train."""
        steps = [start.last_step for start in self.starts if start.last_step is not None]
        return max(steps, default=None)


def collect_attempts(facts: Sequence[Event], reached: Mapping[int, LatestPoint]) -> list[Attempt]:
    """The attempts of a job in order, from all its events and the newest point of each."""
    attempts: dict[int, Attempt] = {}
    for fact in facts:
        if isinstance(fact, NodesReady):
            attempts[fact.attempt] = Attempt(fact)
    for fact in facts:
        match fact:
            case Finished(at=at):
                for attempt in attempts.values():
                    attempt.ended_at = attempt.ended_at or at
            case (
                CapacityLost()
                | RestoreStarted()
                | TrainingStarted()
                | RanksRestarted()
                | RanksReplaced()
                | WorkerLeft()
                | PreemptionNoticed()
                | CheckpointCommitted()
                | PriceChanged()
                | NodeLost()
                | NodeReplaced()
            ) if fact.attempt in attempts:
                _apply_event(attempts[fact.attempt], fact)
            case _:
                pass
    for number, point in reached.items():
        if number in attempts:
            attempts[number].starts[-1].point = point
    return [attempts[number] for number in sorted(attempts)]


def _apply_event(
    attempt: Attempt,
    fact: CapacityLost
    | RestoreStarted
    | TrainingStarted
    | RanksRestarted
    | RanksReplaced
    | WorkerLeft
    | PreemptionNoticed
    | CheckpointCommitted
    | RateChange,
) -> None:
    start = attempt.starts[-1]
    match fact:
        case CapacityLost(at=at):
            attempt.ended_at, attempt.lost = at, fact
        case RestoreStarted():
            start.restore = start.restore or fact
        case TrainingStarted():
            start.training = start.training or fact
        case RanksRestarted():
            start.restart = fact
            attempt.starts.append(RankStart())
        case RanksReplaced():
            start.replacements.append(fact)
        case WorkerLeft():
            start.worker_exit = start.worker_exit or fact
        case PreemptionNoticed():
            start.notices.append(fact)
        case CheckpointCommitted():
            start.checkpoints.append(fact)
        case PriceChanged() | NodeLost() | NodeReplaced():
            attempt.changes.append(fact)


def retained_steps(attempts: Sequence[Attempt], finished: Finished | None) -> list[list[float]]:
    """Step up to which the work of each start of each attempt counts; infinite if none was lost."""
    starts = [start for attempt in attempts for start in attempt.starts]
    trainings = [start.training for start in starts if start.training]
    unusable = {item.checkpoint for training in trainings for item in training.passed_over}
    checkpoints = [c for start in starts for c in start.checkpoints]
    committed = max((c.step for c in checkpoints if c.checkpoint not in unusable), default=0)
    standing = bool(attempts) and attempts[-1].ended_at is None
    safe = standing or (finished is not None and finished.outcome is Outcome.SUCCEEDED)
    steps: list[float] = []
    limit: float = math.inf if safe else committed
    for start in reversed(starts):
        steps.append(limit)
        if start.training:
            limit = min(limit, start.training.step)
        elif limit == math.inf:
            limit = committed  # The ranks run and have not restored yet; only the committed work is known.
    in_order = iter(steps[::-1])
    return [list(islice(in_order, len(attempt.starts))) for attempt in attempts]
