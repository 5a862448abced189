"""`--debug`: a run that is small, and that says what goes on between its ranks. Once it works, make it larger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast_worker.topology import Topology
from holdfast_worker.wire import Env

RANKS: Final = 2
"""The fewest that have something to say to each other."""

VARIABLES: Final[Mapping[str, str]] = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "NCCL_DEBUG": "INFO",
    Env.SYNC_SAVES.value: "1",
}
"""What the ranks find in their environment: torch checks that all ranks call the same collectives, NCCL says by which way it goes,
and training waits for its checkpoints, so that an error comes where its cause is."""


def check(topology: Topology) -> None:
    """Nothing, for a single node.

    Raises:
        ValueError: there are several.
    """
    if topology.nodes > 1:
        raise ValueError(
            f"--debug is for one node, and this run has {topology.nodes}: start it on one, or leave --debug out"
        )
