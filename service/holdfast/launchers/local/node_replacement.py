"""Replacement of single nodes of a placement while the others wait.

The worker on node 0 announces whether it would wait (`WAITS_FILE`). A node that the market preempts, or whose guard was killed, is
requested again from the market. A node whose program was killed still stands, so its program is started again at once.
Node 0 is never replaced, because it decides for the others. Once the program has completed there, it has completed on all nodes
that took part: no node is replaced any more, and a replacement that came too late is released.
"""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

from holdfast_worker.protocol.environment import WAITS_FILE
from holdfast_worker.protocol.reports import Json

from holdfast.domain.events import Cause
from holdfast.domain.simulation.spot_market import Lifetime, Offer, SpotMarket
from holdfast.launchers.local.event_log import LaunchEntryKind
from holdfast.launchers.local.outcome import PlacementLost
from holdfast.launchers.local.process_group import NodeProcesses
from holdfast.ports import Clock

KILLED: Final = 128 + signal.SIGKILL
"""Exit code of a program that was killed. Its node stands."""


class NodeSource(Protocol):
    """What the supervisor does for a replacement."""

    def renew_node(self, placement: int, node: int) -> str:
        """Give a node new files. Return why that failed, or an empty text."""

    def restart_node(self, placement: int, node: int, start: int) -> None:
        """Start the program of a node for the `start`-th time after the first."""

    def record(self, kind: LaunchEntryKind, **body: Json) -> None:
        """Append an entry to the log of the launch."""


