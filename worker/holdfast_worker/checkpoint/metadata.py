"""A checkpoint on paper: the objects it consists of, and the commit that makes it exist.

    step-150-e2-9f31c2d4/rank-0/000000          a part of the bytes of a rank
    step-150-e2-9f31c2d4/rank-0.json            record of a rank: what its bytes are, and its state that is no tensor
    commits/000000000150-e2-9f31c2d4.json       written last; the index of all tensors, and what every object must be

What no commit names does not exist. The nonce is drawn anew at each start, so that no key is ever used twice and
what a forgotten process of an older attempt still writes cannot get into a checkpoint of a newer one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final, Self, TypeVar

from holdfast_worker.distributed.tensor_layout import (
    DTYPES,
    Block,
    ElementRange,
    Piece,
    Region,
    TensorSpec,
)
from holdfast_worker.distributed.weight_samples import Values
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import FORMAT, MetricValue, seal, unread_format
from holdfast_worker.protocol.reports import Json
from holdfast_worker.storage.base import StoreError

T = TypeVar("T")

PART_BYTES: Final = 16 << 20
"""Of the objects into which a rank's bytes are cut. Larger ones are dear to send again and leave connections idle at the
end; smaller ones are requests for nothing."""


MALFORMED: Final = (
    *(ValueError, AttributeError, KeyError, TypeError, IndexError),
    *(OverflowError, RecursionError),
)
"""What JSON of another form than ours leads to."""


class CorruptCheckpoint(Exception):
    """This checkpoint cannot be used; the message says why."""


class Withheld(CorruptCheckpoint):
    """The store does not give an object of this checkpoint, which may be sound. An older one may take its place, no beginning."""


class PartialLoadError(CorruptCheckpoint):
    """The same, and a part of it lies where the state was that it was read into."""


class Foreign(StoreError):
    """This checkpoint may be sound, but has a format that this version cannot read, or was saved by another job.

    Unlike a damaged one it is not passed over: the start is refused, and nothing is removed or replaced.
    """


@dataclass(frozen=True, slots=True)
class Stored:
    """A piece, and what its bytes must be."""

    piece: Piece
    crc: int
    """CRC64-NVME."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """A rank's bytes: what they are, and the parts into which they are cut."""

    part_bytes: int
    """Size of each part but the last."""
    parts: tuple[int, ...]
    """CRC64-NVME of each."""
    pieces: tuple[Stored, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return self.pieces[-1].piece.end if self.pieces else 0

    def bounds(self, number: int) -> tuple[int, int]:
        """First byte of a part, and the one behind its last."""
        return number * self.part_bytes, min((number + 1) * self.part_bytes, self.size)


@dataclass(frozen=True, slots=True)
class Digest:
    """An object that is small enough to be known by a cryptographic digest."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        """What an object is."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMetadata:
    """What a rank says about its part of a checkpoint."""

    rank: int
    stream: ShardLayout
    kinds: Mapping[str, TensorSpec]
    """Of the tensors of which it has pieces."""
    own: Json
    """Encoded tree of what belongs to this rank alone: random generators and the position in the data."""
    tracked: Json
    """Encoded tree of what is tracked, by the name under which it is tracked; on all ranks but the first, only of objects of which
    each rank has its own."""
    each: tuple[str, ...] = ()
    """Names of those objects."""
    agreed: str = ""
    """Digest of what this rank has of everything that all ranks share; empty where there is one rank."""
    samples: Mapping[str, Values] = field(default_factory=dict)
    """A few values of some of the tensors of which each rank writes a part."""

    def dump(self) -> bytes:
        """The record as it is stored."""
        body = {"format": FORMAT, "rank": self.rank, **_dump_stream(self.stream)}
        kinds = _dump_kinds(self.kinds)
        return json.dumps(
            {
                **body,
                "kinds": kinds,
                "own": self.own,
                "tracked": self.tracked,
                "each": self.each,
                "agreed": self.agreed,
                "samples": self.samples,
            }
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> ShardMetadata:
        """The record that was stored.

        Raises:
            Damaged: not a record.
        """

        def read(raw: Any) -> ShardMetadata:
            return cls(
                rank=raw["rank"],
                stream=_parse_stream(raw),
                kinds=_parse_kinds(raw["kinds"]),
                own=raw["own"],
                tracked=raw["tracked"],
                each=tuple(raw.get("each", ())),
                agreed=raw.get("agreed", ""),
                samples={name: tuple(some) for name, some in raw.get("samples", {}).items()},
            )

        return _parsed("a record", data, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The object that makes a checkpoint exist: every part of it, and whose state it is."""

    name: CheckpointName
    job: str = ""
    """The job that saved it; empty for a bare run, and in old commits."""
    snapshot_at: str
    """RFC 3339 time at which the state was taken."""
    weights_sha256: str
    kinds: Mapping[str, TensorSpec]
    """Of all tensors, by name."""
    tracked: Json
    """Encoded tree of what is tracked."""
    streams: tuple[ShardLayout, ...]
    """In the order of ranks; as many as the world had."""
    records: tuple[Digest, ...]
    """The same, of their records."""
    each: tuple[str, ...] = ()
    """Names of tracked objects of which each rank has its own, in its record and under names of its own."""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    """What the script had logged, so that a store tells by itself which checkpoint is the best."""

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return len(self.streams)

    @property
    def size_bytes(self) -> int:
        """Of all objects but the commit itself."""
        return sum(s.size for s in self.streams) + sum(r.size for r in self.records)

    def dump(self) -> bytes:
        """The commit as it is stored, sealed with a digest of itself."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "step": self.name.step,
            "epoch": self.name.epoch,
            "nonce": self.name.nonce,
            "job": self.job,
            "world_size": self.world_size,
            "snapshot_at": self.snapshot_at,
            "weights_sha256": self.weights_sha256,
            "kinds": _dump_kinds(self.kinds),
            "tracked": self.tracked,
            "each": self.each,
            "size_bytes": self.size_bytes,
            "metrics": {name: logged.dump() for name, logged in self.metrics.items()},
            "ranks": [
                {**_dump_stream(stream), "record": [record.size, record.sha256]}
                for stream, record in zip(self.streams, self.records, strict=True)
            ],
        }
        return json.dumps({**body, "sha256": seal(body)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> CommitMetadata:
        """The commit that was stored.

        Raises:
            Damaged: not a whole commit.
            Foreign: of a format that this version cannot read.
        """

        def read(body: Any) -> CommitMetadata:
            # Before the digest, which another format may compute in another way.
            if unread := unread_format(body):
                raise Foreign(unread)
            if body.pop("sha256") != seal(body):
                raise CorruptCheckpoint("its commit does not have the digest that it says")
            if not isinstance(body["format"], int):
                raise TypeError(body["format"])
            return cls(
                name=CheckpointName(body["step"], body["epoch"], body["nonce"]),
                job=body.get("job", ""),
                snapshot_at=body["snapshot_at"],
                weights_sha256=body["weights_sha256"],
                kinds=_parse_kinds(body["kinds"]),
                tracked=body["tracked"],
                streams=tuple(map(_parse_stream, body["ranks"])),
                records=tuple(Digest(*raw["record"]) for raw in body["ranks"]),
                # Commits of before they had any of these are as good.
                each=tuple(body.get("each", ())),
                metrics={n: MetricValue.parse(raw) for n, raw in body.get("metrics", {}).items()},
            )

        return _parsed("its commit", data, read)


def _parsed(what: str, data: bytes, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(data))
    except MALFORMED as error:
        raise CorruptCheckpoint(f"{what} cannot be parsed") from error


def _dump_kinds(kinds: Mapping[str, TensorSpec]) -> Json:
    return {name: [kind.dtype, list(kind.shape)] for name, kind in kinds.items()}


def _parse_kinds(raw: Any) -> dict[str, TensorSpec]:
    kinds = {
        name: TensorSpec(dtype, tuple(map(index, shape))) for name, (dtype, shape) in raw.items()
    }
    unknown = {kind.dtype for kind in kinds.values()} - DTYPES.keys()
    if unknown:
        raise ValueError(f"unknown dtypes {unknown}")
    return kinds


def _dump_stream(stream: ShardLayout) -> dict[str, Any]:
    return {
        "part_bytes": stream.part_bytes,
        "parts": [f"{crc:016x}" for crc in stream.parts],
        "pieces": [
            [p.name, p.at, p.size, _dump_region(p.region), f"{stored.crc:016x}"]
            for stored in stream.pieces
            for p in (stored.piece,)
        ],
    }


def _parse_stream(raw: Any) -> ShardLayout:
    pieces = (
        Stored(Piece(name, _parse_region(where), index(at), index(size)), int(crc, 16))
        for name, at, size, where, crc in raw["pieces"]
    )
    return ShardLayout(
        index(raw["part_bytes"]), tuple(int(p, 16) for p in raw["parts"]), tuple(pieces)
    )


def _dump_region(region: Region) -> Json:
    if isinstance(region, ElementRange):
        return [region.start, region.stop]
    return {"offsets": list(region.offsets), "sizes": list(region.sizes)}


def _parse_region(raw: Any) -> Region:
    if isinstance(raw, dict):
        return Block(tuple(map(index, raw["offsets"])), tuple(map(index, raw["sizes"])))
    start, stop = map(index, raw)
    return ElementRange(start, stop)
