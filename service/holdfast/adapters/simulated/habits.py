"""What a launcher does by itself. The defaults are those of the local launcher; SkyPilot has others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """How the simulated cloud behaves beside its weather."""

    saves_on_cancel: bool = True
    """Whether a cancel gives the program time to save; where not, its nodes are gone at once."""
    tells_reclaims: bool = True
    """Whether a placement that was taken is told apart from one that failed."""
    restart_on: frozenset[int] = frozenset()
    """Exit codes after which a program is started again on the same nodes, however often it has failed."""
    on_demand_nodes: int = 0
    """Nodes of each placement that are bought on demand, where it has more than that: the others are spot."""


LIKE_SKYPILOT: Final = Habits(
    saves_on_cancel=False, tells_reclaims=False, restart_on=frozenset({1, 75})
)
