"""Watchdogs of several nodes on this machine, over run directories without ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_worker.protocol.policies import MaxStall, StallDetection
from holdfast_worker.run_dir import ExitReason, Failure, RunDir
from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter
from holdfast_worker.watchdog.node_channel import ChannelAddress
from holdfast_worker.watchdog.node_drills import NodeDrills
from holdfast_worker.watchdog.watchdog import Watchdog
from worker.support.run_driver import wait_until

SHORT = MaxStall(StallDetection.SECONDS, 3)


class Node:
    """The watchdog of a node with one rank, and its run directory."""

    def __init__(
        self,
        path: Path,
        node: int,
        nodes: int,
        port: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        start: int = 0,
        keeps_snapshots: bool = False,
        drills: NodeDrills | None = None,
    ) -> None:
        """`start`: how often the node was replaced.

        `keeps_snapshots`: the others wait for its replacement. `drills`: see `Watchdog`.
        """
        self.run_dir = RunDir(path / f"node-{node}-{start}")
        self.run_dir.clear()
        if keeps_snapshots and not start:
            self.run_dir.mark_snapshots(are_kept=True)
            self.run_dir.mark_trained()
        channel_address = ChannelAddress(
            node, nodes, "127.0.0.1", [port], "a run", None if start else 0, start
        )
        self.watchdog = Watchdog(
            self.run_dir,
            [node],
            channel_address,
            SHORT,
            clock,
            world_size=nodes if keeps_snapshots else None,
            replaces_nodes=keeps_snapshots,
            drills=drills,
        )
        self.rank = node
        self.heartbeat = HeartbeatWriter.create(self.run_dir, node)

    @property
    def cause(self) -> FailureCause | None:
        return self.watchdog.cause

    def finish(self, code: int) -> None:
        """End as a wrapper does whose ranks have ended."""
        self.watchdog.determine_cause(code)
        self.watchdog.announce_exit(code)

    def kill_rank(self, signal: int = 9) -> None:
        self.run_dir.record_failure(Failure(self.rank, 128 + signal))

    def fail_rank(self, text: str) -> None:
        self.run_dir.record_exit(ExitReason("failed", 1, 5, text, self.rank))
        self.run_dir.record_failure(Failure(self.rank, 1))


@contextmanager
def joined(node: Node, first: Node) -> Iterator[None]:
    """Connect a node to the first one, and disconnect it at the end."""
    with node.watchdog.opened():
        poll_until(lambda: first.watchdog._connected and node.watchdog._connected, first, node)
        yield


@contextmanager
def together(first: Node, second: Node) -> Iterator[None]:
    """Connect two nodes."""
    with first.watchdog.opened(), joined(second, first):
        yield


def poll_until(condition: Callable[[], object], *nodes: Node) -> None:
    """Poll the watchdogs of the nodes until a condition is true."""

    def is_met() -> bool:
        for node in nodes:
            node.watchdog.poll()
        return bool(condition())

    wait_until(is_met)
