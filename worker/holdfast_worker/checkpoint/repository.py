"""The checkpoints of one job in a store, each of which exists completely or not.

The commit point is the conditional put of the commit object in `CheckpointRepository.commit`: before it the
checkpoint does not exist, and after it all of it does, because the shards of all ranks were stored before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from holdfast_worker.checkpoint.checksums import crc64, join_crc64, weights_digest
from holdfast_worker.checkpoint.coverage import is_stream, is_tiled
from holdfast_worker.checkpoint.failure_rate import AttemptHistory
from holdfast_worker.checkpoint.fencing import FencingTokens
from holdfast_worker.checkpoint.index import LatestPointer, Quarantine
from holdfast_worker.checkpoint.metadata import (
    MALFORMED,
    PART_BYTES,
    CommitMetadata,
    CorruptCheckpoint,
    Digest,
    IncompatibleCheckpoint,
    ShardLayout,
    ShardMetadata,
    StoredPiece,
    UnavailableObject,
)
from holdfast_worker.checkpoint.read_plan import PartId, ReadTarget, checksum, destinations_of
from holdfast_worker.checkpoint.snapshot import Snapshot
from holdfast_worker.checkpoint.state_consistency import (
    InconsistentState,
    ReplicasDiverged,
    Statement,
    digest_of,
)
from holdfast_worker.checkpoint.state_dict import tensor_paths
from holdfast_worker.checkpoint.transfers import RateLimit, TransferPool, read_pool
from holdfast_worker.console import log_info
from holdfast_worker.distributed.tensor_layout import ElementRange, Region, TensorSpec
from holdfast_worker.distributed.weight_samples import first_divergence
from holdfast_worker.protocol.checkpoint_keys import COMMITS, DATA, PROBES, CheckpointName
from holdfast_worker.protocol.commit_summary import MetricValue, unsupported_format_of
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.policies import ConsistencyGuarantee
from holdfast_worker.protocol.store_usage import StoreUsage, UsageTotal
from holdfast_worker.storage.base import ObjectNotFound, ObjectUnreadable, Store, StoreRefused
from holdfast_worker.storage.metering import StoreMeter
from holdfast_worker.storage.retry import retry_until


class CheckpointRepository:
    """Checkpoints in a store.

    `until_s` is the `time.monotonic()` at which an unresponsive store is abandoned.
    """

    def __init__(self, store: Store, job: str = "", meter: StoreMeter | None = None) -> None:
        """`job` owns these checkpoints; if empty, checkpoints of any job are accepted.

        `meter` counts the requests of this process to the store.
        """
        self.meter: Final = meter or StoreMeter()
        self._store = store
        self._job = job
        self._writers = TransferPool(store.max_concurrency)
        self._readers = read_pool(store.max_concurrency)
        self.tokens = FencingTokens(store)
        """Epochs: the highest one may commit."""
        self.quarantine = Quarantine(store)
        """Checkpoints known to be corrupt."""
        self.pointer = LatestPointer(store, self.tokens)
        """The newest committed checkpoint."""
        self.is_remote = store.is_remote
        """Whether a rank gets bytes faster from the rank that read them than from the store."""
        self._unsupported: set[CheckpointName] = set()
        self.guarantee: ConsistencyGuarantee | None = None
        """The write guarantee of the store; None on all ranks but rank 0, which probes it."""
        self.place = ""
        """Where the store is; empty on all ranks but rank 0, and if unknown."""
        self.usage: Final = UsageTotal()
        """Requests of all ranks, as far as their shards say; only rank 0 reads these."""

    @property
    def probed(self) -> tuple[ConsistencyGuarantee | None, str]:
        """The write guarantee and the place of the store, as known on rank 0."""
        return self.guarantee, self.place

    def probe(self, nonce: str, until_s: float) -> ConsistencyGuarantee:
        """Write a small object, so that a store that refuses writes fails before training.

        Return whether the store keeps the first of two objects under one key. Only reading the object back proves that.

        Raises:
            StoreError: the store refuses writes, or refuses a conditional write whose condition holds.
        """
        key, first, second = _probe_key(nonce), nonce.encode(), f"not {nonce}".encode()
        retry_until(lambda: self._store.put_if_absent(key, first), until_s)
        retry_until(lambda: self._store.put_if_absent(key, second), until_s)
        there = retry_until(lambda: self._store.get(key), until_s)
        third = f"{nonce} again".encode()
        is_swapped = retry_until(lambda: self._store.swap(key, there, third), until_s)
        # If the response to the first swap was lost, the retry finds what that swap wrote.
        if not is_swapped and retry_until(lambda: self._store.get(key), until_s) != third:
            raise StoreRefused(
                "it rejects a conditional write to an object that it reports as unchanged"
            )
        return (
            ConsistencyGuarantee.CONDITIONAL if there == first else ConsistencyGuarantee.OVERWRITES
        )

    def sees_probe(self, nonce: str, until_s: float) -> bool:
        """Whether this rank sees the probe of rank 0, which a node's local disk does not show."""
        try:
            return nonce.encode() in retry_until(
                lambda: self._store.get(_probe_key(nonce)), until_s
            )
        except ObjectNotFound:
            return False

    def remove_probe(self, nonce: str, until_s: float) -> None:
        """Delete the probe if the nodes may delete; otherwise the service does."""
        with suppress(StoreRefused):
            retry_until(lambda: self._store.delete(_probe_key(nonce)), until_s)

    def attempt_history(self, epoch: int, until_s: float) -> AttemptHistory:
        """Lifetimes of this job's attempts, as known to an attempt that starts now.

        Raises:
            StoreError: the store is unusable.
        """
        return AttemptHistory.open(self._store, epoch, until_s)

    def close(self) -> None:
        """Abort running transfers: an unresponsive store would keep the process alive for minutes."""
        self._writers.close()
        self._readers.close()

    def names(self, until_s: float) -> list[CheckpointName]:
        """Committed checkpoints, newest first.

        Includes the latest pointer's, which a listing may not show yet.
        """
        keys = retry_until(lambda: self._store.list(COMMITS), until_s)
        listed = {name for name in map(CheckpointName.of_key, keys) if name}
        newest = self.pointer.read(until_s)
        if newest and newest not in listed and self.pointer.is_committed(newest, until_s):
            listed.add(newest)
        return sorted(listed, reverse=True)

    def check_newest(self, until_s: float) -> None:
        """Check that the checkpoint to resume from belongs to this job and has a readable format.

        Raises:
            IncompatibleCheckpoint: it belongs to another job, or this version cannot read it.
        """
        lineage = self.tokens.lineage(until_s)
        for name in self.names(until_s):
            if not lineage.superseding_start(name):
                with suppress(CorruptCheckpoint):
                    self._parse_commit(name, until_s)
                    return

    def upload(
        self, name: CheckpointName, snapshot: Snapshot, until_s: float, rate_limit: RateLimit
    ) -> Statement:
        """Store a rank's shard and return its statement of the shared state.

        The metadata is written last, after the bytes.
        """
        send = partial(self._send, name, snapshot, rate_limit)
        parts = enumerate(snapshot.parts(PART_BYTES))
        sums = self._writers.run([partial(send, number, part) for number, part in parts], until_s)
        stream = _layout(snapshot, dict(s for part in sums for s in part))
        stated = snapshot.statement({stored.piece.name: stored.crc for stored in stream.pieces})
        record = ShardMetadata(
            rank=snapshot.rank,
            stream=stream,
            kinds=snapshot.kinds,
            own=snapshot.own,
            tracked=snapshot.tracked,
            each=snapshot.per_rank,
            agreed=digest_of(stated) if stated else "",
            samples=snapshot.samples.read(),
            usage=self.meter.read(),
        )
        key, data = name.record_key(snapshot.rank), record.dump()
        retry_until(lambda: self._store.put(key, data), until_s)
        return stated

    def _send(
        self,
        name: CheckpointName,
        snapshot: Snapshot,
        rate_limit: RateLimit,
        number: int,
        stretches: Sequence[tuple[int, int]],
    ) -> list[tuple[tuple[int, int], int]]:
        """Store a part; return the checksums of its stretches, which belong to one piece each."""
        begin, end = stretches[0][0], stretches[-1][1]
        rate_limit.wait(end - begin)
        sums = [((start, stop), crc64(snapshot.memory[start:stop])) for start, stop in stretches]
        self._store.put(name.part_key(snapshot.rank, number), snapshot.memory[begin:end])
        return sums

    def find_record(self, name: CheckpointName, rank: int, until_s: float) -> bytes | None:
        """The shard metadata of a rank; None until it is written."""
        try:
            return retry_until(lambda: self._store.get(name.record_key(rank)), until_s)
        except ObjectNotFound:
            return None

    def commit(
        self,
        name: CheckpointName,
        snapshot_at: str,
        records: Sequence[bytes],
        until_s: float,
        metrics: Mapping[str, MetricValue] = MappingProxyType({}),
    ) -> CommitMetadata:
        """Make the checkpoint exist, given the shard metadata of all ranks in rank order.

        The checkpoint is committed by one conditional put of the commit object (`put_if_absent`); rank 0 calls this.

        Raises:
            CorruptCheckpoint: the parts leave gaps or overlap.
            InconsistentState: the ranks hold different values of state that is stored once for all of them.
            ReplicasDiverged: the ranks hold different values of tensors of which each rank writes a part.
            StoreRefused: another process committed a different object under this name.
        """
        parsed = [ShardMetadata.parse(record) for record in records]
        for record, written in zip(parsed, records, strict=True):
            # The metadata cannot count the request that wrote it.
            itself = StoreUsage(puts=1, uploaded_bytes=len(written))
            self.usage.observe(record.rank, record.usage + itself)
        unlike = [r.rank for r in parsed if r.agreed != parsed[0].agreed]
        if unlike:
            raise InconsistentState(f"the state of rank {unlike[0]} differs from that of rank 0")
        kinds = {n: kind for record in parsed for n, kind in record.kinds.items()}
        divergence = first_divergence([record.samples for record in parsed], kinds)
        if divergence:
            raise ReplicasDiverged(divergence)
        streams = tuple(record.stream for record in parsed)
        check_coverage(parsed[0].tracked, kinds, streams)
        commit = CommitMetadata(
            name=name,
            job=self._job,
            snapshot_at=snapshot_at,
            weights_sha256=digest_stored_weights(parsed[0].tracked, kinds, streams),
            kinds=kinds,
            tracked=parsed[0].tracked,
            each=parsed[0].each,
            streams=streams,
            records=tuple(map(Digest.from_bytes, records)),
            metrics=metrics,
        )
        data = commit.dump()
        is_new = retry_until(lambda: self._store.put_if_absent(name.commit_key, data), until_s)
        # A retry after a lost response also finds an existing key.
        if not is_new and retry_until(lambda: self._store.get(name.commit_key), until_s) != data:
            raise StoreRefused(f"{name} was committed by another process")
        return commit

    def total_usage(self, rank: int) -> StoreUsage:
        """Requests of all ranks to the store, as far as `rank`, which is this one, knows."""
        self.usage.observe(rank, self.meter.read())
        return self.usage.read()

    def read_commit(self, name: CheckpointName, until_s: float) -> CommitMetadata:
        """Metadata of a checkpoint, validated.

        Raises:
            CorruptCheckpoint: the checkpoint is unusable.
            IncompatibleCheckpoint: this version cannot read it, or another job saved it.
        """
        commit = self._parse_commit(name, until_s)
        if commit.name != name:
            raise CorruptCheckpoint(f"its commit belongs to {commit.name}")
        try:
            check_coverage(commit.tracked, commit.kinds, commit.streams)
        except MALFORMED as error:
            raise CorruptCheckpoint("its commit cannot be parsed") from error
        return commit

    def read_record(self, commit: CommitMetadata, rank: int, until_s: float) -> ShardMetadata:
        """The shard metadata of one rank that saved.

        Raises:
            CorruptCheckpoint: it is missing or its digest is wrong.
        """
        key = commit.name.record_key(rank)
        data = self._get(key, until_s)
        if Digest.from_bytes(data) != commit.records[rank]:
            raise CorruptCheckpoint(f"the digest of {key} differs from the committed one")
        return ShardMetadata.parse(data)

    def read_parts(
        self, commit: CommitMetadata, targets: Mapping[PartId, list[ReadTarget]], until_s: float
    ) -> None:
        """Fill the targets with the bytes of a checkpoint and verify every part.

        Raises:
            CorruptCheckpoint: a part is missing or differs from what was written.
            UnavailableObject: the store denies access to a part or cannot read it.
        """
        parts = [partial(self._receive, commit, part, into) for part, into in targets.items()]
        try:
            self._readers.run(parts, until_s)
        except (StoreRefused, ObjectUnreadable) as error:
            raise UnavailableObject(f"a part cannot be read: {error}") from error

    def _receive(self, commit: CommitMetadata, part: PartId, targets: list[ReadTarget]) -> None:
        problem = self._receive_once(commit, part, targets)
        if problem and self._receive_once(commit, part, targets):
            # Read twice: a transfer error is no fault of the checkpoint.
            raise CorruptCheckpoint(problem)

    def _receive_once(
        self, commit: CommitMetadata, part: PartId, targets: list[ReadTarget]
    ) -> str | None:
        """Read a part; return what is wrong with it, or None.

        If something is, the contents of the targets must not be used.
        """
        key = commit.name.part_key(part.rank, part.number)
        stream = commit.streams[part.rank]
        begin, end = stream.bounds(part.number)
        try:
            size, value = checksum(self._store.stream(key, destinations_of(targets)))
        except ObjectNotFound:
            return f"{key} is missing"
        if size != end - begin:
            return f"{key} has {size} bytes instead of {end - begin}"
        if value != stream.parts[part.number]:
            return f"the digest of {key} differs from the committed one"
        return None

    def withdraw(self, name: CheckpointName, until_s: float) -> None:
        """Delete the commit of a checkpoint, so that it does not exist any more."""
        retry_until(lambda: self._store.delete(name.commit_key), until_s)

    def prune(
        self,
        newest: CheckpointName,
        keep: int,
        damaged: Collection[CheckpointName],
        lineage: Lineage,
        until_s: float,
    ) -> None:
        """Delete all but the `keep` newest checkpoints, and unfinished uploads.

        A commit is deleted before its data, so an interrupted deletion leaves orphaned data and no broken checkpoint.
        Checkpoints in `damaged` or off the lineage do not count as kept. Objects of a higher epoch stay, because a newer
        attempt may be writing them. Checkpoints in a format that this version cannot read stay and are logged once.
        """
        committed = [n for n in self.names(until_s) if n.epoch <= newest.epoch]
        sound = [
            name
            for name in committed
            if name not in damaged and not lineage.superseding_start(name)
        ]
        kept = {*sound[:keep], newest}
        for name in committed:
            if name not in kept and self._is_unsupported(name, until_s):
                kept.add(name)
            if name not in kept:
                self.withdraw(name, until_s)
                if name in damaged:
                    self.quarantine.clear(name, until_s)
        for key in retry_until(lambda: self._store.list(DATA), until_s):
            owner = CheckpointName.of_key(key)
            if owner and owner not in kept and owner.epoch <= newest.epoch:
                retry_until(lambda key=key: self._store.delete(key), until_s)  # type: ignore[misc]

    def _is_unsupported(self, name: CheckpointName, until_s: float) -> bool:
        """Whether this version cannot read the format of a checkpoint; the reason is logged once."""
        if name in self._unsupported:
            return True
        with suppress(CorruptCheckpoint):
            reason = unsupported_format_of(self._get(name.commit_key, until_s))
            if reason:
                self._unsupported.add(name)
                log_info(f"checkpoint {name} is kept: {reason}")
                return True
        return False

    def _parse_commit(self, name: CheckpointName, until_s: float) -> CommitMetadata:
        data = self._get(name.commit_key, until_s)
        try:
            commit = CommitMetadata.parse(data)
        except IncompatibleCheckpoint as error:
            raise IncompatibleCheckpoint(f"checkpoint {name} cannot be read: {error}") from error
        if self._job and commit.job not in {"", self._job}:
            raise IncompatibleCheckpoint(
                f"checkpoint {name} was saved by job {commit.job}, and this is job {self._job}: to continue from job "
                f"{commit.job}, set holdfast.checkpoint.from or use holdfast retry; otherwise remove it from this store"
            )
        return commit

    def _get(self, key: str, until_s: float) -> bytes:
        try:
            return retry_until(lambda: self._store.get(key), until_s)
        except ObjectNotFound as error:
            raise CorruptCheckpoint(f"{key} is missing") from error
        except (StoreRefused, ObjectUnreadable) as error:
            raise UnavailableObject(f"{key} cannot be read: {error}") from error


