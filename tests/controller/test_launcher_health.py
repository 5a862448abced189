"""Launcher health: the newest response, and the start of an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import LauncherUnreachable
from holdfast.ports import EngineInfo, RemoteLauncher
from support.fakes import FileLauncher, FixedClock

VITALS = EngineInfo(
    version="0.14.1",
    guarantee="exactly-once",
    waits_for_service=False,
    clouds=("aws",),
    clock_skew_s=0.0,
)


@dataclass
class ScriptedLauncher(FileLauncher):
    """A launcher whose engine returns prepared responses; None: no response."""

    answers: list[EngineInfo | None] = field(default_factory=list)

    async def engine_info(self) -> EngineInfo:
        answer = self.answers.pop(0)
        if answer is None:
            raise LauncherUnreachable("it does not answer")
        return answer


def open_monitor(
    tmp_path: Path, answers: Sequence[EngineInfo | None]
) -> tuple[LauncherHealthMonitor, FixedClock]:
    clock = FixedClock()
    far = ScriptedLauncher(tmp_path / "far", clock, answers=list(answers))
    near = FileLauncher(tmp_path / "near", clock)
    assert isinstance(far, RemoteLauncher)
    return LauncherHealthMonitor({Engine.LOCAL: near, Engine.SKYPILOT: far}, clock), clock


def test_health_is_unknown_before_the_first_probe(tmp_path: Path) -> None:
    monitor, _ = open_monitor(tmp_path, [])

    local, skypilot = monitor.read()

    assert (local.engine, skypilot.engine) == (Engine.LOCAL, Engine.SKYPILOT)
    assert skypilot.engine_info is skypilot.error is skypilot.answered_at is None


def test_an_answer_is_kept_with_its_time(tmp_path: Path) -> None:
    monitor, clock = open_monitor(tmp_path, [VITALS])

    asyncio.run(monitor.probe_all())

    local, skypilot = monitor.read()
    assert (skypilot.engine_info, skypilot.answered_at, skypilot.error) == (
        VITALS,
        clock.now(),
        None,
    )
    assert local.engine_info is None


def test_unreachable_launcher_keeps_info_and_outage_start(tmp_path: Path) -> None:
    monitor, clock = open_monitor(tmp_path, [VITALS, None, None])
    asyncio.run(monitor.probe_all())
    answered_at = clock.now()
    clock.advance(15)
    silent_since = clock.now()
    asyncio.run(monitor.probe_all())
    clock.advance(15)

    asyncio.run(monitor.probe_all())

    _, skypilot = monitor.read()
    assert skypilot.error == "it does not answer"
    assert (skypilot.since, skypilot.answered_at) == (silent_since, answered_at)
    assert skypilot.engine_info == VITALS


def test_recovered_engine_has_no_outage(tmp_path: Path) -> None:
    monitor, _ = open_monitor(tmp_path, [None, VITALS])
    asyncio.run(monitor.probe_all())

    asyncio.run(monitor.probe_all())

    _, skypilot = monitor.read()
    assert (skypilot.error, skypilot.since) == (None, None)
    assert skypilot.engine_info == VITALS
