"""Forms new process groups after the loss of ranks, as the leader of the nodes. Pure.

While ranks are lost, the others wait in their processes. The ranks of the nodes that lost some start again and join them, on the same node or on
one that the launcher has put in its place. The leader alone decides which group is formed, so that there are never two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast_worker.watchdog.failure_cause import ELECTION_S, FailureCause, RestartPolicy
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupRequest

RECOVERY_TIMEOUT_S: Final = 60.0
"""Time for all ranks to ask for a new group, in addition to twice the time that the first start took.
A lower value starts all ranks again although a new one only reads its data; a higher value pays for nodes that wait for a hung one."""
NODE_TIMEOUT_S: Final = 300.0
"""Time for a launcher to replace a lost node, if it replaces all of them otherwise.
A lower value ends the attempt although a node is available soon; a higher value pays for nodes that wait while there is no capacity."""
MAX_RECOVERIES: Final = 2
"""How often ranks are replaced without a step in between.
A lower value gives up if a new rank is lost while it joins; a higher value repeats a failure that a start from a checkpoint might avoid."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of ranks from which the run is recovering."""

    cause: FailureCause
    since_s: float
    nodes: frozenset[int]
    """Nodes whose ranks start again."""


class Regrouping:
    """Collects the requests of all ranks, and forms a group when none is missing."""

    def __init__(self, world_size: int, node_timeout_s: float = NODE_TIMEOUT_S) -> None:
        """`node_timeout_s`: the time for which ranks wait for the replacement of a node."""
        self._world_size = world_size
        self._node_timeout_s = node_timeout_s
        self._requests: dict[int, Sequence[GroupRequest]] = {}
        self._formed = 0
        """Generation of the newest group; the first one is 0."""
        self._policy = RestartPolicy(MAX_RECOVERIES)
        self.loss: Loss | None = None
        """The loss of which the run has not recovered yet."""
        self.missing: set[int] = set()
        """Lost nodes whose replacements have not connected yet."""
        self._last_cause: FailureCause | None = None
        self._waiting_since_s: float | None = None

    def can_replace(
        self, cause: FailureCause, node: int, nodes: int, *, is_whole_node: bool = False
    ) -> bool:
        """Whether the ranks of a node can be replaced, after `cause`, while others wait.

        `is_whole_node`: it is lost. Its ranks may have been lost just before, and this is no failure of the new ones.
        """
        if cause.is_consequence or not cause.has_rank_died:
            return False
        lost = (self.loss.nodes if self.loss else frozenset()) | {node}
        is_counted = self.loss is not None and (is_whole_node or node not in self.loss.nodes)
        return len(lost) < nodes and (is_counted or self._policy.allows(cause))

    def begin(self, now_s: float, cause: FailureCause, node: int) -> GroupAnswer:
        """Begin to replace the ranks of a node; return what all ranks have to know."""
        self._last_cause = cause
        if self.loss is None:
            self._policy.record(cause)
            self.loss = Loss(cause, now_s, frozenset({node}))
        else:
            self.loss = replace(self.loss, nodes=self.loss.nodes | {node})
        return GroupAnswer(generation=self._formed + 1, cause=self.loss.cause.detail)

    def begin_node(self, now_s: float, cause: FailureCause, node: int) -> GroupAnswer:
        """Begin to replace a whole node, of whose processes none is left."""
        self.missing.add(node)
        # Its ranks may have asked for a group before they were lost.
        self._requests.pop(node, None)
        return self.begin(now_s, cause, node)

    def mark_present(self, node: int) -> None:
        """Record that a missing node, or its replacement, has connected."""
        if node in self.missing:
            self.missing.discard(node)
            self._waiting_since_s = (
                None  # Its ranks now have as much time as those of a standing node.
            )

    def root_cause(self, cause: FailureCause) -> FailureCause:
        """The loss that led to `cause`, if ranks failed because they could not recover from it."""
        last = self._last_cause
        is_behind = last is not None and cause.is_consequence and cause.step <= last.step + 1
        return last if last and is_behind else cause

    def update(self, node: int, requests: Sequence[GroupRequest]) -> None:
        """Record the requests of a node's ranks."""
        self._requests[node] = requests

    def form(self) -> GroupAnswer | None:
        """Form a group if all ranks ask for one."""
        waiting = {
            request.rank: request
            for requests in self._requests.values()
            for request in requests
            if request.generation > self._formed
        }
        survivors = [rank for rank, request in waiting.items() if not request.is_new]
        if len(waiting) < self._world_size or not survivors:
            return None
        self._formed = max(request.generation for request in waiting.values())
        cause = self.loss.cause.detail if self.loss else ""
        self.loss = None
        return GroupAnswer(
            generation=self._formed, address=waiting[min(survivors)].address, cause=cause
        )

    def has_formed(self, answer: GroupAnswer) -> bool:
        """Whether the group of an answer, or a later one, is formed."""
        return answer.generation <= self._formed

    def accept(self, answer: GroupAnswer) -> None:
        """Record the leader's decision about a group."""
        if answer.is_formed:
            self._formed = answer.generation
            self.loss = None

    @property
    def has_moving(self) -> bool:
        """Whether all ranks have left their group between two steps, so that some can move."""
        return self.loss is None and any(
            request.moves and request.generation > self._formed
            for requests in self._requests.values()
            for request in requests
        )

    @property
    def has_waiting(self) -> bool:
        """Whether a rank asks for a new group, although no loss is known here."""
        return self.loss is None and self.is_waiting

    def is_overdue(
        self, now_s: float, start_s: float, *, is_isolated: bool, waits_for_node: bool = False
    ) -> bool:
        """Whether ranks have asked in vain for too long.

        `start_s`: the duration of the first start. `is_isolated`: this node cannot reach the leader, or as the leader some node that
        is not missing. `waits_for_node`: a node may be missing, as far as this one knows.
        """
        if not self.is_waiting:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        limit_s = ELECTION_S if is_isolated else RECOVERY_TIMEOUT_S + 2 * start_s
        if waits_for_node and not is_isolated:
            limit_s = max(limit_s, self._node_timeout_s)
        return now_s - self._waiting_since_s > limit_s

    @property
    def is_waiting(self) -> bool:
        """Whether a rank asks for a new group."""
        return any(
            request.generation > self._formed
            for requests in self._requests.values()
            for request in requests
        )
