"""Replacement of lost ranks and nodes on one node, as the wrapper of node 0 decides.

`Regrouping` holds the decisions of node 0. This class passes the requests of ranks on to it, and its answers to the ranks of
each node. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.failure_cause import CauseElection, FailureCause
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupFiles, GroupRequest
from holdfast_worker.watchdog.hosting import STARTS_PER_NODE, Hosting
from holdfast_worker.watchdog.messages import (
    GroupDecision,
    GroupRequests,
    HostingDecision,
    Message,
    RanksReady,
)
from holdfast_worker.watchdog.node_channel import LEADER
from holdfast_worker.watchdog.regrouping import NODE_TIMEOUT_S, Regrouping

LEADER_TIMEOUT_S: Final = 60.0
"""Time for a node that replaces another one to reach node 0.
A lower value gives up on a busy machine; a higher value pays for a node for which no other waits."""
PAUSE_S: Final = 0.1
"""Interval of polls.
A lower value burns a core; a higher value delays a recovery."""
RECOVERY_PAUSE_S: Final = 0.02
"""Interval of polls while ranks are replaced.
A lower value burns a core; a higher value delays the next step."""
RECOVERY_PAUSES_FOR_S: Final = 30.0
"""Time after a loss for which polls have the shorter interval.
A lower value delays recoveries on busy machines; a higher value burns a part of a core while there is no capacity."""
LEAVES_WITHOUT: Final = "the job has to leave its nodes while others are missing"
IN_VAIN: Final = "ranks lost their connections to others, which did not return in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the replacement needs of the watchdog of its node."""

    node: int
    nodes: int
    ranks: int
    """Number of this node's ranks."""
    connected: AbstractSet[int]
    """Nodes with a connection to this one; the watchdog keeps it up to date."""
    election: CauseElection
    send: Callable[[Message], None]
    hold: Callable[[Mapping[int, int]], None]
    """See `NodeChannel.hold`."""
    step: Callable[[], int]
    """Number of completed steps of all ranks."""
    has_failed: Callable[[], bool]
    """Whether a rank of this node has failed."""
    is_ending: Callable[[], bool]
    """Whether all ranks of all nodes have to end."""

    @property
    def is_leader(self) -> bool:
        """Whether this node decides."""
        return self.node == LEADER


