"""Agreement of all nodes on whether their ranks start again, once they have ended. Pure.

The leader decides. If nodes are in one placement, each of them has to be there and to agree, as the launcher replaces all of them
otherwise. It waits for the replacement of a single node if the launcher replaces it alone. Nodes of several groups are replaced by themselves: those that are there start again, and wait for the others.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.messages import Message, RanksEnded, RestartDecision
from holdfast_worker.watchdog.node_channel import LEADER
from holdfast_worker.watchdog.regrouping import NODE_TIMEOUT_S

RESTART_AGREEMENT_S: Final = 15.0
"""Time for the ranks of all nodes to end before they start again.
A lower value ends the attempt if one node takes longer to end its ranks; a higher value pays for nodes that wait."""
RECONNECT_S: Final = 2.0
"""Time for a disconnected node to reconnect before a restart.
A lower value ends the attempt after a brief interruption of the network; a higher value pays for nodes that wait for a lost one."""


class RestartAgreement:
    """The votes of nodes, and the leader's decision."""

    def __init__(
        self,
        node: int,
        nodes: int,
        connected: AbstractSet[int],
        *,
        is_grouped: bool,
    ) -> None:
        """`connected`: the other nodes that are there, kept up to date by the caller.

        `is_grouped`: the nodes are in several groups, which are replaced by themselves.
        """
        self._node, self._others = node, {*range(nodes)} - {node}
        self._connected = connected
        self._is_grouped = is_grouped
        self._began_s = self._seen_all_s = 0.0
        self._node_timeout_s = RECONNECT_S
        self.votes: dict[int, bool] = {}
        """Whether the ranks of a node may start again; absent until they have ended."""
        self.decision: bool | None = None
        """The leader's decision; None: unknown."""
        self.exit_codes: dict[int, int] = {}
        """Exit codes of nodes that have announced their end."""
        self.lost_step: int | None = None
        """Number of completed steps when a node was last lost; None before that."""

    def record_exit(self, node: int, code: int) -> None:
        """Record that a node has announced its end."""
        self.exit_codes[node] = code
        self.votes[node] = False

    def begin(self, now_s: float, *, may_restart: bool, waits_for_nodes: bool = False) -> None:
        """Vote for this node, whose ranks have ended.

        `waits_for_nodes`: nodes of one placement that are missing are replaced one by one.
        """
        self._began_s = self._seen_all_s = now_s
        if waits_for_nodes and not self._is_grouped:
            self._node_timeout_s = NODE_TIMEOUT_S
        self.votes[self._node] = may_restart

    @property
    def message(self) -> Message | None:
        """What the other nodes have to know; None before the vote or decision."""
        if self._node == LEADER:
            return None if self.decision is None else RestartDecision(self.decision)
        vote = self.votes.get(self._node)
        return None if vote is None else RanksEnded(vote)

    def record_loss(self, node: int, step: int) -> None:
        """Record that a node was disconnected after `step` completed steps."""
        self.lost_step = step
        if node not in self.exit_codes:
            self.votes.pop(node, None)  # Its successor has one of its own.

    def record_return(self, node: int) -> None:
        """Record that a node is there, possibly another machine in the place of one that has ended."""
        if self.exit_codes.pop(node, None) is not None:
            self.votes.pop(node, None)

    @property
    def has_lost_leader(self) -> bool:
        """Whether the leader left without a message, so that no node decides."""
        return self._node != LEADER and LEADER not in self.exit_codes and self.decision is None

    @property
    def leader_leaves(self) -> bool:
        """Whether the leader has exited so that another one follows, unless the job ends."""
        return self.exit_codes.get(LEADER) in {Exit.PREEMPTED, Exit.FENCED}

    def is_loss(self, cause: FailureCause) -> bool:
        """Whether the ranks ended because nodes were lost, for whose replacements the others wait."""
        if cause.is_node_lost or not self._is_grouped:
            return cause.is_node_lost
        is_at_loss = self.lost_step is not None and cause.step <= self.lost_step + 1
        return is_at_loss or not self._others <= self._connected

    def is_over(self, now_s: float) -> bool:
        """Whether nothing is left to wait for; then there is a decision, or none can come."""
        if self.decision is None:
            self.decision = self._decide_in_groups() if self._is_grouped else self._decide()
        is_leader = self._node == LEADER
        missing_s = 0.0
        if self._missing <= self._connected:
            self._seen_all_s = now_s
        else:
            missing_s = now_s - self._seen_all_s
            if is_leader:  # The ranks of a new node have as much time to end.
                self._began_s = now_s
        # The others outwait the leader: none may give up when the leader decides.
        end_s = RESTART_AGREEMENT_S if is_leader else 2 * RESTART_AGREEMENT_S + self._node_timeout_s
        reconnect_s = self._node_timeout_s if is_leader else RECONNECT_S
        is_late = now_s - self._began_s > end_s or missing_s > reconnect_s
        if is_late and self.decision is None and self._is_grouped and is_leader:
            self.decision = self.votes[self._node]
        return self.decision is not None or is_late

    def _decide(self) -> bool | None:
        if not all(self.votes.values()):
            return False
        return None if self._missing else True

    def _decide_in_groups(self) -> bool | None:
        """The leader's vote, once the ranks of all nodes that are there have ended."""
        if self._node != LEADER:
            return False if LEADER in self.exit_codes else None
        return None if self._missing else self.votes[LEADER]

    @property
    def _missing(self) -> AbstractSet[int]:
        """Nodes whose vote or decision this node waits for.

        A disconnected node would not learn the decision, whatever it has voted.
        """
        if self._node != LEADER:
            return {LEADER} - (self.votes.keys() & self._connected)
        if self._is_grouped:
            return self._connected - self.votes.keys()
        return self._others - (self.votes.keys() & self._connected)
