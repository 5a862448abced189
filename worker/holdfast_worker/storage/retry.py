"""Patience with a store that is not there right now, and with ranks that let others wait."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from holdfast_worker.protocol.policies import MaxStall, Watch
from holdfast_worker.storage.base import Unreachable, Unreadable

T = TypeVar("T")

JITTER: Final = random.Random()
"""Of our own: what is drawn from Python's global generator, in whatever thread, the training misses, and would not go on to
the bit after a resume."""

LONGEST_WAIT_S: Final = 10.0
"""Between two tries. Longer sleeps through a recovery, shorter joins the stampede that keeps a store down."""

UNREADABLE_S: Final = 10.0
"""For an object that cannot be read. A higher value delays the older checkpoint that takes its place; a lower value passes over a
sound one in a bad moment of a network file system."""

WATCHED_S: Final = 3 * 3600
"""For which ranks wait for each other at least where a watchdog looks after them, instead of torch's 10 or 30 minutes.
Longer pays for ranks that hang unseen; shorter ends a run whose first rank evaluates for long, although it said so."""


def retry_until(
    action: Callable[[], T],
    until_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `action` returns, tried again with growing, jittered waits until `clock` passes `until_s`.

    An object that cannot be read is given up earlier, if that is all that goes wrong.

    Raises:
        Unreachable: the time is up; says what the last try said.
    """
    last_try_s = until_s
    for tries in itertools.count():
        try:
            return action()
        except Unreachable as error:
            if not isinstance(error, Unreadable):
                last_try_s = until_s
            elif last_try_s == until_s:
                last_try_s = min(until_s, clock() + UNREADABLE_S)
            wait_s = JITTER.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, 0.2 * 2 ** min(tries, 8))
            if clock() + wait_s > last_try_s:
                raise
            sleep(wait_s)
    raise AssertionError("unreachable")


def collective_timeout_s(max_stall: MaxStall) -> timedelta | None:
    """How long ranks wait for each other where a watchdog looks after them; None is torch's own measure."""
    if max_stall.watch is Watch.OFF:
        return None
    return timedelta(seconds=max(WATCHED_S, 2 * max_stall.limit_s))
