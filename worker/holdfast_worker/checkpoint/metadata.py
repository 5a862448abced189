"""The objects of a checkpoint, and the commit that makes it exist.

    step-150-e2-9f31c2d4/rank-0/000000          a part of a rank's bytes
    step-150-e2-9f31c2d4/rank-0.json            shard metadata of a rank: layout of its bytes, and its non-tensor state
    commits/000000000150-e2-9f31c2d4.json       written last; index of all tensors, with digests of all objects

Objects that no commit references are ignored. The nonce is drawn at each start, so every key is used once. Late writes of an
older attempt's leftover process therefore cannot enter a checkpoint of a newer attempt.
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
    Region,
    TensorPiece,
    TensorSpec,
)
from holdfast_worker.distributed.weight_samples import Values
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import (
    FORMAT,
    MetricValue,
    commit_digest,
    unsupported_format,
)
from holdfast_worker.protocol.reports import Json
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from holdfast_worker.storage.base import StoreError

T = TypeVar("T")

PART_BYTES: Final = 16 << 20
"""Size of the objects into which a rank's bytes are split. A higher value makes retries
expensive and leaves connections idle at the end; a lower value adds requests."""


MALFORMED: Final = (
    *(ValueError, AttributeError, KeyError, TypeError, IndexError),
    *(OverflowError, RecursionError),
)
"""Exceptions that JSON of an unexpected shape causes."""


class CorruptCheckpoint(Exception):
    """An unusable checkpoint; the message gives the reason."""


class UnavailableObject(CorruptCheckpoint):
    """The store does not return an object of a checkpoint that may be intact.

    A restore may fall back to an older checkpoint, but must not start from step 0.
    """


class PartialLoadError(CorruptCheckpoint):
    """A corrupt checkpoint of which a part has already overwritten the tracked state."""


class IncompatibleCheckpoint(StoreError):
    """A possibly intact checkpoint of another job, or of a format that this version cannot read.

    The start is refused and nothing is deleted or replaced, whereas a corrupt checkpoint is skipped.
    """


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece and its checksum."""

    piece: TensorPiece
    crc: int
    """CRC64-NVME."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """A rank's bytes: their pieces, and the parts into which they are split."""

    part_bytes: int
    """Size of each part but the last."""
    parts: tuple[int, ...]
    """CRC64-NVME of each part."""
    pieces: tuple[StoredPiece, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.pieces[-1].piece.end if self.pieces else 0

    def bounds(self, number: int) -> tuple[int, int]:
        """First byte of a part, and the byte after its last."""
        return number * self.part_bytes, min((number + 1) * self.part_bytes, self.size)


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and SHA-256 of a small object."""

    size: int
    sha256: str

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The digest of the given bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMetadata:
    """Metadata of a rank's shard of a checkpoint."""

    rank: int
    stream: ShardLayout
    kinds: Mapping[str, TensorSpec]
    """Specs of the tensors of which the shard has pieces."""
    own: Json
    """Encoded tree of this rank's own state: random generators and the position in the data."""
    tracked: Json
    """Encoded trees of tracked objects by name. Ranks other than rank 0 store only per-rank
    objects."""
    each: tuple[str, ...] = ()
    """Names of the per-rank objects."""
    agreed: str = ""
    """Digest of this rank's values of the shared state; empty with a single rank."""
    samples: Mapping[str, Values] = field(default_factory=dict)
    """Sampled values of tensors of which each rank writes a part."""
    usage: StoreUsage = NO_USAGE
    """Requests of this rank's process to the store until then."""

    def dump(self) -> bytes:
        """Serialize the shard metadata."""
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
                "usage": self.usage.dump(),
            }
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> ShardMetadata:
        """Parse stored shard metadata.

        Raises:
            CorruptCheckpoint: the data is malformed.
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
                usage=StoreUsage.parse(raw.get("usage")),
            )

        return _parsed("its shard metadata", data, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The object that makes a checkpoint exist: its parts, tensors and origin."""

    name: CheckpointName
    job: str = ""
    """The job that saved it; empty for a run without a job and in old commits."""
    snapshot_at: str
    """RFC 3339 time of the snapshot."""
    weights_sha256: str
    kinds: Mapping[str, TensorSpec]
    """Specs of all tensors by name."""
    tracked: Json
    """Encoded trees of the tracked objects."""
    streams: tuple[ShardLayout, ...]
    """Layouts in rank order, one for each rank of the world."""
    records: tuple[Digest, ...]
    """Digests of the shard metadata, in rank order."""
    each: tuple[str, ...] = ()
    """Names of per-rank tracked objects, which are stored in each rank's shard metadata and
    under per-rank tensor names."""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    """Metrics that the script logged, so that the store alone shows which checkpoint is best."""

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return len(self.streams)

    @property
    def size_bytes(self) -> int:
        """Total size of all objects except the commit itself."""
        return sum(s.size for s in self.streams) + sum(r.size for r in self.records)

    def dump(self) -> bytes:
        """Serialize the commit, with a digest of itself."""
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
        return json.dumps({**body, "sha256": commit_digest(body)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> CommitMetadata:
        """Parse a stored commit.

        Raises:
            CorruptCheckpoint: the commit is incomplete or malformed.
            IncompatibleCheckpoint: this version cannot read its format.
        """

        def read(body: Any) -> CommitMetadata:
            # Checked before the digest, because another format may compute the digest differently.
            if unread := unsupported_format(body):
                raise IncompatibleCheckpoint(unread)
            if body.pop("sha256") != commit_digest(body):
                raise CorruptCheckpoint("its commit does not match its own digest")
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
                # Older commits without these fields are valid.
                each=tuple(body.get("each", ())),
                metrics={n: MetricValue.parse(raw) for n, raw in body.get("metrics", {}).items()},
            )

        return _parsed("its commit", data, read)


def _parsed(label: str, data: bytes, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(data))
    except MALFORMED as error:
        raise CorruptCheckpoint(f"{label} cannot be parsed") from error


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
        StoredPiece(TensorPiece(name, _parse_region(place), index(at), index(size)), int(crc, 16))
        for name, at, size, place, crc in raw["pieces"]
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
