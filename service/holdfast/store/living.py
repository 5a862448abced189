"""Jobs as they were reckoned last: from there to now is a short way, as what is over stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.domain.chapters import Chapter
from holdfast.domain.events import Event, Finished
from holdfast.domain.ledger import Bill, Reached
from holdfast.domain.running import is_settled, later, open_from
from holdfast.domain.shares import Share


@dataclass(slots=True)
class Living:
    """A bill of all facts of a job, and whatever was made of the part of it that is over."""

    account: Bill
    reached: Mapping[int, Reached]
    """The newest point of every attempt, as it was then."""
    settled: bool
    """Whether nothing but time has to be reckoned with from here on."""
    ended: bool
    """Whether not even time matters any more."""
    rows: Sequence[tuple[Share, Mapping[str, Any]]] | None = None
    """Shares of what is over; None until somebody asked for them, as are the others."""
    chapters: Sequence[Chapter] | None = None
    """Those of which nothing is told any more."""
    late: Sequence[Event] = ()
    """The facts of the others."""

    @classmethod
    def of(cls, account: Bill, facts: Iterable[Event], reached: Mapping[int, Reached]) -> Living:
        """A job whose bill of these facts this is."""
        told = tuple(facts)
        ended = any(isinstance(fact, Finished) for fact in told)
        return cls(account, dict(reached), is_settled(account, told), ended)

    def at(self, now: datetime, reached: Mapping[int, Reached]) -> Bill | None:
        """The bill now; None where it has to be reckoned anew."""
        if self.ended:
            return self.account if reached == self.reached else None
        standing = open_from(self.account)
        same = _without(reached, standing) == _without(self.reached, standing)
        before, newest = self.reached.get(standing), reached.get(standing)
        went_back = before and (newest is None or newest.step < before.step)
        if not self.settled or not same or went_back:
            return None
        return later(self.account, now, newest)


def _without(reached: Mapping[int, Reached], attempt: int) -> dict[int, Reached]:
    return {number: point for number, point in reached.items() if number != attempt}
