"""The names in a checkpoint store: which object belongs to which checkpoint. Standard library only.

    step-150-e2-9f31c2d4/rank-0/000000          a part of the bytes of a rank
    step-150-e2-9f31c2d4/rank-0.json            record of a rank
    commits/000000000150-e2-9f31c2d4.json       written last: what no commit names does not exist
    inbox/SENDER/000000000001-000000000057      reports for a service that does not answer; see `parcel`

The worker writes under these names, and the service removes by them; both import this module, so that they cannot
drift apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

COMMITS: Final = "commits/"

DATA: Final = "step-"
"""Begins the name of each checkpoint's directory."""

CLAIMS: Final = "claims/"
"""Which epochs were claimed; see `claims`."""

FLAWED: Final = "flawed/"
"""Which checkpoints proved damaged; see `flaws`."""

PROBES: Final = "probes/"
"""What is written to see whether the store takes anything, and removed at once."""

INBOX: Final = "inbox/"
"""Reports of workers that do not reach the service, until it takes them."""

DRAFT: Final = ".draft-"
"""Begins the name of a file that is still being written, or that a killed process left; no key of ours does."""


DRAWN_DIGITS: Final = 8
"""Of a nonce, what a start draws; the rest counts its saves."""


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """A checkpoint's name. Names sort as numbers: by step, then by the placement that wrote them."""

    step: int
    epoch: int
    """Fencing number of the placement."""
    nonce: str
    """Drawn anew at each start and counted up with each save, so that no key is ever used twice."""

    def __str__(self) -> str:
        """Also the directory of its data."""
        return f"{DATA}{self.step}-e{self.epoch}-{self.nonce}"

    @property
    def commit_key(self) -> str:
        """Where its commit is, if it has one."""
        return f"{COMMITS}{self.step:012d}-e{self.epoch}-{self.nonce}.json"

    @property
    def data_prefix(self) -> str:
        """With what all its other keys begin."""
        return f"{self}/"

    def is_behind(self, other: CheckpointName) -> bool:
        """Whether the same start of a placement made the other one later. It makes one save at a time: this one is over."""
        own, others = self._place, other._place
        return self.epoch == other.epoch and own[0] == others[0] and own[1] < others[1]

    @property
    def _place(self) -> tuple[str, int]:
        """What the start drew, and its count of saves."""
        return self.nonce[:DRAWN_DIGITS], int(self.nonce[DRAWN_DIGITS:] or "0", 16)

    def part_key(self, rank: int, number: int) -> str:
        """Where a part of a rank's bytes is."""
        return f"{self}/rank-{rank}/{number:06d}"

    def record_key(self, rank: int) -> str:
        """Where a rank's record is."""
        return f"{self}/rank-{rank}.json"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The checkpoint that an object of a store belongs to; None if it is nothing of ours."""
        match = re.match(r"(?:commits/|step-)(\d+)-e(\d+)-([0-9a-f]+)(?:\.json$|/)", key)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that reads so; None if it is none of ours."""
        found = cls.of_key(f"{text}/")
        return found if str(found) == text else None


def epoch_key(epoch: int) -> str:
    """Where it is written who claimed an epoch."""
    return f"{CLAIMS}{epoch:012d}"


def claimed_by(key: str) -> int | None:
    """The epoch that such an object claims; None if it is nothing of ours."""
    match = re.fullmatch(rf"{CLAIMS}(\d+)", key)
    return int(match[1]) if match else None


def quarantine_key(name: CheckpointName) -> str:
    """Where it is written what is wrong with a checkpoint."""
    return f"{FLAWED}{name}.json"


def flawed_by(key: str) -> CheckpointName | None:
    """The checkpoint that such an object speaks of; None if it is nothing of ours."""
    return CheckpointName.parse(key.removeprefix(FLAWED).removesuffix(".json"))
