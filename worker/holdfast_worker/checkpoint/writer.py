"""The saver: turns snapshots into durable checkpoints beside the training, one at a time.

There is no collective here: a rank that hangs must cost a checkpoint, not the run. Each rank writes its part and a
record of it; the leader waits for all records, looks whether a newer placement took over, and commits.
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
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.clock import to_iso
from holdfast_worker.console import log_info
from holdfast_worker.distributed.state_consistency import Apart, Statement, Unlike
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.policies import Cadence, Rhythm
from holdfast_worker.storage.base import StoreError
from holdfast_worker.telemetry.metrics import Readings, nothing_logged
from holdfast_worker.telemetry.reporter import Committed, Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

DEADLINE_S: Final = 600.0
"""For one checkpoint to become durable. Longer and a store that is down keeps the next one from being tried;
shorter and a large state over a slow link never makes it."""

LOOK_S: Final = 0.2
"""How often the leader looks for records. Longer delays the commit, shorter asks the store for nothing."""

FENCE_LOOK_S: Final = 3.0
"""How often the leader, while it waits for records, looks whether a newer placement took over. That one removes what older
ones left unfinished, so that a record may never be found; longer and a zombie trains on, shorter is listings for nothing."""


class IncompleteCheckpoint(Exception):
    """Not all ranks wrote their part."""


class PeerWriteFailed(IncompleteCheckpoint):
    """Another rank could not write its part, and says why."""


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who saves: one rank of one start of a job."""

    rank: int
    world_size: int
    epoch: int
    nonce: str
    """Drawn at this start, the same on all ranks: `DRAWN_DIGITS` of hexadecimal."""

    def name(self, step: int, saves: int) -> CheckpointName:
        """The name of a checkpoint; a second try at the same step gets another one, as no key is used twice."""
        return CheckpointName(step, self.epoch, f"{self.nonce}{saves:04x}")


