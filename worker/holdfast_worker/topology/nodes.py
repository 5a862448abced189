"""Nodes of a run: topology from the launcher's variables, and ranks per node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from holdfast_worker.console import log_info, print_line
from holdfast_worker.protocol.environment import Env, Exit, SkyEnv, int_variable
from holdfast_worker.topology import rendezvous


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Number of ranks of each node, in the order of nodes."""

    ranks: tuple[int, ...]

    @classmethod
    def from_counts(cls, counts: Sequence[int], nodes: int) -> RankLayout:
        """The layout of `nodes` nodes, from one count for each, or one for all.

        Raises:
            ValueError: the counts are for a different number of nodes.
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
        """The number of ranks."""
        return sum(self.ranks)

    def ranks_of_node(self, node: int) -> range:
        """The ranks of a node, which follow those of the nodes before it."""
        first = sum(self.ranks[:node])
        return range(first, first + self.ranks[node])

    def table(self) -> str:
        """The table of nodes and ranks for people."""
        rows = [("NODE", "LOCAL_RANK", "RANK")]
        for node, count in enumerate(self.ranks):
            rows.append(
                (str(node), _format_ranks(range(count)), _format_ranks(self.ranks_of_node(node)))
            )
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


def parse_counts(text: str) -> tuple[int, ...]:
    """Parse ranks per node: `8` or `4,2`.

    Raises:
        ValueError: the text has a different form.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text):
        raise ValueError(
            f"{text!r} is not a valid number of ranks: write 8, or 4,2 for different nodes"
        )
    return tuple(map(int, text.split(",")))


def print_layout(given: Sequence[int], nodes: int | None) -> int:
    """Print the ranks of each node and return the exit code.

    `nodes` defaults to the number of counts.
    """
    try:
        if nodes is not None and nodes < 1:
            raise ValueError(f"--nodes is {nodes}: a run has at least one node")  # noqa: TRY301
        print_line(RankLayout.from_counts(given, nodes or len(given)).table())
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    return Exit.DONE


def _format_ranks(ranks: range) -> str:
    return ",".join(map(str, ranks))


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The group of a node, if the launcher starts and replaces several of them one by one."""

    name: str
    first_node: int
    """Number of its first node among all nodes."""
    nodes: int
    """Number of its nodes."""
    total_nodes: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> NodeGroup | None:
        """Read the group from the environment; None without several groups.

        Raises:
            ValueError: the variables are inconsistent or invalid.
        """
        name = env.get(Env.GROUP, "")
        if not name:
            return None
        for required in (Env.FIRST_NODE, Env.TOTAL_NODES, Env.URL):
            if not env.get(required):
                raise ValueError(
                    f"{Env.GROUP} is set, but {required} is not: let the launcher set both"
                )
        group = cls(
            name,
            int_variable(env, Env.FIRST_NODE, 0),
            int_variable(env, SkyEnv.NUM_NODES, 1),
            int_variable(env, Env.TOTAL_NODES, 1),
        )
        if group.first_node + group.nodes > group.total_nodes:
            raise ValueError(
                f"{Env.TOTAL_NODES} is {group.total_nodes}, but group {name} has {group.nodes} nodes, the first of which is "
                f"node {group.first_node}: give the number of nodes of all groups"
            )
        return group if group.nodes < group.total_nodes else None

    @property
    def has_leader(self) -> bool:
        """Whether node 0 is one of its nodes."""
        return self.first_node == 0


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Node 0 of several groups, as another node has found it."""

    incarnation: str
    address: str
    port: int
    """Port of the rendezvous."""

    @classmethod
    def parse(cls, text: str) -> LeaderAddress:
        """Parse what `dump` returned."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """As JSON, for the environment."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Topology:
    """Number of nodes, the rank of this node, and the rendezvous."""

    nodes: int
    node_rank: int
    gpus_per_node: int | None
    """None if the launcher does not set it."""
    master_address: str
    """Address of node 0; on other nodes of several groups their own, until they have found node 0."""
    master_port: int
    group: NodeGroup | None = None
    """The group of this node; None if all nodes are one placement."""
    leader: str = ""
    """Incarnation of node 0, with several groups; empty until it is known."""

    @property
    def leader_address(self) -> LeaderAddress:
        """Node 0, with several groups."""
        return LeaderAddress(self.leader, self.master_address, self.master_port)

    def with_leader(self, leader: LeaderAddress) -> Topology:
        """This topology, after node 0 was found."""
        return replace(
            self,
            leader=leader.incarnation,
            master_address=leader.address,
            master_port=leader.port,
        )

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Topology:
        """Read the topology from the environment; one node without variables.

        Raises:
            ValueError: the variables are inconsistent or invalid.
        """
        nodes = int_variable(env, SkyEnv.NUM_NODES, 1)
        node_rank = int_variable(env, SkyEnv.NODE_RANK, 0)
        if not 0 <= node_rank < nodes:
            msg = f"{SkyEnv.NODE_RANK} is {node_rank} of {nodes} nodes"
            raise ValueError(msg)
        if group := NodeGroup.read(env):
            address = rendezvous.own_address(env, node_rank)
            nodes, node_rank = group.total_nodes, group.first_node + node_rank
        else:
            address = rendezvous.master_address(env, nodes)
        return cls(
            nodes=nodes,
            node_rank=node_rank,
            group=group,
            gpus_per_node=int_variable(env, SkyEnv.NUM_GPUS_PER_NODE, 0)
            if env.get(SkyEnv.NUM_GPUS_PER_NODE)
            else None,
            master_address=address,
            master_port=rendezvous.master_port(env, nodes),
        )


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks of a node among all, for an agent that knows of no other node."""

    first: int
    world_size: int
    node_rank: int
    nodes: int
    master_address: str
    master_port: int

    @classmethod
    def parse(cls, text: str) -> NodeRanks:
        """Parse what `dump` returned."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """As JSON, for the environment."""
        return json.dumps(asdict(self))

    def variables(self, local_rank: int) -> dict[str, str]:
        """The variables that torchrun would set if it knew all nodes."""
        return {
            "RANK": str(self.first + local_rank),
            "ROLE_RANK": str(self.first + local_rank),
            "WORLD_SIZE": str(self.world_size),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            # The agent's store is on this node alone.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