def _layout(snapshot: Snapshot, sums: Mapping[tuple[int, int], int]) -> ShardLayout:
    """The layout of the uploaded stream, from the checksums of its stretches."""
    sized = [(span, (digest, span[1] - span[0])) for span, digest in sorted(sums.items())]
    parts = groupby(sized, key=lambda item: item[0][0] // PART_BYTES)
    ends = iter(sized)
    pieces: list[StoredPiece] = []
    for piece in snapshot.pieces:
        own: list[tuple[int, int]] = []
        while sum(size for _, size in own) < piece.size:
            own.append(next(ends)[1])
        pieces.append(StoredPiece(piece, join_crc64(own)))
    return ShardLayout(
        part_bytes=PART_BYTES,
        parts=tuple(join_crc64(item for _, item in group) for _, group in parts),
        pieces=tuple(pieces),
    )


def check_coverage(
    tracked: Any, kinds: Mapping[str, TensorSpec], streams: Iterable[ShardLayout]
) -> None:
    """Check that every element of every tensor was written exactly once.

    Raises:
        CorruptCheckpoint: an element is missing or was written twice.
    """
    streams = tuple(streams)
    regions: dict[str, list[Region]] = {}
    for stream in streams:
        for stored in stream.pieces:
            regions.setdefault(stored.piece.name, []).append(stored.piece.region)
    for _, name in tensor_paths(tracked):
        kind = kinds.get(name)
        if kind is None or not is_tiled(kind.shape, regions.get(name, [])):
            raise CorruptCheckpoint(
                f"{name} was not written completely, each element once; do all ranks have state of the same shape?"
            )
    for rank, stream in enumerate(streams):
        if not is_stream(stream, kinds):
            raise CorruptCheckpoint(f"the pieces of rank {rank} are not contiguous")


def digest_stored_weights(
    tracked: Any, kinds: Mapping[str, TensorSpec], streams: Iterable[ShardLayout]
) -> str:
    """The digest of the state tracked as `model`, or of all tracked state without a `model`.

    It does not depend on which ranks wrote which part, provided that tensors are sharded along their first dimension only.
    """
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for stream in streams:
        for stored in stream.pieces:
            region = stored.piece.region
            at = region.start if isinstance(region, ElementRange) else region.offsets[0]
            runs.setdefault(stored.piece.name, []).append((at, stored.crc, stored.piece.size))
    return weights_digest(
        (
            path,
            kinds[name],
            join_crc64((value, size) for _, value, size in sorted(runs.get(name, []))),
        )
        for path, name in tensor_paths(tracked.get("model", tracked))
    )


def _probe_key(nonce: str) -> str:
    return f"{PROBES}{nonce}"
