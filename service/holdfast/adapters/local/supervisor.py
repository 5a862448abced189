"""The supervisor of one launch: `python -m holdfast.adapters.local.supervisor <launch directory> <lock> < <order>`.

It plays the market and the recovery, as SkyPilot's controller would: it gets nodes, starts the program, watches, and
gets new nodes after a loss, until the program is done, has failed too often, or the launch is cancelled. It is no
child of the service, which may come and go. When it dies its guards end all nodes, and nobody starts it again: the
launch is then forgotten.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from holdfast.adapters.local import environment, gang, reaper
from holdfast.adapters.local.cell import Cell
from holdfast.adapters.local.folder import LaunchFolder, NodeFolder
from holdfast.adapters.local.guard import SCRIPTS
from holdfast.adapters.local.history import Line, What
from holdfast.adapters.local.order import Order
from holdfast.adapters.local.verdict import Lost, Over, Verdict, judge
from holdfast.adapters.local.watch import TICK_S, Watch
from holdfast.clock import SystemClock
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.weather import Offer, Weather
from holdfast.ports import Clock

DISK_RETRY_S: Final = 30.0
"""Before files are copied again to a disk that had no room. Smaller: the history fills with denials. Bigger: the job
waits longer than the disk does."""
CANCELLED: Final = Over(Outcome.CANCELLED, None, "cancelled on request")


class Supervisor:
    """One launch, from its first request for nodes to its end."""

    def __init__(self, folder: LaunchFolder, order: Order, clock: Clock) -> None:
        self.folder = folder
        self.order = order
        self.clock = clock
        self.weather = Weather(order.climate, order.key)
        self.failures_left = order.max_failures
        self.trained = False

    def supervise(self) -> None:
        """See the launch through."""
        self._note(What.BEGUN)
        for placement in itertools.count(1):
            verdict = self._place(placement)
            if isinstance(verdict, Over):
                self._note(What.ENDED, **asdict(verdict))
                return
            self._note(What.LOST, **asdict(verdict))

    def _place(self, placement: int) -> Verdict:
        """Get nodes, and see what becomes of them."""
        offer = self._provision(placement)
        if offer is None:
            return CANCELLED
        climate, nodes = self.order.climate, self.order.nodes
        self._note(
            What.PLACED,
            zone=offer.zone,
            nodes=nodes,
            micros_per_hour=nodes * offer.micros_per_node_hour,
            on_demand_micros_per_hour=nodes * climate.on_demand_micros,
        )
        port = _free_port()
        standing = gang.start(
            [self._node(placement, node, port) for node in range(nodes)], self.order.cell
        )
        fate = self.weather.fate(placement)
        call = Watch(standing, self.folder, placement, fate, self.clock).see()
        self.trained |= standing.trained
        standing.end()
        verdict = judge(
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
            self._note(What.DENIED, zone=offer.zone, detail=denial)
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

    def _note(self, what: What, **body: str | int | None) -> None:
        self.folder.history.append(Line(self.clock.now(), what, body))


def _hand_over(node: NodeFolder, cell: Cell) -> None:
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
    reaper.become_subreaper()  # What a killed guard leaves behind comes here.
    folder = LaunchFolder(Path(path))
    Supervisor(folder, Order.read(sys.stdin.read()), SystemClock()).supervise()


if __name__ == "__main__":
    main(*sys.argv[1:])
