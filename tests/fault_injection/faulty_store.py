"""A checkpoint store with random faults: killed attempts, zombies, damaged objects.

The checkpoint collector is killed at random requests. A seed determines all faults; the retention policy is
checked after every run of the collector.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.domain.checkpoints.retention import Commit, Score
from holdfast.domain.events import TrainingStarted
from holdfast.domain.events.values import PassedOver as PassedOverCheckpoint
from holdfast.domain.jobfile.retention_policy import RetentionPolicy
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.metadata import CommitMetadata as Written
from holdfast_worker.checkpoint.metadata import CorruptCheckpoint
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.storage.base import Store
from holdfast_worker.telemetry.spool import read_spool
from sqlalchemy import Engine
from support.events import lost, ready, restoring
from support.fakes import FixedClock
from support.memory_store import TimedStore
from support.retention import JOB, RetentionHarness
from support.retention_oracle import is_asked_for
from worker.support.stores import (
    LATER_S,
    Crash,
    CrashingStore,
    InterruptedStore,
    RankGroup,
    check_whole,
    resume,
    snapshot,
)

KEEP = {"last": 2, "every": "40 steps", "best": {"metric": "loss", "mode": "min", "count": 2}}
COLLECTOR_REQUESTS = (
    ("list", "commits/"),
    ("get", "commits/"),
    ("stream", "step-"),
    ("put", "starts/"),
)
"""Requests of a resume at which the collector runs."""


class CollectorKilled(BaseException):
    """The collector's process has crashed; none of its code may catch this."""


