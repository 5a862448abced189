"""Who takes part. Standard library only: the process that calls the turns needs no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to write checkpoints into a bucket and to read them back."""

    name: str
    label: str
    is_peer: bool = True
    """Whether it runs in the environment of the peers."""
    object_mib: int = 16
    """Of the bodies that it sends, for which the server makes memory beforehand."""
    kept: int = 1
    """How many checkpoints lie in the bucket while another is written, that one included."""
    is_ceiling: bool = False
    restores: bool = True
    """Whether it reads in a way of its own."""


ALL: Final = (
    Candidate("bare", "ceiling: memcpy, raw sockets", is_peer=False, is_ceiling=True),
    Candidate("bare-2", "ceiling: memcpy on two threads", is_peer=False, is_ceiling=True),
    Candidate("ours", "Holdfast", is_peer=False, kept=2),
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

BY_NAME: Final = {contestant.name: contestant for contestant in ALL}
OURS: Final = BY_NAME["ours"]
