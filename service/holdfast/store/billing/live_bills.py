"""Jobs as they were reckoned last: from there to now is a short way, as what is over stays as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.incremental import extend_bill, first_open_attempt, is_closed
from holdfast.domain.billing.ledger import Bill, LatestPoint
from holdfast.domain.events import Event, Finished
from holdfast.domain.preemptions.placements import PlacementRecord

MAX_CACHED_ANSWERS: Final = 16
"""Questions whose answers are kept of each job. Fewer: a page of many sums has them made anew; more: memory, some kB for each."""

MAX_CACHED_LENGTH: Final = 100
"""Sums of an answer that is kept of a job, such as those of its attempts. As above."""

AllocationRow: TypeAlias = tuple[CostAllocation, Mapping[str, Any]]
"""A piece of a bill, with its row of `ledger_shares`."""

T = TypeVar("T")


@dataclass(slots=True)
class LiveBill:
    """A bill of all facts of a job, and whatever was made of the part of it that is over."""

    bill: Bill
    latest_points: Mapping[int, LatestPoint]
    """The newest point of every attempt, as it was then."""
    is_extendable: bool
    """Whether nothing but time has to be reckoned with from here on."""
    has_ended: bool
    """Whether not even time matters any more."""
    closed: tuple[Sequence[AllocationRow], Sequence[PlacementRecord]] | None = None
    """Pieces of the bill of what is over, and its chapters of which nothing is told any more; None until somebody asked."""
    open_events: Sequence[Event] = ()
    """The facts of the other chapters."""
    answers: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    """What was made of all that is over, by what was asked."""

    @classmethod
    def from_events(
        cls, account: Bill, facts: Iterable[Event], reached: Mapping[int, LatestPoint]
    ) -> LiveBill:
        """A job whose bill of these facts this is."""
        told = tuple(facts)
        ended = any(isinstance(fact, Finished) for fact in told)
        return cls(account, reached, is_closed(account, told), ended)

    def bill_at(self, now: datetime, reached: Mapping[int, LatestPoint]) -> Bill | None:
        """The bill now; None where it has to be reckoned anew."""
        if self.has_ended:
            return self.bill if reached == self.latest_points else None
        standing = first_open_attempt(self.bill)
        same = reached is self.latest_points
        same = same or _without(reached, standing) == _without(self.latest_points, standing)
        before, newest = self.latest_points.get(standing), reached.get(standing)
        went_back = before and (newest is None or newest.step < before.step)
        if not self.is_extendable or not same or went_back:
            return None
        return extend_bill(self.bill, now, newest)

    def cached(self, question: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes of what is over, made once for each of the last `MAX_CACHED_ANSWERS` questions. It is never None."""
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
