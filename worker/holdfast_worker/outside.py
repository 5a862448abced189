"""The outside, as a node hears it: signals, the service through the courier, the cloud through the watcher.

Standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import FrameType

from holdfast_worker.clouds import Taking
from holdfast_worker.console import tell
from holdfast_worker.courier import LAST_TRY_S, Courier
from holdfast_worker.watcher import Watcher


class Outside:
    """What is told to a node while it runs. Every notice and hint is handed on once; later ones change nothing."""

    def __init__(self, courier: Courier | None, watcher: Watcher | None) -> None:
        """`courier` is None on all nodes but the first and without a service, `watcher` where no cloud is meant."""
        self._courier = courier
        self._watcher = watcher
        self._is_signal_new = False
        self._is_wish_heard = False
        self._is_hint_heard = False
        self.is_signalled = False
        """Whether somebody who signalled this process waits for its end."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hear until the end; then let the courier deliver a little longer."""
        with ExitStack() as closing:
            for which in (signal.SIGTERM, signal.SIGINT):
                closing.callback(signal.signal, which, signal.signal(which, self._hear))
            if self._courier:
                self._courier.start()
                closing.callback(self._let_deliver, self._courier)
            if self._watcher:
                self._watcher.start()
                closing.callback(self._watcher.close)
            yield

    @property
    def replaced(self) -> str | None:
        """That another placement of the job took over, in the service's words; None while it does not say so."""
        return self._courier.replaced if self._courier else None

    def notice(self) -> Taking | None:
        """A notice that was not handed on yet; None if there is none."""
        if self._is_signal_new:
            self._is_signal_new = False
            return Taking(None)
        if self._watcher and self._watcher.taking:
            taking, self._watcher = self._watcher.taking, None
            when = f"at {taking.deadline:%H:%M:%S} UTC" if taking.deadline else "soon"
            tell(f"the cloud takes this node {when}: saving and leaving")
            return taking
        if self._courier and self._courier.leave_by and not self._is_wish_heard:
            self._is_wish_heard = True
            by = self._courier.leave_by
            tell(f"the service asks this job to save its work and leave by {by:%H:%M:%S} UTC")
            return Taking(by)
        return None

    def hint(self) -> datetime | None:
        """Since when the cloud says that it may take the node, if that was not handed on yet; None if there is nothing."""
        if self._is_hint_heard or not (self._watcher and self._watcher.rebalance_at):
            return None
        self._is_hint_heard = True
        tell("the cloud may take this node before long: saving soon")
        return self._watcher.rebalance_at

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_signalled = self._is_signal_new = True

    def _let_deliver(self, courier: Courier) -> None:
        courier.close(LAST_TRY_S if self.is_signalled else None)
