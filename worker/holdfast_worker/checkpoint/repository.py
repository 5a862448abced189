"""The archive: all checkpoints of one job in a store. Writes them so that each exists whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

from holdfast_worker.checkpoint.checksums import crc, digest, join
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
    Foreign,
    ShardLayout,
    ShardMetadata,
    Stored,
    Withheld,
)
from holdfast_worker.checkpoint.read_plan import PartId, Target, scatter
from holdfast_worker.checkpoint.snapshot import Snapshot
from holdfast_worker.checkpoint.state_dict import leaves
from holdfast_worker.checkpoint.transfers import RateLimit, TransferPool, readers
from holdfast_worker.console import log_info
from holdfast_worker.distributed.state_consistency import Apart, Statement, Unlike, digest_of
from holdfast_worker.distributed.tensor_layout import ElementRange, Region, TensorSpec
from holdfast_worker.distributed.weight_samples import first_apart
from holdfast_worker.protocol.checkpoint_keys import COMMITS, DATA, PROBES, CheckpointName
from holdfast_worker.protocol.commit_summary import MetricValue, unread_format_of
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.policies import ConsistencyGuarantee
from holdfast_worker.storage.base import Missing, Refused, Store, Unreadable
from holdfast_worker.storage.retry import retry_until


class CheckpointRepository:
    """Checkpoints in a store. `until_s` is when `time.monotonic()` says to give up on a store that does not answer."""

    def __init__(self, store: Store, job: str = "") -> None:
        """`job` is the one whose checkpoints these are; without it they may be of any."""
        self._store = store
        self._job = job
        self._writers = TransferPool(store.lanes)
        self._readers = readers(store.lanes)
        self.claims = FencingTokens(store)
        """Who may commit."""
        self.flaws = Quarantine(store)
        """What is known against checkpoints."""
        self.pointer = LatestPointer(store, self.claims)
        """What was committed last."""
        self.is_far = store.is_far
        """Whether what one rank has read reaches the others sooner from that rank."""
        self._unread: set[CheckpointName] = set()
        self.guarantee: ConsistencyGuarantee | None = None
        """What the store promises; None on all ranks but the first, which asks."""

    def probe(self, nonce: str, until_s: float) -> ConsistencyGuarantee:
        """Write a small object, to learn now rather than at the first checkpoint whether the store takes any.

        What the store promises: whether it keeps the first of two objects under one name, which no answer of it proves but the
        object itself.

        Raises:
            StoreError: it takes none, or replaces none on a condition that holds.
        """
        key, first, second = _probe_key(nonce), nonce.encode(), f"not {nonce}".encode()
        retry_until(lambda: self._store.put_if_absent(key, first), until_s)
        retry_until(lambda: self._store.put_if_absent(key, second), until_s)
        there = retry_until(lambda: self._store.get(key), until_s)
        third = f"{nonce} again".encode()
        is_swapped = retry_until(lambda: self._store.swap(key, there, third), until_s)
        # A second try after a lost answer finds what the first one left.
        if not is_swapped and retry_until(lambda: self._store.get(key), until_s) != third:
            raise Refused("it does not replace an object of which it says that it has not changed")
        return (
            ConsistencyGuarantee.CONDITIONAL if there == first else ConsistencyGuarantee.OVERWRITES
        )

    def sees_probe(self, nonce: str, until_s: float) -> bool:
        """Whether this rank sees what the first one wrote; a directory on each node's own disk would not do."""
        try:
            return nonce.encode() in retry_until(
                lambda: self._store.get(_probe_key(nonce)), until_s
            )
        except Missing:
            return False

    def remove_probe(self, nonce: str, until_s: float) -> None:
        """Leave no trace of the probe, where nodes may delete; elsewhere the service will."""
        with suppress(Refused):
            retry_until(lambda: self._store.delete(_probe_key(nonce)), until_s)

    def diary(self, epoch: int, until_s: float) -> AttemptHistory:
        """How long placements of this job have lived, as of one that starts now.

        Raises:
            StoreError: the store cannot be used.
        """
        return AttemptHistory.begin(self._store, epoch, until_s)

    def close(self) -> None:
        """Give up what is under way: a store that does not answer would keep the process for minutes."""
        self._writers.close()
        self._readers.close()

    def names(self, until_s: float) -> list[CheckpointName]:
        """Checkpoints that were committed, newest first, and with them what the pointer names: a listing may lag behind."""
        keys = retry_until(lambda: self._store.list(COMMITS), until_s)
        listed = {name for name in map(CheckpointName.of_key, keys) if name}
        newest = self.pointer.read(until_s)
        if newest and newest not in listed and self.pointer.is_committed(newest, until_s):
            listed.add(newest)
        return sorted(listed, reverse=True)

    def check_newest(self, until_s: float) -> None:
        """Check that the checkpoint from which a start would continue is of this job, and of a format that this version reads.

        Raises:
            Foreign: it is not.
        """
        lineage = self.claims.lineage(until_s)
        for name in self.names(until_s):
            if not lineage.cut(name):
                with suppress(CorruptCheckpoint):
                    self._parse_commit(name, until_s)
                    return

    def upload(
        self, name: CheckpointName, snapshot: Snapshot, until_s: float, pace: RateLimit
    ) -> Statement:
        """Store a rank's part, and state what it has of what all ranks share. The record comes last: where it is, the bytes are."""
        send = partial(self._send, name, snapshot, pace)
        parts = enumerate(snapshot.parts(PART_BYTES))
        sums = self._writers.run([partial(send, number, part) for number, part in parts], until_s)
        stream = _stream(snapshot, dict(s for part in sums for s in part))
        stated = snapshot.stated({stored.piece.name: stored.crc for stored in stream.pieces})
        record = ShardMetadata(
            rank=snapshot.rank,
            stream=stream,
            kinds=snapshot.kinds,
            own=snapshot.own,
            tracked=snapshot.tracked,
            each=snapshot.each,
            agreed=digest_of(stated) if stated else "",
            samples=snapshot.samples.read(),
        )
        key, data = name.record_key(snapshot.rank), record.dump()
        retry_until(lambda: self._store.put(key, data), until_s)
        return stated

    def _send(
        self,
        name: CheckpointName,
        snapshot: Snapshot,
        pace: RateLimit,
        number: int,
        stretches: Sequence[tuple[int, int]],
    ) -> list[tuple[tuple[int, int], int]]:
        """Store a part; the digests of its stretches, which belong to one piece each."""
        begin, end = stretches[0][0], stretches[-1][1]
        pace.wait(end - begin)
        sums = [((start, stop), crc(snapshot.memory[start:stop])) for start, stop in stretches]
        self._store.put(name.part_key(snapshot.rank, number), snapshot.memory[begin:end])
        return sums

    def find_record(self, name: CheckpointName, rank: int, until_s: float) -> bytes | None:
        """A rank's record; None while it is not there."""
        try:
            return retry_until(lambda: self._store.get(name.record_key(rank)), until_s)
        except Missing:
            return None

    def commit(
        self,
        name: CheckpointName,
        snapshot_at: str,
        records: Sequence[bytes],
        until_s: float,
        metrics: Mapping[str, MetricValue] = MappingProxyType({}),
    ) -> CommitMetadata:
        """Make the checkpoint exist, now that the records of all ranks are there, in their order.

        Raises:
            Damaged: the parts do not make a whole.
            Unlike: the ranks had different states of what all of them share.
            Apart: the same of what each of them writes a part of.
            Refused: another process committed something else under this name.
        """
        parsed = [ShardMetadata.parse(record) for record in records]
        unlike = [r.rank for r in parsed if r.agreed != parsed[0].agreed]
        if unlike:
            raise Unlike(f"the state of rank {unlike[0]} is not that of rank 0")
        kinds = {n: kind for record in parsed for n, kind in record.kinds.items()}
        apart = first_apart([record.samples for record in parsed], kinds)
        if apart:
            raise Apart(apart)
        streams = tuple(record.stream for record in parsed)
        check_whole(parsed[0].tracked, kinds, streams)
        commit = CommitMetadata(
            name=name,
            job=self._job,
            snapshot_at=snapshot_at,
            weights_sha256=digest_weights(parsed[0].tracked, kinds, streams),
            kinds=kinds,
            tracked=parsed[0].tracked,
            each=parsed[0].each,
            streams=streams,
            records=tuple(map(Digest.of, records)),
            metrics=metrics,
        )
        data = commit.dump()
        is_new = retry_until(lambda: self._store.put_if_absent(name.commit_key, data), until_s)
        # "It is there already" is also what a second try hears when only the answer to the first was lost.
        if not is_new and retry_until(lambda: self._store.get(name.commit_key), until_s) != data:
            raise Refused(f"{name} was committed by another process")
        return commit

    def read_commit(self, name: CheckpointName, until_s: float) -> CommitMetadata:
        """What a checkpoint consists of.

        Raises:
            Damaged: it cannot be used.
            Foreign: this version cannot read it, or another job saved it.
        """
        commit = self._parse_commit(name, until_s)
        if commit.name != name:
            raise CorruptCheckpoint(f"its commit is that of {commit.name}")
        try:
            check_whole(commit.tracked, commit.kinds, commit.streams)
        except MALFORMED as error:
            raise CorruptCheckpoint("its commit cannot be parsed") from error
        return commit

    def read_record(self, commit: CommitMetadata, rank: int, until_s: float) -> ShardMetadata:
        """The record of one rank of those that saved.

        Raises:
            Damaged: it cannot be used.
        """
        key = commit.name.record_key(rank)
        data = self._get(key, until_s)
        if Digest.of(data) != commit.records[rank]:
            raise CorruptCheckpoint(f"{key} does not have the digest that was committed")
        return ShardMetadata.parse(data)

    def read_parts(
        self, commit: CommitMetadata, targets: Mapping[PartId, list[Target]], until_s: float
    ) -> None:
        """Fill the targets with the bytes of a checkpoint, every part verified.

        Raises:
            Damaged: a part is not there, or not the one that was written.
            Withheld: the store does not give it.
        """
        parts = [partial(self._receive, commit, part, aims) for part, aims in targets.items()]
        try:
            self._readers.run(parts, until_s)
        except (Refused, Unreadable) as error:
            raise Withheld(f"a part cannot be read: {error}") from error

    def _receive(self, commit: CommitMetadata, part: PartId, targets: list[Target]) -> None:
        flaw = self._receive_once(commit, part, targets)
        if flaw and self._receive_once(commit, part, targets):
            # Twice: what went bad on the way is no fault of the checkpoint.
            raise CorruptCheckpoint(flaw)

    def _receive_once(
        self, commit: CommitMetadata, part: PartId, targets: list[Target]
    ) -> str | None:
        """What is wrong with a part; None if nothing is."""
        key = commit.name.part_key(part.rank, part.number)
        stream = commit.streams[part.rank]
        begin, end = stream.bounds(part.number)
        try:
            size, value = scatter(self._store.stream(key), targets)
        except Missing:
            return f"{key} is missing"
        if size != end - begin:
            return f"{key} has {size} bytes instead of {end - begin}"
        if value != stream.parts[part.number]:
            return f"{key} does not have the digest that was committed"
        return None

    def prune(
        self,
        newest: CheckpointName,
        keep: int,
        damaged: Collection[CheckpointName],
        lineage: Lineage,
        until_s: float,
    ) -> None:
        """Remove all checkpoints but the newest, and what uploads that died left behind: where no service does it.

        A commit goes before its data, so that what is left of a removal that was cut off is a leftover, not a
        checkpoint. Those that were found `damaged` do not count among the ones to keep, nor those off the lineage.
        What has a higher epoch is not touched: a newer placement may be at work, if we are the one that was forgotten.
        Checkpoints of a format that this version cannot read stay, and one line in the log says so.
        """
        committed = [n for n in self.names(until_s) if n.epoch <= newest.epoch]
        sound = [name for name in committed if name not in damaged and not lineage.cut(name)]
        kept = {*sound[:keep], newest}
        for name in committed:
            if name not in kept and self._is_unread(name, until_s):
                kept.add(name)
            if name not in kept:
                key = name.commit_key
                retry_until(lambda key=key: self._store.delete(key), until_s)  # type: ignore[misc]
                if name in damaged:
                    self.flaws.clear(name, until_s)
        for key in retry_until(lambda: self._store.list(DATA), until_s):
            owner = CheckpointName.of_key(key)
            if owner and owner not in kept and owner.epoch <= newest.epoch:
                retry_until(lambda key=key: self._store.delete(key), until_s)  # type: ignore[misc]

    def _is_unread(self, name: CheckpointName, until_s: float) -> bool:
        """Whether a checkpoint has a format that this version cannot read; the first time, the log says what."""
        if name in self._unread:
            return True
        with suppress(CorruptCheckpoint):
            why = unread_format_of(self._get(name.commit_key, until_s))
            if why:
                self._unread.add(name)
                log_info(f"checkpoint {name} is not removed: {why}")
                return True
        return False

    def _parse_commit(self, name: CheckpointName, until_s: float) -> CommitMetadata:
        data = self._get(name.commit_key, until_s)
        try:
            commit = CommitMetadata.parse(data)
        except Foreign as error:
            raise Foreign(f"checkpoint {name} cannot be read: {error}") from error
        if self._job and commit.job not in {"", self._job}:
            raise Foreign(
                f"checkpoint {name} was saved by job {commit.job}, and this is job {self._job}: to continue from job "
                f"{commit.job}, set holdfast.checkpoint.from or use holdfast retry; otherwise remove it from this store"
            )
        return commit

    def _get(self, key: str, until_s: float) -> bytes:
        try:
            return retry_until(lambda: self._store.get(key), until_s)
        except Missing as error:
            raise CorruptCheckpoint(f"{key} is missing") from error
        except (Refused, Unreadable) as error:
            raise Withheld(f"{key} cannot be read: {error}") from error


