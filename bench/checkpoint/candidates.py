"""The compared programs.

Uses only the standard library, like the process that starts trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to write checkpoints to a bucket and to read them back."""

    name: str
    label: str
    is_peer: bool = True
    """Whether it runs in the environment with the peers' packages."""
    object_mib: int = 16
    """Size of its requests, for which the server allocates memory in advance."""
    kept: int = 1
    """Number of checkpoints in the bucket during a save, including the new one."""
    is_ceiling: bool = False
    restores: bool = True
    """Whether its restore differs from that of other candidates."""
    store: str = "s3"
    """URL scheme of its store; all are protocols of the same server."""


ALL: Final = (
    Candidate("bare", "ceiling: memcpy, raw sockets", is_peer=False, is_ceiling=True),
    Candidate("bare-2", "ceiling: memcpy on two threads", is_peer=False, is_ceiling=True),
    Candidate("ours", "Holdfast", is_peer=False, kept=2),
    Candidate("ours-gs", "Holdfast, gs://", is_peer=False, kept=2, store="gs"),
    Candidate("ours-az", "Holdfast, az://", is_peer=False, kept=2, store="az"),
    Candidate("plain", "torch.save + boto3", is_peer=False, object_mib=8),
    Candidate(
        "plain-thread",
        "torch.save + boto3 in a thread",
        is_peer=False,
        object_mib=8,
        restores=False,
    ),
    Candidate("s3fs", "DCP, s3fs", object_mib=50),
    Candidate("s3fs-cached", "DCP, s3fs, cached staging", object_mib=50, restores=False),
    Candidate("s3torch", "DCP, s3torchconnector", object_mib=8),
    Candidate("s3torch-best", "DCP, s3torchconnector, 4 threads, cached", object_mib=8),
)

BY_NAME: Final = {candidate.name: candidate for candidate in ALL}
OURS: Final = BY_NAME["ours"]
