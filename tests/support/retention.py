"""A job with checkpoints in memory, and the collector that applies its retention policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import pytest
from holdfast.background.retention import CheckpointCollector, RetentionSettings
from holdfast.domain.checkpoints.retention import GracePeriods
from holdfast.domain.events import CheckpointsRemoved, Event
from holdfast.domain.events.values import Metric
from holdfast.store.journal import Journal
from holdfast.store.retention_queue import RetentionQueue, RetentionStatus
from holdfast.store.tables.launches import upkeep
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import commit_digest
from holdfast_worker.protocol.policies import RetentionOwner
from sqlalchemy import Engine, select
from support.events import launched, ready, saved, submitted, training
from support.fakes import FixedClock
from support.memory_store import MemoryBucket, MemoryObjects, NoFault

JOB = "job-1"
GRACE_S = 300.0
MANNERS = RetentionSettings(
    every_s=60,
    idle_s=600,
    grace=GracePeriods(commits=timedelta(seconds=GRACE_S), uploads=timedelta(days=1)),
)
Before = Callable[[str, str], None]
NewRetentionHarness: TypeAlias = "Callable[..., RetentionHarness]"


def name(step: int, epoch: int = 1) -> CheckpointName:
    """Return a checkpoint name. Each epoch started once, and a later step was saved later."""
    return CheckpointName(step, epoch, f"{epoch:08x}{step:04x}")


@dataclass
class RetentionHarness:
    """One training job, its store, and its checkpoint collector, on a common clock."""

    engine: Engine
    clock: FixedClock
    keep: Any = 2
    before: Before = field(default_factory=NoFault)
    """Called for each request to the store; may raise."""

    def __post_init__(self) -> None:
        self.bucket_objects = MemoryObjects(self.clock)
        self.journal = Journal(self.engine, self.clock)
        self.upkeep = RetentionQueue(self.engine)
        self.janitor = self.new_janitor()
        checkpoint = {"store": "s3://bucket/runs", "keep": self.keep}
        asked = submitted(checkpoint=checkpoint)
        self.journal.submit(JOB, asked, tidied_by=RetentionOwner.SERVICE)
        self.tell(launched(), ready())

    def new_janitor(self, before: Before | None = None) -> CheckpointCollector:
        """Create another collector, as after a restart of the service."""
        depot = MemoryBucket(self.bucket_objects, before or self.before)
        return CheckpointCollector(
            journal=self.journal,
            queue=self.upkeep,
            open_bucket=lambda store, job_id, envs: depot,
            clock=self.clock,
            settings=MANNERS,
        )

    def tell(self, *facts: Event) -> None:
        self.journal.append(self.journal.read(JOB), facts)

    def upload(self, step: int, epoch: int = 1) -> CheckpointName:
        """Upload data without a commit."""
        made = name(step, epoch)
        for rank in (0, 1):
            self.bucket_objects.put(made.part_key(rank, 0), b"12345678")
            self.bucket_objects.put(made.record_key(rank), b"{}")
        return made

    def save(self, step: int, epoch: int = 1, *, is_told: bool = True, **metrics: float | None) -> CheckpointName:  # fmt: skip
        """Save a complete checkpoint; `is_told`: the worker also reported it."""
        made = self.upload(step, epoch)
        logged = {k: {"value": v, "step": step} for k, v in metrics.items()}
        body = {"size_bytes": 20, "metrics": logged}
        self.bucket_objects.put(
            made.commit_key, json.dumps({**body, "sha256": commit_digest(body)}).encode()
        )
        if is_told:
            seconds = (self.clock.now() - self.journal.read(JOB).submitted_at).total_seconds()
            known = {k: Metric(value=v, step=step) for k, v in metrics.items()}
            words = {"name": str(made), "size_bytes": 20, "metrics": known}
            self.tell(saved(seconds, attempt=epoch, step=step, **words))
        return made

    def save_five(self) -> None:
        """Save five checkpoints of a training epoch, one minute apart."""
        self.bucket_objects.begin(1, 0)
        self.tell(training())
        for step in (10, 20, 30, 40, 50):
            self.save(step)
            self.clock.advance(60)

    def visit(self, seconds: float = 60) -> int:
        """Advance the clock, run the collector if it is due, and return the number of collected stores."""
        self.clock.advance(seconds)
        return self.janitor.run_once()

    def committed(self) -> list[int]:
        """Steps of the committed checkpoints in the store."""
        found = (CheckpointName.of_key(key) for key in self.bucket_objects.keys("commits/"))
        return sorted(made.step for made in found if made)

    def data(self) -> list[int]:
        """Steps with any data in the store."""
        found = {CheckpointName.of_key(key) for key in self.bucket_objects.keys("step-")}
        return sorted(made.step for made in found if made)

    def removals(self) -> list[CheckpointsRemoved]:
        """The recorded removals."""
        facts = (item.event for item in self.journal.events(JOB))
        return [fact for fact in facts if isinstance(fact, CheckpointsRemoved)]

    def told_gone(self) -> list[tuple[str, list[int]]]:
        """The recorded removals, as reason and steps."""
        return [
            (
                fact.removal.value,
                [made.step for text in fact.checkpoints if (made := CheckpointName.parse(text))],
            )
            for fact in self.removals()
        ]

    def due_at(self) -> datetime:
        """Return the time of the next visit."""
        with self.engine.connect() as connection:
            return connection.execute(select(upkeep.c.due_at)).scalar_one()

    @property
    def tidiness(self) -> RetentionStatus:
        return self.upkeep.statuses([JOB])[JOB]


@pytest.fixture
def new_harness(sqlite: Engine) -> NewRetentionHarness:
    """Return a factory of jobs with checkpoints in memory and their collector."""
    return lambda **words: RetentionHarness(sqlite, FixedClock(), **words)
