"""A shard: what one rank contributes to a checkpoint, as a safetensors file and a JSON record beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from holdfast_worker.checkpoint import FORMAT, Damaged, Part
from holdfast_worker.digest import TensorDigest, digest_tensor
from holdfast_worker.wire import Json


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of the state, on the CPU, cut loose from the training."""

    rank: int
    tensors: Mapping[str, Tensor]
    """By name: this rank's share of what is tracked, and its own."""
    own: Json
    """Encoded tree of what belongs to this rank alone: random generators and the position in the data."""
    tracked: Json
    """Encoded tree of what is tracked, by the name under which it is tracked; null on all ranks but the first."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a rank says about its shard."""

    rank: int
    shard: Part
    own: Json
    tracked: Json
    tensors: tuple[TensorDigest, ...]

    def dump(self) -> bytes:
        """The record as it is stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The record that was stored.

        Raises:
            Damaged: not a record.
        """
        try:
            raw = json.loads(data)
            digests = (TensorDigest(**{**t, "shape": tuple(t["shape"])}) for t in raw["tensors"])
            return cls(
                rank=raw["rank"],
                shard=Part(**raw["shard"]),
                own=raw["own"],
                tracked=raw["tracked"],
                tensors=tuple(digests),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged("a record cannot be parsed") from error


def pack(shard: Shard, key: str) -> tuple[bytes, Record]:
    """The safetensors file that will be stored at `key`, and its record."""
    data = safetensors.torch.save(dict(shard.tensors))
    digests = tuple(digest_tensor(name, tensor) for name, tensor in sorted(shard.tensors.items()))
    return data, Record(shard.rank, Part.of(key, data), shard.own, shard.tracked, digests)


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        Damaged: not such a file.
    """
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        raise Damaged(f"a shard cannot be parsed: {error}") from error
