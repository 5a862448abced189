"""Placement records of a job: lifetime, end, and recovery of each placement.

The loss of a single node, after which the other nodes keep running, has a record of its own: it ends one part of the placement and
begins the next, so that the parts add up to the placement. Its wait is the time until the node was replaced, or until the placement
ended. If the placement is preempted before that, its last lost node and its end are one preemption with one record, unless training
had continued without that node.

Node groups of the job file are lost and replaced as a whole, so that each stay of a group within the placement has one record, with the
zone and type of its nodes. Part 0 is the last stay of the first group, whose loss ends the placement.

A recovery consists of detect, wait, setup, restore and redo. Detect begins with the last report of the lost placement and ends
when its loss is recorded; wait is the time without nodes. The others belong to the next placement: until its program is up, until
it trains, and until it has repeated the lost work. Unknown durations are None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from holdfast.domain.attempts import Attempt, LatestPoint, NodeLoss, collect_attempts
from holdfast.domain.billing.bill import AttemptBill, Bill, Phase
from holdfast.domain.billing.group_bill import GroupStay
from holdfast.domain.billing.rate import MS_PER_HOUR, to_ms
from holdfast.domain.events import (
    DRILL,
    PREEMPTION_CAUSES,
    CapacityLost,
    Cause,
    Event,
    PreemptionNoticed,
    WorkerFact,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementRecord:
    """Record of a placement, of a part before the loss of a node, or of a group's stay in it."""

    attempt: int
    part: int = 0
    """0 for the end of the placement; losses of single nodes before it, and stays of groups, are
    numbered from 1."""
    node: int | None = None
    """Index of the lost node, the first one of a group; None if all nodes were lost or released at
    once."""
    node_group: str = ""
    """Name of the node group in the job file; empty if the file has none."""
    zone: str
    instance_type: str
    nodes: int
    begin_ms: int
    """Start, or the preceding loss of a node, in milliseconds since 1970."""
    end_ms: int
    """End in milliseconds since 1970; time of the query while it runs."""
    is_running: bool
    cause: Cause | None
    """Cause of the loss; None while it runs or if the job ended with its nodes."""
    is_drill: bool
    """Whether a user requested the loss."""
    is_noticed: bool
    notice_ms: int | None
    """Duration of the notice; None without a notice or a stated duration."""
    is_notice_used: bool
    """Whether a checkpoint was committed between notice and loss."""
    detect_ms: int | None
    wait_ms: int | None
    setup_ms: int | None
    restore_ms: int | None
    redo_ms: int | None
    lost_steps: int
    lost_ms: int
    lost_micros: int
    simulated: bool
    """Whether its price is simulated."""
    is_price_estimate: bool
    """Whether its price is a high estimate."""
    hours: tuple[tuple[str, int, int], ...]
    """Zone, hour since 1970, and milliseconds of all nodes within it; empty but for part 0."""

    @property
    def is_preempted(self) -> bool:
        """Whether its loss counts as a preemption. A drill says nothing about the market."""
        return self.cause in PREEMPTION_CAUSES and not self.is_drill

    @property
    def listed_cause(self) -> str | None:
        """The cause under which statistics list its loss."""
        return DRILL if self.is_drill else self.cause and self.cause.value


def placement_records(
    facts: Sequence[Event],
    recorded_at: Mapping[int, datetime],
    reached: Mapping[int, LatestPoint],
    account: Bill,
    since: int = 1,
) -> list[PlacementRecord]:
    """Placement records of a job in order, from attempt `since` on.

    `recorded_at` maps attempts to the time at which their loss was recorded; `account` is the bill of all events. `facts` may contain
    only the events of these attempts.
    """
    attempts = [item for item in collect_attempts(facts, reached) if item.ready.attempt >= since]
    bills = [item for item in account.attempts if item.attempt >= since]
    last_report_at = _last_report_at(facts, reached)
    followers: list[tuple[Attempt, AttemptBill] | None] = [
        *zip(attempts[1:], bills[1:], strict=True),
        None,
    ]
    records: list[PlacementRecord] = []
    for attempt, item, follower in zip(attempts, bills, followers[: len(attempts)], strict=True):
        detect_ms = _detection_ms(attempt, last_report_at, recorded_at)
        if attempt.ready.has_named_groups:
            end = _placement_record(
                attempt, item, follower if attempt.lost else None, None, detect_ms
            )
            records += _group_records(attempt, item, end)
            continue
        last = _final_node_loss(attempt, item)
        losses = [loss for loss in item.node_losses if loss is not last]
        parts = _node_records(attempt, item, losses)
        noticed_after = losses[-1].lost.at if losses else None
        end = _placement_record(
            attempt, item, follower if attempt.lost else None, noticed_after, detect_ms
        )
        begin_ms = parts[-1].end_ms if parts else end.begin_ms
        node = last.lost.node if last else None
        records += [*parts, replace(end, begin_ms=begin_ms, node=node)]
    return records


