"""Requests for sums of costs: by what, over which days, and of which projects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum


class GroupBy(StrEnum):
    """Dimension of a sum."""

    JOB = "job"
    ATTEMPT = "attempt"
    USER = "user"
    PROJECT = "project"
    TAG = "tag"
    ZONE = "zone"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRequest:
    """A request for sums of costs."""

    by: GroupBy
    then_by: GroupBy | None = None
    """Second dimension; None: none. It differs from `by`, and is neither JOB nor ATTEMPT."""
    tag: str = ""
    """The tag whose values are distinguished; empty unless one of the two is TAG."""
    since: date | None = None
    """First day, in UTC; None: unlimited."""
    until: date | None = None
    """Last day, in UTC; None: until now."""
    projects: frozenset[str] | None = None
    """Only these projects; None: all."""
    limit: int = 1000
    """Maximum number of sums."""

    @property
    def grand_total(self) -> CostRequest:
        """The request for the sum over everything."""
        return replace(self, by=GroupBy.DAY, then_by=None, tag="", limit=0)

    @property
    def dimensions(self) -> tuple[GroupBy, ...]:
        """All dimensions of the sums."""
        return (self.by, self.then_by) if self.then_by else (self.by,)

    def includes(self, day: date) -> bool:
        """Whether a day is within the request."""
        since, until = self.since, self.until
        return (since is None or day >= since) and (until is None or day <= until)

    @property
    def is_long(self) -> bool:
        """Whether there are at least as many sums as jobs.

        The database then omits the sums that are not displayed.
        """
        return self.by in {GroupBy.JOB, GroupBy.ATTEMPT}