@dataclass(slots=True)
class _MissingNode:
    """A node that is lost and not replaced yet."""

    loss: PlacementLost
    number: int
    """Number of the loss within the placement, from 1."""
    tries: int
    """Requests for nodes of this launch's market that were made for it."""
    offer: Offer
    """The answer to the last request."""
    answered_s: float
    """When the answer arrives, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class _Notice:
    """A node that the market takes soon."""

    end_s: float
    missing: _MissingNode
    """The request for its replacement, which is made with the notice."""


class NodeReplacements:
    """The lost nodes of one placement. Seconds refer to the monotonic clock."""

    def __init__(
        self,
        processes: NodeProcesses,
        source: NodeSource,
        market: SpotMarket,
        clock: Clock,
        *,
        placement: int,
        prices: tuple[int, int],
    ) -> None:
        """`prices`: spot and on-demand price of one node, in micro-dollars per hour."""
        self._processes = processes
        self._source = source
        self._market = market
        self._clock = clock
        self._placement = placement
        self._prices = prices
        self._missing: dict[int, _MissingNode] = {}
        self._leaving: dict[int, _Notice] = {}
        self._starts: dict[int, int] = {}
        self._released: set[int] = set()
        """Nodes without which the program has completed."""
        self.count = 0
        """Nodes that were lost and replaced, or will be."""

    @property
    def loss(self) -> PlacementLost | None:
        """The loss of a node that was not replaced; None if all nodes are there."""
        for node, missing in self._missing.items():
            how = f"preempted {missing.loss.detail}" if missing.loss.detail else "was lost"
            return replace(missing.loss, detail=f"node {node} {how}")
        return None

    @property
    def absent(self) -> int:
        """Number of nodes without which the program has ended."""
        running = [node for node in self._starts if self._processes.is_running(node)]
        late = running if self.are_unneeded else []
        return len(self._missing) + len(late) + len(self._released)

    @property
    def are_unneeded(self) -> bool:
        """Whether the program has completed, and only replacements are still running."""
        return self._has_completed and all(
            node in self._starts or not self._processes.is_running(node)
            for node in range(len(self._processes.folders))
        )

    @property
    def _has_completed(self) -> bool:
        """Whether the program has completed on node 0, and so on all nodes that took part."""
        return any(end.node == 0 and end.has_succeeded for end in self._processes.exits)

    def next_lifetime(self) -> Lifetime:
        """The market's next preemption in this placement, from now on."""
        return self._market.lifetime(self._placement, replacements=self.count)

    def can_replace(self, node: int) -> bool:
        """Whether the other nodes would wait for the replacement of a node."""
        return (
            node > 0
            and self._processes.is_running(0)
            # Nodes that have completed wait for none.
            and not any(end.has_succeeded for end in self._processes.exits)
            and (self._processes.folders[0].run / WAITS_FILE).exists()
        )

    def reclaim(self, node: int, notice_s: float, notice: str) -> None:
        """Have the market take a node after a notice, and request another one.

        `notice` describes it, such as `without notice`.
        """
        loss = PlacementLost(Cause.PREEMPTED, notice)
        self._leaving[node] = _Notice(time.monotonic() + notice_s, self._request_new(loss))
        if notice_s:
            self._processes.signal_notice(node)

    def poll(self) -> None:
        """Take over lost nodes, and start replacements that are ready."""
        if self._has_completed:
            self._forget_failures()
            self._release_late()
        for end in [end for end in self._processes.exits if end.has_failed]:
            if end.node in self._leaving or not self.can_replace(end.node):
                continue
            if end.code is None:
                self._processes.end(
                    end.node
                )  # Its guard was killed, and its program may still run.
                loss = PlacementLost(Cause.NODE_FAILED, "")
                self._lose(end.node, self._request_new(loss))
            elif end.code == KILLED:
                self._processes.exits.remove(end)
                self._start_again(end.node)
        now_s = time.monotonic()
        for node, notice in [*self._leaving.items()]:
            if now_s >= notice.end_s:
                del self._leaving[node]
                self._end_noticed(node, notice.missing)
        for node, missing in [*self._missing.items()]:
            if now_s >= missing.answered_s:
                self._replace(node, missing)

    def _forget_failures(self) -> None:
        """Ignore how replacements end that have come too late."""
        for end in [end for end in self._processes.exits if end.has_failed]:
            if end.node in self._starts:
                self._processes.exits.remove(end)
                self._released.add(end.node)

    def _release_late(self) -> None:
        """Wait for no market any more, and release replacements that do not take part."""
        for missing in self._missing.values():
            missing.answered_s = math.inf
        for node in self._starts:
            if self._processes.is_running(node) and not self._processes.has_joined(node):
                self._leaving.pop(node, None)
                self._release(node)

    def _end_noticed(self, node: int, missing: _MissingNode) -> None:
        """End a node of which the notice is over."""
        if not self._has_completed:
            self._processes.end(node)
            self._lose(node, missing)
        elif self._processes.is_running(node):
            self._release(node)

    def _release(self, node: int) -> None:
        """End a node without which the program has completed."""
        self._processes.end(node)
        self._released.add(node)
        self._record(LaunchEntryKind.NODE_LOST, node, cause=Cause.ENDED, detail="")

    def next_s(self) -> float:
        """When `poll` has something to do at the latest."""
        times = [notice.end_s for notice in self._leaving.values()]
        return min(
            [*times, *(each.answered_s for each in self._missing.values())], default=math.inf
        )

    def _request_new(self, loss: PlacementLost) -> _MissingNode:
        self.count += 1
        return self._request(loss, self.count)

    def _request(
        self, loss: PlacementLost, number: int, tries: int = 0, after_s: float = 0.0
    ) -> _MissingNode:
        at = self._clock.now() + timedelta(seconds=after_s)
        offer = self._market.offer(self._placement, tries, at=at, replacements=number)
        answered_s = time.monotonic() + after_s + offer.wait_s
        return _MissingNode(loss, number, tries + 1, offer, answered_s)

    def _lose(self, node: int, missing: _MissingNode) -> None:
        self._missing[node] = missing
        # Its program may have ended, and starts again.
        for end in [end for end in self._processes.exits if end.node == node]:
            self._processes.exits.remove(end)
        self._record(
            LaunchEntryKind.NODE_LOST,
            node,
            cause=missing.loss.cause,
            detail=missing.loss.detail,
        )

    def _replace(self, node: int, missing: _MissingNode) -> None:
        """Start a node for which the market has answered, unless it was denied."""
        denial = "no spot capacity" if missing.offer.denied else ""
        denial = denial or self._source.renew_node(self._placement, node)
        if denial:
            zone, after_s = missing.offer.zone, missing.offer.retry_s
            self._source.record(LaunchEntryKind.DENIED, zone=zone, detail=denial)
            if math.isinf(after_s):
                missing.answered_s = math.inf
            else:
                again = self._request(missing.loss, missing.number, missing.tries, after_s)
                self._missing[node] = again
            return
        del self._missing[node]
        self._record(LaunchEntryKind.NODE_REPLACED, node)
        self._start_again(node)

    def _start_again(self, node: int) -> None:
        self._starts[node] = self._starts.get(node, 0) + 1
        self._source.restart_node(self._placement, node, self._starts[node])

    def _record(self, kind: LaunchEntryKind, node: int, **body: Json) -> None:
        standing = len(self._processes.folders) - len(self._missing) - len(self._released)
        spot, on_demand = self._prices
        self._source.record(
            kind,
            node=node,
            nodes=standing,
            micros_per_hour=standing * spot,
            on_demand_micros_per_hour=standing * on_demand,
            **body,
        )