def _final_node_loss(attempt: Attempt, item: AttemptBill) -> NodeLoss | None:
    """The last preempted node without a replacement, with which a placement was preempted."""
    if item.cause not in PREEMPTION_CAUSES:
        return None
    lost = [
        loss
        for loss in item.node_losses
        if loss.lost.cause in PREEMPTION_CAUSES and loss.lost.node not in attempt.hosted_nodes
    ]
    return next((loss for loss in reversed(lost) if loss.replaced is None), None)


def _node_records(
    attempt: Attempt, item: AttemptBill, losses: Sequence[NodeLoss]
) -> list[PlacementRecord]:
    """One record for each loss of a single node."""
    records, since, begin_ms = list[PlacementRecord](), None, item.begin_ms
    for number, loss in enumerate(losses, 1):
        end_ms = min(max(to_ms(loss.lost.at), begin_ms), item.end_ms)
        part = _part_record(item, number, begin_ms, end_ms)
        records.append(_with_loss(part, attempt, item, loss, noticed_after=since))
        since, begin_ms = loss.lost.at, end_ms
    return records


def _part_record(item: AttemptBill, part: int, begin_ms: int, end_ms: int) -> PlacementRecord:
    """A part of a placement that ended without a loss."""
    return PlacementRecord(
        attempt=item.attempt,
        part=part,
        zone=item.zone,
        instance_type=item.instance_type,
        nodes=item.nodes,
        begin_ms=begin_ms,
        end_ms=end_ms,
        is_running=False,
        cause=None,
        is_drill=False,
        is_noticed=False,
        notice_ms=None,
        is_notice_used=False,
        detect_ms=None,
        wait_ms=None,
        setup_ms=None,
        restore_ms=None,
        redo_ms=None,
        lost_steps=0,
        lost_ms=0,
        lost_micros=0,
        simulated=item.simulated,
        is_price_estimate=item.is_price_estimate,
        hours=(),
    )


def _with_loss(
    part: PlacementRecord,
    attempt: Attempt,
    item: AttemptBill,
    loss: NodeLoss,
    *,
    noticed_after: datetime | None,
) -> PlacementRecord:
    """The record of a part that ended with the loss of a node."""
    notice = attempt.notice_between(noticed_after, loss.lost.at)
    return replace(
        part,
        node=loss.lost.node,
        cause=loss.lost.cause,
        is_drill=loss.lost.drill,
        is_noticed=notice is not None,
        notice_ms=_notice_ms(notice),
        is_notice_used=_is_notice_used(attempt, notice, loss.lost.at),
        wait_ms=replacement_ms(loss, item),
    )


def _group_records(
    attempt: Attempt, item: AttemptBill, end: PlacementRecord
) -> list[PlacementRecord]:
    """One record for each stay of each node group, the last of the first group in part 0."""
    records, losses, noticed_after = list[PlacementRecord](), attempt.node_losses, None
    end = replace(end, node_group=item.groups[0].name)
    for (begin_ms, end_ms), number, stay in _stays_in_order(item):
        group = item.groups[number]
        record = replace(
            _part_record(item, len(records) + 1, begin_ms, end_ms),
            node_group=group.name,
            zone=stay.placed.zone,
            instance_type=stay.placed.instance_type or item.instance_type,
            nodes=group.nodes,
        )
        if number == 0 and (stay.lost is None or stay.lost.cause is Cause.ENDED):
            end = replace(end, begin_ms=begin_ms, end_ms=end_ms, zone=record.zone)
            end = replace(end, instance_type=record.instance_type, nodes=record.nodes)
            continue
        loss = next((each for each in losses if each.lost == stay.lost), None)
        if loss is not None:
            record = _with_loss(record, attempt, item, loss, noticed_after=noticed_after)
            noticed_after = loss.lost.at
        is_running = stay.until is None and item.ended_at is None
        records.append(replace(record, is_running=is_running))
    return [*records, end]


def _stays_in_order(item: AttemptBill) -> list[tuple[tuple[int, int], int, GroupStay]]:
    """The stays of all groups with their bounds and the number of their group, oldest first."""
    stays = [
        (stay.bounds_ms(item.begin_ms, item.end_ms), number, stay)
        for number, group in enumerate(item.groups)
        for stay in group.stays
    ]
    return sorted(stays, key=lambda each: each[0][0])


def replacement_ms(loss: NodeLoss, item: AttemptBill) -> int | None:
    """Time until a node was replaced or its placement ended; None before either."""
    if loss.replaced is None and item.ended_at is None:
        return None
    until_ms = to_ms(loss.replaced.at) if loss.replaced else item.end_ms
    return max(0, until_ms - to_ms(loss.lost.at))


def _notice_ms(notice: PreemptionNoticed | None) -> int | None:
    return round(notice.left_s * 1000) if notice and notice.left_s is not None else None


