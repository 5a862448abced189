"""Live bills: a bill as last computed, extended to now while no event is added."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.bill import Bill, LatestPoint
from holdfast.domain.billing.incremental_bill import extend_bill, first_open_attempt, is_closed
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.charges.charge_shares import JobCharges
from holdfast.domain.events import Event, Finished
from holdfast.domain.preemptions.placements import PlacementRecord

MAX_CACHED_ANSWERS: Final = 16
"""Cached answers for each job. A lower value computes the sums of a page with many of them again; a
higher value uses more memory, some kB for each."""

MAX_CACHED_LENGTH: Final = 100
"""Sums in a cached answer of a job, such as those of its attempts. A higher value uses more memory;
a lower value computes longer answers again."""

AllocationRow: TypeAlias = tuple[CostAllocation, Mapping[str, Any]]
"""An allocation of the nodes of a bill, with its row of `ledger_shares`; charges beside them have rows of their own."""

T = TypeVar("T")


@dataclass(slots=True)
class LiveBill:
    """A bill of all events of a job, with what was computed from its closed part."""

    bill: Bill
    latest_points: Mapping[int, LatestPoint]
    """The newest point of every attempt at that time."""
    is_extendable: bool
    """Whether only time changes the bill from here on."""
    has_ended: bool
    """Whether not even time changes the bill."""
    charges: JobCharges | None = None
    """What it costs beside the nodes; None if only its nodes are needed."""
    closed: tuple[Sequence[AllocationRow], Sequence[PlacementRecord]] | None = None
    """Rows of the closed part of the bill, and final placement records; None until requested."""
    open_events: Sequence[Event] = ()
    """The events of the other placements."""
    answers: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    """Results for the closed part, by question."""

    @classmethod
    def from_events(
        cls,
        account: Bill,
        facts: Iterable[Event],
        reached: Mapping[int, LatestPoint],
        charges: JobCharges | None = None,
    ) -> LiveBill:
        """Create the live bill of a job from its bill of these events."""
        all_events = tuple(facts)
        ended = any(isinstance(fact, Finished) for fact in all_events)
        return cls(account, reached, is_closed(account, all_events), ended, charges)

    def bill_at(self, now: datetime, reached: Mapping[int, LatestPoint]) -> Bill | None:
        """The bill now; None if it has to be computed from the events."""
        if not self.has_bill_at(now, reached):
            return None
        newest = reached.get(first_open_attempt(self.bill))
        return self.bill if self.has_ended else extend_bill(self.bill, now, newest)

    def has_bill_at(self, now: datetime, reached: Mapping[int, LatestPoint]) -> bool:
        """Whether `bill_at` has a bill. What does not depend on the time is then as in `bill`."""
        if self.has_ended:
            return reached == self.latest_points
        if not self.is_extendable or to_ms(now) < to_ms(self.bill.until):
            return False
        standing = first_open_attempt(self.bill)
        before, newest = self.latest_points.get(standing), reached.get(standing)
        if before and (newest is None or newest.step < before.step):
            return False
        same = reached is self.latest_points
        return same or _without(reached, standing) == _without(self.latest_points, standing)

    def cached(self, question: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for the closed part, computed once for each of the last questions.

        At most `MAX_CACHED_ANSWERS` are kept. The result is never None.
        """
        known: T | None = self.answers.get(question)
        if known is None:
            known = make()
            if isinstance(known, Sized) and len(known) > MAX_CACHED_LENGTH:
                return known
            self.answers[question] = known
            if len(self.answers) > MAX_CACHED_ANSWERS:
                self.answers.popitem(last=False)
        return known


def _without(reached: Mapping[int, LatestPoint], attempt: int) -> dict[int, LatestPoint]:
    return {number: point for number, point in reached.items() if number != attempt}
