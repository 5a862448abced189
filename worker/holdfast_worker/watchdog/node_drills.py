"""Drills of node groups: nodes end on request, as if their machines had gone.

SkyPilot cannot take the nodes of one managed job. Its worker ends by itself, without a message to the other nodes: they find the node lost,
as after a loss of the machine. With `Exit.PREEMPTED`, SkyPilot recovers the managed job.

Node 0 receives the requests, and passes each on with the starts of the nodes that it concerns, so that it never ends a node that has
replaced one of them. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast_worker.clock import now
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.watchdog.messages import EndNodes
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
    """Requests to end nodes: node 0 passes them on, the others receive them.

    They outlive the watchdog of ranks that start again, as a node may be disconnected in between.
    """

    def __init__(self, node: int, start: int, starts: Mapping[int, int]) -> None:
        """`start`: of this node.

        `starts`: the newest ones of the other nodes that have connected, kept up to date by the caller.
        """
        self._node, self._start, self._starts = node, start, starts
        self._requests: list[tuple[set[int], EndNodes]] = []
        """Each with the nodes that have not connected yet."""
        self.end_s: float | None = None
        """When this node has to end, by `time.monotonic`; None without a request."""

    def request(self, nodes: Sequence[int], end_s: float) -> None:
        """As node 0: have nodes end, this one possibly among them."""
        self._requests.append(({*nodes} - {self._node}, EndNodes({}, end_s)))
        if self._node in nodes and self.end_s is None:
            self.end_s = end_s

    def messages(self) -> Iterator[EndNodes]:
        """What node 0 sends, again whenever a node has connected, as it may have missed it."""
        for at, (missing, request) in enumerate(self._requests):
            starts = {node: self._starts[node] for node in missing if node in self._starts}
            request = replace(request, starts={**request.starts, **starts})  # noqa: PLW2901
            self._requests[at] = missing - starts.keys(), request
            if request.starts:
                yield request

    def handle(self, node: int, request: EndNodes) -> None:
        """Handle a request of a node."""
        is_meant = request.starts.get(self._node) == self._start
        if node == LEADER and is_meant and self.end_s is None:
            self.end_s = request.end_s
