"""Writes snapshots to durable checkpoints in a background thread, one at a time.

No collectives run here: a hanging rank costs a checkpoint and not the run. Each rank writes its shard and shard metadata.
Rank 0 waits for all metadata, checks that no newer attempt took over, and commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from holdfast_worker.checkpoint.failure_rate import AttemptHistory, FailureRate
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.metadata import CommitMetadata, CorruptCheckpoint
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.schedule import CheckpointSchedule, SaveCost
from holdfast_worker.checkpoint.snapshot import Snapshot
from holdfast_worker.checkpoint.staging import ConcurrentModification
from holdfast_worker.checkpoint.state_consistency import (
    InconsistentState,
    ReplicasDiverged,
    Statement,
)
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.clock import to_iso
from holdfast_worker.console import log_info
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.policies import Cadence, CadenceUnit
from holdfast_worker.storage.base import StoreError
from holdfast_worker.telemetry.metrics import Readings, no_readings
from holdfast_worker.telemetry.reporter import CommittedCheckpoint, Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

SAVE_TIMEOUT_S: Final = 600.0
"""Time for one checkpoint to become durable. A higher value delays the next attempt while a
store is down; a lower value never completes a large state over a slow link."""

POLL_S: Final = 0.2
"""How often rank 0 looks for shard metadata. A higher value delays the commit; a lower value
adds requests."""

FENCE_CHECK_S: Final = 3.0
"""How often rank 0, while it waits for shard metadata, checks for a newer attempt. A newer
attempt deletes unfinished checkpoints of older ones, so the metadata may never appear. A higher value lets a fenced-out
attempt train longer; a lower value adds list requests."""


class IncompleteCheckpoint(Exception):
    """Some ranks did not write their shard."""


class PeerWriteFailed(IncompleteCheckpoint):
    """Another rank failed to write its shard; that rank reports the reason."""


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Identifies the rank and the start of a job that writes a checkpoint."""

    rank: int
    world_size: int
    epoch: int
    nonce: str
    """Drawn at this start, equal on all ranks: `NONCE_DIGITS` of hexadecimal."""

    def name(self, step: int, saves: int) -> CheckpointName:
        """The name of a checkpoint; `saves` makes it unique for retries of the same step."""
        return CheckpointName(step, self.epoch, f"{self.nonce}{saves:04x}")