class AsyncWriter:
    """One rank's saves, in a thread each."""

    def __init__(
        self,
        archive: CheckpointRepository,
        placement: WriterIdentity,
        reports: Reporter,
        *,
        keep: int | None,
        damaged: Collection[CheckpointName] = (),
        lineage: Lineage = Lineage(),
        deadline_s: float = DEADLINE_S,
        tempo: CheckpointSchedule | None = None,
        diary: AttemptHistory | None = None,
        beat: HeartbeatWriter | None = None,
    ) -> None:
        """`tempo` learns from each checkpoint; None: nobody asks how often to save. `diary` is that of the leader. `beat` shows
        whether a save is under way."""
        self._archive = archive
        self._placement = placement
        self._reports = reports
        self._keep = keep
        self._damaged = damaged
        self._lineage = lineage
        self._deadline_s = deadline_s
        self._tempo = tempo or CheckpointSchedule(Cadence(Rhythm.AUTO, 0))
        self._diary = diary
        self._beat = beat or HeartbeatWriter()
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._pace = RateLimit()
        self._saves = 0
        self._is_broken = False
        self._is_through = False
        self.is_unlike = False
        """Whether the ranks had different states at the last save, as far as this rank knows."""
        self.refused = ""
        """What of the state this rank cannot hold in a checkpoint, in words; empty where there is nothing."""
        self.apart = ""
        """What the ranks hold differently, though DDP keeps it the same, in words; only the leader knows."""
        self.stated: Statement = {}
        """What this rank had at the last save of everything that all ranks share."""
        self.complaint = ""
        """Why, in words; empty where this rank has nothing to say but that another one failed."""
        self.fenced = ""
        """That a newer placement took over, in words; empty as long as this rank, if it leads, knows of none."""

    @property
    def is_busy(self) -> bool:
        """Whether a save is under way here."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_broken(self) -> bool:
        """Whether the last save failed, as far as this rank knows; also of something that nobody has foreseen."""
        has_died = self._thread is not None and not self.is_busy and not self._is_through
        return self._is_broken or has_died

    def save(
        self, snapshot: Snapshot, pace: RateLimit | None = None, readings: Readings = nothing_logged
    ) -> None:
        """Begin to make a snapshot durable, at that pace; at full speed without one."""
        pace = pace or RateLimit()
        assert not self.is_busy, "one at a time; the vote sees to it"
        self._is_broken = self._is_through = self.is_unlike = False
        self.complaint = self.refused = self.apart = ""
        self._saves += 1
        self._abandoned.clear()
        self._pace = pace
        self._beat.show_save(is_under_way=True)
        self._thread = threading.Thread(
            target=self._save, args=(snapshot, pace, readings), name="holdfast-saver", daemon=True
        )
        self._thread.start()

    def refuse(self, why: str) -> None:
        """Let a save fail before it begins, as this rank has something that no checkpoint can hold."""
        assert not self.is_busy, "one at a time; the vote sees to it"
        self._is_broken, self.refused, self.complaint = True, why, why

    def abandon(self) -> None:
        """Another rank could not write its part: stop waiting for it."""
        self._abandoned.set()

    def wait(self, within_s: float) -> None:
        """Return when nothing is under way here, or the time is up. Who waits is in a hurry."""
        self._pace.hurry()
        if self._thread:
            self._thread.join(within_s)

    def _save(self, snapshot: Snapshot, pace: RateLimit, readings: Readings) -> None:
        began_s = time.monotonic()
        until_s = began_s + self._deadline_s
        name = self._placement.name(snapshot.step, self._saves)
        try:
            snapshot.copying.wait()
            self.stated = self._archive.upload(name, snapshot, until_s, pace)
            if self._placement.rank == 0:
                records = self._wait_for_shards(name, until_s)
                self._archive.claims.check(name.epoch, until_s)
                taken_at = to_iso(snapshot.taken_at)
                commit = self._archive.commit(name, taken_at, records, until_s, readings())
                self._archive.pointer.advance(name, until_s)
                self._report_commit(snapshot, commit, time.monotonic() - began_s, pace)
                self._tidy(name, until_s)
            self._is_through = True
        except FencedOut as fenced:
            self._is_broken = True
            self.fenced = str(fenced)
        except (
            StoreError,
            CorruptCheckpoint,
            IncompleteCheckpoint,
            Unlike,
            Apart,
            ConcurrentModification,
            MemoryError,
        ) as error:
            detail = str(error) or type(error).__name__
            self.is_unlike = isinstance(error, Unlike)
            self.apart = detail if isinstance(error, Apart) else ""
            self.complaint = "" if isinstance(error, PeerWriteFailed) else detail
            self._is_broken = True
            log_info(f"checkpoint {name} failed on rank {self._placement.rank}: {detail}")
            self._reports.checkpoint_failed(snapshot.step, detail)
        finally:
            self._beat.show_save(is_under_way=False)

    def _wait_for_shards(self, name: CheckpointName, until_s: float) -> list[bytes]:
        """The records of all ranks, in their order.

        Raises:
            Unfinished: some are not there in time, or will never be.
            Fenced: a newer placement took over meanwhile.
        """
        records: dict[int, bytes] = {}
        looked_s = time.monotonic()
        while True:
            for rank in range(self._placement.world_size):
                if rank not in records:
                    record = self._archive.find_record(name, rank, until_s)
                    if record is not None:
                        records[rank] = record
            missing = [r for r in range(self._placement.world_size) if r not in records]
            if not missing:
                return [records[rank] for rank in sorted(records)]
            if self._abandoned.wait(LOOK_S):
                raise PeerWriteFailed("another rank could not write its part")
            if time.monotonic() - looked_s > FENCE_LOOK_S:
                self._archive.claims.check(name.epoch, until_s)
                looked_s = time.monotonic()
            if time.monotonic() > until_s:
                raise IncompleteCheckpoint(
                    f"no record of rank {missing[0]} in {self._deadline_s:.0f} s"
                )

    def _report_commit(
        self, snapshot: Snapshot, commit: CommitMetadata, durable_s: float, pace: RateLimit
    ) -> None:
        cost = SaveCost(snapshot.stall_s, durable_s, pace.spread_s(len(snapshot.memory)))
        survival = self._diary.survival if self._diary else FailureRate()
        if self._tempo.observe(cost, survival) and self._tempo.interval:
            log_info(f"a checkpoint is saved {self._tempo.interval.words}")
        self._reports.checkpoint_committed(
            Committed(
                step=snapshot.step,
                checkpoint=str(commit.name),
                size_bytes=commit.size_bytes,
                stall_ms=round(snapshot.stall_s * 1000),
                upload_ms=round(durable_s * 1000),
                snapshot_at=snapshot.taken_at,
                weights_sha256=commit.weights_sha256,
                interval=self._tempo.interval,
                metrics=commit.metrics,
            )
        )

    def _tidy(self, newest: CheckpointName, until_s: float) -> None:
        """Go on in the diary, and prune, unless the service does. What cannot be done now is done next time, so a failure here fails no checkpoint."""
        try:
            if self._diary:
                self._diary.note(until_s)
            if self._keep is not None:
                self._archive.prune(newest, self._keep, self._damaged, self._lineage, until_s)
        except StoreError as error:
            log_info(f"the store could not be tidied up: {error}")