class Replacement:
    """Replaces the ranks of nodes while those of the others wait in their processes."""

    def __init__(
        self,
        run_dir: RunDir,
        around: Surroundings,
        world_size: int,
        hosting: Hosting,
        *,
        replaces_nodes: bool,
        is_new: bool,
        is_grouped: bool = False,
    ) -> None:
        """`replaces_nodes`: the launcher replaces a lost node. `is_new`: this node replaces one.

        `is_grouped`: it does so for as long as the job lives, so that nothing is gained by an end of the others.
        """
        self._hosting = hosting
        self._run_dir = run_dir
        self._around = around
        self._files = GroupFiles(run_dir)
        self._is_grouped = is_grouped
        self._regrouping = Regrouping(world_size, math.inf if is_grouped else NODE_TIMEOUT_S)
        self._requests: list[GroupRequest] = []
        self._decision: GroupAnswer | None = None
        self._replaces_nodes = replaces_nodes
        self._is_new = is_new
        self._starts: dict[int, int] = {}
        """The start of each node that has connected; see `hosting`."""
        self._ready: set[int] = set()
        """Nodes whose replacements wait, and are ready to take over."""
        self._ready_s: float | None = None
        """When all ranks of a new node were ready to take over."""
        self.waits_for_leader = is_new
        """Whether node 0 has not decided yet what the ranks of this new node do."""
        self._is_recovering = False
        """Whether node 0 has decided that ranks are replaced, and not yet in which group."""
        self._calm_s: float | None = None
        """When this node last knew of no loss; None before the first poll."""
        self.pause_s = PAUSE_S
        """Seconds until the next poll."""
        self._opened_s: float | None = None
        self._start_s: float | None = None
        """Time from the start of the ranks to their first step; None before it."""
        self.is_requested = False
        """Whether the ranks of this node have failed and start again, while others wait."""

    @property
    def is_suspected(self) -> bool:
        """Whether a rank asks for a new group, which it does when its connections to others break."""
        return self._regrouping.has_waiting

    @property
    def waits_for_nodes(self) -> bool:
        """Whether the ranks of all nodes start again only when lost nodes have been replaced."""
        return self._replaces_nodes and (self._is_new or self._run_dir.keeps_snapshots())

    def start(self, starts: Mapping[int, int], *, is_new: bool) -> None:
        """Begin with ranks that start now, on nodes with these starts.

        `is_new`: those of this node replace others.
        """
        self._starts.update(starts)
        self.waits_for_leader = is_new

    def begin(self, now_s: float, cause: FailureCause, node: int) -> FailureCause | None:
        """As the leader: begin to replace the ranks of a node.

        Returns the cause for which all ranks have to end if that is impossible, and otherwise None.
        """
        if node in self._regrouping.missing:
            return None  # The ranks of a former start, which are being replaced already.
        if self._is_unable_to_host(cause, node):
            host = self._hosting.hosts[node].node
            log_info(f"node {host} cannot run the ranks of node {node}: {cause.detail}")
            self._hosting.fail(node, now_s)
            self._around.send(HostingDecision(self._hosting.hosts))
            self._decide(self._regrouping.begin_node(now_s, cause, node))
            return None
        if self._around.is_leader and self._replaces_nodes and cause.has_rank_died:
            # Nodes that disconnected just before are lost as well, and not a reason to end.
            self._begin_lost_nodes(now_s, is_suspected=True)
        if self._around.is_ending() or not self._can_replace(cause, node):
            return self._regrouping.root_cause(cause)
        self._decide(self._regrouping.begin(now_s, cause, node))
        return None

    def mark_connected(self, now_s: float, node: int, start: int) -> None:
        """Record that a node has connected, with the number of its start."""
        before = self._starts.setdefault(node, start)
        host = self._hosting.hosts.get(node)
        if host is not None and start < host.start:
            if start % STARTS_PER_NODE:
                return  # A former host, which ends.
            self._end_hosting(node)  # The node itself is back before its ranks run elsewhere.
        if start > before:
            self._starts[node] = start
            if host is None or host.start < start:  # It is not the host that has connected.
                self._ready.discard(node)
                self._end_hosting(node)
            # A connection to a machine without power seems to stand. Its successor proves that it is lost.
            if node not in self._regrouping.missing:
                self._begin_node(now_s, node)
            self._lose_hosted(now_s, node)
        self._regrouping.mark_present(node)

    def mark_ready(self, node: int, *, is_ready: bool) -> None:
        """Record that the replacement of a hosted node is ready to take over, or is lost again."""
        if is_ready:
            self._ready.add(node)
        else:
            self._ready.discard(node)

    def handle(
        self, node: int, message: GroupRequests | GroupDecision | HostingDecision | RanksReady
    ) -> None:
        """Handle a message of a node."""
        match message:
            case GroupRequests(requests):
                # The host of a node whose ranks move, or a node behind a broken network, may still send requests.
                if node not in self._regrouping.missing:
                    self._regrouping.update(node, requests)
            case GroupDecision(answer):
                if node == LEADER:
                    self._accept(answer)
            case HostingDecision(hosts):
                if node == LEADER:
                    self._hosting.accept(hosts)
            case RanksReady():
                pass  # The channel has waited for it.

    def resend(self) -> None:
        """Send what a node may have missed while it was disconnected."""
        if self._requests:
            self._send_requests()
        if self._decision:
            self._around.send(GroupDecision(self._decision))
        if self._around.is_leader and self._hosting.is_elastic:
            self._around.send(HostingDecision(self._hosting.hosts))
        if self._ready_s is not None and self.waits_for_leader:
            self._around.send(RanksReady())

    def poll(self, now_s: float) -> FailureCause | None:
        """Pass on requests; as the leader, replace lost nodes and form groups.

        Returns the cause for which all ranks have to end if they have waited for too long, and otherwise None.
        """
        requests = self._files.requests()
        if requests != self._requests:
            self._requests = requests
            self._regrouping.update(self._around.node, requests)
            self._send_requests()
        self._set_pause(now_s)
        if self._opened_s is None:
            self._opened_s = now_s
        if self._start_s is None and self._run_dir.has_trained():
            self._start_s = now_s - self._opened_s
        if self._around.is_ending():
            return None
        if self.waits_for_leader and self._has_waited_for_leader(now_s):
            return FailureCause(Exit.FAILED, 0, "node 0 does not wait for this node")
        if self._around.is_leader and self._replaces_nodes:
            self._begin_lost_nodes(
                now_s, is_suspected=self.is_suspected or self._regrouping.loss is not None
            )
            self._announce_waiting()
            self._host_missing_nodes(now_s)
            if self._is_grouped and self._run_dir.is_noticed() and self._absent_nodes:
                # They may be away for hours, and no rank can save without them.
                return FailureCause(
                    Exit.PREEMPTED,
                    self._around.step(),
                    LEAVES_WITHOUT,
                    is_consequence=True,
                    has_rank_died=False,
                )
        if self._around.is_leader and (answer := self._regrouping.form()):
            self._decide(answer)
        elif self._is_overdue(now_s):
            waited = FailureCause(Exit.FAILED, self._around.step(), IN_VAIN, is_consequence=True)
            return self._regrouping.root_cause(waited)
        return None

    def _set_pause(self, now_s: float) -> None:
        """Poll more often for a while after a loss, as nodes wait."""
        is_calm = not (
            self._is_recovering
            or self.waits_for_leader
            or self._regrouping.is_waiting
            or self._around.election.misses_nodes
        )
        if is_calm or self._calm_s is None:
            self._calm_s = now_s
        is_short = not is_calm and now_s - self._calm_s < RECOVERY_PAUSES_FOR_S
        self.pause_s = RECOVERY_PAUSE_S if is_short else PAUSE_S

    @property
    def _absent_nodes(self) -> AbstractSet[int]:
        """Lost nodes whose ranks run nowhere."""
        return self._regrouping.missing - self._hosting.hosts.keys()

    def _has_waited_for_leader(self, now_s: float) -> bool:
        """Whether a new node has waited for node 0 for too long, once it was ready."""
        assert self._opened_s is not None, "the first poll has begun"
        if self._ready_s is None and len(self._requests) == self._around.ranks:
            self._ready_s = now_s
            self._around.send(RanksReady())
        is_connected = LEADER in self._around.connected
        if is_connected and self._is_grouped:
            return False  # The leader ends the wait, or is lost.
        since_s = self._ready_s if is_connected else self._opened_s
        return since_s is not None and now_s - since_s > LEADER_TIMEOUT_S

    def _is_overdue(self, now_s: float) -> bool:
        may_miss_node = not self._around.is_leader or bool(self._regrouping.missing)
        return self._regrouping.is_overdue(
            now_s,
            self._start_s or 0.0,
            is_isolated=not self._sees_all_standing_nodes,
            waits_for_node=self._replaces_nodes and may_miss_node,
        )

    def _can_replace(self, cause: FailureCause, node: int, *, is_whole_node: bool = False) -> bool:
        return (
            self._run_dir.can_replace_ranks()
            and not self._run_dir.is_noticed()
            and self._sees_all_standing_nodes
            and self._regrouping.can_replace(
                cause, node, self._around.nodes, is_whole_node=is_whole_node
            )
        )

    @property
    def _sees_all_standing_nodes(self) -> bool:
        """Whether the leader is connected to all nodes that are there, or this node to the leader."""
        if not self._around.is_leader:
            return LEADER in self._around.connected
        return len(self._around.connected | self._regrouping.missing) == self._around.nodes - 1

    def _begin_lost_nodes(self, now_s: float, *, is_suspected: bool) -> None:
        """Begin to replace lost nodes; `is_suspected`: see `CauseElection.lost_nodes`."""
        for node in self._regrouping.missing:
            # What has disconnected is a host that failed, or that its ranks left.
            self._around.election.mark_connected(node)
        lost = self._around.election.lost_nodes(now_s, is_suspected=is_suspected)
        for node in lost:
            if self._begin_node(now_s, node, also=lost):
                self._lose_hosted(now_s, node)
                self._hosting.lose(node, now_s)

    def _lose_hosted(self, now_s: float, node: int) -> None:
        """Replace the ranks that a lost node has hosted.

        Their connections may seem to stand.
        """
        for hosted in self._hosting.hosted_by(node):
            self._begin_node(now_s, hosted)
            self._hosting.lose(hosted, now_s)

    def _announce_waiting(self) -> None:
        """Tell the launcher whether another node can be replaced."""
        # A node that never connected would not be missed.
        if len(self._starts) == self._around.nodes - 1:
            with suppress(OSError):
                if self._run_dir.would_wait():
                    self._run_dir.announce_waiting()
                else:
                    self._run_dir.withdraw_waiting()

    def _begin_node(
        self, now_s: float, node: int, also: Sequence[int] = (), *, is_move: bool = False
    ) -> bool:
        """As the leader: begin to replace a node without processes. Return whether that is possible.

        `also`: nodes that are lost at the same time. `is_move`: its ranks run elsewhere, and its replacement is there.
        """
        if not (self._around.is_leader and self._replaces_nodes) or self._around.is_ending():
            return False
        detail = f"node {node} is replaced" if is_move else f"node {node} was lost"
        cause = FailureCause(Exit.FAILED, self._around.step(), detail)
        known = {*self._regrouping.missing}
        self._regrouping.missing |= {node, *also}
        can_replace = self._can_replace(cause, node, is_whole_node=True)
        self._regrouping.missing = known | {node} if can_replace else known
        if can_replace:
            effect = "its ranks move there" if is_move else "the ranks of the others wait"
            log_info(f"{detail}: {effect}")
            self._around.election.mark_connected(node)
            self._decide(self._regrouping.begin_node(now_s, cause, node))
        elif node not in known and not is_move:  # Otherwise all ranks meet again where they are.
            waits = self._run_dir.keeps_snapshots()
            self._around.election.add(
                now_s, replace(cause, is_consequence=not waits, is_node_lost=waits)
            )
        return can_replace

    def _host_missing_nodes(self, now_s: float) -> None:
        """Have other nodes run the ranks of missing ones, and replacements wait."""
        missing, hosts = self._regrouping.missing, self._hosting.hosts
        chosen = self._hosting.choose(now_s, missing, self._starts, self._around.step())
        for node, host in chosen.items():
            log_info(f"node {host.node} runs the ranks of node {node} until it is replaced")
        if chosen:
            self._around.send(HostingDecision(hosts))
        self._move_ranks(now_s)
        self._around.hold(self._hosting.held(now_s, missing))

    def _move_ranks(self, now_s: float) -> None:
        """Have ranks move to replacements that are ready.

        All ranks meet between two steps for that.
        """
        moving = self._ready & self._hosting.hosts.keys() - self._regrouping.missing
        if moving and self._regrouping.has_moving:
            for node in sorted(moving):
                if self._begin_node(now_s, node, is_move=True):
                    self._hosting.move(node, now_s)
                    self._around.send(HostingDecision(self._hosting.hosts))
        with suppress(OSError):
            if moving and not self._regrouping.loss and not self.is_suspected:
                self._run_dir.request_move()
            elif not moving or self._regrouping.loss:
                self._run_dir.withdraw_move()

    def _end_hosting(self, node: int) -> None:
        """Have the host of a node end its ranks there, as the node is replaced."""
        if self._hosting.end(node):
            self._around.send(HostingDecision(self._hosting.hosts))

    def _is_unable_to_host(self, cause: FailureCause, node: int) -> bool:
        """Whether ranks failed on a host before they came any further, as without enough memory."""
        host = self._hosting.hosts.get(node)
        return (
            host is not None
            and cause.step <= host.step + 1
            and cause.has_rank_died
            and not cause.is_consequence
            and not self._around.is_ending()
        )

    def _send_requests(self) -> None:
        if not self._around.is_leader:
            self._around.send(GroupRequests(tuple(self._requests)))

    def _decide(self, answer: GroupAnswer) -> None:
        answer = replace(answer, hosted=tuple(sorted(self._hosting.hosts)))
        self._decision = answer
        self._around.send(GroupDecision(answer))
        self._accept(answer)

    def _accept(self, answer: GroupAnswer) -> None:
        """Pass on an answer to the ranks of this node, and replace them if they have failed."""
        with suppress(OSError):
            self._files.answer(answer)
        self.waits_for_leader = False
        self._is_recovering = not answer.is_formed
        is_known = self._regrouping.has_formed(answer)
        self._regrouping.accept(answer)
        if answer.is_formed:
            if not is_known:
                log_info(f"the ranks of all nodes continue in group {answer.generation}")
        elif self._around.has_failed() and not self.is_requested:
            log_info(f"starting the ranks of this node again, while others wait: {answer.cause}")
            self.is_requested = True
