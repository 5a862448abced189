"""The supervisor of one launch: provisions nodes, runs the program and recovers.

Started as `python -m holdfast.launchers.local.supervisor <launch directory> <lock> < <spec>`. Simulates the spot market
and recovers like SkyPilot's controller: provisions nodes, starts the program and monitors it. After a loss it
provisions new nodes, until the program completes, fails too often, or the launch is cancelled. It is not a child of the
service, which may restart. If the supervisor dies, its guards end all nodes and the launch is forgotten.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.environment import NOTICE_FILE
from holdfast_worker.protocol.reports import Json

from holdfast.clock import SystemClock
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.crash_loop import restart_pause_s
from holdfast.domain.simulation.spot_market import Lifetime, Offer, SpotMarket
from holdfast.launchers.local import environment, process_cleanup, process_group
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind
from holdfast.launchers.local.launch_dir import LaunchDir, NodeDir
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.node_guard import SCRIPTS
from holdfast.launchers.local.node_replacement import NodeReplacements
from holdfast.launchers.local.outcome import (
    LaunchEnded,
    PlacementLost,
    PlacementOutcome,
    RecallReason,
    classify_exit,
)
from holdfast.launchers.local.process_group import NodeProcesses
from holdfast.launchers.local.sandbox import Sandbox
from holdfast.ports import Clock

TICK_S: Final = 0.1
"""Interval between checks for a tombstone and requests.
A lower value wakes the machine for nothing; a higher value delays cancels."""
CANCEL_NOTICE_S: Final = 30.0
"""Time for a cancelled program to save its work.
A lower value may lose the last minutes; with a higher value, a program that ignores the signal keeps its nodes
longer."""
LEAVE_S: Final = 30.0
"""Time for the other nodes after one has exited by itself.
A lower value cuts off ranks that still save; a higher value leaves nodes idle."""


PORTS: Final = range(10_000, 20_000)
"""Ports of rendezvous, on which node 0 listens some seconds after the choice.
Lower ones belong to services; the kernel gives higher ones to outgoing connections, which may take them before."""


class AttemptMonitor:
    """Monitors one placement until it has to end. Seconds refer to the monotonic clock."""

    def __init__(
        self,
        processes: NodeProcesses,
        replacements: NodeReplacements,
        folder: LaunchDir,
        clock: Clock,
        *,
        placement: int,
        lifetime: Lifetime,
    ) -> None:
        self.nodes = processes
        self.replacements = replacements
        self.folder = folder
        self.placement = placement
        self.clock = clock
        self.recall: RecallReason | None = None
        """The first reason to end the placement; a cancel takes precedence over the market."""
        self.end_s = math.inf
        """When the remaining processes are killed."""
        self.notice_s = lifetime.notice_s
        self.takes_all = lifetime.takes_all
        self.reclaim_s = math.inf
        """When the market preempts a node."""
        if lifetime.lifetime_s is not None:
            self.reclaim_s = time.monotonic() + lifetime.lifetime_s

    def wait(self) -> RecallReason | None:
        """Wait until the placement has to end. Return the reason, or None if it ended by itself."""
        while not self._has_ended():
            self._poll_requests()
            signal.sigtimedwait({signal.SIGCHLD}, self._pause_s())
        return self.recall

    def _has_ended(self) -> bool:
        self.nodes.reap()
        if self.recall is None:
            self.replacements.poll()
            if self.replacements.are_unneeded:
                self.end_s = min(self.end_s, time.monotonic() + LEAVE_S)
        exits = self.nodes.exits
        if self.recall is None and any(end.has_failed for end in exits):
            return True  # A failed node ends the whole placement.
        if self.recall is None and not all(end.has_succeeded for end in exits):
            self.end_s = min(self.end_s, time.monotonic() + LEAVE_S)
        return self.nodes.have_all_exited or time.monotonic() >= self.end_s

    def _poll_requests(self) -> None:
        """Process the tombstone, users' requests and the market."""
        all_nodes = range(len(self.nodes.folders))
        if not (self.recall and self.recall.cancelled) and self.folder.cancelled_at():
            self._recall(RecallReason(True, "cancelled on request"), CANCEL_NOTICE_S, all_nodes)
        for request in self.folder.pop_preemptions(self.placement):
            self._reclaim(request.node, request.notice_s or 0)
        left_s = self.reclaim_s - time.monotonic()
        if left_s <= self.notice_s:
            self.reclaim_s = math.inf
            number = self.placement + self.replacements.count
            if self.takes_all:
                notice_s = max(0, left_s)
                detail = f"all nodes preempted {_notice(notice_s)}"
                self._recall(RecallReason(False, detail), notice_s, all_nodes)
            else:
                self._reclaim(number % len(all_nodes), max(0, left_s))  # Nodes take turns.

    def _reclaim(self, node: int, notice_s: float) -> None:
        word = _notice(notice_s)
        if self.recall is None and self.replacements.can_replace(node):
            self.replacements.reclaim(node, notice_s, word)
            if self.takes_all:
                return
            lifetime = self.replacements.next_lifetime()
            if lifetime.lifetime_s is not None:
                self.notice_s = lifetime.notice_s
                self.reclaim_s = time.monotonic() + notice_s + lifetime.lifetime_s
        else:
            self._recall(RecallReason(False, f"node {node} preempted {word}"), notice_s, [node])

    def _recall(self, call: RecallReason, notice_s: float, leaving: Collection[int]) -> None:
        """End the placement in `notice_s` seconds, or at an earlier deadline set before."""
        self.end_s = min(self.end_s, time.monotonic() + notice_s)
        if call.cancelled or self.recall is None:
            self.recall = call
        if notice_s:
            left = timedelta(seconds=self.end_s - time.monotonic())
            self.nodes.send_notice(self.clock.now() + left, leaving)

    def _pause_s(self) -> float:
        next_s = min(self.end_s, self.replacements.next_s())
        return max(0, min(TICK_S, next_s - time.monotonic()))


