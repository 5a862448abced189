"""Environment variables of supervisors and nodes.

Only this module of the launcher reads os.environ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.launchers.local.launch_dir import LaunchDir, NodeDir
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.process_cleanup import MARK_ENV
from holdfast.launchers.local.sandbox import inherited_env

ADDRESS: Final = "127.0.0.1"


def supervisor_env(folder: LaunchDir) -> dict[str, str]:
    """Return this process's variables without the service's settings and secrets.

    The marker of the launch is added.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "SKYPILOT_"))
    }
    return {**inherited, MARK_ENV: str(folder.path)}


def node_env(
    spec: LaunchSpec, folder: LaunchDir, *, attempt: int, node: int, port: int, start: int = 0
) -> dict[str, str]:
    """Return the variables of one node; the task's own values win where SkyPilot allows it.

    `start`: how often this node of the attempt has been started before.
    """
    gpus = _gpu_share(_visible_gpus(), node, spec.nodes)
    offered = {
        "GLOO_SOCKET_IFNAME": "lo",
        SkyEnv.NUM_GPUS_PER_NODE: str(len(gpus)),
        Env.JOB: spec.job_id,
    }
    if gpus and spec.nodes > 1:
        # Nodes on one machine must not share a GPU.
        offered["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    here = folder.node(attempt, node)
    fixed = {
        SkyEnv.NUM_NODES: str(spec.nodes),
        SkyEnv.NODE_RANK: str(node),
        SkyEnv.NODE_IPS: "\n".join([ADDRESS] * spec.nodes),
        # The same for every attempt of a job, as with SkyPilot.
        SkyEnv.TASK_ID: f"holdfast-{spec.job_id}",
        Env.ATTEMPT: str(attempt),
        Env.EPOCH: str(attempt),
        Env.RUN_DIR: str(here.run),
        Env.SPOOL: str(here.spool if spec.cell else folder.spool),
        Env.MASTER_PORT: str(port),
        Env.NODE_START: str(start),
        MARK_ENV: str(folder.path),
    }
    known = _confined_env(here) if spec.cell else supervisor_env(folder)
    env = {**known, **offered, **spec.env, **fixed}
    return {**env, "PATH": _prepend_program_dir(env.get("PATH", os.defpath))}


def _confined_env(node: NodeDir) -> dict[str, str]:
    """Return the variables a confined job inherits, plus its own HOME and TMPDIR."""
    own = {"HOME": str(node.home), "TMPDIR": str(node.scratch), "PYTHONNOUSERSITE": "1"}
    return {**inherited_env(os.environ.get), **own}


def _prepend_program_dir(path: str) -> str:
    """Return `path` with the directory of `holdfast-worker` added."""
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else own + os.pathsep + path


def _gpu_share(gpus: list[str], node: int, nodes: int) -> list[str]:
    """Return one node's equal share of the GPUs; a remainder stays idle."""
    each = len(gpus) // nodes
    return gpus[node * each : (node + 1) * each]


def _visible_gpus() -> list[str]:
    """Return the indices of the NVIDIA GPUs that the service may use."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name.strip()]
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in names if name.isdigit()), key=int)
