"""Which nodes run the ranks of missing ones, as the leader decides. Pure.

With an elastic number of nodes, training does not wait until the launcher has replaced a lost node: another node *hosts* its ranks in the
meantime, in a wrapper of its own. For all others, that wrapper is the lost node, as a replacement is. The number of ranks never
changes, and neither does any result. When the replacement is there, its ranks take over.

A start of a node has a number, and the leader accepts only the newest one. The launcher numbers its starts; those on hosts lie between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MOVE_TIMEOUT_S: Final = 5.0
"""Time for a replacement that is ready to take over, before the ranks run on another node again.
A lower value starts processes that are not needed; a higher value pays for nodes that wait."""
HOST_TIMEOUT_S: Final = 15.0
"""Time for ranks to start on their host, before a replacement takes precedence.
A lower value ends ranks that are almost there; a higher value pays for nodes that wait for a host that hangs."""
MAX_FAILURES: Final = 1
"""Failures of ranks on a host that are repeated.
A lower value gives up after a coincidence; a higher value repeats a lack of memory."""
STARTS_PER_NODE: Final = 1000
"""Starts on hosts between two starts by the launcher."""


@dataclass(frozen=True, slots=True)
class Host:
    """The node that runs the ranks of a missing one."""

    node: int
    start: int
    """The number of the missing node's start there."""
    step: int = 0
    """Number of completed steps when it began."""


class Hosting:
    """The hosts of missing nodes. It outlives restarts of all ranks on their nodes."""

    def __init__(self, nodes: int, min_nodes: int | None) -> None:
        """`min_nodes`: training continues with at least this many nodes; None: with all of them."""
        self._nodes = nodes
        self._min_nodes = min_nodes
        self._is_refused = min_nodes is None
        self._due_s: dict[int, float] = {}
        """When hosts are chosen for missing nodes."""
        self._chosen_s: dict[int, float] = {}
        self._starts: dict[int, int] = {}
        """The newest start of each node on a host."""
        self._failures = 0
        self.hosts: dict[int, Host] = {}
        """Hosts of missing nodes."""

    @property
    def is_elastic(self) -> bool:
        """Whether training continues with fewer nodes."""
        return self._min_nodes is not None

    def move(self, node: int, now_s: float) -> None:
        """Record that the ranks of a node move to its replacement."""
        self.hosts.pop(node, None)
        if not self._is_refused:
            self._due_s[node] = now_s + MOVE_TIMEOUT_S

    def lose(self, node: int, now_s: float) -> None:
        """Record that no process of a node is left, nor of those that it hosted."""
        self.hosts.pop(node, None)
        if self._is_refused:
            return
        self._due_s[node] = now_s
        for each in self.hosted_by(node):
            del self.hosts[each]
            self._due_s[each] = now_s

    def end(self, node: int) -> bool:
        """Record that the launcher has replaced a node; return whether it was hosted."""
        self._due_s.pop(node, None)
        return self.hosts.pop(node, None) is not None

    def fail(self, node: int, now_s: float) -> None:
        """Record that the ranks of a node failed on its host, before they came any further.

        After `MAX_FAILURES`, nodes are hosted no more: the others wait for replacements.
        """
        self._failures += 1
        self._is_refused = self._failures > MAX_FAILURES
        if self._is_refused:
            self._due_s.clear()
        self.lose(node, now_s)
        self.hosts.pop(node, None)

    def retain(self, nodes: Collection[int]) -> None:
        """Forget hosts and hosted nodes other than these, before all ranks start again."""
        self.hosts = {
            node: host for node, host in self.hosts.items() if {node, host.node} <= {*nodes}
        }
        self._due_s.clear()

    def choose(
        self, now_s: float, missing: Collection[int], starts: Mapping[int, int], step: int
    ) -> dict[int, Host]:
        """Choose hosts for missing nodes that are due, and return them.

        `missing`: nodes of which no process is connected. `starts`: the newest start of each node. `step`: number of completed steps.
        """
        for node in self._due_s.keys() - missing:
            del self._due_s[node]
        standing = {*range(self._nodes)} - {*missing} - self.hosts.keys()
        if len(standing) < (self._min_nodes or self._nodes):
            return {}
        due = sorted(node for node, due_s in self._due_s.items() if now_s >= due_s)
        chosen = {}
        for node in due:
            del self._due_s[node]
            load = [each.node for each in self.hosts.values()]
            # Node 0 decides for all, and delivers the reports.
            host = min(standing, key=lambda each: (load.count(each), each == 0, each))
            start = max(starts.get(node, 0), self._starts.get(node, 0)) + 1
            self._starts[node] = start
            self._chosen_s[node] = now_s
            chosen[node] = self.hosts[node] = Host(host, start, step)
        return chosen

    @property
    def starts(self) -> dict[int, int]:
        """The start of each hosted node on its host."""
        return {node: host.start for node, host in self.hosts.items()}

    def starts_of(self, nodes: Collection[int]) -> dict[int, int]:
        """The start of each of these nodes that is hosted."""
        return {node: start for node, start in self.starts.items() if node in nodes}

    def held(self, now_s: float, missing: Collection[int]) -> dict[int, int]:
        """Nodes whose replacements have to wait, with the starts of these nodes on their hosts.

        Their ranks run there, or are about to.
        """
        return {
            node: start
            for node, start in self.starts.items()
            if node not in missing or now_s - self._chosen_s.get(node, 0.0) < HOST_TIMEOUT_S
        }

    def accept(self, hosts: Mapping[int, Host]) -> None:
        """Record the leader's decision."""
        self.hosts = {**hosts}

    def hosted_by(self, node: int) -> dict[int, int]:
        """Nodes that a node hosts, with the number of their start."""
        return {each: host.start for each, host in self.hosts.items() if host.node == node}