class AsyncWriter:
    """Runs one rank's saves, each in a thread."""

    def __init__(
        self,
        repository: CheckpointRepository,
        identity: WriterIdentity,
        reports: Reporter,
        *,
        keep: int | None,
        damaged: Collection[CheckpointName] = (),
        lineage: Lineage = Lineage(),
        deadline_s: float = SAVE_TIMEOUT_S,
        schedule: CheckpointSchedule | None = None,
        history: AttemptHistory | None = None,
        heartbeat: HeartbeatWriter | None = None,
    ) -> None:
        """`schedule` learns from each checkpoint; rank 0 passes `history`.

        `heartbeat` shows whether a save is running.
        """
        self._repository = repository
        self._identity = identity
        self._reports = reports
        self._keep_checkpoints = keep
        self.damaged = damaged
        self.lineage = lineage
        self._deadline_s = deadline_s
        self._schedule = schedule or CheckpointSchedule(Cadence(CadenceUnit.AUTO, 0))
        self._history = history
        self._heartbeat = heartbeat or HeartbeatWriter()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._rate_limit = RateLimit()
        self.saves = 0
        self._is_broken = False
        self._is_finished = False
        self.is_inconsistent = False
        """Whether the ranks had different states at the last save, as far as this rank knows."""
        self.refusal = ""
        """Which part of this rank's state cannot be checkpointed; empty if all of it can."""
        self.divergence = ""
        """Which tensors diverged although DDP keeps them equal; set only on rank 0."""
        self.statement: Statement = {}
        """This rank's values of all shared state at the last save."""
        self.failure_reason = ""
        """Why the last save failed on this rank; empty if only another rank failed."""
        self.fenced = ""
        """Message that a newer attempt took over; set only on rank 0."""

    @property
    def is_busy(self) -> bool:
        """Whether a save is running on this rank."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_broken(self) -> bool:
        """Whether the last save failed on this rank, including by an unexpected exception."""
        has_died = self._thread is not None and not self.is_busy and not self._is_finished
        return self._is_broken or has_died

    def save(
        self,
        snapshot: Snapshot,
        rate_limit: RateLimit | None = None,
        readings: Readings = no_readings,
    ) -> None:
        """Begin to write a snapshot, at the given rate or at full speed."""
        rate_limit = rate_limit or RateLimit()
        assert not self.is_busy, "one save at a time, as the step vote ensures"
        self._is_broken = self._is_finished = self.is_inconsistent = False
        self.failure_reason = self.refusal = self.divergence = ""
        self.saves += 1
        self._cancelled.clear()
        self._rate_limit = rate_limit
        self._heartbeat.mark_saving(is_under_way=True)
        self._thread = threading.Thread(
            target=self._save,
            args=(snapshot, rate_limit, readings),
            name="holdfast-saver",
            daemon=True,
        )
        self._thread.start()

    def refuse(self, reason: str) -> None:
        """Fail a save before it begins, because this rank has state that cannot be checkpointed."""
        assert not self.is_busy, "one save at a time, as the step vote ensures"
        self._is_broken, self.refusal, self.failure_reason = True, reason, reason

    def cancel(self) -> None:
        """Stop waiting for another rank that failed to write its shard."""
        self._cancelled.set()

    def wait(self, within_s: float) -> None:
        """Wait up to `within_s` for the running save, at full speed from now on."""
        self._rate_limit.lift()
        if self._thread:
            self._thread.join(within_s)

    def _save(self, snapshot: Snapshot, rate_limit: RateLimit, readings: Readings) -> None:
        began_s = time.monotonic()
        until_s = began_s + self._deadline_s
        name = self._identity.name(snapshot.step, self.saves)
        try:
            snapshot.copying.wait()
            self.statement = self._repository.upload(name, snapshot, until_s, rate_limit)
            if self._identity.rank == 0:
                records = self._wait_for_shards(name, until_s)
                self._repository.tokens.check(name.epoch, until_s)
                staged_at = to_iso(snapshot.staged_at)
                commit = self._repository.commit(name, staged_at, records, until_s, readings())
                self._repository.pointer.advance(name, until_s)
                self._report_commit(snapshot, commit, time.monotonic() - began_s, rate_limit)
                self._clean_up(name, until_s)
            self._is_finished = True
        except FencedOut as fenced:
            self._is_broken = True
            self.fenced = str(fenced)
        except (
            StoreError,
            CorruptCheckpoint,
            IncompleteCheckpoint,
            InconsistentState,
            ReplicasDiverged,
            ConcurrentModification,
            MemoryError,
        ) as error:
            detail = str(error) or type(error).__name__
            self.is_inconsistent = isinstance(error, InconsistentState)
            self.divergence = detail if isinstance(error, ReplicasDiverged) else ""
            self.failure_reason = "" if isinstance(error, PeerWriteFailed) else detail
            self._is_broken = True
            log_info(f"checkpoint {name} failed on rank {self._identity.rank}: {detail}")
            self._reports.checkpoint_failed(snapshot.step, detail)
        finally:
            self._heartbeat.mark_saving(is_under_way=False)

    def _wait_for_shards(self, name: CheckpointName, until_s: float) -> list[bytes]:
        """The shard metadata of all ranks, in rank order.

        Raises:
            IncompleteCheckpoint: some are missing at the deadline, or cannot be written any more.
            FencedOut: a newer attempt took over.
        """
        records: dict[int, bytes] = {}
        checked_s = time.monotonic()
        while True:
            for rank in range(self._identity.world_size):
                if rank not in records:
                    record = self._repository.find_record(name, rank, until_s)
                    if record is not None:
                        records[rank] = record
            missing = [r for r in range(self._identity.world_size) if r not in records]
            if not missing:
                return [records[rank] for rank in sorted(records)]
            if self._cancelled.wait(POLL_S):
                raise PeerWriteFailed("another rank failed to write its shard")
            if time.monotonic() - checked_s > FENCE_CHECK_S:
                self._repository.tokens.check(name.epoch, until_s)
                checked_s = time.monotonic()
            if time.monotonic() > until_s:
                raise IncompleteCheckpoint(
                    f"rank {missing[0]} wrote no shard metadata within {self._deadline_s:.0f} s"
                )

    def _report_commit(
        self, snapshot: Snapshot, commit: CommitMetadata, durable_s: float, rate_limit: RateLimit
    ) -> None:
        cost = SaveCost(snapshot.stall_s, durable_s, rate_limit.spread_s(len(snapshot.memory)))
        survival = self._history.failure_rate if self._history else FailureRate()
        if self._schedule.observe(cost, survival) and self._schedule.interval:
            log_info(f"checkpoints are now saved {self._schedule.interval.description}")
        self._reports.checkpoint_committed(
            CommittedCheckpoint(
                step=snapshot.step,
                checkpoint=str(commit.name),
                size_bytes=commit.size_bytes,
                stall_ms=round(snapshot.stall_s * 1000),
                upload_ms=round(durable_s * 1000),
                snapshot_at=snapshot.staged_at,
                weights_sha256=commit.weights_sha256,
                interval=self._schedule.interval,
                metrics=commit.metrics,
                store_usage=self._repository.total_usage(self._identity.rank),
            )
        )

    def _clean_up(self, newest: CheckpointName, until_s: float) -> None:
        """Update the attempt history, and prune unless the service does.

        A failure is logged; the next save retries.
        """
        try:
            if self._history:
                self._history.record_alive(until_s)
            if self._keep_checkpoints is not None:
                self._repository.prune(
                    newest, self._keep_checkpoints, self.damaged, self.lineage, until_s
                )
        except StoreError as error:
            log_info(f"old checkpoints could not be deleted: {error}")
