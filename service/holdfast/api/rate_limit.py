"""How many requests of each kind somebody may send: buckets that fill again steadily, one for each caller and kind; and how
many live streams may be open at once.

Each replica counts for itself, in memory: a limit is there to keep a mistake or a guess from taking the service or the
money of a project, and three replicas that each let the limit pass do that as well.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.errors import TooManyRequests, Unavailable

MINUTE_S: Final = 60.0
MOST_KEYS: Final = 10_000
"""Buckets that are remembered before those that are full again are forgotten. Smaller: they are looked through more
often. Bigger: whoever sends from many addresses takes more memory."""


class LimitClass(StrEnum):
    """What is counted apart, so that nobody starves others: people, spending, workers, and wrong tokens."""

    ASK = "ask"
    SPEND = "spend"
    REPORT = "report"
    FAIL = "fail"
    """Requests with one wrong token from one address: the answer says what is wrong with it until this limit."""
    GUESS = "guess"
    """Requests with wrong tokens from one address, whichever tokens they are."""
    NOTE = "note"
    """Refused logins that are written to the audit log, of all together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimits:
    """Requests a minute: of a person, a job's workers, an address, as the kind is."""

    ask: int = 1200
    spend: int = 30
    report: int = 1200
    fail: int = 10
    guess: int = 100
    note: int = 10

    def of(self, kind: LimitClass) -> int:
        """The limit of one kind."""
        limit: int = getattr(self, kind.value)
        return limit


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """What became of one request."""

    kind: LimitClass
    limit: int
    left: int
    """How many more may follow at once."""
    wait_s: float
    """Until it may come again; 0 where it may pass."""

    @property
    def passes(self) -> bool:
        """Whether it may."""
        return self.wait_s <= 0

    @property
    def retry_after_s(self) -> int:
        """When to come again, in whole seconds."""
        return max(1, math.ceil(self.wait_s))


@dataclass
class Streams:
    """The live streams that are open. Each of them holds a connection and queries the database several times a second."""

    most: int = 200
    """Of all callers together. A lower value turns dashboards away; a higher value takes what requests need."""
    most_each: int = 30
    """Of one user. A lower value limits the windows that they have open; a higher value lets one user take all streams."""
    _open: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        """How many are open."""
        return self._open.total()

    @contextmanager
    def one(self, who: str | None) -> Iterator[None]:
        """Hold one stream open for a user; None: for the owner, who may open as many as there are.

        Raises:
            TooManyRequests: they have too many open.
            Unavailable: all callers together have.
        """
        key = who or ""
        with self._lock:
            if who is not None and self._open[key] >= self.most_each:
                raise TooManyRequests(
                    f"you have {self.most_each} live streams open, the limit of one user; close one",
                    retry_after_s=5,
                )
            if self.count >= self.most:
                raise Unavailable(
                    f"{self.most} live streams are open, the limit of this service (HOLDFAST_STREAMS); try again later"
                )
            self._open[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[key] -= 1
                self._open += Counter()  # Forget users without any.


@dataclass
class RateLimiter:
    """The buckets of all callers."""

    now_s: Callable[[], float]
    """Seconds that only ever go forward."""
    limits: RateLimits = RateLimits()
    streams: Streams = field(default_factory=Streams)
    _full_at: dict[tuple[LimitClass, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: LimitClass, who: str) -> RateLimitResult:
        """Let one request of somebody pass, or say how long it has to wait."""
        limit = self.limits.of(kind)
        each_s = MINUTE_S / limit
        with self._lock:
            now_s = self.now_s()
            if len(self._full_at) >= MOST_KEYS:
                self._full_at = {key: at for key, at in self._full_at.items() if at > now_s}
            full_at = max(self._full_at.get((kind, who), now_s), now_s) + each_s
            wait_s = full_at - now_s - MINUTE_S
            # Steps of a float add up to a little more than they should.
            if wait_s > each_s / 1000:
                return RateLimitResult(kind, limit, 0, wait_s)
            self._full_at[kind, who] = full_at
        return RateLimitResult(kind, limit, int((now_s + MINUTE_S - full_at) / each_s + 1e-3), 0.0)
