"""Rank identity of a process from variables of torchrun, Slurm or SkyPilot; host lists.

Only this module reads these variables, so that one script runs under all launchers. The innermost launcher counts, as Slurm
does not know the ranks of a torchrun that it starts. In a host list, `n[1-3,07],login` means n1, n2, n3, n07 and login.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv, int_variable
from holdfast_worker.topology import rendezvous
from holdfast_worker.topology.nodes import Topology

MAX_HOSTS: Final = 100_000
"""Hosts of one list.
A lower value rejects the largest clusters; a higher value fills memory after a typing error."""

_HOST_PATTERN: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
"""One entry of a list: text and ranges in brackets, in any order."""
_BRACKETS: Final = re.compile(r"\[([^\[\]]*)\]")


def expand_hosts(hosts: str) -> list[str]:
    """Expand a host list, in order.

    Raises:
        ValueError: the text is not a host list.
    """
    found: list[str] = []
    at = 0
    for match in _HOST_PATTERN.finditer(hosts):
        if hosts[at : match.start()] != ("," if found else ""):
            break
        found += itertools.islice(_expand_pattern(match[0], hosts), MAX_HOSTS + 1 - len(found))
        at = match.end()
    if at != len(hosts) or not found:
        raise ValueError(f"{hosts!r} is not a list of hosts such as n[1-3,7],login")
    if len(found) > MAX_HOSTS:
        raise ValueError(f"{hosts!r} has more than {MAX_HOSTS} hosts")
    return found


def _expand_pattern(pattern: str, hosts: str) -> Iterator[str]:
    """The hosts of one entry; its last range varies fastest."""
    texts = _BRACKETS.split(pattern)
    # Text and the contents of brackets alternate.
    choices = [
        list(_expand_range(text, hosts)) if index % 2 else [text]
        for index, text in enumerate(texts)
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _expand_range(text: str, hosts: str) -> Iterator[str]:
    """The numbers of `1-3,07`, with their leading zeros."""
    for part in text.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (bounds[1], bounds[2] or bounds[1]) if bounds else ("1", "0")
        if int(last) < int(first) or int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"{hosts!r} is not a list of hosts: [{text}] is not a range such as [1-3,7]")  # fmt: skip
        yield from (str(host).zfill(len(first)) for host in range(int(first), int(last) + 1))


FIRST_PORT: Final = 20_000
"""First rendezvous port of Slurm jobs.
A lower value uses ports of services; a higher value uses the kernel's ephemeral ports."""
PORTS: Final = 10_000
"""Number of rendezvous ports.
A lower value makes collisions of two jobs on one node likelier; a higher value uses ephemeral ports."""


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
        elif _is_task_of_slurm(env):
            identity = _from_slurm(env)
        elif int_variable(env, SkyEnv.NUM_NODES, 1) > 1:
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
    place = None if is_alone else rendezvous.init_method(env)
    return RankIdentity(
        *ranks, RankSource.TORCHRUN, place, has_agent=bool(env.get("TORCHELASTIC_RUN_ID"))
    )


def _is_task_of_slurm(env: Mapping[str, str]) -> bool:
    """Whether srun started this process; a batch script has the same variables except the step."""
    is_batch_script = env.get("ENVIRONMENT") == "BATCH" and not env.get("SLURM_STEP_ID")
    return bool(env.get("SLURM_PROCID")) and not is_batch_script


def _from_slurm(env: Mapping[str, str]) -> RankIdentity:
    ranks = _parse_ranks(
        env, "SLURM_PROCID", "SLURM_LOCALID", _step_or_job_variable(env, "NUM_TASKS", "NTASKS")
    )
    if env.get(SkyEnv.NUM_NODES):
        for sky, name in (
            (SkyEnv.NUM_NODES, _step_or_job_variable(env, "NUM_NODES", "NNODES")),
            (SkyEnv.NODE_RANK, "SLURM_NODEID"),
        ):
            if env.get(name) and env.get(sky) and env[name] != env[sky]:
                raise ValueError(
                    f"{sky} is {env[sky]}, but {name} is {env[name]}: unset the variables of the one that did not start "
                    "this process"
                )
    place = None if ranks[2] == 1 else rendezvous.init_method(env, partial(_slurm_init_method, env))
    return RankIdentity(*ranks, RankSource.SLURM, place)


def _slurm_init_method(env: Mapping[str, str]) -> str:
    """The rendezvous of a Slurm job, computed in the same way on all nodes."""
    name = _step_or_job_variable(env, "NODELIST", "JOB_NODELIST")
    if not env.get(name):
        raise ValueError(f"SLURM_PROCID is set, but {name} is not: start the script with srun")
    try:
        host = expand_hosts(env[name])[0]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    job = int_variable(env, "SLURM_JOB_ID", 0) or int_variable(env, "SLURM_JOBID", 0)
    port = int_variable(env, Env.MASTER_PORT, 0) or FIRST_PORT + job % PORTS
    return rendezvous.tcp_init_method(host, port)


def _step_or_job_variable(env: Mapping[str, str], of_step: str, of_job: str) -> str:
    """Name of the variable of the step if it is set, otherwise that of the job."""
    return f"SLURM_STEP_{of_step}" if env.get(f"SLURM_STEP_{of_step}") else f"SLURM_{of_job}"


def _from_skypilot(env: Mapping[str, str]) -> RankIdentity:
    at = Topology.read(env)
    place = partial(rendezvous.tcp_init_method, at.master_address, at.master_port)
    return RankIdentity(
        at.node_rank, 0, at.nodes, RankSource.SKYPILOT, rendezvous.init_method(env, place)
    )


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
