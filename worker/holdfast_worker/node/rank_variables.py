"""Environment variables that a wrapper adds for its ranks and for nodes that it hosts.

They direct logs and dumps of torch and NCCL, and are those of `--debug`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast_worker.config import HOSTED_LEADER, HOSTED_START, WRAPPER, environment
from holdfast_worker.protocol.environment import Env, SkyEnv
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import LeaderAddress, Topology

HOST_ID: Final = "NCCL_HOSTID"
"""NCCL refuses two ranks on one GPU, unless they claim to be on different machines."""

DEBUG_RANKS: Final = 2
"""The smallest number of ranks that communicate."""

DEBUG_VARIABLES: Final[Mapping[str, str]] = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "NCCL_DEBUG": "INFO",
    Env.SYNC_SAVES.value: "1",
}
"""Additional variables of `--debug`, so that an error appears at its cause.
Torch checks that all ranks call the same collectives, NCCL logs its transports, and training waits for its checkpoints."""


def check_debug_topology(topology: Topology) -> None:
    """Check that `--debug` is used on a single node.

    Raises:
        ValueError: the run has several nodes.
    """
    if topology.nodes > 1:
        raise ValueError(
            f"--debug is for a single node, but this run has {topology.nodes}: start it on one, or omit --debug"
        )


def torch_variables(run_dir: RunDir) -> dict[str, str]:
    """Variables that direct torch's dumps, as of a collective timeout, to the run directory."""
    if any(
        name in environment()
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    ):
        return {}
    file = str(run_dir.hang_dir / "torch_rank_")
    return {"TORCH_FR_DUMP_TEMP_FILE": file, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def nccl_variables(run_dir: RunDir) -> dict[str, str]:
    """Variables that direct NCCL's log of its start to the run directory, unless they are set."""
    if any(name in environment() for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
        "NCCL_DEBUG_FILE": str(run_dir.nccl_dir / "%p.log"),
    }


def hosted_node_variables(
    run_dir: Path, node: int, start: int, leader: LeaderAddress | None
) -> dict[str, str]:
    """Variables of the wrapper of a node that this one hosts, with the number of its start.

    `leader`: node 0, if it is of another group than this node; None if all nodes are one placement.
    """
    machine = environment().get(HOST_ID) or socket.gethostname()
    return {
        # NCCL refuses two ranks of the same machine on one GPU, also if the job itself names its machines.
        HOST_ID: f"{machine}-{node}-{start}",
        **(_hosted_group(node, leader) if leader else {SkyEnv.NODE_RANK.value: str(node)}),
        Env.RUN_DIR.value: str(run_dir),
        Env.NODE_START.value: "1",
        HOSTED_START: str(start),
        WRAPPER: str(os.getpid()),
    }


def _hosted_group(node: int, leader: LeaderAddress) -> dict[str, str]:
    """Variables of a group that has only this node, as only its number among all counts."""
    return {
        HOSTED_LEADER: leader.dump(),
        Env.FIRST_NODE.value: str(node),
        SkyEnv.NUM_NODES.value: "1",
        SkyEnv.NODE_RANK.value: "0",
        SkyEnv.NODE_IPS.value: leader.address,
    }
