"""The environment of a node: SkyPilot's variables, the worker's, and what this machine has. The one reader of os.environ here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.launchers.local.launch_dir import LaunchFolder, NodeFolder
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.process_cleanup import MARK
from holdfast.launchers.local.sandbox import inherited

ADDRESS: Final = "127.0.0.1"


def of_supervisor(folder: LaunchFolder) -> dict[str, str]:
    """This process's variables without the service's own settings and secrets, and with the mark."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "SKYPILOT_"))
    }
    return {**inherited, MARK: str(folder.path)}


def of_node(
    order: LaunchSpec, folder: LaunchFolder, *, attempt: int, node: int, port: int
) -> dict[str, str]:
    """What the program of one node finds in its environment; what the task sets itself wins where SkyPilot lets it."""
    gpus = _share(_visible_gpus(), node, order.nodes)
    offered = {
        "GLOO_SOCKET_IFNAME": "lo",
        SkyEnv.NUM_GPUS_PER_NODE: str(len(gpus)),
        Env.JOB: order.job_id,
    }
    if gpus and order.nodes > 1:
        # Nodes on one machine must not share a GPU.
        offered["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    here = folder.node(attempt, node)
    fixed = {
        SkyEnv.NUM_NODES: str(order.nodes),
        SkyEnv.NODE_RANK: str(node),
        SkyEnv.NODE_IPS: "\n".join([ADDRESS] * order.nodes),
        # The same for every attempt of a job, as users expect of it.
        SkyEnv.TASK_ID: f"holdfast-{order.job_id}",
        Env.ATTEMPT: str(attempt),
        Env.EPOCH: str(attempt),
        Env.RUN_DIR: str(here.run),
        Env.SPOOL: str(here.spool if order.cell else folder.spool),
        Env.MASTER_PORT: str(port),
        MARK: str(folder.path),
    }
    known = _confined(here) if order.cell else of_supervisor(folder)
    env = {**known, **offered, **order.env, **fixed}
    return {**env, "PATH": _with_own_programs(env.get("PATH", os.defpath))}


def _confined(node: NodeFolder) -> dict[str, str]:
    """What a confined job inherits, and folders of its own for what programs keep in HOME and TMPDIR."""
    own = {"HOME": str(node.home), "TMPDIR": str(node.scratch), "PYTHONNOUSERSITE": "1"}
    return {**inherited(os.environ.get), **own}


def _with_own_programs(path: str) -> str:
    """`path` with the directory where `holdfast-worker` is installed."""
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else own + os.pathsep + path


def _share(gpus: list[str], node: int, nodes: int) -> list[str]:
    """The GPUs of one of several nodes, as many for each; some stay idle where they cannot be shared out evenly."""
    each = len(gpus) // nodes
    return gpus[node * each : (node + 1) * each]


def _visible_gpus() -> list[str]:
    """Indices of this machine's NVIDIA GPUs that the service itself may use."""
    if (told := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in told.split(",") if name.strip()]
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in names if name.isdigit()), key=int)
