"""Ends a test process that hangs, with the stacks of all its threads.

pytest-timeout raises an exception in the main thread, once per test, and not again after a test has failed. A
`finally`, a fixture or the exit of the interpreter that waits for a thread or a process then waits forever.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

GRACE_S = 60.0
"""Time that a test has for cleanup after its timeout.

A lower value ends a process whose test would soon have failed by itself; a higher value delays the end of a
run that hangs.
"""

_TIMEOUT_S = pytest.StashKey[float]()


class LastResort:
    """A plugin that ends the process if a phase of a test or the exit of the interpreter hangs."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._stderr = os.dup(2)  # pytest captures what tests write to descriptor 2.

    @pytest.hookimpl(tryfirst=True, optionalhook=True)  # A hook of pytest-timeout.
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """Record the timeout of a test, which pytest-timeout sets."""
        item.stash[_TIMEOUT_S] = settings.timeout

    # One limit per phase, since pytest plugins cancel this timer when a phase fails.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Limit the setup of fixtures."""
        with self._limit(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Limit the test itself."""
        with self._limit(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Limit the teardown of fixtures."""
        with self._limit(item):
            return (yield)

    def pytest_unconfigure(self) -> None:
        """Limit the exit of the interpreter, which joins threads and processes."""
        self._end_after(self._grace_s)

    @contextmanager
    def _limit(self, item: pytest.Item) -> Iterator[None]:
        timeout_s = item.stash.get(_TIMEOUT_S, None)
        if timeout_s is None:
            yield
            return
        self._end_after(timeout_s + self._grace_s)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _end_after(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)
