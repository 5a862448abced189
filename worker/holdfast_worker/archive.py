"""The archive: all checkpoints of one job in a store. Writes them so that each exists whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast_worker.checkpoint import COMMITS, Commit, Damaged, Name, Part, RankParts
from holdfast_worker.claims import Claims
from holdfast_worker.digest import TensorDigest, digest_all
from holdfast_worker.lineage import Lineage
from holdfast_worker.patience import patiently
from holdfast_worker.shard import Record, Shard, pack, unpack
from holdfast_worker.stores import Missing, Refused, Store
from holdfast_worker.tree import decode, leaves


class WorldChanged(Exception):
    """A checkpoint cannot be resumed by another number of ranks than saved it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint read back, verified."""

    tracked: dict[str, Any]
    """State by the name under which it is tracked."""
    own: Any
    """State of the rank that asked."""


class Archive:
    """Checkpoints in a store. `until_s` is when `time.monotonic()` says to give up on a store that does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claims = Claims(store)
        """Who may commit."""

    def probe(self, nonce: str, until_s: float) -> None:
        """Write a small object, to learn now rather than at the first checkpoint whether the store takes any.

        Raises:
            StoreError: it does not.
        """
        patiently(lambda: self._store.put(_probe_key(nonce), nonce.encode()), until_s)

    def sees_probe(self, nonce: str, until_s: float) -> bool:
        """Whether this rank sees what the first one wrote; a directory on each node's own disk would not do."""
        try:
            return patiently(lambda: self._store.get(_probe_key(nonce)), until_s) == nonce.encode()
        except Missing:
            return False

    def remove_probe(self, nonce: str, until_s: float) -> None:
        """Leave no trace of the probe."""
        patiently(lambda: self._store.delete(_probe_key(nonce)), until_s)

    def names(self, until_s: float) -> list[Name]:
        """Checkpoints that were committed, newest first."""
        keys = patiently(lambda: self._store.list(COMMITS), until_s)
        return sorted(filter(None, map(Name.of_key, keys)), reverse=True)

    def upload(self, name: Name, shard: Shard, until_s: float) -> None:
        """Store a rank's part. The record comes second: where it is, the shard is."""
        shard_key, record_key = name.shard_key(shard.rank), name.record_key(shard.rank)
        data, record = pack(shard, shard_key)
        patiently(lambda: self._store.put(shard_key, data), until_s)
        patiently(lambda: self._store.put(record_key, record.dump()), until_s)

    def find_record(self, name: Name, rank: int, until_s: float) -> bytes | None:
        """A rank's record; None while it is not there."""
        try:
            return patiently(lambda: self._store.get(name.record_key(rank)), until_s)
        except Missing:
            return None

    def commit(
        self, name: Name, snapshot_at: str, records: Sequence[bytes], until_s: float
    ) -> Commit:
        """Make the checkpoint exist, now that the records of all ranks are there, in their order.

        Raises:
            Damaged: the parts do not make a whole.
            Refused: another process committed something else under this name.
        """
        parsed = [Record.parse(record) for record in records]
        commit = Commit(
            name=name,
            snapshot_at=snapshot_at,
            weights_sha256=digest_weights(parsed),
            ranks=tuple(
                RankParts(p.shard, Part.of(name.record_key(p.rank), record))
                for p, record in zip(parsed, records, strict=True)
            ),
        )
        data = commit.dump()
        is_new = patiently(lambda: self._store.put_if_absent(name.commit_key, data), until_s)
        # "It is there already" is also what a second try hears when only the answer to the first was lost.
        if not is_new and patiently(lambda: self._store.get(name.commit_key), until_s) != data:
            raise Refused(f"{name} was committed by another process")
        return commit

    def read(self, name: Name, rank: int, world_size: int, until_s: float) -> Contents:
        """What a rank needs of a checkpoint, every byte of it verified.

        Raises:
            Damaged: it cannot be used.
            WorldChanged: it was saved by another number of ranks.
        """
        commit = Commit.parse(self._get(name.commit_key, until_s))
        if commit.name != name:
            raise Damaged(f"its commit is that of {commit.name}")
        if len(commit.ranks) != world_size:
            raise WorldChanged(
                f"checkpoint {name} was saved by {len(commit.ranks)} ranks, and now there are {world_size}: "
                f"use {len(commit.ranks)}, or start with a new store"
            )
        records: list[Record] = []
        tensors: dict[str, Tensor] = {}
        for parts in commit.ranks:
            record, held = self._read_parts(parts, until_s)
            records.append(record)
            # Every rank has own tensors, of the same names; a rank takes its own only.
            tensors |= {k: t for k, t in held.items() if record.rank == rank or not is_own(k)}
        try:
            tracked = decode(records[0].tracked, tensors)
            own = decode(records[rank].own, tensors)
        except KeyError as missing:
            raise Damaged(f"no shard holds the tensor {missing}") from missing
        return Contents(tracked, own)

    def prune(
        self,
        newest: Name,
        keep: int,
        damaged: Collection[Name],
        lineage: Lineage,
        until_s: float,
    ) -> None:
        """Remove all checkpoints but the newest, and what uploads that died left behind.

        A commit goes before its data, so that what is left of a removal that was cut off is a leftover, not a
        checkpoint. Those that were found `damaged` do not count among the ones to keep, nor those off the lineage.
        What has a higher epoch is not touched: a newer placement may be at work, if we are the one that was forgotten.
        """
        committed = [n for n in self.names(until_s) if n.epoch <= newest.epoch]
        sound = [name for name in committed if name not in damaged and not lineage.cut(name)]
        kept = {*sound[:keep], newest}
        for name in committed:
            if name not in kept:
                key = name.commit_key
                patiently(lambda key=key: self._store.delete(key), until_s)  # type: ignore[misc]
        for key in patiently(lambda: self._store.list("step-"), until_s):
            owner = Name.of_key(key)
            if owner and owner not in kept and owner.epoch <= newest.epoch:
                patiently(lambda key=key: self._store.delete(key), until_s)  # type: ignore[misc]

    def _read_parts(self, parts: RankParts, until_s: float) -> tuple[Record, dict[str, Tensor]]:
        found = self._get(parts.record.key, until_s)
        parts.record.check(found)
        data = self._get(parts.shard.key, until_s)
        parts.shard.check(data)
        return Record.parse(found), unpack(data)

    def _get(self, key: str, until_s: float) -> bytes:
        try:
            return patiently(lambda: self._store.get(key), until_s)
        except Missing as error:
            raise Damaged(f"{key} is missing") from error


OWN = "@rank"
"""Begins the names of a rank's own tensors; nobody can track anything under a name that is no identifier."""


def is_own(tensor_name: str) -> bool:
    """Whether a tensor belongs to one rank alone."""
    return tensor_name.startswith(OWN)


def digest_weights(records: Sequence[Record]) -> str:
    """The digest of what is tracked as `model`, or of everything tracked if nothing is called so.

    Raises:
        Damaged: a tensor is in no rank's shard.
    """
    held = {tensor.name: tensor for record in records for tensor in record.tensors}
    tracked = records[0].tracked
    assert isinstance(tracked, dict), "the first rank describes the whole"
    missing = [name for _, name in leaves(tracked) if name not in held]
    if missing:
        raise Damaged(f"no rank wrote {missing[0]}; are the ranks' states of one shape?")
    found = ((path, held[name]) for path, name in leaves(tracked.get("model", tracked)))
    return digest_all(TensorDigest(path, d.dtype, d.shape, d.sha256) for path, d in found)


def _probe_key(nonce: str) -> str:
    return f"probes/{nonce}"
