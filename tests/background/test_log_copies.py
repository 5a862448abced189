"""Logs are copied for jobs with nodes only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from holdfast.background.log_copies import LogCopier
from holdfast.domain.events import Event
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from sqlalchemy import Engine
from support.events import finished, launched, lost, ready, replaced, submitted, training


@dataclass
class LogCopyingLauncher:
    """A launcher that copies logs."""

    keys: list[str] = field(default_factory=list)

    async def copy_logs(self, key: str) -> None:
        self.keys.append(key)


def test_logs_of_jobs_with_nodes_are_copied(engine: Engine, journal: Journal) -> None:
    histories: dict[str, list[Event]] = {
        "stands": [launched(1), ready(10)],
        "waits": [launched(1)],
        "is-degraded": [launched(1), ready(10), training(11), replaced(20, hosted=(1,))],
        "lost": [launched(1), ready(10), lost(20)],
        "ended": [launched(1), ready(10), finished(20)],
    }
    for name, events in histories.items():
        journal.append(journal.submit(name, submitted()), events)
    launcher: Any = LogCopyingLauncher()

    asyncio.run(LogCopier(queries=Queries(engine), launchers={Kind.SKYPILOT: launcher}).run_once())

    assert sorted(launcher.keys) == ["is-degraded-1", "stands-1"]


def test_launchers_without_log_copies_are_skipped(engine: Engine) -> None:
    silent: Any = object()

    asyncio.run(LogCopier(queries=Queries(engine), launchers={Kind.LOCAL: silent}).run_once())
