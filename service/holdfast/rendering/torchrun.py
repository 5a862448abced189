"""Renders a job as commands for people: one torchrun per node, rendezvous on the first node.

torchrun (c10d) numbers the ranks in the order in which nodes join. All nodes with the same number of ranks have the
same command, and rank 0 can be on any of them. With an elastic number of nodes, torchrun restarts all ranks on the
remaining nodes, and each restart resumes from the newest checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import accelerator_count
from holdfast.errors import BadJobFile, BadRequest, ValidationIssue

_WORKER_RUN: Final = re.compile(
    r"^(?P<before>\s*(?:exec\s+)?)holdfast-worker\s+run\s+(?:--nproc-per-node[=\s]+(?P<ranks>\d+)\s+)?",
    re.MULTILINE,
)
_LOOPBACK: Final = "127.0.0.1"
_MAX_RESTARTS: Final = 100
"""Restarts by torchrun with an elastic number of nodes.
Each lost node uses up one restart on all other nodes. A lower value ends runs with frequent preemptions; a higher
value retries longer if the program itself fails."""
_SEPARATE_STORE_ENV: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Gives each round its own store.
With a shared store, restarted ranks find addresses of the previous round and are refused there. The store is also
lost with the agent that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunRequest:
    """The nodes and ports for starting a job without a launcher."""

    hosts: Sequence[str] = ()
    """Hosts, one per node; the first one hosts the rendezvous. Empty: all on this machine."""
    ranks: Sequence[int] = ()
    """Ranks per node, or one number for all.
    Empty: the job file's number, or one per accelerator."""
    port: int = 29400
    """Port of the rendezvous on the first host."""
    nodes: int | None = None
    """Number of nodes. None: as in the job file."""
    least_nodes: int | None = None
    """Minimum number of nodes that the run continues with after losses. None: all of them."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """The command for one node."""

    host: str
    ranks: int
    command: str
    """Shell text."""


def torchrun_commands(
    spec: JobSpec, task: Mapping[str, Any], request: TorchrunRequest
) -> tuple[NodeCommand, ...]:
    """Return the command of each node for the rendered `task` of a job.

    Raises:
        BadJobFile: `run` does not start the ranks in exactly one place.
        BadRequest: the number of hosts or ranks does not match the number of nodes.
    """
    matches = list(_WORKER_RUN.finditer(spec.run))
    if len(matches) != 1:
        flaw = f"starts ranks in {len(matches)} places; torchrun needs exactly one line: holdfast-worker run SCRIPT"
        raise BadJobFile((ValidationIssue("#/run", flaw),))
    nodes = request.nodes or spec.num_nodes
    least = request.least_nodes or nodes
    if least > nodes:
        raise BadRequest(
            f"nnodes: the maximum of {least}:{nodes} is below the minimum; write 1:{nodes} to {nodes}:{nodes}"
        )
    hosts = _per_node(request.hosts or [_LOOPBACK], nodes, "hosts")
    ranks = _per_node(request.ranks or [int(matches[0]["ranks"] or accelerator_count(spec) // spec.num_nodes or 1)], nodes, "ranks")  # fmt: skip
    rendezvous = _Rendezvous(_identifier(spec.name), hosts, ranks, request.port, least)
    return tuple(
        NodeCommand(hosts[node], ranks[node], _command(spec, task, rendezvous, node))
        for node in range(nodes)
    )


def torchrun_notes(spec: JobSpec) -> tuple[str, ...]:
    """Return notes about what the commands do not contain."""
    notes = []
    if spec.setup:
        notes.append("setup is not in these commands; run it once on each node first")
    if spec.secrets:
        names = ", ".join(spec.secrets)
        notes.append(f"secrets are not in these commands; export {names} on each node first")
    return tuple(notes)


def _per_node(given: Sequence[Any], nodes: int, what: str) -> Sequence[Any]:
    """Return one value per node."""
    if len(given) == 1:
        return [*given] * nodes
    if len(given) != nodes:
        raise BadRequest(f"{what}: {len(given)} given for {nodes} nodes; give one per node, or one for all")  # fmt: skip
    return given


@dataclass(frozen=True, slots=True)
class _Rendezvous:
    """The nodes and their rendezvous."""

    name: str
    hosts: Sequence[str]
    ranks: Sequence[int]
    port: int
    min_nodes: int
    """Minimum number of nodes."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.min_nodes < len(self.hosts)

    def torchrun(self, node: int) -> str:
        """Return the torchrun command without the script."""
        first = self.hosts[0]
        place = f"[{first}]:{self.port}" if ":" in first else f"{first}:{self.port}"
        nodes = f"--nnodes={len(self.hosts)}"
        if self.is_elastic:
            nodes = f"--nnodes={self.min_nodes}:{len(self.hosts)} --max-restarts={_MAX_RESTARTS}"
        meets = f"--rdzv-backend=c10d --rdzv-id={self.name} --rdzv-endpoint={shlex.quote(place)}"
        return f"torchrun {nodes} --nproc-per-node={self.ranks[node]} {meets}"

    def skypilot_env(self, node: int) -> dict[str, str]:
        """Return the variables that every launcher sets on a node, for a `run` that uses them."""
        return {
            SkyEnv.NUM_NODES.value: str(len(self.hosts)),
            SkyEnv.NODE_RANK.value: str(node),
            SkyEnv.NODE_IPS.value: "\n".join(self.hosts),
            SkyEnv.NUM_GPUS_PER_NODE.value: str(self.ranks[node]),
        }


def _command(spec: JobSpec, task: Mapping[str, Any], rendezvous: _Rendezvous, node: int) -> str:
    envs = {**task.get("envs", {}), **_identity_env(spec)}
    # The service does not track these checkpoints, so the worker deletes the old ones.
    envs.pop(Env.TIDY.value, None)
    if rendezvous.is_elastic:
        envs |= _SEPARATE_STORE_ENV
    if "SKYPILOT_" in spec.run:
        envs |= rendezvous.skypilot_env(node)
    lines = [f"cd {shlex.quote(spec.workdir)}"] if spec.workdir else []
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in sorted(envs.items())]
    started = rendezvous.torchrun(node)
    run = _WORKER_RUN.sub(lambda found: f"{found['before']}{started} ", spec.run)
    return "\n".join([*lines, run.rstrip("\n")]) + "\n"


def _identity_env(spec: JobSpec) -> dict[str, str]:
    """Return the job id and attempt that let repeated commands find the same checkpoints."""
    if spec.holdfast.checkpoint is None:
        return {}
    return {Env.JOB.value: _identifier(spec.name), Env.ATTEMPT.value: "1"}


def _identifier(name: str) -> str:
    """Return the name as a single word for shells and stores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"