def _stream(snapshot: Snapshot, sums: Mapping[tuple[int, int], int]) -> ShardLayout:
    """The stream that was sent, from the digests of its stretches."""
    sized = [(span, (digest, span[1] - span[0])) for span, digest in sorted(sums.items())]
    parts = groupby(sized, key=lambda item: item[0][0] // PART_BYTES)
    ends = iter(sized)
    pieces: list[Stored] = []
    for piece in snapshot.pieces:
        own: list[tuple[int, int]] = []
        while sum(size for _, size in own) < piece.size:
            own.append(next(ends)[1])
        pieces.append(Stored(piece, join(own)))
    return ShardLayout(
        part_bytes=PART_BYTES,
        parts=tuple(join(item for _, item in group) for _, group in parts),
        pieces=tuple(pieces),
    )


def check_whole(
    tracked: Any, kinds: Mapping[str, TensorSpec], streams: Iterable[ShardLayout]
) -> None:
    """See that every element of every tensor was written once.

    Raises:
        Damaged: one was not.
    """
    streams = tuple(streams)
    regions: dict[str, list[Region]] = {}
    for stream in streams:
        for stored in stream.pieces:
            regions.setdefault(stored.piece.name, []).append(stored.piece.region)
    for _, name in leaves(tracked):
        kind = kinds.get(name)
        if kind is None or not is_tiled(kind.shape, regions.get(name, [])):
            raise CorruptCheckpoint(
                f"not all of {name} was written, each element once; are the ranks' states of one shape?"
            )
    for rank, stream in enumerate(streams):
        if not is_stream(stream, kinds):
            raise CorruptCheckpoint(f"the pieces of rank {rank} do not follow each other")


def digest_weights(
    tracked: Any, kinds: Mapping[str, TensorSpec], streams: Iterable[ShardLayout]
) -> str:
    """The digest of what is tracked as `model`, or of everything tracked if nothing is called so.

    The same whichever ranks wrote which share, as long as no tensor is sharded along another dimension than its first.
    """
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for stream in streams:
        for stored in stream.pieces:
            region = stored.piece.region
            at = region.start if isinstance(region, ElementRange) else region.offsets[0]
            runs.setdefault(stored.piece.name, []).append((at, stored.crc, stored.piece.size))
    return digest(
        (path, kinds[name], join((value, size) for _, value, size in sorted(runs.get(name, []))))
        for path, name in leaves(tracked.get("model", tracked))
    )


def _probe_key(nonce: str) -> str:
    return f"{PROBES}{nonce}"
