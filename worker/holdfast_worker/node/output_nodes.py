"""How the nodes of an attempt agree on output files, through objects in the store.

    outputs/nodes/000000000003/000000.begun    node 0 collects its files in the attempt of epoch 3
    outputs/nodes/000000000003/000001.done     node 1 has ended with that
    outputs/nodes/000000000003/senders.json    which node sends which file, for nodes that share a file system

Launchers terminate all nodes soon after the first one has ended, so that nodes that have collected wait for the others. Standard library
only, except for the store.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from holdfast_worker.console import log_info
from holdfast_worker.node.output_selection import OutputSelection
from holdfast_worker.protocol.environment import SkyEnv
from holdfast_worker.protocol.output_files import OUTPUT_NODES, nodes_prefix
from holdfast_worker.storage.base import ObjectNotFound, Store
from holdfast_worker.storage.retry import JITTER, retry_until

T = TypeVar("T")

RETRY_S: Final = 60.0
"""How long a failed request is repeated. A lower value gives up during a short outage; a higher value pays for idle nodes."""
BEGIN_S: Final = 60.0
"""How long a node waits for others to end their ranks. A lower value misses nodes that end a little later; a higher value pays for idle nodes."""
POLL_S: Final = 1.0
"""Interval of listings while a node waits. A lower value adds requests; a higher value pays for idle nodes."""
FIRST_POLL_S: Final = 0.1
"""The first interval, as nodes usually end together. A lower value adds requests; a higher value delays the end of small jobs."""
LISTINGS_PER_S: Final = 100
"""Listings of all waiting nodes in a second, for which the interval is longer with many nodes.
A lower value delays the end of large jobs; a higher value exceeds the limits of stores."""
LOG_AFTER_S: Final = 2.0
"""Time after which a node logs that it waits. A lower value fills the log; a higher value looks like a hang."""
MAX_IDENTITIES: Final = 10_000
"""Files of a node that are compared with those of others. A lower value sends shared files twice; a higher value makes a large object."""

_MARK: Final = re.compile(r"(\d{6})\.(begun|done)")
_BEGUN: Final = re.compile(rf"{OUTPUT_NODES}(\d{{12,18}})/000000\.begun")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingNode:
    """The node that collects, among those of its attempt."""

    node: int = 0
    nodes: int = 1
    run: str = ""
    """Equal on all nodes of an attempt, and different for others."""
    hosted: frozenset[int] = frozenset()
    """Missing nodes whose ranks ran on this one: it has their files."""


def run_identity(placement: str, leader: str, env: Mapping[str, str]) -> str:
    """What `CollectingNode.run` is for nodes with this environment.

    `leader`: incarnation of node 0, with several groups of nodes. Otherwise, each attempt has other addresses or another number of the
    placement on them.
    """
    parts = [leader] if leader else [placement, env.get(SkyEnv.NODE_IPS, "")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@dataclass(kw_only=True)
class OutputNodes:
    """Agrees with the other nodes of an attempt on what each of them sends."""

    store: Store
    place: CollectingNode
    until_s: float
    """Deadline by the monotonic clock."""
    is_leaving: Callable[[], bool] = lambda: False
    begin_s: float = BEGIN_S
    epoch: int = 0
    """0: see `find_epoch`."""
    _began_s: float = field(default_factory=time.monotonic)

    def find_epoch(self) -> bool:
        """Find the epoch that node 0 has claimed; return whether it has one."""
        self._wait_for(self._has_epoch)
        return self.epoch > 0

    def begin(self) -> None:
        """Announce that this node collects its files."""
        # Left by an earlier command of this attempt.
        self._retry(lambda: self.store.delete(self._mark_key(self.place.node, "done")))
        self._mark(self.place.node, "begun")

    def end(self) -> None:
        """Announce that this node has collected its files, with those of nodes that it hosts."""
        for node in (self.place.node, *self.place.hosted):
            self._mark(node, "done")

    def share(self, selection: OutputSelection) -> None:
        """Leave files to nodes that send them already, and the rest to this one.

        Node 0 sends all of its files: they are those of a job on one node.
        """
        identities = selection.identities()[:MAX_IDENTITIES]
        if self.place.node:
            if selection.is_empty:
                return
            self._wait_for(lambda: "0" in self._senders()[1])
        while True:
            raw, senders = self._senders()
            others = {key: sent for key, sent in senders.items() if key != str(self.place.node)}
            if self.place.node:
                selection.leave({one for sent in others.values() for one in sent})
                if selection.is_empty:
                    return
            new = json.dumps({**others, str(self.place.node): identities}).encode()
            if self._retry(partial(self.store.swap, self._senders_key, raw, new)):
                return
            time.sleep(JITTER.uniform(0, POLL_S))

    def wait_for_others(self) -> None:
        """Wait until the other nodes have collected their files.

        The launcher would end them before. Nodes that do not collect were lost, or their ranks still run: they have `begin_s`.
        """
        missing = set[int]()
        log_s = time.monotonic() + LOG_AFTER_S

        def is_over() -> bool:
            nonlocal log_s
            begun, done = self._marks()
            missing.clear()
            missing.update({*range(self.place.nodes)} - done - {self.place.node})
            if missing and time.monotonic() > log_s:
                log_s = math.inf
                log_info(f"waiting for the output files of {_names(missing)}")
            return not missing or (self._is_late and not missing & begun)

        self._wait_for(is_over, until_s=self.until_s)
        if missing and not self.is_leaving():
            log_info(f"not waiting any longer for the output files of {_names(missing)}")

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._began_s > self.begin_s

    @property
    def _senders_key(self) -> str:
        return f"{nodes_prefix(self.epoch)}senders.json"

    def _mark_key(self, node: int, what: str) -> str:
        return f"{nodes_prefix(self.epoch)}{node:06d}.{what}"

    def _mark(self, node: int, what: str) -> None:
        key = self._mark_key(node, what)
        self._retry(lambda: self.store.put(key, self.place.run.encode()))

    def _marks(self) -> tuple[set[int], set[int]]:
        """The nodes that have begun, and those that have ended."""
        found: dict[str, set[int]] = {"begun": set(), "done": set()}
        prefix = nodes_prefix(self.epoch)
        for key in self._retry(lambda: self.store.list(prefix)):
            if match := _MARK.fullmatch(key.removeprefix(prefix)):
                found[match[2]].add(int(match[1]))
        return found["begun"], found["done"]

    def _has_epoch(self) -> bool:
        """Whether node 0 of this attempt, and not of an earlier one, has begun."""
        keys = self._retry(lambda: self.store.list(OUTPUT_NODES))
        newest = max((int(match[1]) for match in map(_BEGUN.fullmatch, keys) if match), default=0)
        # An earlier command on the same nodes has the same identity.
        if not newest or f"{nodes_prefix(newest)}{self.place.node:06d}.done" in keys:
            return False
        with_run = self._get(f"{nodes_prefix(newest)}000000.begun")
        if with_run == self.place.run.encode():
            self.epoch = newest
        return self.epoch > 0

    def _senders(self) -> tuple[bytes | None, Mapping[str, Sequence[str]]]:
        """The object that says which node sends which file, and its content.

        The job's program could write it as well.
        """
        raw = self._get(self._senders_key)
        try:
            found = json.loads(raw or b"{}")
            return raw, {str(key): [*map(str, sent)] for key, sent in found.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return raw, {}

    def _get(self, key: str) -> bytes | None:
        try:
            return self._retry(lambda: self.store.get(key))
        except ObjectNotFound:
            return None

    def _wait_for(self, condition: Callable[[], bool], until_s: float | None = None) -> None:
        """Poll until a condition holds, this node has to leave, or a deadline has passed.

        By default, that is the one for nodes to begin.
        """
        longest_s = max(POLL_S, self.place.nodes / LISTINGS_PER_S)
        pause_s = FIRST_POLL_S
        while not condition() and not self.is_leaving():
            if self._is_late if until_s is None else time.monotonic() > until_s:
                return
            time.sleep(JITTER.uniform(0.5, 1) * pause_s)
            pause_s = min(longest_s, 1.5 * pause_s)

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_until(action, min(self.until_s, time.monotonic() + RETRY_S))


def _names(nodes: Collection[int]) -> str:
    first, *others = map(str, sorted(nodes))
    return f"nodes {', '.join([first, *others])}" if others else f"node {first}"
