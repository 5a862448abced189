"""A checkpoint on paper: its name, the objects it consists of, and the commit that makes it exist.

    step-150-e2-9f31c2d4/rank-0.safetensors     tensors of a rank
    step-150-e2-9f31c2d4/rank-0.json            record of a rank: what its shard holds, and its state that is no tensor
    commits/000000000150-e2-9f31c2d4.json       written last; names every object above with size and digest

What no commit names does not exist. The nonce is drawn anew at each start, so that no key is ever used twice and
what a forgotten process of an older attempt still writes cannot get into a checkpoint of a newer one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Final, Self

FORMAT: Final = 1
"""Version of the layout and of the records; a reader refuses what it does not know."""

COMMITS: Final = "commits/"


class Damaged(Exception):
    """This checkpoint cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """A checkpoint's name. Names sort as numbers: by step, then by the placement that wrote them."""

    step: int
    epoch: int
    """Fencing number of the placement."""
    nonce: str

    def __str__(self) -> str:
        """Also the directory of its data."""
        return f"step-{self.step}-e{self.epoch}-{self.nonce}"

    @property
    def commit_key(self) -> str:
        """Where its commit is, if it has one."""
        return f"{COMMITS}{self.step:012d}-e{self.epoch}-{self.nonce}.json"

    def shard_key(self, rank: int) -> str:
        """Where a rank's tensors are."""
        return f"{self}/rank-{rank}.safetensors"

    def record_key(self, rank: int) -> str:
        """Where a rank's record is."""
        return f"{self}/rank-{rank}.json"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The checkpoint that an object of a store belongs to; None if it is nothing of ours."""
        match = re.match(r"(?:commits/|step-)(\d+)-e(\d+)-([0-9a-f]+)(?:\.json$|/)", key)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a checkpoint as it must be found."""

    key: str
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, key: str, data: bytes) -> Self:
        """The part that an object is."""
        return cls(key, len(data), hashlib.sha256(data).hexdigest())

    def check(self, data: bytes) -> None:
        """Compare an object with what it must be.

        Raises:
            Damaged: it is not the one that was written.
        """
        if len(data) != self.size_bytes:
            raise Damaged(f"{self.key} has {len(data)} bytes instead of {self.size_bytes}")
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise Damaged(f"{self.key} does not have the digest that was committed")


@dataclass(frozen=True, slots=True)
class RankParts:
    """What one rank wrote."""

    shard: Part
    record: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The object that makes a checkpoint exist: every part of it, and whose state it is."""

    name: Name
    snapshot_at: str
    """RFC 3339 time at which the state was taken."""
    weights_sha256: str
    ranks: tuple[RankParts, ...]
    """In the order of ranks; as many as the world had."""

    @property
    def size_bytes(self) -> int:
        """Of all parts together."""
        return sum(r.shard.size_bytes + r.record.size_bytes for r in self.ranks)

    def dump(self) -> bytes:
        """The commit as it is stored, sealed with a digest of itself."""
        body = {
            "format": FORMAT,
            "step": self.name.step,
            "epoch": self.name.epoch,
            "nonce": self.name.nonce,
            "world_size": len(self.ranks),
            "snapshot_at": self.snapshot_at,
            "weights_sha256": self.weights_sha256,
            "ranks": [asdict(parts) for parts in self.ranks],
        }
        return json.dumps({**body, "sha256": _seal(body)}, indent=1).encode()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The commit that was stored.

        Raises:
            Damaged: not a whole commit, or not one that this version can read.
        """
        try:
            body = json.loads(data)
            seal = body.pop("sha256")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise Damaged("its commit cannot be parsed") from error
        if seal != _seal(body):
            raise Damaged("its commit does not have the digest that it says")
        if body["format"] != FORMAT:
            raise Damaged(f"it has format {body['format']}, and this version reads {FORMAT}")
        return cls(
            name=Name(body["step"], body["epoch"], body["nonce"]),
            snapshot_at=body["snapshot_at"],
            weights_sha256=body["weights_sha256"],
            ranks=tuple(
                RankParts(Part(**parts["shard"]), Part(**parts["record"]))
                for parts in body["ranks"]
            ),
        )


def _seal(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
