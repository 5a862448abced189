"""A reconciler with one job and a launcher of a given class."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.events import Event
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.ports import SecretStore
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine
from support.events import at, submitted
from support.fakes import FileLauncher, FixedClock

NewReconcilerHarness: TypeAlias = "Callable[..., ReconcilerHarness]"
PACE = PollIntervals(poll_every_s=5, lease_s=10)


def said(n: int, kind: ReportKind, **body: Json) -> Report:
    """Return a report of the first attempt."""
    return Report(1, n, at(n).isoformat(), kind, body)


class ReconcilerHarness:
    """A reconciler with one job and a launcher of a given class."""

    def __init__(
        self,
        tmp_path: Path,
        engine: Engine,
        kind: type[FileLauncher],
        *,
        pace: PollIntervals = PACE,
        safe: SecretStore | None = None,
        cloud: FileLauncher | None = None,
        **holdfast: Any,
    ) -> None:
        """`cloud`: launcher of jobs that are not local; `holdfast`: fields of that block of the job file."""
        self.engine = engine
        self.clock = FixedClock()
        self.journal = Journal(engine, self.clock)
        self.watches = LeaseTable(engine)
        self.reading = Queries(engine)
        self.launcher = kind(tmp_path / "launches.jsonl", self.clock)
        self.reconciler = Reconciler(
            journal=self.journal,
            leases=self.watches,
            tokens=ServiceTokens(engine, b"secret"),
            launchers={Kind.LOCAL: self.launcher} | ({Kind.SKYPILOT: cloud} if cloud else {}),
            inbox=self.launcher,
            clock=self.clock,
            intervals=pace,
            worker_url="http://127.0.0.1:8642",
            secrets=safe or Secrets(engine, b"secret"),
        )
        self.journal.submit("job-1", submitted(**holdfast))

    def step(self) -> None:
        asyncio.run(self.reconciler.step("job-1"))

    def sweep(self, seconds: float = PACE.poll_every_s) -> None:
        asyncio.run(self.reconciler.sweep())
        self.clock.advance(seconds)

    def log(self) -> list[Event]:
        return [item.event for item in self.journal.events("job-1")]


@pytest.fixture
def new_harness(tmp_path: Path, sqlite: Engine) -> NewReconcilerHarness:
    """Return a factory of reconcilers with a launcher of a given class."""
    return lambda kind=FileLauncher, **more: ReconcilerHarness(tmp_path, sqlite, kind, **more)
