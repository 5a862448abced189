"""A checkpoint store in bad weather: placements that fall, machines that come back to life, bytes that rot, and a janitor
who is killed at any request. All drawn from one seed; what must always hold is checked after every visit.
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
from holdfast.domain.events.values import PassedOver as Told
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
CUES = (("list", "commits/"), ("get", "commits/"), ("stream", "step-"), ("put", "starts/"))
"""Where in a resume the janitor comes by."""


class Gone(BaseException):
    """The collector's process is gone; no code remains that could catch this."""


class ReplaceableStore:
    """A store of which another one can be made while somebody uses it."""

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
        self.crews: dict[int, RankGroup] = {}
        self.doors: dict[int, ReplaceableStore] = {}
        self.rotten: set[CheckpointName] = set()
        """Checkpoints that somebody damaged."""
        self.visits = self.deaths = 0

    def move(self) -> None:
        """Something happens."""
        moves: list[tuple[int, Callable[[], None]]] = [
            (10, self.save),
            (6, self.visit),
            (4, self.wait),
            (2, self.begin),
            (2, self.fall_while_saving),
            (1, self.come_back_to_life),
            (1, self.sleep_before_the_commit),
            (1, self.rot),
            (1, self.fall_back),
        ]
        [move] = self.rng.choices([deed for _, deed in moves], [weight for weight, _ in moves])
        move() if self.crews else self.begin()

    def wait(self) -> None:
        """Time passes."""
        self.clock.advance(self.rng.choice([5, 60, 299, 301, 4000]))

    def save(self) -> None:
        """The newest placement makes a checkpoint."""
        self.step += self.rng.choice([1, 5, 10, 25])
        self._save(self.epoch, self.step)
        if self.rng.random() < 0.9:  # Otherwise its machine was lost before it could report.
            self._hear(self.epoch)

    def begin(self) -> None:
        """A new placement begins where it finds a checkpoint; the janitor comes by while it reads."""
        self._hear(self.epoch)
        self.epoch += 1
        told_of = self.epoch > 1 and self.rng.random() < 0.7
        if self.epoch > 1:
            self.harness.tell(lost(self._now(), attempt=self.epoch - 1))
            self.harness.tell(ready(self._now(), attempt=self.epoch))
        if told_of:
            self.harness.tell(restoring(self._now(), attempt=self.epoch))
        operation, prefix = self.rng.choice(CUES)
        expected = self._newest()
        found = resume(InterruptedStore(self.store, operation, prefix, self.linger), self.epoch)
        assert found.name == expected, (found, expected)
        self._begun(found)

    def fall_while_saving(self) -> None:
        """A placement is killed at some request of a save, and another one begins."""
        self._save_through(CrashingStore(self.store, self.rng.randrange(8)))
        self.begin()

    def come_back_to_life(self) -> None:
        """A placement looks, is replaced before it commits, and commits after all. The janitor comes by, too."""
        self._save_through(InterruptedStore(self.store, "put_if_absent", "commits/", self.begin))
        self.visit()

    def sleep_before_the_commit(self) -> None:
        """A machine is stopped between the last byte and the commit, for hours, and continues as if nothing had been."""
        step = self.step + 4
        self._save_through(InterruptedStore(self.store, "put_if_absent", "commits/", self.linger))
        self.step = step
        newest = max(self._on_lineage())
        assert newest.step == step
        check_whole(CheckpointRepository(self.store), newest, 1)

    def linger(self) -> None:
        """Time passes, and the janitor comes."""
        self.wait()
        self.visit()

    def rot(self) -> None:
        """Some bytes of a checkpoint are other ones, or are gone."""
        if names := self._on_lineage()[:3]:
            self._spoil(self.rng.choice(names))

    def fall_back(self) -> None:
        """The newest two are rotten, and what a placement then finds is one that the rule asks for no more."""
        for _ in range(2):
            self.save()
        for name in sorted(self._on_lineage(), reverse=True)[:2]:
            self._spoil(name)
        self.begin()

    def _spoil(self, name: CheckpointName) -> None:
        self.rotten.add(name)
        key = name.part_key(0, 0)
        if key in self.harness.bucket_objects.objects and self.rng.random() < 0.5:
            self.store.put(key, bytes(len(self.store.get(key))))
        else:
            self.store.delete(key)

    def visit(self) -> None:
        """The janitor comes, and may be killed at any request."""
        asked_for = self._asked_for()
        deadly = self.rng.choice([None, self.rng.randrange(60)])
        countdown = iter(range(10_000))

        def die(operation: str, key: str) -> None:
            if next(countdown) == deadly:
                raise Gone

        self.clock.advance(3600 if self.rng.random() < 0.2 else 0)
        self.harness.janitor = self.harness.new_janitor(die)
        self.visits += 1
        try:
            self.harness.janitor.run_once()
        except Gone:
            self.deaths += 1
            self.clock.advance(601)  # Its lease.
        self._check(asked_for)

    def calm_down(self) -> None:
        """Nothing goes wrong any more, and a day passes."""
        self.begin()
        for _ in range(4):
            self.save()
        self._hear(self.epoch)
        for _ in range(4):
            self.clock.advance(86_400)
            self.harness.janitor = self.harness.new_janitor()
            self.harness.janitor.run_once()

    def _now(self) -> float:
        return (self.clock.now() - self.harness.journal.read(JOB).submitted_at).total_seconds()

    def _save_through(self, store: Store) -> None:
        """The newest placement saves once more, over a store of its own."""
        epoch = self.epoch
        self.doors[epoch].store = store
        self._save(epoch, self.step + 4)
        self.doors[epoch].store = self.store

    def _save(self, epoch: int, step: int) -> None:
        loss = self.rng.choice([None, *(n / 10 for n in range(10))])
        saver = self.crews[epoch].savers[0]
        saver.save(snapshot(step, 0, 1), None, lambda: {"loss": MetricValue(loss, step)})
        saver.wait(30)
        assert not saver.is_busy

    def _hear(self, epoch: int) -> None:
        """Deliver the reports of the worker of an attempt to the service."""
        if epoch in self.crews:
            # Workers date by the machine's clock; here they have that of this world.
            now = self.clock.now().isoformat()
            reported = [
                replace(report, at=now) for report, _ in read_spool(self.crews[epoch].spool)
            ]
            self.harness.journal.ingest(JOB, epoch, reported)

    def _begun(self, found: RestoreResult) -> None:
        self.step = found.name.step if found.name else 0
        self.doors[self.epoch] = ReplaceableStore(self.store)
        self.crews[self.epoch] = RankGroup(
            self.doors[self.epoch],
            self.folder,
            epoch=self.epoch,
            ranks=1,
            keep=None,
            lineage=found.lineage,
        )
        over = tuple(Told(checkpoint=p.checkpoint, reason=p.reason) for p in found.passed_over)
        self.harness.tell(
            TrainingStarted(
                at=self.clock.now(),
                attempt=self.epoch,
                step=self.step,
                restored_from=str(found.name) if found.name else None,
                passed_over=over,
            )
        )

    def _newest(self) -> CheckpointName | None:
        """What a resume has to find."""
        names = set(self._on_lineage()) - self.rotten
        return max((name for name in names if self._reads(name)), default=None)

    def _on_lineage(self) -> list[CheckpointName]:
        archive = CheckpointRepository(self.store)
        cut = archive.tokens.lineage(LATER_S).superseding_start
        return [n for n in archive.names(LATER_S) if not cut(n) and self._is_there(n)]

    def _is_there(self, name: CheckpointName) -> bool:
        return (
            name.commit_key in self.harness.bucket_objects.objects
        )  # The pointer may name one that is gone.

    def _reads(self, name: CheckpointName) -> bool:
        with suppress(CorruptCheckpoint):
            check_whole(CheckpointRepository(self.store), name, 1)
            return True
        return False

    def _asked_for(self) -> set[CheckpointName]:
        """Those for which the rule asks, by what is in the store and nothing else. No list tells which ones are rotten."""
        archive, keep = CheckpointRepository(self.store), RetentionPolicy.model_validate(KEEP)
        commits = [
            Commit(name=name, at=self.clock.now(), score=_score(archive.read_commit(name, LATER_S)))
            for name in self._on_lineage()
        ]
        return {one.name for one in commits if is_asked_for(one, commits, keep)}

    def _check(self, asked_for: set[CheckpointName]) -> None:
        """What the rule asked for is there, and can be read if it could be before."""
        for name in asked_for:
            assert self._is_there(name), f"{name} is lost"
            if name not in self.rotten:
                check_whole(CheckpointRepository(self.store), name, 1)


def _score(commit: Written) -> Score | None:
    logged = commit.metrics.get("loss")
    return None if logged is None or logged.value is None else Score(logged.value, logged.step)


__all__ = ["Crash", "FaultyStore", "FencedOut"]
