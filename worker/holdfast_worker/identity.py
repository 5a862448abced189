"""Who a process is among the ranks of a run, whoever started it: torchrun, Slurm, SkyPilot, or a person.

Each of them says it in variables of its own. They are read here and nowhere else, so that one script runs under all of them. The
innermost counts: torchrun under Slurm makes ranks of which Slurm knows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from holdfast_worker import rendezvous
from holdfast_worker.hostlist import expand
from holdfast_worker.topology import Topology
from holdfast_worker.variables import number
from holdfast_worker.wire import Env, SkyEnv

FIRST_PORT: Final = 20_000
"""Where the ranks of Slurm's jobs may meet. Lower takes the ports of services, higher those that the kernel gives away."""
PORTS: Final = 10_000
"""So many from there on. Fewer have two jobs on one node meet at the same more often, more are some of the kernel's."""


class Teller(StrEnum):
    """Who said which rank a process is."""

    TORCHRUN = "torchrun"
    """Or who sets the same variables."""
    SLURM = "Slurm"
    """`srun python train.py`: one task for each rank."""
    SKYPILOT = "SkyPilot"
    """Or another launcher; all set the same variables. One process for each node."""
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process among the ranks of a run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    teller: Teller = Teller.NOBODY
    meeting: str | None = None
    """Where it finds the others, as the `init_method` of torch; None: it is alone, without a process group."""
    backend: str | None = None
    """What they talk by; None: what suits the device."""
    has_agent: bool = False
    """Whether its parent is an agent of torchrun, without which it has no business."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Identity:
        """Who has this environment; rank 0 of 1 where nothing is said.

        Raises:
            ValueError: what is said cannot be true.
        """
        if env.get("RANK") or env.get("WORLD_SIZE"):
            told = _of_torchrun(env)
        elif _is_task_of_slurm(env):
            told = _of_slurm(env)
        elif number(env, SkyEnv.NUM_NODES, 1) > 1:
            told = _of_skypilot(env)
        else:
            told = ALONE
        return replace(told, backend=rendezvous.backend(env))


ALONE: Final = Identity()
"""Whom nobody told anything."""


def _of_torchrun(env: Mapping[str, str]) -> Identity:
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if not env.get(name):
            raise ValueError(
                f"{other} is set, but {name} is not: start the script with torchrun, or unset {other} to run it alone"
            )
    ranks = _numbers(env, "RANK", "LOCAL_RANK", "WORLD_SIZE")
    is_alone = ranks[2] == 1 and not (env.get("MASTER_ADDR") or env.get(Env.INIT_METHOD))
    place = None if is_alone else rendezvous.meeting(env)
    return Identity(*ranks, Teller.TORCHRUN, place, has_agent=bool(env.get("TORCHELASTIC_RUN_ID")))


def _is_task_of_slurm(env: Mapping[str, str]) -> bool:
    """Whether srun started this process. A batch script looks the same but for the step, and is none of the tasks."""
    is_batch_script = env.get("ENVIRONMENT") == "BATCH" and not env.get("SLURM_STEP_ID")
    return bool(env.get("SLURM_PROCID")) and not is_batch_script


def _of_slurm(env: Mapping[str, str]) -> Identity:
    ranks = _numbers(env, "SLURM_PROCID", "SLURM_LOCALID", _of_step(env, "NUM_TASKS", "NTASKS"))
    if env.get(SkyEnv.NUM_NODES):
        for sky, name in (
            (SkyEnv.NUM_NODES, _of_step(env, "NUM_NODES", "NNODES")),
            (SkyEnv.NODE_RANK, "SLURM_NODEID"),
        ):
            if env.get(name) and env.get(sky) and env[name] != env[sky]:
                raise ValueError(
                    f"{sky} is {env[sky]}, but {name} is {env[name]}: unset the variables of the one that did not start "
                    "this process"
                )
    place = None if ranks[2] == 1 else rendezvous.meeting(env, partial(_place_of_job, env))
    return Identity(*ranks, Teller.SLURM, place)


def _place_of_job(env: Mapping[str, str]) -> str:
    """Where the tasks of a job meet: the same on all nodes, without a word between them."""
    name = _of_step(env, "NODELIST", "JOB_NODELIST")
    if not env.get(name):
        raise ValueError(f"SLURM_PROCID is set, but {name} is not: start the script with srun")
    try:
        host = expand(env[name])[0]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    job = number(env, "SLURM_JOB_ID", 0) or number(env, "SLURM_JOBID", 0)
    port = number(env, Env.MASTER_PORT, 0) or FIRST_PORT + job % PORTS
    return rendezvous.by_address(host, port)


def _of_step(env: Mapping[str, str], of_step: str, of_job: str) -> str:
    """Name of the variable that tells it of the step, or for want of that, of the job."""
    return f"SLURM_STEP_{of_step}" if env.get(f"SLURM_STEP_{of_step}") else f"SLURM_{of_job}"


def _of_skypilot(env: Mapping[str, str]) -> Identity:
    at = Topology.read(env)
    place = partial(rendezvous.by_address, at.master_address, at.master_port)
    return Identity(at.node_rank, 0, at.nodes, Teller.SKYPILOT, rendezvous.meeting(env, place))


def _numbers(env: Mapping[str, str], rank: str, local: str, world: str) -> tuple[int, int, int]:
    """What variables of these names say, if it can be true."""
    if not env.get(world):
        raise ValueError(
            f"{rank} is set, but {world} is not: nobody knows how many ranks there are"
        )
    numbers = number(env, rank, 0), number(env, local, 0), number(env, world, 1)
    if numbers[0] >= numbers[2]:
        raise ValueError(f"{rank} is {numbers[0]}, but {world} is {numbers[2]}: ranks are counted from 0")  # fmt: skip
    if numbers[1] > numbers[0]:
        raise ValueError(
            f"{local} is {numbers[1]}, but {rank} is {numbers[0]}: no rank has a greater number on its node than among all"
        )
    return numbers
