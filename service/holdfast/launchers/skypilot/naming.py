"""Names of jobs at SkyPilot: they identify the deployment, and the launch or its node group."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Final

MAX_NAME_CHARS: Final = 25
"""SkyPilot truncates longer names when it derives a cluster name."""
DIGEST_DIGITS: Final = 6
"""Digits that identify the deployment.
With fewer, two deployments on one server may by chance treat each other's jobs as orphans. With more, a job's id and
two digits of its launch no longer fit."""


_LAUNCH: Final = re.compile(r"[a-z0-9]+-\d+")
_GROUP: Final = re.compile(r"(?P<job>[a-z0-9]{13})[a-z](?P<launch>\d+)")
"""A node group of a launch, `<job><letter><launch>`: a longer form would not fit into a name. Ids of jobs have 13
characters, so that the letter is not taken for one of the id."""


def group_key(key: str, number: int) -> str:
    """Return the launch key of a node group of a launch, by its index from 0."""
    job, _, launch = key.rpartition("-")
    return f"{job}{ascii_lowercase[number]}{launch}"


def launch_key(key: str) -> str:
    """Return the launch of a launch key, which may be that of a node group."""
    found = _GROUP.fullmatch(key)
    return f"{found['job']}-{found['launch']}" if found else key


def job_of(key: str) -> str:
    """Return the job of a launch key, which may be that of a node group."""
    return launch_key(key).rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class JobNames:
    """The names of one deployment of Holdfast."""

    deployment: str
    """Any text unique to one service, such as a digest of its secret."""
    prefix: str = field(init=False)
    user: str = field(init=False)
    """SkyPilot's user hash for this service if its server has no authentication."""

    def __post_init__(self) -> None:
        digest = hashlib.sha256(f"skypilot/{self.deployment}".encode()).hexdigest()
        object.__setattr__(self, "prefix", f"hf{digest[:DIGEST_DIGITS]}-")
        object.__setattr__(self, "user", f"hf{digest[:8]}")

    def job_name(self, key: str) -> str:
        """Return the name of a launch or of a node group."""
        name = f"{self.prefix}{key}"
        assert len(name) <= MAX_NAME_CHARS, (
            "SkyPilot would truncate the name, and the launch could not be identified"
        )
        return name

    def key(self, name: str) -> str | None:
        """Return the launch, or the node group of one, of a job name; None for another owner's job."""
        key = name.removeprefix(self.prefix)
        is_key = _LAUNCH.fullmatch(key) or _GROUP.fullmatch(key)
        return key if key != name and is_key else None

    def key_of_cluster(self, cluster: str) -> str | None:
        """Return the launch of a cluster; None for another owner's cluster."""
        name, _, number = cluster.rpartition("-")
        return self.key(name) if number.isdecimal() else None


def cluster_of(name: str, engine_id: int) -> str:
    """Return the name of a managed job's cluster."""
    return f"{name}-{engine_id}"
