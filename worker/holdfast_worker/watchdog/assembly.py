"""Whether nodes of several groups are there, so that ranks can start together.

Groups are started and replaced by themselves, so that some may be hours late. Ranks that waited for each other would need timeouts of that
length; their wrappers wait in their place. A node that comes after the ranks have begun joins them, in place of one that was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.watchdog.node_channel import LEADER

LEADER_TIMEOUT_S: Final = 20.0
"""Time without a connection to the leader after which a node looks for another one.
A lower value gives up while the leader restarts its channel; a higher value pays for a node that waits for a lost leader."""
FIRST_LOG_S: Final = 5.0
"""Time before missing nodes are logged. A lower value logs those that are about to connect."""
LOG_EVERY_S: Final = 300.0
"""Interval of further logs. A lower value fills the log; a higher value looks like a hang."""


class Assembly(Enum):
    """What a node does after it has waited for the others."""

    STARTS = auto()
    """Its ranks start, as those of all other nodes do."""
    JOINS = auto()
    """Its ranks replace those of a lost node."""
    STARTS_AGAIN = auto()
    """All ranks end and start again."""
    LEAVES = auto()
    """It ends, as it was asked to."""
    HAS_NO_LEADER = auto()
    """The leader is not there, and another one has to be found."""


class AssemblyWait:
    """The wait of one node."""

    def __init__(self, node: int, nodes: int, start: int, now_s: float) -> None:
        """`start`: the number of this node's start."""
        self._node, self._others, self._start = node, {*range(nodes)} - {node}, start
        self._seen_leader_s = now_s
        self._log_s = now_s + FIRST_LOG_S

    def poll(
        self,
        now_s: float,
        connected: Collection[int],
        exited: Collection[int],
        begun: Mapping[int, int] | None,
    ) -> Assembly | None:
        """What this node does now; None: it waits.

        `begun`: the starts of the nodes whose ranks have begun, None before that.
        """
        if self._node != LEADER and LEADER in exited:
            return Assembly.HAS_NO_LEADER
        if begun is not None:
            is_among = self._node == LEADER or begun.get(self._node) == self._start
            return Assembly.STARTS if is_among else Assembly.JOINS
        if self._node == LEADER or LEADER in connected:
            self._seen_leader_s = now_s
        if now_s - self._seen_leader_s > LEADER_TIMEOUT_S:
            return Assembly.HAS_NO_LEADER
        self._log(now_s, connected)
        return None

    def _log(self, now_s: float, connected: Collection[int]) -> None:
        if now_s < self._log_s:
            return
        self._log_s = now_s + LOG_EVERY_S
        if self._node != LEADER:
            log_info("waiting for the nodes of other groups")
            return
        missing = sorted(self._others - {*connected})
        log_info(f"waiting for {'nodes' if missing[1:] else 'node'} {', '.join(map(str, missing))}")
