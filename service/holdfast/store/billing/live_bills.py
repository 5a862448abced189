"""Jobs as they were reckoned last: from there to now is a short way, as what is over stays as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.incremental import extend_bill, is_closed, open_from
from holdfast.domain.billing.ledger import Bill, LatestPoint
from holdfast.domain.events import Event, Finished
from holdfast.domain.preemptions.placements import PlacementRecord

MOST_ASKED: Final = 16
"""Questions whose answers are kept of each job. Fewer: a page of many sums has them made anew; more: memory, some kB for each."""

LONGEST: Final = 100
"""Sums of an answer that is kept of a job, such as those of its attempts. As above."""

Row: TypeAlias = tuple[CostAllocation, Mapping[str, Any]]
"""A piece of a bill, with its row of `ledger_shares`."""

T = TypeVar("T")


@dataclass(slots=True)
class LiveBill:
    """A bill of all facts of a job, and whatever was made of the part of it that is over."""

    account: Bill
    reached: Mapping[int, LatestPoint]
    """The newest point of every attempt, as it was then."""
    settled: bool
    """Whether nothing but time has to be reckoned with from here on."""
    ended: bool
    """Whether not even time matters any more."""
    over: tuple[Sequence[Row], Sequence[PlacementRecord]] | None = None
    """Pieces of the bill of what is over, and its chapters of which nothing is told any more; None until somebody asked."""
    late: Sequence[Event] = ()
    """The facts of the other chapters."""
    told: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    """What was made of all that is over, by what was asked."""

    @classmethod
    def of(
        cls, account: Bill, facts: Iterable[Event], reached: Mapping[int, LatestPoint]
    ) -> LiveBill:
        """A job whose bill of these facts this is."""
        told = tuple(facts)
        ended = any(isinstance(fact, Finished) for fact in told)
        return cls(account, reached, is_closed(account, told), ended)

    def at(self, now: datetime, reached: Mapping[int, LatestPoint]) -> Bill | None:
        """The bill now; None where it has to be reckoned anew."""
        if self.ended:
            return self.account if reached == self.reached else None
        standing = open_from(self.account)
        same = reached is self.reached
        same = same or _without(reached, standing) == _without(self.reached, standing)
        before, newest = self.reached.get(standing), reached.get(standing)
        went_back = before and (newest is None or newest.step < before.step)
        if not self.settled or not same or went_back:
            return None
        return extend_bill(self.account, now, newest)

    def once(self, question: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes of what is over, made once for each of the last `MOST_ASKED` questions. It is never None."""
        known: T | None = self.told.get(question)
        if known is None:
            known = make()
            if isinstance(known, Sized) and len(known) > LONGEST:
                return known
            self.told[question] = known
            if len(self.told) > MOST_ASKED:
                self.told.popitem(last=False)
        return known


def _without(reached: Mapping[int, LatestPoint], attempt: int) -> dict[int, LatestPoint]:
    return {number: point for number, point in reached.items() if number != attempt}
