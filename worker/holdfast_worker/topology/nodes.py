"""Ports of this machine: whether one is free, and one that is.

The shape of a run: how many ranks each of its nodes has, and so which rank is where.

The nodes of a placement and this node's place among them, as every launcher describes them.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast_worker.console import log_info, print_line
from holdfast_worker.protocol.environment import Env, Exit, SkyEnv, number


def is_free(port: int) -> bool:
    """Whether somebody could listen there on all addresses, as the first node's torchrun will."""
    with socket.socket() as probe:
        # As that does: connections of an earlier run that are just ending are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def free_port() -> int:
    """A port above 1024 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Ranks of each node, in the order of the nodes."""

    ranks: tuple[int, ...]

    @classmethod
    def of(cls, counts: Sequence[int], nodes: int) -> RankLayout:
        """A run on so many nodes, with one count for each, or one for all.

        Raises:
            ValueError: there are counts for another number of nodes.
        """
        if len(counts) == 1:
            return cls((*counts,) * nodes)
        if len(counts) != nodes:
            raise ValueError(
                f"--nproc-per-node names {len(counts)} nodes, but there are {nodes}: write one number for each, or one for all"
            )
        return cls((*counts,))

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(self.ranks)

    def of_node(self, node: int) -> range:
        """The ranks of a node: they follow on those of the nodes before it, however many these have."""
        first = sum(self.ranks[:node])
        return range(first, first + self.ranks[node])

    def table(self) -> str:
        """Which rank is where, for people."""
        rows = [("NODE", "LOCAL_RANK", "RANK")]
        for node, count in enumerate(self.ranks):
            rows.append((str(node), _listed(range(count)), _listed(self.of_node(node))))
        widths = [max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
        lines = [
            "".join(word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True))
            for row in rows
        ]
        return "\n".join([*lines, self._rule()])

    def _rule(self) -> str:
        each, *others = {*self.ranks}
        if others:
            sizes = " + ".join(map(str, self.ranks))
            return f"WORLD_SIZE = {sizes} = {self.world_size}, RANK = ranks of the nodes before + LOCAL_RANK"
        nodes = len(self.ranks)
        return f"WORLD_SIZE = {nodes} x {each} = {self.world_size}, RANK = NODE x {each} + LOCAL_RANK"  # fmt: skip


def counts(text: str) -> tuple[int, ...]:
    """Ranks of nodes, of `8` or `4,2`.

    Raises:
        ValueError: it is neither.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text):
        raise ValueError(
            f"{text!r} is no number of ranks: write 8, or 4,2 for nodes that are not alike"
        )
    return tuple(map(int, text.split(",")))


def show(given: Sequence[int], nodes: int | None) -> int:
    """Say which rank is where; the exit code. `nodes` is None for as many as counts are given."""
    try:
        if nodes is not None and nodes < 1:
            raise ValueError(f"--nodes is {nodes}: a run has at least one node")  # noqa: TRY301
        print_line(RankLayout.of(given, nodes or len(given)).table())
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    return Exit.DONE


def _listed(ranks: range) -> str:
    return ",".join(map(str, ranks))


MASTER_PORT: Final = 29400
"""Where the ranks of several nodes meet, unless the launcher names another port."""
PATIENCE_S: Final = 10.0
"""With a port between nodes that is in use. Longer keeps nodes that are paid for, shorter gives up over a run that is just ending."""
LOOK_S: Final = 0.2
"""How often it is tried again. Longer waits for nothing, shorter burns a core."""


@dataclass(frozen=True, slots=True)
class Topology:
    """How many nodes there are, which one this is, and where all of them meet."""

    nodes: int
    node_rank: int
    gpus_per_node: int | None
    """None when the launcher does not say."""
    master_address: str
    master_port: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Topology:
        """The topology in `env`; one node where nothing is said.

        Raises:
            ValueError: the variables contradict each other, or are no numbers.
        """
        nodes = number(env, SkyEnv.NUM_NODES, 1)
        node_rank = number(env, SkyEnv.NODE_RANK, 0)
        addresses = env.get(SkyEnv.NODE_IPS, "").split()
        if nodes > 1 and len(addresses) != nodes:
            msg = f"{SkyEnv.NUM_NODES} is {nodes}, but {SkyEnv.NODE_IPS} names {len(addresses)}"
            raise ValueError(msg)
        if not 0 <= node_rank < nodes:
            msg = f"{SkyEnv.NODE_RANK} is {node_rank} of {nodes} nodes"
            raise ValueError(msg)
        return cls(
            nodes=nodes,
            node_rank=node_rank,
            gpus_per_node=number(env, SkyEnv.NUM_GPUS_PER_NODE, 0)
            if env.get(SkyEnv.NUM_GPUS_PER_NODE)
            else None,
            master_address=addresses[0] if nodes > 1 else "127.0.0.1",
            master_port=number(env, Env.MASTER_PORT, 0) or _default_port(nodes),
        )

    def with_a_free_port(self, patience_s: float = PATIENCE_S) -> Topology:
        """The same nodes, who meet at a port that is free on the first.

        A node that is alone takes another by itself. Several cannot: the others would not hear of it.

        Raises:
            ValueError: it is in use, and stays so.
        """
        if self.node_rank or is_free(self.master_port):
            return self
        if self.nodes == 1:
            another = free_port()
            log_info(f"port {self.master_port} is in use: the ranks meet at {another} instead")
            return replace(self, master_port=another)
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
            if is_free(self.master_port):
                return self
        raise ValueError(
            f"port {self.master_port}, where the ranks are to meet, is in use on this node, the first: "
            f"set {Env.MASTER_PORT} on all nodes to another, such as {free_port()}, which is free here"
        )


def _default_port(nodes: int) -> int:
    """The agreed port between nodes; any free one on a single node, so that two runs there do not collide."""
    return MASTER_PORT if nodes > 1 else free_port()
