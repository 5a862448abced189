"""The watch over one standing placement: it ends when the program does, or when somebody calls it back.

The supervisor of one launch: `python -m holdfast.launchers.local.supervisor <launch directory> <lock> < <order>`.

It plays the market and the recovery, as SkyPilot's controller would: it gets nodes, starts the program, watches, and
gets new nodes after a loss, until the program is done, has failed too often, or the launch is cancelled. It is no
child of the service, which may come and go. When it dies its guards end all nodes, and nobody starts it again: the
launch is then forgotten.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast.clock import SystemClock
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.simulation.spot_market import Lifetime, Offer, SpotMarket
from holdfast.launchers.local import environment, process_cleanup, process_group
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind
from holdfast.launchers.local.launch_dir import LaunchFolder, NodeFolder
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.node_guard import SCRIPTS
from holdfast.launchers.local.outcome import LaunchEnded, Lost, RecallReason, Verdict, classify_exit
from holdfast.launchers.local.process_group import NodeProcesses
from holdfast.launchers.local.sandbox import Sandbox
from holdfast.ports import Clock

TICK_S: Final = 0.1
"""Between two looks at tombstone and requests. Smaller: wakes the machine for nothing. Bigger: a cancel is felt late."""
CANCEL_NOTICE_S: Final = 30.0
"""What a cancelled program gets to save its work. Smaller: the last minutes may be lost. Bigger: a program that does
not listen keeps its nodes that much longer."""
LEAVE_S: Final = 30.0
"""What the other nodes get after one has left by itself. Smaller: cuts off ranks that still save. Bigger: nodes idle."""


class AttemptMonitor:
    """One placement from its start until it is to end. Seconds are those of the monotonic clock."""

    def __init__(
        self,
        standing: NodeProcesses,
        folder: LaunchFolder,
        placement: int,
        fate: Lifetime,
        clock: Clock,
    ) -> None:
        self.standing = standing
        self.folder = folder
        self.placement = placement
        self.clock = clock
        self.call: RecallReason | None = None
        """Who called the placement back first; a cancel outdoes the market."""
        self.end_s = math.inf
        """When what still stands will be killed."""
        self.notice_s = fate.notice_s
        self.reclaim_s = math.inf
        """When the market takes a node by itself."""
        if fate.lifetime_s is not None:
            self.reclaim_s = time.monotonic() + fate.lifetime_s

    def see(self) -> RecallReason | None:
        """Who called the placement back, once it has to end; None when it ended by itself."""
        while not self._over():
            self._hear()
            signal.sigtimedwait({signal.SIGCHLD}, self._pause_s())
        return self.call

    def _over(self) -> bool:
        self.standing.collect()
        exits = self.standing.exits
        if self.call is None and any(end.failed for end in exits):
            return True  # Nodes stand and fall together.
        if self.call is None and not all(end.done for end in exits):
            self.end_s = min(self.end_s, time.monotonic() + LEAVE_S)
        return self.standing.gone or time.monotonic() >= self.end_s

    def _hear(self) -> None:
        """Heed the tombstone, people's requests and the market."""
        everybody = range(len(self.standing.folders))
        if not (self.call and self.call.cancelled) and self.folder.entombed_at():
            self._call_back(RecallReason(True, "cancelled on request"), CANCEL_NOTICE_S, everybody)
        for request in self.folder.take_preemptions(self.placement):
            self._reclaim(request.node, request.notice_s or 0)
        left_s = self.reclaim_s - time.monotonic()
        if left_s <= self.notice_s:
            self.reclaim_s = math.inf
            self._reclaim(self.placement % len(everybody), max(0, left_s))  # Nodes take turns.

    def _reclaim(self, node: int, notice_s: float) -> None:
        word = f"with {notice_s:.3g} s of notice" if notice_s else "without notice"
        self._call_back(
            RecallReason(False, f"the market took node {node} {word}"), notice_s, [node]
        )

    def _call_back(self, call: RecallReason, notice_s: float, leaving: Collection[int]) -> None:
        """End the placement in `notice_s` seconds, or earlier if that was said before."""
        self.end_s = min(self.end_s, time.monotonic() + notice_s)
        if call.cancelled or self.call is None:
            self.call = call
        if notice_s:
            left = timedelta(seconds=self.end_s - time.monotonic())
            self.standing.tell(self.clock.now() + left, leaving)

    def _pause_s(self) -> float:
        return max(0, min(TICK_S, self.end_s - time.monotonic()))


DISK_RETRY_S: Final = 30.0
"""Before files are copied again to a disk that had no room. Smaller: the history fills with denials. Bigger: the job
waits longer than the disk does."""
CANCELLED: Final = LaunchEnded(Outcome.CANCELLED, None, "cancelled on request")


