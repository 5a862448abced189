"""A job as commands that people type: one torchrun for each node, which meet at the first.

torchrun numbers the ranks itself, in the order in which nodes come (c10d); so every node of one size has the same command, and
rank 0 need not be on the first of them. Where nodes may come and go, torchrun starts all ranks anew with those that are there,
and each time they go on from the newest checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import gpus
from holdfast.errors import BadJobFile, BadRequest, Flaw

_WRAPPED: Final = re.compile(
    r"^(?P<before>\s*(?:exec\s+)?)holdfast-worker\s+run\s+(?:--nproc-per-node[=\s]+(?P<ranks>\d+)\s+)?",
    re.MULTILINE,
)
_HERE: Final = "127.0.0.1"
_RESTARTS: Final = 100
"""How often torchrun begins anew where nodes may come and go. Each that goes takes one on all others; fewer end a run that a
market is hard on, more go on with one that fails by itself."""
_FRESH_STORE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Otherwise the agents keep one store for all rounds: ranks that begin anew find in it where those of the round before could be
reached, and are refused there; and it is gone with the agent that had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """Where a job is to be started by hand."""

    hosts: Sequence[str] = ()
    """Of each node; the first is where they meet. Empty: all on this machine."""
    ranks: Sequence[int] = ()
    """Of each node, or one number for all. Empty: one for each accelerator, or what the job file says."""
    port: int = 29400
    """On the first host, where the nodes meet."""
    nodes: int | None = None
    """How many there are; None: as many as the job file says."""
    least_nodes: int | None = None
    """With how many it goes on where others are lost; None: with all alone."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What is typed on one node."""

    host: str
    ranks: int
    command: str
    """Text for a shell."""


def by_hand(spec: JobSpec, task: Mapping[str, Any], asked: ByHand) -> tuple[NodeCommand, ...]:
    """The command of each node, for the rendered `task` of a job.

    Raises:
        BadJobFile: `run` does not say in one place which script the ranks run.
        BadRequest: hosts or ranks are not those of as many nodes as there are.
    """
    said = list(_WRAPPED.finditer(spec.run))
    if len(said) != 1:
        flaw = f"starts its ranks in {len(said)} places; with torchrun, one line has to be: holdfast-worker run SCRIPT"
        raise BadJobFile((Flaw("#/run", flaw),))
    nodes = asked.nodes or spec.num_nodes
    least = asked.least_nodes or nodes
    if least > nodes:
        raise BadRequest(
            f"nnodes: {least}:{nodes} are fewer at most than at least; write 1:{nodes} to {nodes}:{nodes}"
        )
    hosts = _each(asked.hosts or [_HERE], nodes, "hosts")
    ranks = _each(asked.ranks or [int(said[0]["ranks"] or gpus(spec) // spec.num_nodes or 1)], nodes, "ranks")  # fmt: skip
    meeting = _Meeting(_word(spec.name), hosts, ranks, asked.port, least)
    return tuple(
        NodeCommand(hosts[node], ranks[node], _command(spec, task, meeting, node))
        for node in range(nodes)
    )


def notes_of_hand(spec: JobSpec) -> tuple[str, ...]:
    """What is not in the commands, as sentences."""
    notes = []
    if spec.setup:
        notes.append("setup is not in these commands; run it once on each node before")
    if spec.secrets:
        names = ", ".join(spec.secrets)
        notes.append(f"secrets are not in these commands; export {names} on each node before")
    return tuple(notes)


def _each(given: Sequence[Any], nodes: int, what: str) -> Sequence[Any]:
    """One for each node."""
    if len(given) == 1:
        return [*given] * nodes
    if len(given) != nodes:
        raise BadRequest(f"{what}: {len(given)} are named for {nodes} nodes; name one for each, or one for all")  # fmt: skip
    return given


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The nodes, and how they find each other."""

    name: str
    hosts: Sequence[str]
    ranks: Sequence[int]
    port: int
    least: int
    """How many nodes are enough."""

    @property
    def is_elastic(self) -> bool:
        """Whether nodes may come and go."""
        return self.least < len(self.hosts)

    def torchrun(self, node: int) -> str:
        """The words up to those of the script."""
        first = self.hosts[0]
        place = f"[{first}]:{self.port}" if ":" in first else f"{first}:{self.port}"
        nodes = f"--nnodes={len(self.hosts)}"
        if self.is_elastic:
            nodes = f"--nnodes={self.least}:{len(self.hosts)} --max-restarts={_RESTARTS}"
        meets = f"--rdzv-backend=c10d --rdzv-id={self.name} --rdzv-endpoint={shlex.quote(place)}"
        return f"torchrun {nodes} --nproc-per-node={self.ranks[node]} {meets}"

    def of_sky(self, node: int) -> dict[str, str]:
        """What every launcher tells the program of a node, for a `run` that asks."""
        return {
            SkyEnv.NUM_NODES.value: str(len(self.hosts)),
            SkyEnv.NODE_RANK.value: str(node),
            SkyEnv.NODE_IPS.value: "\n".join(self.hosts),
            SkyEnv.NUM_GPUS_PER_NODE.value: str(self.ranks[node]),
        }


def _command(spec: JobSpec, task: Mapping[str, Any], meeting: _Meeting, node: int) -> str:
    envs = {**task.get("envs", {}), **_names(spec)}
    # No service knows of these checkpoints: the worker removes the old ones.
    envs.pop(Env.TIDY.value, None)
    if meeting.is_elastic:
        envs |= _FRESH_STORE
    if "SKYPILOT_" in spec.run:
        envs |= meeting.of_sky(node)
    lines = [f"cd {shlex.quote(spec.workdir)}"] if spec.workdir else []
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in sorted(envs.items())]
    started = meeting.torchrun(node)
    run = _WRAPPED.sub(lambda found: f"{found['before']}{started} ", spec.run)
    return "\n".join([*lines, run.rstrip("\n")]) + "\n"


def _names(spec: JobSpec) -> dict[str, str]:
    """Under which its checkpoints are found again when the same commands are typed again."""
    if spec.holdfast.checkpoint is None:
        return {}
    return {Env.JOB.value: _word(spec.name), Env.ATTEMPT.value: "1"}


def _word(name: str) -> str:
    """A name as one word that no shell and no store reads as more."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"
