"""The nodes of a placement and this node's place among them, as every launcher describes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast_worker.console import tell
from holdfast_worker.ports import free_port, is_free
from holdfast_worker.variables import number
from holdfast_worker.wire import Env, SkyEnv

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
            tell(f"port {self.master_port} is in use: the ranks meet at {another} instead")
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