class Supervisor:
    """One launch, from its first request for nodes to its end."""

    def __init__(self, folder: LaunchFolder, order: LaunchSpec, clock: Clock) -> None:
        self.folder = folder
        self.order = order
        self.clock = clock
        self.weather = SpotMarket(order.climate, order.key)
        self.failures_left = order.max_failures
        self.trained = False

    def supervise(self) -> None:
        """See the launch through."""
        self._note(LaunchEntryKind.BEGUN)
        for placement in itertools.count(1):
            verdict = self._place(placement)
            if isinstance(verdict, LaunchEnded):
                self._note(LaunchEntryKind.ENDED, **asdict(verdict))
                return
            self._note(LaunchEntryKind.LOST, **asdict(verdict))

    def _place(self, placement: int) -> Verdict:
        """Get nodes, and see what becomes of them."""
        offer = self._provision(placement)
        if offer is None:
            return CANCELLED
        climate, nodes = self.order.climate, self.order.nodes
        self._note(
            LaunchEntryKind.PLACED,
            zone=offer.zone,
            nodes=nodes,
            micros_per_hour=nodes * offer.micros_per_node_hour,
            on_demand_micros_per_hour=nodes * climate.on_demand_micros,
        )
        port = _free_port()
        standing = process_group.start(
            [self._node(placement, node, port) for node in range(nodes)], self.order.cell
        )
        fate = self.weather.fate(placement)
        call = AttemptMonitor(standing, self.folder, placement, fate, self.clock).see()
        self.trained |= standing.trained
        standing.end()
        verdict = classify_exit(
            standing.exits,
            nodes=nodes,
            call=call,
            trained=self.trained,
            failures_left=self.failures_left,
        )
        if self.order.cell and (why := self.order.cell.end()) and not call:
            verdict = replace(verdict, detail=f"{verdict.detail}; {why}" if verdict.detail else why)
        if isinstance(verdict, Lost) and verdict.cause is Cause.USER_ERROR:
            self.failures_left -= 1
        return verdict

    def _provision(self, placement: int) -> Offer | None:
        """The offer that was taken, with all files in place; None when the launch was cancelled meanwhile."""
        tries = 0
        while self._wait((offer := self.weather.offer(placement, tries)).wait_s):
            tries += 1
            denial = "no spot capacity" if offer.denied else self._lay_out(placement)
            if not denial:
                return offer
            self._note(LaunchEntryKind.DENIED, zone=offer.zone, detail=denial)
        return None

    def _wait(self, wait_s: float) -> bool:
        """True after `wait_s` seconds; False as soon as the launch is cancelled."""
        end_s = time.monotonic() + wait_s
        while self.folder.entombed_at() is None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return True
            time.sleep(min(TICK_S, left_s))
        return False

    def _lay_out(self, placement: int) -> str:
        """Make the directories of all nodes; empty, or why they cannot be made, after a while to let that pass."""
        try:
            if self.order.cell:
                self.order.cell.begin()
            for node in range(self.order.nodes):
                self._lay_out_node(self._attempt(placement), node)
        except OSError as error:
            self._wait(DISK_RETRY_S)
            return f"the files cannot be laid out: {error}"
        return ""

    def _lay_out_node(self, attempt: int, node: int) -> None:
        # What the node before had in its workdir goes, as it would in a cloud, and leaves its room.
        shutil.rmtree(self.folder.node(attempt - 1, node).workdir, ignore_errors=True)
        fresh = self.folder.node(attempt, node)
        shutil.rmtree(fresh.path, ignore_errors=True)  # Half made, before the disk was full.
        fresh.rank_log(0).parent.mkdir(parents=True)
        fresh.log.touch()
        shutil.copytree(self.folder.snapshot, fresh.workdir, symlinks=True)
        for name, text in zip(SCRIPTS, (self.order.setup, self.order.run), strict=True):
            if text:
                fresh.script(name).write_bytes(text.encode())
        if self.order.cell:
            _hand_over(fresh, self.order.cell)

    def _node(self, placement: int, node: int, port: int) -> tuple[NodeFolder, dict[str, str]]:
        attempt = self._attempt(placement)
        env = environment.of_node(self.order, self.folder, attempt=attempt, node=node, port=port)
        return self.folder.node(attempt, node), env

    def _attempt(self, placement: int) -> int:
        return self.order.first_attempt + placement - 1

    def _note(self, what: LaunchEntryKind, **body: str | int | None) -> None:
        self.folder.history.append(LaunchEntry(self.clock.now(), what, body))


def _hand_over(node: NodeFolder, cell: Sandbox) -> None:
    """Give a node its files; the folder that holds them stays the service's, so that none of them can be replaced."""
    own = (node.home, node.scratch, node.spool)
    for path in own:
        path.mkdir()
    for above in (node.path, node.path.parent):
        above.chmod(0o711)
    cell.give(node.workdir, node.run, *own, *filter(Path.exists, map(node.script, SCRIPTS)))


def _free_port() -> int:
    """A port for the rendezvous that is free now; a new one for each placement, as the old one may linger."""
    with socket.socket() as probe:
        probe.bind((environment.ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def main(path: str, lock: str) -> None:
    """Supervise the launch of one directory, whose lock this process holds as open file number `lock`.

    What to run is on standard input.
    """
    os.set_inheritable(int(lock), False)
    process_cleanup.become_subreaper()  # What a killed guard leaves behind comes here.
    folder = LaunchFolder(Path(path))
    Supervisor(folder, LaunchSpec.read(sys.stdin.read()), SystemClock()).supervise()


if __name__ == "__main__":
    main(*sys.argv[1:])
