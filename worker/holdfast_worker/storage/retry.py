"""Retries of store operations, and the timeout of collectives."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from holdfast_worker.protocol.policies import MaxStall, StallDetection
from holdfast_worker.storage.base import ObjectUnreadable, StoreUnreachable

T = TypeVar("T")

JITTER: Final = random.Random()
"""A separate generator: training draws from Python's global one, and extra draws would break
bitwise reproducibility after a resume."""

LONGEST_WAIT_S: Final = 10.0
"""Maximum wait between two tries. A higher value sleeps through a recovery; a lower value
overloads a recovering store."""

UNREADABLE_S: Final = 10.0
"""Time limit for an unreadable object. A higher value delays the fallback to an older
checkpoint; a lower value skips an intact checkpoint during a brief fault of a network file system."""

WATCHED_S: Final = 3 * 3600
"""Minimum collective timeout with a watchdog, instead of torch's 10 or 30 minutes. A higher
value pays longer for undetected hangs; a lower value ends a run whose rank 0 announces a long evaluation."""


def retry_until(
    action: Callable[[], T],
    until_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run `action`, with retries at growing, jittered waits until `clock` passes `until_s`.

    An unreadable object is retried for `UNREADABLE_S` only.

    Raises:
        StoreUnreachable: the deadline passed; this is the error of the last try.
    """
    last_try_s = until_s
    for tries in itertools.count():
        try:
            return action()
        except StoreUnreachable as error:
            if not isinstance(error, ObjectUnreadable):
                last_try_s = until_s
            elif last_try_s == until_s:
                last_try_s = min(until_s, clock() + UNREADABLE_S)
            wait_s = JITTER.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, 0.2 * 2 ** min(tries, 8))
            if clock() + wait_s > last_try_s:
                raise
            sleep(wait_s)
    raise AssertionError("unreachable")


def collective_timeout_s(max_stall: MaxStall) -> timedelta | None:
    """The timeout of collectives with a watchdog; None: torch's default."""
    if max_stall.detection is StallDetection.OFF:
        return None
    return timedelta(seconds=max(WATCHED_S, 2 * max_stall.limit_s))
