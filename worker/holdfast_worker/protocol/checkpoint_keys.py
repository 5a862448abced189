"""Object keys in a checkpoint store. Standard library only.

    step-150-e2-9f31c2d4/rank-0/000000          a part of the shard of a rank
    step-150-e2-9f31c2d4/rank-0.json            metadata of a shard
    commits/000000000150-e2-9f31c2d4.json       commit, written last: a checkpoint exists once it is committed
    inbox/SENDER/000000000001-000000000057      reports for an unreachable service; see `report_archive`

The worker writes objects under these keys, and the service deletes them. Both import this module, so that they use
the same keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

COMMITS: Final = "commits/"

DATA: Final = "step-"
"""Prefix of each checkpoint's directory name."""

CLAIMS: Final = "claims/"
"""Prefix of the claimed epochs; see `checkpoint.fencing`."""

FLAWED: Final = "flawed/"
"""Prefix of the quarantine: checkpoints that are known to be corrupt."""

PROBES: Final = "probes/"
"""Prefix of objects that probe whether the store is writable; removed at once."""

INBOX: Final = "inbox/"
"""Prefix of reports from workers that cannot reach the service, until it imports them."""

DRAFT: Final = ".draft-"
"""Prefix of a file that is still being written, or that a killed process left.
No key begins with it."""


NONCE_DIGITS: Final = 8
"""Digits of a nonce that are random for each start; the rest counts its saves."""


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Name of a checkpoint; names sort by step, then by epoch."""

    step: int
    epoch: int
    """Fencing token of the attempt."""
    nonce: str
    """Random for each start and counted up with each save, so that each key is used once."""

    def __str__(self) -> str:
        """The name as text, which is also the directory of its data."""
        return f"{DATA}{self.step}-e{self.epoch}-{self.nonce}"

    @property
    def commit_key(self) -> str:
        """Key of its commit."""
        return f"{COMMITS}{self.step:012d}-e{self.epoch}-{self.nonce}.json"

    @property
    def data_prefix(self) -> str:
        """Prefix of all its other keys."""
        return f"{self}/"

    def is_older_save_than(self, other: CheckpointName) -> bool:
        """Whether the same start made `other` later.

        As saves are sequential, this save has then ended.
        """
        own, others = self._start_and_save, other._start_and_save
        return self.epoch == other.epoch and own[0] == others[0] and own[1] < others[1]

    @property
    def _start_and_save(self) -> tuple[str, int]:
        """The random part of the nonce, and the count of saves."""
        return self.nonce[:NONCE_DIGITS], int(self.nonce[NONCE_DIGITS:] or "0", 16)

    def part_key(self, rank: int, number: int) -> str:
        """Key of a part of a rank's shard."""
        return f"{self}/rank-{rank}/{number:06d}"

    def record_key(self, rank: int) -> str:
        """Key of the metadata of a rank's shard."""
        return f"{self}/rank-{rank}.json"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The checkpoint to which an object belongs; None for keys of a different form."""
        match = re.match(r"(?:commits/|step-)(\d+)-e(\d+)-([0-9a-f]+)(?:\.json$|/)", key)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the name of a checkpoint; None if it is not a name."""
        found = cls.of_key(f"{text}/")
        return found if str(found) == text else None


def epoch_key(epoch: int) -> str:
    """Key of the claim of an epoch."""
    return f"{CLAIMS}{epoch:012d}"


def parse_epoch_key(key: str) -> int | None:
    """The epoch that an object claims; None for keys of a different form."""
    match = re.fullmatch(rf"{CLAIMS}(\d+)", key)
    return int(match[1]) if match else None


def quarantine_key(name: CheckpointName) -> str:
    """Key of the quarantine record of a checkpoint."""
    return f"{FLAWED}{name}.json"


def parse_quarantine_key(key: str) -> CheckpointName | None:
    """The checkpoint of a quarantine record; None for keys of a different form."""
    return CheckpointName.parse(key.removeprefix(FLAWED).removesuffix(".json"))
