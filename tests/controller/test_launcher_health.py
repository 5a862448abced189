"""What is known of engines: the newest answer, since when there is none, and never a guess."""

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
class Talking(FileLauncher):
    """A launcher whose engine returns prepared responses; None: no response."""

    answers: list[EngineInfo | None] = field(default_factory=list)

    async def engine_info(self) -> EngineInfo:
        answer = self.answers.pop(0)
        if answer is None:
            raise LauncherUnreachable("it does not answer")
        return answer


def _pulse(
    tmp_path: Path, answers: Sequence[EngineInfo | None]
) -> tuple[LauncherHealthMonitor, FixedClock]:
    clock = FixedClock()
    far = Talking(tmp_path / "far", clock, answers=list(answers))
    near = FileLauncher(tmp_path / "near", clock)
    assert isinstance(far, RemoteLauncher)
    return LauncherHealthMonitor({Engine.LOCAL: near, Engine.SKYPILOT: far}, clock), clock


def test_before_the_first_probe_nothing_is_known(tmp_path: Path) -> None:
    pulse, _ = _pulse(tmp_path, [])

    local, sky = pulse.read()

    assert (local.engine, sky.engine) == (Engine.LOCAL, Engine.SKYPILOT)
    assert sky.engine_info is sky.error is sky.answered_at is None


def test_an_answer_is_kept_with_its_time(tmp_path: Path) -> None:
    pulse, clock = _pulse(tmp_path, [VITALS])

    asyncio.run(pulse.probe_all())

    local, sky = pulse.read()
    assert (sky.engine_info, sky.answered_at, sky.error) == (VITALS, clock.now(), None)
    assert local.engine_info is None


def test_unreachable_launcher_keeps_info_and_outage_start(tmp_path: Path) -> None:
    pulse, clock = _pulse(tmp_path, [VITALS, None, None])
    asyncio.run(pulse.probe_all())
    answered_at = clock.now()
    clock.advance(15)
    silent_since = clock.now()
    asyncio.run(pulse.probe_all())
    clock.advance(15)

    asyncio.run(pulse.probe_all())

    _, sky = pulse.read()
    assert sky.error == "it does not answer"
    assert (sky.since, sky.answered_at) == (silent_since, answered_at)
    assert sky.engine_info == VITALS


def test_an_engine_that_answers_again_has_no_trouble(tmp_path: Path) -> None:
    pulse, _ = _pulse(tmp_path, [None, VITALS])
    asyncio.run(pulse.probe_all())

    asyncio.run(pulse.probe_all())

    _, sky = pulse.read()
    assert (sky.error, sky.since) == (None, None)
    assert sky.engine_info == VITALS