def _is_notice_used(
    attempt: Attempt, notice: PreemptionNoticed | None, ended_at: datetime | None
) -> bool:
    """Whether a checkpoint was committed between the notice and the loss."""
    return notice is not None and any(
        notice.at <= saved.at and (ended_at is None or saved.at <= ended_at)
        for saved in attempt.checkpoints
    )


def _placement_record(
    attempt: Attempt,
    item: AttemptBill,
    follower: tuple[Attempt, AttemptBill] | None,
    noticed_after: datetime | None,
    detect_ms: int | None,
) -> PlacementRecord:
    after = follower[1] if follower else None
    restored = follower is not None and (follower[0].restore or follower[0].training)
    trained = follower is not None and follower[0].training
    notice = attempt.notice_between(noticed_after, None)
    lost_ms, lost_micros = item.final_loss()
    return PlacementRecord(
        attempt=item.attempt,
        zone=item.zone,
        instance_type=item.instance_type,
        nodes=item.nodes,
        begin_ms=item.begin_ms,
        end_ms=item.end_ms,
        is_running=item.ended_at is None,
        cause=item.cause,
        is_drill=item.is_drill,
        is_noticed=notice is not None,
        notice_ms=_notice_ms(notice),
        is_notice_used=_is_notice_used(attempt, notice, item.ended_at),
        detect_ms=detect_ms,
        wait_ms=after.waiting_ms - after.paused_ms if after else None,
        setup_ms=_first_ms(after, Phase.SETUP) if after and restored else None,
        restore_ms=_first_ms(after, Phase.RESTORE) if after and trained else None,
        redo_ms=_redo_ms(item.final_lost_steps, attempt, follower[0]) if follower else None,
        lost_steps=item.final_lost_steps,
        lost_ms=lost_ms,
        lost_micros=lost_micros,
        simulated=item.simulated,
        is_price_estimate=item.is_price_estimate,
        hours=_node_ms_by_hour(item),
    )


def _last_report_at(
    facts: Sequence[Event], reached: Mapping[int, LatestPoint]
) -> dict[int, datetime]:
    last_report_at = {attempt: point.at for attempt, point in reached.items()}
    for fact in facts:
        if isinstance(fact, WorkerFact):
            last_report_at[fact.attempt] = max(fact.at, last_report_at.get(fact.attempt, fact.at))
    return last_report_at


def _detection_ms(
    attempt: Attempt, last_report_at: Mapping[int, datetime], recorded_at: Mapping[int, datetime]
) -> int | None:
    number = attempt.ready.attempt
    if attempt.lost is None or number not in last_report_at or number not in recorded_at:
        return None
    return max(0, to_ms(recorded_at[number]) - to_ms(last_report_at[number]))


def _first_ms(item: AttemptBill, phase: Phase) -> int:
    """Duration of a phase before training first started."""
    spans = takewhile(lambda span: span.phase in {Phase.SETUP, Phase.RESTORE}, item.spans)
    return sum(span.end_ms - span.begin_ms for span in spans if span.phase is phase)


def _redo_ms(lost_steps: int, lost: Attempt, after: Attempt) -> int | None:
    """Time until the next placement repeated the lost steps, before any restart of its ranks.

    It is interpolated between reported steps.
    """
    again, target = after.starts[0], lost.starts[-1].last_step
    if not lost_steps or again.training is None or target is None:
        return 0 if not lost_steps else None
    begun = again.training.at
    positions = [(saved.step, saved.snapshot_at) for saved in again.checkpoints]
    single = (again.worker_exit, again.notice, again.restart, again.point)
    reported = (*single, *again.replacements)
    positions += [(fact.step, fact.at) for fact in reported if fact]
    before = (again.training.step, begun)
    for step, at in sorted(positions):
        if at < before[1] or step <= before[0]:
            continue  # Clocks and reports of workers are not always in order.
        if step >= target:
            lap_ms = to_ms(at) - to_ms(before[1])
            part_ms = lap_ms * (target - before[0]) // (step - before[0])
            return to_ms(before[1]) + part_ms - to_ms(begun)
        before = (step, at)
    return None


def _node_ms_by_hour(item: AttemptBill) -> tuple[tuple[str, int, int], ...]:
    hours = []
    at_ms = item.begin_ms
    while at_ms < item.end_ms:
        hour = at_ms // MS_PER_HOUR
        end_ms = min((hour + 1) * MS_PER_HOUR, item.end_ms)
        node_ms: dict[str, int] = {}
        for group in item.groups:
            for zone, since, until in group.split_by_zone(at_ms, end_ms):
                node_ms[zone] = node_ms.get(zone, 0) + group.node_ms(since, until)
        hours += [(zone, hour, total_ms) for zone, total_ms in sorted(node_ms.items())]
        at_ms = end_ms
    return tuple(hours)


def loss_recorded_at(items: Sequence[tuple[Event, datetime]]) -> dict[int, datetime]:
    """Time at which the loss of each attempt was recorded, from timestamped events."""
    return {fact.attempt: at for fact, at in items if isinstance(fact, CapacityLost)}
