"""Rank identity of a process from variables of torchrun, Slurm or SkyPilot.

One script runs under all launchers, because only this package reads these variables. The innermost launcher counts, as Slurm
does not know the ranks of a torchrun that it starts. `rendezvous` chooses where the ranks meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv, int_variable
from holdfast_worker.topology import rendezvous, slurm
from holdfast_worker.topology.nodes import NodeGroup, Topology


class RankSource(StrEnum):
    """The launcher whose variables identify a rank."""

    TORCHRUN = "torchrun"
    """torchrun, or a launcher that sets the same variables."""
    SLURM = "Slurm"
    """`srun python train.py`: one task per rank."""
    SKYPILOT = "SkyPilot"
    """SkyPilot, or a launcher that sets the same variables; one process per node."""
    NONE = "nobody"


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Identity of a rank in a run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    source: RankSource = RankSource.NONE
    init_method: str | None = None
    """The `init_method` of torch.distributed; None: a single process without a process group."""
    backend: str | None = None
    """Backend of torch.distributed; None: chosen by device."""
    has_agent: bool = False
    """Whether its parent is a torchrun agent, with which it has to end."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RankIdentity:
        """Read the identity from the environment; rank 0 of 1 without variables.

        Raises:
            ValueError: the variables are inconsistent.
        """
        if env.get("RANK") or env.get("WORLD_SIZE"):
            identity = _from_torchrun(env)
        elif slurm.is_task(env):
            identity = _from_slurm(env)
        elif int_variable(env, SkyEnv.NUM_NODES, 1) > 1 or NodeGroup.read(env):
            identity = _from_skypilot(env)
        else:
            identity = SINGLE_PROCESS
        return replace(identity, backend=rendezvous.backend(env))


SINGLE_PROCESS: Final = RankIdentity()
"""Identity of a process without a launcher."""


def _from_torchrun(env: Mapping[str, str]) -> RankIdentity:
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if not env.get(name):
            raise ValueError(
                f"{other} is set, but {name} is not: start the script with torchrun, or unset {other} to run it alone"
            )
    ranks = _parse_ranks(env, "RANK", "LOCAL_RANK", "WORLD_SIZE")
    is_alone = ranks[2] == 1 and not (env.get("MASTER_ADDR") or env.get(Env.INIT_METHOD))
    place = None if is_alone else rendezvous.torchrun_init_method(env)
    return RankIdentity(
        *ranks, RankSource.TORCHRUN, place, has_agent=bool(env.get("TORCHELASTIC_RUN_ID"))
    )


def _from_slurm(env: Mapping[str, str]) -> RankIdentity:
    ranks = _parse_ranks(
        env, "SLURM_PROCID", "SLURM_LOCALID", slurm.step_or_job_variable(env, "NUM_TASKS", "NTASKS")
    )
    if env.get(SkyEnv.NUM_NODES):
        for sky, name in (
            (SkyEnv.NUM_NODES, slurm.step_or_job_variable(env, "NUM_NODES", "NNODES")),
            (SkyEnv.NODE_RANK, "SLURM_NODEID"),
        ):
            if env.get(name) and env.get(sky) and env[name] != env[sky]:
                raise ValueError(
                    f"{sky} is {env[sky]}, but {name} is {env[name]}: unset the variables of the one that did not start "
                    "this process"
                )
    place = None if ranks[2] == 1 else rendezvous.slurm_init_method(env)
    return RankIdentity(*ranks, RankSource.SLURM, place)


def _from_skypilot(env: Mapping[str, str]) -> RankIdentity:
    at = Topology.read(env)
    if at.group:
        raise ValueError(
            f"{Env.GROUP} is set, so that the nodes meet through the service: start the script with holdfast-worker run"
        )
    place = rendezvous.nodes_init_method(env, at.master_address, at.master_port)
    return RankIdentity(at.node_rank, 0, at.nodes, RankSource.SKYPILOT, place)


def _parse_ranks(env: Mapping[str, str], rank: str, local: str, world: str) -> tuple[int, int, int]:
    """Rank, local rank and world size from these variables, validated."""
    if not env.get(world):
        raise ValueError(f"{rank} is set, but {world} is not: the number of ranks is unknown")
    numbers = int_variable(env, rank, 0), int_variable(env, local, 0), int_variable(env, world, 1)
    if numbers[0] >= numbers[2]:
        raise ValueError(f"{rank} is {numbers[0]}, but {world} is {numbers[2]}: ranks are counted from 0")  # fmt: skip
    if numbers[1] > numbers[0]:
        raise ValueError(
            f"{local} is {numbers[1]}, but {rank} is {numbers[0]}: a local rank is at most the global rank"
        )
    return numbers
