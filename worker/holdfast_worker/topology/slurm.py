"""What Slurm's variables say: whether srun started a process, and the hosts of a list.

In a host list, `n[1-3,07],login` means n1, n2, n3, n07 and login.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Final

MAX_HOSTS: Final = 100_000
"""Hosts of one list.
A lower value rejects the largest clusters; a higher value fills memory after a typing error."""

_HOST_PATTERN: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
"""One entry of a list: text and ranges in brackets, in any order."""
_BRACKETS: Final = re.compile(r"\[([^\[\]]*)\]")


def host_name(env: Mapping[str, str]) -> str:
    """The name of this machine by which its launcher knows it."""
    return env.get("SLURMD_NODENAME") or socket.gethostname()


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


def is_task(env: Mapping[str, str]) -> bool:
    """Whether srun started this process; a batch script has the same variables except the step."""
    is_batch_script = env.get("ENVIRONMENT") == "BATCH" and not env.get("SLURM_STEP_ID")
    return bool(env.get("SLURM_PROCID")) and not is_batch_script


def step_or_job_variable(env: Mapping[str, str], of_step: str, of_job: str) -> str:
    """Name of the variable of the step if it is set, otherwise that of the job."""
    return f"SLURM_STEP_{of_step}" if env.get(f"SLURM_STEP_{of_step}") else f"SLURM_{of_job}"
