"""Names under which SkyPilot knows what this service launched: they tell whose a job is, and which launch it is of."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

LONGEST: Final = 25
"""SkyPilot cuts longer names before it makes a cluster's name of them."""
DIGITS: Final = 6
"""Of a deployment in a name. Fewer: two deployments at one server take each other's jobs for strays, by chance. More: no
room is left for a job's id and two digits of its launch."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one deployment of Holdfast."""

    deployment: str
    """Anything that belongs to one service alone, such as a digest of its secret."""
    prefix: str = field(init=False)
    user: str = field(init=False)
    """SkyPilot's user hash of this service, where its server has no authentication."""

    def __post_init__(self) -> None:
        digest = hashlib.sha256(f"skypilot/{self.deployment}".encode()).hexdigest()
        object.__setattr__(self, "prefix", f"hf{digest[:DIGITS]}-")
        object.__setattr__(self, "user", f"hf{digest[:8]}")

    def of(self, key: str) -> str:
        """The name of a launch."""
        name = f"{self.prefix}{key}"
        assert len(name) <= LONGEST, "SkyPilot would cut it, and the launch could not be told"
        return name

    def key(self, name: str) -> str | None:
        """The launch of that name; None for a job of somebody else."""
        key = name.removeprefix(self.prefix)
        return key if key != name and re.fullmatch(r"[a-z0-9]+-\d+", key) else None

    def key_of_cluster(self, cluster: str) -> str | None:
        """The launch that a cluster belongs to; None for a cluster of somebody else."""
        name, _, number = cluster.rpartition("-")
        return self.key(name) if number.isdecimal() else None


def cluster_of(name: str, engine_id: int) -> str:
    """The cluster on which SkyPilot runs a managed job."""
    return f"{name}-{engine_id}"
