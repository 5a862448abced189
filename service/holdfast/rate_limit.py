"""Rate limits: token buckets per caller and request class, and a limit of live streams.

Each replica counts in its own memory. Limits contain mistakes and guesses, for which the limit times the number of
replicas is also sufficient.
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
MAX_BUCKETS: Final = 10_000
"""Number of buckets above which full ones are discarded.

A lower value scans them more often; a higher value uses more memory for callers with many addresses.
"""


class LimitClass(StrEnum):
    """Request classes with separate limits: people, spending, workers, and wrong tokens."""

    ASK = "ask"
    SPEND = "spend"
    REPORT = "report"
    FAIL = "fail"
    """Requests with one wrong token from one address; until this limit, responses give the reason."""
    GUESS = "guess"
    """Requests from one address with any wrong tokens."""
    SIGN_IN = "sign_in"
    """Requests of sign-ins from one address, which cause requests to the identity provider."""
    NOTE = "note"
    """Refused logins recorded in the audit log, over all callers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimits:
    """Requests per minute of a user, a job's workers or an address, by class."""

    ask: int = 1200
    spend: int = 30
    report: int = 1200
    fail: int = 10
    guess: int = 100
    sign_in: int = 120
    note: int = 10

    def per_minute(self, kind: LimitClass) -> int:
        """Return the limit of a class."""
        limit: int = getattr(self, kind.value)
        return limit


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """Result of a rate limit check."""

    limit_class: LimitClass
    limit: int
    remaining: int
    """Further requests that are allowed at once."""
    wait_s: float
    """Seconds until it may be retried; 0 if it is allowed."""

    @property
    def is_allowed(self) -> bool:
        """Whether the request is allowed."""
        return self.wait_s <= 0

    @property
    def retry_after_s(self) -> int:
        """Seconds to wait before a retry, rounded up."""
        return max(1, math.ceil(self.wait_s))


@dataclass
class Streams:
    """Open live streams.

    Each one holds a connection and queries the database several times a second.
    """

    max_open: int = 200
    """Limit for all callers.

    A lower value refuses dashboards; a higher value takes resources from requests.
    """
    max_per_user: int = 30
    """Limit per user. A lower value limits their open windows; a higher value lets one user take all streams."""
    _open: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        """Number of open streams."""
        return self._open.total()

    @contextmanager
    def open(self, caller: str | None) -> Iterator[None]:
        """Hold a stream open for a user; None: the owner, who has no limit.

        Raises:
            TooManyRequests: the user has too many open streams.
            Unavailable: all callers together have too many.
        """
        key = caller or ""
        with self._lock:
            if caller is not None and self._open[key] >= self.max_per_user:
                raise TooManyRequests(
                    f"you have {self.max_per_user} live streams open, the limit per user; close one",
                    retry_after_s=5,
                )
            if self.count >= self.max_open:
                raise Unavailable(
                    f"{self.max_open} live streams are open, the limit of this service (HOLDFAST_STREAMS); try again later"
                )
            self._open[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[key] -= 1
                self._open += Counter()  # Delete entries of users without streams.


@dataclass
class RateLimiter:
    """The token buckets of all callers."""

    now_s: Callable[[], float]
    """A monotonic clock in seconds."""
    limits: RateLimits = RateLimits()
    streams: Streams = field(default_factory=Streams)
    _full_at: dict[tuple[LimitClass, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, kind: LimitClass, caller: str) -> RateLimitResult:
        """Take one request from a caller's bucket, or return the time to wait."""
        limit = self.limits.per_minute(kind)
        each_s = MINUTE_S / limit
        with self._lock:
            now_s = self.now_s()
            if len(self._full_at) >= MAX_BUCKETS:
                self._full_at = {key: at for key, at in self._full_at.items() if at > now_s}
            full_at = max(self._full_at.get((kind, caller), now_s), now_s) + each_s
            wait_s = full_at - now_s - MINUTE_S
            # Float rounding may exceed the limit slightly.
            if wait_s > each_s / 1000:
                return RateLimitResult(kind, limit, 0, wait_s)
            self._full_at[kind, caller] = full_at
        return RateLimitResult(kind, limit, int((now_s + MINUTE_S - full_at) / each_s + 1e-3), 0.0)
