"""The node groups of a job over all attempts: when and where each had nodes. Pure.

An attempt is one life of the first group, and the nodes of other groups outlive it. Their time is one span, although each attempt of
the bill has its own part of it. Adjacent spans of a group have no gap, except where the job was launched again, and after its program
has ended on the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.domain.billing.bill import AttemptBill, Bill
from holdfast.domain.billing.group_bill import GroupStay
from holdfast.domain.events import PREEMPTION_CAUSES, Cause
from holdfast.domain.events.values import NodeGroup


class GroupState(StrEnum):
    """Whether a group has nodes."""

    WAITING = "waiting"
    """No group has nodes, and nothing is billed."""
    PROVISIONING = "provisioning"
    """It has no nodes yet, while another group has its nodes."""
    RUNNING = "running"
    MISSING = "missing"
    """Its nodes were lost, and other groups have theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSpan:
    """A time in which a group had nodes in one place, or none for one reason."""

    state: GroupState
    attempt: int
    """Attempt in which it began."""
    last_attempt: int
    """Newest attempt in which it lasted."""
    begin_ms: int
    """Since 1970."""
    end_ms: int
    """Since 1970; the time of the bill while it lasts."""
    is_open: bool
    """Whether it lasts."""
    placed: NodeGroup | None = None
    """Where the nodes stood; None without nodes."""
    cloud: str = ""
    instance_type: str = ""
    micros_per_hour: int = 0
    """Newest price of its nodes together."""
    micros: int = 0
    """Cost of its nodes."""
    cause: Cause | None = None
    """Why its nodes were lost or released; None while they run, or if the job ended with them."""
    is_drill: bool = False
    """Whether a user requested the loss."""

    @property
    def ms(self) -> int:
        """Its length."""
        return self.end_ms - self.begin_ms

    @property
    def is_preempted(self) -> bool:
        """Whether it ended with a preemption. A drill says nothing about the market."""
        return self.cause in PREEMPTION_CAUSES and not self.is_drill


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTimeline:
    """One node group over all attempts."""

    name: str
    nodes: int
    spans: tuple[GroupSpan, ...]
    """In order of time."""

    @property
    def preemptions(self) -> int:
        """Number of its preemptions."""
        return sum(span.is_preempted for span in self.spans)

    @property
    def micros(self) -> int:
        """Cost of its nodes."""
        return sum(span.micros for span in self.spans)

    def total_ms(self, state: GroupState) -> int:
        """Total time in a state."""
        return sum(span.ms for span in self.spans if span.state is state)


def group_timelines(account: Bill) -> tuple[GroupTimeline, ...]:
    """The groups of the job file in order; empty for a job without groups, or without attempts."""
    items = [item for item in account.attempts if any(group.name for group in item.groups)]
    return tuple(
        GroupTimeline(name=group.name, nodes=group.nodes, spans=tuple(_spans(items, number)))
        for number, group in enumerate(items[-1].groups if items else ())
    )


def _spans(items: Sequence[AttemptBill], number: int) -> list[GroupSpan]:
    """The spans of a group, which is missing if it had nodes before in the same launch."""
    spans, was_there = list[GroupSpan](), False
    for item in items:
        stays = item.groups[number].stays
        for span in _attempt_spans(item, number, was_there=was_there):
            if spans and _continues(spans[-1], span):
                spans[-1] = _joined(spans[-1], span)
            else:
                spans.append(span)
        # SkyPilot replaces what was preempted; otherwise the job is launched again.
        was_there = item.cause in PREEMPTION_CAUSES and (was_there or bool(stays))
    return spans


def _attempt_spans(item: AttemptBill, number: int, *, was_there: bool) -> Iterator[GroupSpan]:
    if item.waiting_ms:
        begin_ms = item.begin_ms - item.waiting_ms
        yield _without_nodes(item, GroupState.WAITING, begin_ms, item.begin_ms)
    at_ms = item.begin_ms
    state: GroupState | None = GroupState.MISSING if was_there else GroupState.PROVISIONING
    for stay in item.groups[number].stays:
        span = _running(item, number, stay)
        if state and at_ms < span.begin_ms:
            yield _without_nodes(item, state, at_ms, span.begin_ms)
        yield span
        at_ms = span.end_ms
        state = None if span.cause is Cause.ENDED else GroupState.MISSING
    if state and at_ms < item.end_ms:
        yield _without_nodes(item, state, at_ms, item.end_ms)


def _without_nodes(item: AttemptBill, state: GroupState, begin_ms: int, end_ms: int) -> GroupSpan:
    return GroupSpan(
        state=state,
        attempt=item.attempt,
        last_attempt=item.attempt,
        begin_ms=begin_ms,
        end_ms=end_ms,
        is_open=item.ended_at is None and end_ms == item.end_ms and state is not GroupState.WAITING,
    )


def _running(item: AttemptBill, number: int, stay: GroupStay) -> GroupSpan:
    rate, placed = item.groups[number].rate, stay.placed
    begin_ms, end_ms = stay.bounds_ms(item.begin_ms, item.end_ms)
    paid = rate.micros_at(item.begin_ms, [begin_ms, end_ms])
    # The end of an attempt is the loss of its first group; the nodes of others may stand.
    ends_with_attempt = number == 0 or item.cause not in PREEMPTION_CAUSES
    cause, is_drill = (item.cause, item.is_drill) if ends_with_attempt else (None, False)
    if stay.lost is not None:
        cause, is_drill = stay.lost.cause, stay.lost.drill
    return GroupSpan(
        state=GroupState.RUNNING,
        attempt=item.attempt,
        last_attempt=item.attempt,
        begin_ms=begin_ms,
        end_ms=end_ms,
        is_open=stay.until is None and item.ended_at is None,
        placed=placed,
        cloud=placed.cloud or item.cloud,
        instance_type=placed.instance_type or item.instance_type,
        micros_per_hour=rate.micros_per_hour_at(max(begin_ms, end_ms - 1)),
        micros=paid[1] - paid[0],
        cause=cause,
        is_drill=is_drill,
    )


def _continues(before: GroupSpan, span: GroupSpan) -> bool:
    """Whether a span of the next attempt is the same one, as its nodes still run or are missing."""
    is_same = before.state is span.state and before.end_ms == span.begin_ms
    return is_same and before.cause is None and _place(before) == _place(span)


def _place(span: GroupSpan) -> tuple[str, str]:
    return (span.placed.zone if span.placed else "", span.instance_type)


def _joined(before: GroupSpan, span: GroupSpan) -> GroupSpan:
    return replace(
        span, attempt=before.attempt, begin_ms=before.begin_ms, micros=before.micros + span.micros
    )
