"""A job's history by placement: how long it stood, how it ended, and what it took to come back from that.

A recovery is cut into detect, wait, setup, restore and redo. The first begins with the last that was heard of the placement
that was lost, and ends when its loss was written down; the second is the time without nodes; the others are of the next
placement: until its program was up, until it trained, and until it had done again what was lost. What nobody told is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import Attempt, LatestPoint, gather
from holdfast.domain.billing.ledger import AttemptBill, Bill
from holdfast.domain.billing.rate import MS_PER_HOUR, to_ms
from holdfast.domain.events import TAKEN, CapacityLost, Cause, Event, WorkerFact


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementRecord:
    """What became of one placement."""

    attempt: int
    zone: str
    instance_type: str
    nodes: int
    begin_ms: int
    """Since 1970."""
    end_ms: int
    """Since 1970; while it stands, until when it was looked at."""
    stands: bool
    cause: Cause | None
    """None while it stands, and where the job ended with its nodes."""
    is_noticed: bool
    notice_ms: int | None
    """How much warning was given; None without one, or where it did not say."""
    is_notice_used: bool
    """Whether a checkpoint was finished between the warning and the loss."""
    detect_ms: int | None
    wait_ms: int | None
    setup_ms: int | None
    restore_ms: int | None
    redo_ms: int | None
    lost_steps: int
    lost_ms: int
    lost_micros: int
    simulated: bool
    """Whether nobody pays its price."""
    is_price_estimate: bool
    """Whether the price is but taken to be so, and high."""
    hours: tuple[tuple[str, int, int], ...]
    """Zone, hour since 1970, and the milliseconds that its nodes stood there in it, all together."""

    @property
    def is_preempted(self) -> bool:
        """Whether its loss says something of the market."""
        return self.cause in TAKEN


def chapters_of(
    facts: Sequence[Event],
    recorded_at: Mapping[int, datetime],
    reached: Mapping[int, LatestPoint],
    account: Bill,
    since: int = 1,
) -> list[PlacementRecord]:
    """The placements of a job in order, from attempt `since` on.

    `recorded_at` says when the loss of an attempt was written down, by its number; `account` is the bill of all facts. Of `facts`
    there may be only those of these attempts.
    """
    attempts = [item for item in gather(facts, reached) if item.ready.attempt >= since]
    bills = [item for item in account.attempts if item.attempt >= since]
    heard = _last_heard(facts, reached)
    followers: list[tuple[Attempt, AttemptBill] | None] = [
        *zip(attempts[1:], bills[1:], strict=True),
        None,
    ]
    return [
        _chapter(
            attempt,
            item,
            follower if attempt.lost else None,
            _detected(attempt, heard, recorded_at),
        )
        for attempt, item, follower in zip(attempts, bills, followers[: len(attempts)], strict=True)
    ]


def _chapter(
    attempt: Attempt,
    item: AttemptBill,
    follower: tuple[Attempt, AttemptBill] | None,
    detect_ms: int | None,
) -> PlacementRecord:
    after = follower[1] if follower else None
    restored = follower is not None and (follower[0].restore or follower[0].training)
    trained = follower is not None and follower[0].training
    notice = attempt.notice
    return PlacementRecord(
        attempt=item.attempt,
        zone=item.zone,
        instance_type=item.instance_type,
        nodes=item.nodes,
        begin_ms=item.begin_ms,
        end_ms=item.end_ms,
        stands=item.ended_at is None,
        cause=item.cause,
        is_noticed=notice is not None,
        notice_ms=round(notice.left_s * 1000) if notice and notice.left_s is not None else None,
        is_notice_used=notice is not None
        and any(
            notice.at <= saved.at and (item.ended_at is None or saved.at <= item.ended_at)
            for saved in attempt.checkpoints
        ),
        detect_ms=detect_ms,
        wait_ms=after.waiting_ms - after.paused_ms if after else None,
        setup_ms=after.ms.setup if after and restored else None,
        restore_ms=after.ms.restore if after and trained else None,
        redo_ms=_redone(item, follower[0]) if follower else None,
        lost_steps=item.lost_steps,
        lost_ms=item.ms.lost,
        lost_micros=item.micros.lost,
        simulated=item.simulated,
        is_price_estimate=item.is_price_estimate,
        hours=_hours(item),
    )


def _last_heard(facts: Sequence[Event], reached: Mapping[int, LatestPoint]) -> dict[int, datetime]:
    heard = {attempt: point.at for attempt, point in reached.items()}
    for fact in facts:
        if isinstance(fact, WorkerFact):
            heard[fact.attempt] = max(fact.at, heard.get(fact.attempt, fact.at))
    return heard


def _detected(
    attempt: Attempt, heard: Mapping[int, datetime], recorded_at: Mapping[int, datetime]
) -> int | None:
    number = attempt.ready.attempt
    if attempt.lost is None or number not in heard or number not in recorded_at:
        return None
    return max(0, to_ms(recorded_at[number]) - to_ms(heard[number]))


def _redone(lost: AttemptBill, after: Attempt) -> int | None:
    """How long the next placement trained until it was as far; between two steps that it told, in proportion."""
    if not lost.lost_steps or after.training is None or lost.last_step is None:
        return 0 if not lost.lost_steps else None
    begun, target = after.training.at, lost.last_step
    told = [(saved.step, saved.snapshot_at) for saved in after.checkpoints]
    told += [(fact.step, fact.at) for fact in (after.left, after.notice, after.point) if fact]
    before = (after.training.step, begun)
    for step, at in sorted(told):
        if at < before[1] or step <= before[0]:
            continue  # Clocks and reports of workers are not always in order.
        if step >= target:
            lap_ms = to_ms(at) - to_ms(before[1])
            part_ms = lap_ms * (target - before[0]) // (step - before[0])
            return to_ms(before[1]) + part_ms - to_ms(begun)
        before = (step, at)
    return None


def _hours(item: AttemptBill) -> tuple[tuple[str, int, int], ...]:
    nodes: dict[str, int] = {}
    for group in item.groups:
        nodes[group.zone] = nodes.get(group.zone, 0) + group.nodes
    hours = []
    at_ms = item.begin_ms
    while at_ms < item.end_ms:
        hour = at_ms // MS_PER_HOUR
        end_ms = min((hour + 1) * MS_PER_HOUR, item.end_ms)
        hours += [(zone, hour, count * (end_ms - at_ms)) for zone, count in sorted(nodes.items())]
        at_ms = end_ms
    return tuple(hours)


def losses_recorded(items: Sequence[tuple[Event, datetime]]) -> dict[int, datetime]:
    """When the loss of each attempt was written down, from facts and the times of that."""
    return {fact.attempt: at for fact, at in items if isinstance(fact, CapacityLost)}
