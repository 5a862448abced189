"""Sources of notices for a node: signals, the service, and the cloud's metadata service.

Standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from queue import Empty
from types import FrameType
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.preemption.clouds import (
    Cloud,
    RebalanceRecommendation,
    TerminationNotice,
    find_cloud,
)
from holdfast_worker.preemption.metadata_service import MetadataService, NoAnswer
from holdfast_worker.telemetry.delivery import FINAL_DELIVERY_S, ReportSender
from holdfast_worker.watchdog.node_drills import Drill

LONGEST_PAUSE_S: Final = 10.0
"""Maximum pause between polls of a metadata service that fails.
A lower value adds load; a higher value may miss a notice."""


class MetadataWatcher:
    """A thread that polls the metadata service until a termination notice or the end."""

    def __init__(self, metadata: MetadataService, cloud: str | None) -> None:
        """Poll `metadata`; `cloud` is the name from the launcher, None to detect it."""
        self._metadata = metadata
        self._cloud = cloud
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-watcher", daemon=True)
        self.termination: TerminationNotice | None = None
        """The termination notice; None without one."""
        self.rebalance_at: datetime | None = None
        """Time of the rebalance recommendation; None without one."""

    def start(self) -> None:
        """Start to poll."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling, without waiting for a request in progress."""
        self._closing.set()

    def _run(self) -> None:
        cloud = find_cloud(self._metadata, self._cloud)
        pause_s = cloud.pause_s if cloud else 0.0
        while cloud and not self.termination and not self._closing.is_set():
            try:
                self._poll(cloud)
            except (NoAnswer, AttributeError, TypeError) as error:
                # It may be busy or return a malformed response: the next poll may succeed.
                pause_s = self._slow_down(cloud, pause_s, error)
            else:
                pause_s = cloud.pause_s
            self._closing.wait(pause_s)

    def _poll(self, cloud: Cloud) -> None:
        for found in cloud.poll():
            match found:
                case TerminationNotice():
                    self.termination = found
                case RebalanceRecommendation(at):
                    self.rebalance_at = self.rebalance_at or at

    def _slow_down(self, cloud: Cloud, pause_s: float, error: Exception) -> float:
        if pause_s == cloud.pause_s:
            log_info(
                f"the metadata service of {cloud.name} fails, so notices may be missed: {error}"
            )
        return min(2 * pause_s, LONGEST_PAUSE_S)


class NoticeSources:
    """Notices for a node from all sources. Each source's notice and hint is returned once."""

    def __init__(self, sender: ReportSender | None, watcher: MetadataWatcher | None) -> None:
        """`sender` is None on nodes other than 0 and without a service, `watcher` without a cloud."""
        self._sender = sender
        self._watcher = watcher
        self._is_signal_new = False
        self._is_leave_request_handled = False
        self._is_hint_handled = False
        self.drill = Drill()
        """The end of this node, if a user has requested it."""
        self.is_signalled = False
        """Whether this process was signalled, so that the sender of the signal waits for its end."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open all sources; on exit, deliver the last reports."""
        with ExitStack() as closing:
            for number in (signal.SIGTERM, signal.SIGINT):
                closing.callback(signal.signal, number, signal.signal(number, self._on_signal))
            if self._sender:
                self._sender.start()
                closing.callback(self._close_sender, self._sender)
            if self._watcher:
                self._watcher.start()
                closing.callback(self._watcher.close)
            yield

    @property
    def superseded_by(self) -> str | None:
        """The service's message that a different attempt replaced this one; None without one."""
        return self._sender.superseded_by if self._sender else None

    def notice(self) -> TerminationNotice | None:
        """A new notice; None if there is none."""
        if self._is_signal_new:
            self._is_signal_new = False
            return TerminationNotice(None)
        if self._watcher and self._watcher.termination:
            notice, self._watcher = self._watcher.termination, None
            when = f"at {notice.deadline:%H:%M:%S} UTC" if notice.deadline else "soon"
            log_info(f"termination notice: this node stops {when}; saving a checkpoint and exiting")
            return notice
        if self._sender and self._sender.leave_by and not self._is_leave_request_handled:
            self._is_leave_request_handled = True
            by = self._sender.leave_by
            log_info(f"the service asks this job to save its work and exit by {by:%H:%M:%S} UTC")
            return TerminationNotice(by)
        if (deadline := self.drill.deadline()) is not None:
            return TerminationNotice(deadline)
        return None

    def requested_drills(self) -> Iterator[tuple[Sequence[int], float]]:
        """New requests to end nodes, as node 0 receives them.

        Each has the nodes, and when they end by `time.monotonic`.
        """
        with suppress(Empty):
            while self._sender:
                yield self._sender.drills.get_nowait()

    def hint(self) -> datetime | None:
        """The time of a new rebalance recommendation; None if there is none."""
        if self._is_hint_handled or not (self._watcher and self._watcher.rebalance_at):
            return None
        self._is_hint_handled = True
        log_info("rebalance recommendation: this node may be preempted soon; saving a checkpoint")
        return self._watcher.rebalance_at

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_signalled = self._is_signal_new = True

    def _close_sender(self, sender: ReportSender) -> None:
        sender.close(FINAL_DELIVERY_S if self.is_signalled else None)
