"""Lists of hosts as Slurm writes them: `n[1-3,07],login` stands for n1, n2, n3, n07 and login.

Who a process is among the ranks of a run, whoever started it: torchrun, Slurm, SkyPilot, or a person.

Each of them says it in variables of its own. They are read here and nowhere else, so that one script runs under all of them. The
innermost counts: torchrun under Slurm makes ranks of which Slurm knows nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv, number
from holdfast_worker.topology import rendezvous
from holdfast_worker.topology.nodes import Topology

MOST_HOSTS: Final = 100_000
"""Of one list. Larger takes a slip of the pen for a cluster and fills memory with it, smaller refuses the largest there are."""

_WORD: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
"""One of a list: text and ranges in brackets, in any order."""
_PART: Final = re.compile(r"\[([^\[\]]*)\]")


def expand(hosts: str) -> list[str]:
    """Every host of the list, in its order.

    Raises:
        ValueError: it is none.
    """
    found: list[str] = []
    at = 0
    for word in _WORD.finditer(hosts):
        if hosts[at : word.start()] != ("," if found else ""):
            break
        found += itertools.islice(_each(word[0], hosts), MOST_HOSTS + 1 - len(found))
        at = word.end()
    if at != len(hosts) or not found:
        raise ValueError(f"{hosts!r} is not a list of hosts such as n[1-3,7],login")
    if len(found) > MOST_HOSTS:
        raise ValueError(f"{hosts!r} has more than {MOST_HOSTS} hosts")
    return found


def _each(word: str, hosts: str) -> Iterator[str]:
    """The hosts of one word, the last of its ranges turning fastest."""
    texts = _PART.split(word)
    # Text and what stood between brackets take turns.
    choices = [
        list(_of_range(text, hosts)) if place % 2 else [text] for place, text in enumerate(texts)
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _of_range(text: str, hosts: str) -> Iterator[str]:
    """The numbers of `1-3,07`, as wide as they are written."""
    for part in text.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (bounds[1], bounds[2] or bounds[1]) if bounds else ("1", "0")
        if int(last) < int(first) or int(last) - int(first) >= MOST_HOSTS:
            raise ValueError(f"{hosts!r} is not a list of hosts: [{text}] is no range such as [1-3,7]")  # fmt: skip
        yield from (str(host).zfill(len(first)) for host in range(int(first), int(last) + 1))


FIRST_PORT: Final = 20_000
"""Where the ranks of Slurm's jobs may meet. Lower takes the ports of services, higher those that the kernel gives away."""
PORTS: Final = 10_000
"""So many from there on. Fewer have two jobs on one node meet at the same more often, more are some of the kernel's."""


class RankSource(StrEnum):
    """Who said which rank a process is."""

    TORCHRUN = "torchrun"
    """Or who sets the same variables."""
    SLURM = "Slurm"
    """`srun python train.py`: one task for each rank."""
    SKYPILOT = "SkyPilot"
    """Or another launcher; all set the same variables. One process for each node."""
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """A process among the ranks of a run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    teller: RankSource = RankSource.NOBODY
    meeting: str | None = None
    """Where it finds the others, as the `init_method` of torch; None: it is alone, without a process group."""
    backend: str | None = None
    """What they talk by; None: what suits the device."""
    has_agent: bool = False
    """Whether its parent is an agent of torchrun, without which it has no business."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RankIdentity:
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


ALONE: Final = RankIdentity()
"""Whom nobody told anything."""


def _of_torchrun(env: Mapping[str, str]) -> RankIdentity:
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if not env.get(name):
            raise ValueError(
                f"{other} is set, but {name} is not: start the script with torchrun, or unset {other} to run it alone"
            )
    ranks = _numbers(env, "RANK", "LOCAL_RANK", "WORLD_SIZE")
    is_alone = ranks[2] == 1 and not (env.get("MASTER_ADDR") or env.get(Env.INIT_METHOD))
    place = None if is_alone else rendezvous.init_method(env)
    return RankIdentity(
        *ranks, RankSource.TORCHRUN, place, has_agent=bool(env.get("TORCHELASTIC_RUN_ID"))
    )


def _is_task_of_slurm(env: Mapping[str, str]) -> bool:
    """Whether srun started this process. A batch script looks the same but for the step, and is none of the tasks."""
    is_batch_script = env.get("ENVIRONMENT") == "BATCH" and not env.get("SLURM_STEP_ID")
    return bool(env.get("SLURM_PROCID")) and not is_batch_script


def _of_slurm(env: Mapping[str, str]) -> RankIdentity:
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
    place = None if ranks[2] == 1 else rendezvous.init_method(env, partial(_place_of_job, env))
    return RankIdentity(*ranks, RankSource.SLURM, place)


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


def _of_skypilot(env: Mapping[str, str]) -> RankIdentity:
    at = Topology.read(env)
    place = partial(rendezvous.by_address, at.master_address, at.master_port)
    return RankIdentity(
        at.node_rank, 0, at.nodes, RankSource.SKYPILOT, rendezvous.init_method(env, place)
    )


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
