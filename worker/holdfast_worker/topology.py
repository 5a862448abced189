"""The nodes of a placement and this node's place among them, as every launcher describes them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast_worker.variables import number
from holdfast_worker.wire import Env, SkyEnv

MASTER_PORT: Final = 29400
"""Where the ranks of several nodes meet, unless the launcher names another port."""


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


def _default_port(nodes: int) -> int:
    """The agreed port between nodes; any free one on a single node, so that two runs there do not collide."""
    if nodes > 1:
        return MASTER_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
