"""Drills on the node channel: node 0 has the nodes of a group end (`preemption.drill`). Pure.

A request names the starts of the nodes that it concerns, so that it never ends a node that has replaced one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast_worker.watchdog.messages import EndNodes, Message
from holdfast_worker.watchdog.node_channel import LEADER


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
