"""Names of jobs at SkyPilot: they identify the deployment and the launch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

MAX_NAME_CHARS: Final = 25
"""SkyPilot truncates longer names when it derives a cluster name."""
DIGEST_DIGITS: Final = 6
"""Digits that identify the deployment.
With fewer, two deployments on one server may by chance treat each other's jobs as orphans. With more, a job's id and
two digits of its launch no longer fit."""


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
        """Return the name of a launch."""
        name = f"{self.prefix}{key}"
        assert len(name) <= MAX_NAME_CHARS, (
            "SkyPilot would truncate the name, and the launch could not be identified"
        )
        return name

    def key(self, name: str) -> str | None:
        """Return the launch of a job name; None for another owner's job."""
        key = name.removeprefix(self.prefix)
        return key if key != name and re.fullmatch(r"[a-z0-9]+-\d+", key) else None

    def key_of_cluster(self, cluster: str) -> str | None:
        """Return the launch of a cluster; None for another owner's cluster."""
        name, _, number = cluster.rpartition("-")
        return self.key(name) if number.isdecimal() else None


def cluster_of(name: str, engine_id: int) -> str:
    """Return the name of a managed job's cluster."""
    return f"{name}-{engine_id}"