def _notice(notice_s: float) -> str:
    return f"with {notice_s:.3g} s of notice" if notice_s else "without notice"


DISK_RETRY_S: Final = 30.0
"""Delay before files are copied again to a full disk.
A lower value fills the log with denials; with a higher value, the job waits after space is available."""
CANCELLED: Final = LaunchEnded(Outcome.CANCELLED, None, "cancelled on request")


class Supervisor:
    """Runs one launch from its first request for nodes to its end."""

    def __init__(self, folder: LaunchDir, spec: LaunchSpec, clock: Clock) -> None:
        self.folder = folder
        self.spec = spec
        self.clock = clock
        self.market = SpotMarket(spec.climate, spec.key, spec.nodes)
        self.failures = 0
        self.pause_s = 0.0
        """Pause before the next placement; above 0 after a failure of the program."""
        self.trained = False
        self.port = 0
        """Port of the current placement's rendezvous."""
        self.processes: NodeProcesses | None = None
        """Nodes of the current placement."""

    def supervise(self) -> None:
        """Run the launch to its end."""
        self.record(LaunchEntryKind.BEGUN)
        for placement in itertools.count(1):
            outcome = self._run_placement(placement)
            if isinstance(outcome, LaunchEnded):
                self.record(LaunchEntryKind.ENDED, **asdict(outcome))
                return
            self.record(LaunchEntryKind.LOST, **asdict(outcome))

    def _run_placement(self, placement: int) -> PlacementOutcome:
        """Provision nodes, run the program on them and classify the end."""
        offer = self._provision(placement)
        if offer is None:
            return CANCELLED
        climate, nodes = self.spec.climate, self.spec.nodes
        self.record(
            LaunchEntryKind.PLACED,
            zone=offer.zone,
            nodes=nodes,
            micros_per_hour=nodes * offer.micros_per_node_hour,
            on_demand_micros_per_hour=nodes * climate.on_demand_micros,
            is_spot=climate.is_spot,
        )
        self.port = _free_port()
        self.processes = processes = process_group.start(
            [self._node(placement, node) for node in range(nodes)], self.spec.cell
        )
        replacements = NodeReplacements(
            processes,
            self,
            self.market.within(offer.zone),
            self.clock,
            placement=placement,
            prices=(offer.micros_per_node_hour, climate.on_demand_micros),
        )
        lifetime = self.market.lifetime(placement, offer.zone, self.clock.now())
        call = AttemptMonitor(
            processes,
            replacements,
            self.folder,
            self.clock,
            placement=placement,
            lifetime=lifetime,
        ).wait()
        self.trained |= processes.trained
        absent = replacements.absent
        processes.kill()
        outcome: PlacementOutcome
        # Ranks of missing nodes may have run on others, which then have completed without them.
        has_completed = processes.exits and all(end.has_succeeded for end in processes.exits)
        if call is None and not has_completed and (loss := replacements.loss):
            outcome = loss  # The others have ended because they waited in vain.
        else:
            outcome = classify_exit(
                processes.exits,
                nodes=nodes - absent,
                call=call,
                trained=self.trained,
                failures_left=self.spec.max_failures - self.failures,
            )
        if self.spec.cell and (why := self.spec.cell.remove_cgroup()) and not call:
            outcome = replace(outcome, detail=f"{outcome.detail}; {why}" if outcome.detail else why)
        if isinstance(outcome, PlacementLost) and outcome.cause is Cause.USER_ERROR:
            self.failures += 1
            self.pause_s = restart_pause_s(self.spec.restart_s, self.failures)
        return outcome

    def _provision(self, placement: int) -> Offer | None:
        """Return an accepted offer with all files in place; None if the launch was cancelled."""
        pause_s, self.pause_s = self.pause_s, 0.0
        for attempt in itertools.count():
            if not self._wait(pause_s):
                break
            offer = self.market.offer(placement, attempt, at=self.clock.now())
            for zone in offer.passed:
                self._record_denial(zone)
            if not self._wait(offer.wait_s):
                break
            if offer.denied:
                self._record_denial(offer.zone)
            elif trouble := self._prepare_nodes(placement):
                self._record_denial(offer.zone, trouble)
            else:
                return offer
            pause_s = offer.retry_s
        return None

    def _record_denial(self, zone: str, detail: str = "") -> None:
        kind = "spot" if self.spec.climate.is_spot else "on-demand"
        self.record(LaunchEntryKind.DENIED, zone=zone, detail=detail or f"no {kind} capacity")

    def _wait(self, wait_s: float) -> bool:
        """Wait `wait_s` seconds and return True; return False as soon as the launch is cancelled."""
        end_s = time.monotonic() + wait_s
        while self.folder.cancelled_at() is None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return True
            time.sleep(min(TICK_S, left_s))
        return False

    def _prepare_nodes(self, placement: int) -> str:
        """Create all node directories. Return why it failed, after a delay, or an empty text."""
        try:
            if self.spec.cell:
                self.spec.cell.create_cgroup()
            for node in range(self.spec.nodes):
                self._prepare_node(self._attempt(placement), node)
        except OSError as error:
            self._wait(DISK_RETRY_S)
            return f"cannot copy the files to the nodes: {error}"
        return ""

    def _prepare_node(self, attempt: int, node: int) -> None:
        # As in a cloud, the previous node's workdir is lost; this also frees its disk space.
        shutil.rmtree(self.folder.node(attempt - 1, node).workdir, ignore_errors=True)
        fresh = self.folder.node(attempt, node)
        shutil.rmtree(fresh.path, ignore_errors=True)  # Left incomplete by a full disk.
        fresh.rank_log(0).parent.mkdir(parents=True)
        fresh.log.touch()
        shutil.copytree(self.folder.snapshot, fresh.workdir, symlinks=True)
        for name, text in zip(SCRIPTS, (self.spec.setup, self.spec.run), strict=True):
            if text:
                fresh.script(name).write_bytes(text.encode())
        if self.spec.cell:
            _give_ownership(fresh, self.spec.cell)

    def renew_node(self, placement: int, node: int) -> str:
        """Give a node that replaces another one new files, except for logs.

        Return why it failed, or an empty text.
        """
        here = self.folder.node(self._attempt(placement), node)
        try:
            for path in (here.workdir, here.home, here.scratch):
                shutil.rmtree(path, ignore_errors=True)
            (here.run / NOTICE_FILE).unlink(missing_ok=True)
            shutil.copytree(self.folder.snapshot, here.workdir, symlinks=True)
            if self.spec.cell:
                _give_ownership(here, self.spec.cell)
        except OSError as error:
            return f"cannot copy the files to the node: {error}"
        return ""

    def restart_node(self, placement: int, node: int, start: int) -> None:
        """Start the program of a node for the `start`-th time after the first."""
        _, env = self._node(placement, node, start)
        assert self.processes, "a placement runs"
        self.processes.restart(node, env)

    def _node(self, placement: int, node: int, start: int = 0) -> tuple[NodeDir, dict[str, str]]:
        attempt = self._attempt(placement)
        env = environment.node_env(
            self.spec, self.folder, attempt=attempt, node=node, port=self.port, start=start
        )
        return self.folder.node(attempt, node), env

    def _attempt(self, placement: int) -> int:
        return self.spec.first_attempt + placement - 1

    def record(self, kind: LaunchEntryKind, **body: Json) -> None:
        """Append an entry to the log of the launch."""
        self.folder.history.append(LaunchEntry(self.clock.now(), kind, body))


def _give_ownership(node: NodeDir, cell: Sandbox) -> None:
    """Make the job's account the owner of a node's files.

    The service keeps the parent directory, so that they cannot be replaced.
    """
    own = (node.home, node.scratch, node.spool)
    for path in own:
        path.mkdir(exist_ok=True)
    for above in (node.path, node.path.parent):
        above.chmod(0o711)
    cell.chown(node.workdir, node.run, *own, *filter(Path.exists, map(node.script, SCRIPTS)))


def _free_port() -> int:
    """Return a free port for a placement's rendezvous; the previous one may linger.

    Raises:
        OSError: all are in use.
    """
    for port in secrets.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(errno.EADDRINUSE, f"the ports {PORTS[0]} to {PORTS[-1]} are in use")


def main(path: str, lock: str) -> None:
    """Supervise the launch in `path`. This process holds its lock as file descriptor `lock`.

    The spec is on standard input.
    """
    os.set_inheritable(int(lock), False)
    process_cleanup.become_subreaper()  # Adopts the processes of a killed guard.
    folder = LaunchDir(Path(path))
    Supervisor(folder, LaunchSpec.parse(sys.stdin.read()), SystemClock()).supervise()


if __name__ == "__main__":
    main(*sys.argv[1:])