class ReplaceableStore:
    """A store that can be replaced while it is in use."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class FaultyStore:
    """One job and its store. Each epoch is an attempt."""

    def __init__(self, seed: int, engine: Engine, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.clock = FixedClock()
        self.harness = RetentionHarness(engine, self.clock, keep=KEEP)
        self.store = TimedStore(self.harness.bucket_objects)
        self.folder = folder
        self.epoch = 0
        self.step = 0
        self.rank_groups: dict[int, RankGroup] = {}
        self.stores: dict[int, ReplaceableStore] = {}
        self.damaged: set[CheckpointName] = set()
        """Damaged checkpoints."""
        self.collections = self.collector_kills = 0

    def move(self) -> None:
        """Apply one random event."""
        events: list[tuple[int, Callable[[], None]]] = [
            (10, self.save),
            (6, self.collect),
            (4, self.wait),
            (2, self.begin),
            (2, self.kill_during_save),
            (1, self.commit_after_replacement),
            (1, self.pause_before_commit),
            (1, self.damage_checkpoint),
            (1, self.damage_newest_two),
        ]
        [move] = self.rng.choices(
            [action for _, action in events], [weight for weight, _ in events]
        )
        move() if self.rank_groups else self.begin()

    def wait(self) -> None:
        """Advance the clock."""
        self.clock.advance(self.rng.choice([5, 60, 299, 301, 4000]))

    def save(self) -> None:
        """Save a checkpoint in the newest attempt."""
        self.step += self.rng.choice([1, 5, 10, 25])
        self._save(self.epoch, self.step)
        if self.rng.random() < 0.9:  # Otherwise the machine was lost before it could report.
            self._deliver_reports(self.epoch)

    def begin(self) -> None:
        """Start an attempt, which resumes from the newest checkpoint while the collector runs."""
        self._deliver_reports(self.epoch)
        self.epoch += 1
        is_restore_reported = self.epoch > 1 and self.rng.random() < 0.7
        if self.epoch > 1:
            self.harness.tell(lost(self._now(), attempt=self.epoch - 1))
            self.harness.tell(ready(self._now(), attempt=self.epoch))
        if is_restore_reported:
            self.harness.tell(restoring(self._now(), attempt=self.epoch))
        operation, prefix = self.rng.choice(COLLECTOR_REQUESTS)
        expected = self._newest()
        found = resume(
            InterruptedStore(self.store, operation, prefix, self.wait_and_collect), self.epoch
        )
        assert found.name == expected, (found, expected)
        self._start_attempt(found)

    def kill_during_save(self) -> None:
        """Kill an attempt at some request of a save, and start another one."""
        self._save_through(CrashingStore(self.store, self.rng.randrange(8)))
        self.begin()

    def commit_after_replacement(self) -> None:
        """Replace an attempt just before it commits, let it commit, and run the collector."""
        self._save_through(InterruptedStore(self.store, "put_if_absent", "commits/", self.begin))
        self.collect()

    def pause_before_commit(self) -> None:
        """Stop a machine for hours between the last byte and the commit, and continue."""
        step = self.step + 4
        self._save_through(
            InterruptedStore(self.store, "put_if_absent", "commits/", self.wait_and_collect)
        )
        self.step = step
        newest = max(self._on_lineage())
        assert newest.step == step
        check_whole(CheckpointRepository(self.store), newest, 1)

    def wait_and_collect(self) -> None:
        """Advance the clock and run the collector."""
        self.wait()
        self.collect()

    def damage_checkpoint(self) -> None:
        """Change or delete some bytes of a checkpoint."""
        if found_names := self._on_lineage()[:3]:
            self._damage(self.rng.choice(found_names))

    def damage_newest_two(self) -> None:
        """Damage the two newest checkpoints, so that a resume finds one that is no longer retained."""
        for _ in range(2):
            self.save()
        for name in sorted(self._on_lineage(), reverse=True)[:2]:
            self._damage(name)
        self.begin()

    def _damage(self, name: CheckpointName) -> None:
        self.damaged.add(name)
        key = name.part_key(0, 0)
        if key in self.harness.bucket_objects.objects and self.rng.random() < 0.5:
            self.store.put(key, bytes(len(self.store.get(key))))
        else:
            self.store.delete(key)

    def collect(self) -> None:
        """Run the collector, which may be killed at any request."""
        retained = self._retained()
        killed_request = self.rng.choice([None, self.rng.randrange(60)])
        countdown = iter(range(10_000))

        def die(operation: str, key: str) -> None:
            if next(countdown) == killed_request:
                raise CollectorKilled

        self.clock.advance(3600 if self.rng.random() < 0.2 else 0)
        self.harness.janitor = self.harness.new_janitor(die)
        self.collections += 1
        try:
            self.harness.janitor.run_once()
        except CollectorKilled:
            self.collector_kills += 1
            self.clock.advance(601)  # The lease of the killed collector expires.
        self._check(retained)

    def finish_without_faults(self) -> None:
        """Continue without faults for several days."""
        self.begin()
        for _ in range(4):
            self.save()
        self._deliver_reports(self.epoch)
        for _ in range(4):
            self.clock.advance(86_400)
            self.harness.janitor = self.harness.new_janitor()
            self.harness.janitor.run_once()

    def _now(self) -> float:
        return (self.clock.now() - self.harness.journal.read(JOB).submitted_at).total_seconds()

    def _save_through(self, store: Store) -> None:
        """Save once more in the newest attempt, through another store."""
        epoch = self.epoch
        self.stores[epoch].store = store
        self._save(epoch, self.step + 4)
        self.stores[epoch].store = self.store

    def _save(self, epoch: int, step: int) -> None:
        loss = self.rng.choice([None, *(n / 10 for n in range(10))])
        writer = self.rank_groups[epoch].savers[0]
        writer.save(snapshot(step, 0, 1), None, lambda: {"loss": MetricValue(loss, step)})
        writer.wait(30)
        assert not writer.is_busy

    def _deliver_reports(self, epoch: int) -> None:
        """Deliver the reports of an attempt's worker to the service."""
        if epoch in self.rank_groups:
            # Workers use the time of their machine; replace it by the simulated time.
            now = self.clock.now().isoformat()
            reported = [
                replace(report, at=now) for report, _ in read_spool(self.rank_groups[epoch].spool)
            ]
            self.harness.journal.ingest(JOB, epoch, reported)

    def _start_attempt(self, found: RestoreResult) -> None:
        self.step = found.name.step if found.name else 0
        self.stores[self.epoch] = ReplaceableStore(self.store)
        self.rank_groups[self.epoch] = RankGroup(
            self.stores[self.epoch],
            self.folder,
            epoch=self.epoch,
            ranks=1,
            keep=None,
            lineage=found.lineage,
        )
        passed_over = tuple(
            PassedOverCheckpoint(checkpoint=p.checkpoint, reason=p.reason)
            for p in found.passed_over
        )
        self.harness.tell(
            TrainingStarted(
                at=self.clock.now(),
                attempt=self.epoch,
                step=self.step,
                restored_from=str(found.name) if found.name else None,
                passed_over=passed_over,
            )
        )

    def _newest(self) -> CheckpointName | None:
        """The checkpoint that a resume has to find."""
        found_names = set(self._on_lineage()) - self.damaged
        return max((name for name in found_names if self._is_readable(name)), default=None)

    def _on_lineage(self) -> list[CheckpointName]:
        repository = CheckpointRepository(self.store)
        is_superseded = repository.tokens.lineage(LATER_S).superseding_start
        return [n for n in repository.names(LATER_S) if not is_superseded(n) and self._exists(n)]

    def _exists(self, name: CheckpointName) -> bool:
        return (
            name.commit_key in self.harness.bucket_objects.objects
        )  # The pointer may name a deleted checkpoint.

    def _is_readable(self, name: CheckpointName) -> bool:
        with suppress(CorruptCheckpoint):
            check_whole(CheckpointRepository(self.store), name, 1)
            return True
        return False

    def _retained(self) -> set[CheckpointName]:
        """Checkpoints that the retention policy keeps, derived from the store alone, damaged or not."""
        repository, keep = CheckpointRepository(self.store), RetentionPolicy.model_validate(KEEP)
        commits = [
            Commit(
                name=name, at=self.clock.now(), score=_score(repository.read_commit(name, LATER_S))
            )
            for name in self._on_lineage()
        ]
        return {one.name for one in commits if is_asked_for(one, commits, keep)}

    def _check(self, retained: set[CheckpointName]) -> None:
        """Check that retained checkpoints exist, and are readable unless damaged by a fault."""
        for name in retained:
            assert self._exists(name), f"{name} is lost"
            if name not in self.damaged:
                check_whole(CheckpointRepository(self.store), name, 1)


def _score(commit: Written) -> Score | None:
    logged = commit.metrics.get("loss")
    return None if logged is None or logged.value is None else Score(logged.value, logged.step)


__all__ = ["Crash", "FaultyStore", "FencedOut"]
