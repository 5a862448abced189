"""Drills of node groups: nodes end on request, as if their machines had gone.

SkyPilot cannot take the nodes of one managed job. Its worker ends by itself, without a message to the other nodes: they find the node lost,
as after a loss of the machine. With `Exit.PREEMPTED`, SkyPilot recovers the managed job.

Node 0 receives the requests, and passes each on with the starts of the nodes that it concerns, so that it never ends a node that has
replaced one of them. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from holdfast_worker.clock import now
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.watchdog.messages import EndNodes, Message
from holdfast_worker.watchdog.node_channel import LEADER


class Drill:
    """The end of this node, if a user has requested it."""

    def __init__(self) -> None:
        self._is_notice_new = False
        self.end_s: float | None = None
        """When this node ends, by `time.monotonic`; None without a drill."""

    def begin(self, end_s: float) -> None:
        """End this node then; an earlier request stands."""
        if self.end_s is not None:
            return
        self.end_s = end_s
        self._is_notice_new = end_s > time.monotonic()

    def deadline(self) -> datetime | None:
        """The end of this node, as its termination notice; None if there is no new one."""
        if not self._is_notice_new or self.end_s is None:
            return None
        self._is_notice_new = False
        left_s = max(0.0, self.end_s - time.monotonic())
        log_info(f"drill: this node ends in {left_s:.0f} s, as if its machine were preempted")
        return now() + timedelta(seconds=left_s)

    def end_if_due(self) -> None:
        """End this process if it is time; its ranks and agents die with it."""
        if self.end_s is not None and time.monotonic() >= self.end_s:
            log_info("drill: this node ends now, as if its machine were gone")
            # An orderly exit would send the other nodes messages that a lost machine does not send.
            os._exit(Exit.PREEMPTED)


class NodeDrills:
    """Passes on requests to end nodes, as node 0, and receives them on the others."""

    def __init__(
        self,
        node: int,
        start: int,
        starts: Mapping[int, int],
        send: Callable[[Message], None],
    ) -> None:
        """`start`: of this node.

        `starts`: those of the other nodes that have connected, kept up to date by the caller.
        """
        self._node, self._start, self._starts = node, start, starts
        self._send = send
        self._requests: list[EndNodes] = []
        self.end_s: float | None = None
        """When this node has to end, by `time.monotonic`; None without a request."""

    def request(self, nodes: Sequence[int], end_s: float) -> None:
        """As node 0: have nodes end, this one possibly among them."""
        others = {node: self._starts[node] for node in nodes if node in self._starts}
        if others:
            self._requests.append(EndNodes(others, end_s))
            self.resend()
        if self._node in nodes and self.end_s is None:
            self.end_s = end_s

    def resend(self) -> None:
        """Send the requests again, as a node may have missed them while it was disconnected."""
        for request in self._requests:
            self._send(request)

    def handle(self, node: int, request: EndNodes) -> None:
        """Handle a request of a node."""
        is_meant = request.starts.get(self._node) == self._start
        if node == LEADER and is_meant and self.end_s is None:
            self.end_s = request.end_s
