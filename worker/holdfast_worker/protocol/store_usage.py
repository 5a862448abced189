"""Requests to a checkpoint store and the bytes that they moved, as workers report them.

Counters are cumulative since the start of a process and never decrease. A lower value therefore comes from a new process, and
begins a new count. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

MAX_COUNT: Final = 2**63 - 1
"""Highest value of a counter. A higher value does not fit into a column; a lower value refuses large jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """Cumulative requests and bytes."""

    puts: int = 0
    """Requests that write an object, with or without a condition."""
    gets: int = 0
    """Requests that read an object or its properties."""
    lists: int = 0
    """Requests that list objects; a long listing needs several."""
    deletes: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0

    def __add__(self, other: StoreUsage) -> StoreUsage:
        """The sum of both."""
        theirs = other.dump()
        return StoreUsage(**{name: value + theirs[name] for name, value in self.dump().items()})

    def __sub__(self, other: StoreUsage) -> StoreUsage:
        """The difference of both."""
        theirs = other.dump()
        return StoreUsage(**{name: value - theirs[name] for name, value in self.dump().items()})

    def is_behind(self, other: StoreUsage) -> bool:
        """Whether any counter is lower, so that this is not a later value of the same process."""
        return any(getattr(self, item.name) < getattr(other, item.name) for item in fields(self))

    def dump(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)

    @classmethod
    def parse(cls, raw: Any) -> StoreUsage:
        """Parse counters; 0 for those that are missing or no counters.

        A count is worth less than the checkpoint or report that contains it, so nothing is refused.
        """
        known = raw if isinstance(raw, Mapping) else {}
        return cls(**{item.name: _count(known.get(item.name)) for item in fields(cls)})


NO_USAGE: Final = StoreUsage()
"""No requests."""


class UsageTotal:
    """The sum over processes, each of which reports cumulative counters under a key.

    A new process may continue under the key of an old one.
    """

    def __init__(self) -> None:
        self._ended = StoreUsage()
        """The sum over processes that were replaced."""
        self._current: dict[int, StoreUsage] = {}
        self._counted: set[int] = set()

    def succeed(self, keys: Iterable[int]) -> None:
        """Continue in place of a lost total, which has counted what comes first under these keys."""
        self._counted = set(keys)

    def observe(self, key: int, usage: StoreUsage) -> None:
        """Take the newest counters under a key."""
        if key in self._counted:
            self._counted.discard(key)
            self._ended -= usage
        if usage.is_behind(self._current.get(key, usage)):
            self.restart(key)
        self._current[key] = usage

    def restart(self, key: int) -> None:
        """Expect a new process under a key."""
        self._ended += self._current.pop(key, NO_USAGE)

    def read(self) -> StoreUsage:
        """The sum so far."""
        return sum(self._current.values(), self._ended)


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return min(max(value, 0), MAX_COUNT) if is_count else 0
