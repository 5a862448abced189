"""The watcher: asks the cloud, beside everything else, whether it is about to take this node. Standard library only.

The outside, as a node hears it: signals, the service through the courier, the cloud through the watcher.

Standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import FrameType
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.preemption.clouds import (
    Cloud,
    RebalanceRecommendation,
    TerminationNotice,
    find_cloud,
)
from holdfast_worker.preemption.metadata_service import Metadata, NoAnswer
from holdfast_worker.telemetry.delivery import LAST_TRY_S, ReportSender

LONGEST_PAUSE_S: Final = 10.0
"""Between two looks at a service that stopped to answer. Longer may sleep through a notice, shorter hammers it."""


class MetadataWatcher:
    """A thread that watches for one node, until the end or until the cloud says that it takes the node."""

    def __init__(self, metadata: Metadata, cloud: str | None) -> None:
        """Watch through `metadata`; `cloud` is the name that the launcher gave, None to find out."""
        self._metadata = metadata
        self._cloud = cloud
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-watcher", daemon=True)
        self.taking: TerminationNotice | None = None
        """The notice, once there is one."""
        self.rebalance_at: datetime | None = None
        """Since when the cloud says that it may take the node before long; None while it does not."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A question under way is not waited for."""
        self._closing.set()

    def _run(self) -> None:
        cloud = find_cloud(self._metadata, self._cloud)
        pause_s = cloud.pause_s if cloud else 0.0
        while cloud and not self.taking and not self._closing.is_set():
            try:
                self._look(cloud)
            except (NoAnswer, AttributeError, TypeError) as trouble:
                # It may be busy, or say what nobody understands: the next answer may be better.
                pause_s = self._slow_down(cloud, pause_s, trouble)
            else:
                pause_s = cloud.pause_s
            self._closing.wait(pause_s)

    def _look(self, cloud: Cloud) -> None:
        for omen in cloud.look():
            match omen:
                case TerminationNotice():
                    self.taking = omen
                case RebalanceRecommendation(at):
                    self.rebalance_at = self.rebalance_at or at

    def _slow_down(self, cloud: Cloud, pause_s: float, trouble: Exception) -> float:
        if pause_s == cloud.pause_s:
            log_info(f"{cloud.name} does not say whether it will take this node: {trouble}")
        return min(2 * pause_s, LONGEST_PAUSE_S)


class NoticeSources:
    """What is told to a node while it runs. Every notice and hint is handed on once; later ones change nothing."""

    def __init__(self, courier: ReportSender | None, watcher: MetadataWatcher | None) -> None:
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

    def notice(self) -> TerminationNotice | None:
        """A notice that was not handed on yet; None if there is none."""
        if self._is_signal_new:
            self._is_signal_new = False
            return TerminationNotice(None)
        if self._watcher and self._watcher.taking:
            taking, self._watcher = self._watcher.taking, None
            when = f"at {taking.deadline:%H:%M:%S} UTC" if taking.deadline else "soon"
            log_info(f"the cloud takes this node {when}: saving and leaving")
            return taking
        if self._courier and self._courier.leave_by and not self._is_wish_heard:
            self._is_wish_heard = True
            by = self._courier.leave_by
            log_info(f"the service asks this job to save its work and leave by {by:%H:%M:%S} UTC")
            return TerminationNotice(by)
        return None

    def hint(self) -> datetime | None:
        """Since when the cloud says that it may take the node, if that was not handed on yet; None if there is nothing."""
        if self._is_hint_heard or not (self._watcher and self._watcher.rebalance_at):
            return None
        self._is_hint_heard = True
        log_info("the cloud may take this node before long: saving soon")
        return self._watcher.rebalance_at

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_signalled = self._is_signal_new = True

    def _let_deliver(self, courier: ReportSender) -> None:
        courier.close(LAST_TRY_S if self.is_signalled else None)
