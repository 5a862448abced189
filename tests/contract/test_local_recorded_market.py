"""The local launcher over a recorded market with short ticks: real processes, real time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from contract.launcher_backends import (
    LocalBackend,
    ProgramKind,
    is_ended,
    is_up,
    local_backend,
)
from holdfast.clock import SystemClock
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.domain.simulation.recorded_market import RecordedZone
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LaunchRefused
from holdfast.launchers.local import LocalLauncher
from holdfast.ports import Launch, RecordedMarket
from support.recorded_markets import asks_for, recording_of_zones, zone_of
from support.skypilot.launcher import do

TICK_S = 20.0
"""Longer than a supervisor takes to start on a busy machine."""
NEVER = "0"
ALWAYS = "9" * 3_000


def market_of(*zones: RecordedZone, gap_s: float = TICK_S) -> MarketParameters:
    """A market that begins now and answers at once."""
    recording = recording_of_zones(*zones, gap_s=gap_s, start=SystemClock().now())
    return MarketParameters(provision_s=0.0, notice_s=0.0, recording=recording)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose processes are ended afterwards."""
    with local_backend(tmp_path, ProgramKind.RUNS, MarketParameters()):
        yield tmp_path


def launch(backend: LocalBackend, *zones: str, use_spot: bool = True, nodes: int = 1) -> Launch:
    asked = backend.launch("job-1", nodes=nodes)
    return replace(asked, task={**asked.task, **asks_for(*zones, use_spot=use_spot)})


@pytest.mark.full
def test_nodes_follow_the_recording_from_zone_to_zone(home: Path) -> None:
    zones = (zone_of("a", "011" + "0" * 60), zone_of("b", "000" + "1" * 60))
    backend = LocalBackend(home, market=market_of(*zones))

    do(backend.launcher.submit(launch(backend, "a", "b", nodes=1)))
    seen = backend.until("job-1", lambda seen: seen.placements == 2)

    first, second = seen.recent_placements
    assert [first.zone, second.zone] == ["a", "b"]
    assert (first.cause, first.detail) == (Cause.PREEMPTED, "all nodes preempted without notice")
    assert [first.is_spot, second.is_spot] == [True, True]
    assert [each.zone for each in seen.denials[:2]] == ["a", "b"]
    recording = backend.market.recording
    assert recording
    assert first.lost_at
    assert first.lost_at >= recording.begin(3)
    assert first.ready_at >= recording.begin(1)


@pytest.mark.full
def test_denied_launch_waits_for_the_next_tick(home: Path) -> None:
    backend = LocalBackend(home, market=market_of(zone_of("a", "0" + ALWAYS)))

    do(backend.launcher.submit(launch(backend, "a")))
    seen = backend.until("job-1", is_up)

    [placed], [denied, *_] = seen.recent_placements, seen.denials
    assert (denied.zone, denied.detail) == ("a", "no spot capacity")
    recording = backend.market.recording
    assert recording
    assert denied.at < recording.begin(1) <= placed.ready_at


def test_launch_after_the_end_of_a_recording_can_be_cancelled(home: Path) -> None:
    backend = LocalBackend(home, market=market_of(zone_of("a", NEVER), gap_s=0.001))

    do(backend.launcher.submit(launch(backend, "a")))
    waiting = backend.until("job-1", lambda seen: bool(seen.denials))
    do(backend.launcher.cancel("job-1"))
    ended = backend.until("job-1", is_ended)

    assert waiting.status is LaunchStatus.WAITING
    assert ended.result
    assert (ended.result.outcome, ended.placements) == (Outcome.CANCELLED, 0)


def test_on_demand_nodes_ignore_the_recording(home: Path) -> None:
    market = replace(market_of(zone_of("a", NEVER)), on_demand_micros=3_000_000)
    backend = LocalBackend(home, ProgramKind.SUCCEEDS, market)

    do(backend.launcher.submit(launch(backend, "a", use_spot=False, nodes=2)))
    seen = backend.until("job-1", is_ended)

    [placed] = seen.recent_placements
    assert seen.denials == ()
    assert (placed.zone, placed.is_spot, placed.micros_per_hour) == ("a", False, 6_000_000)


def test_running_launch_keeps_the_market_of_its_submission(home: Path) -> None:
    backend = LocalBackend(home, market=market_of(zone_of("a", ALWAYS)))
    do(backend.launcher.submit(launch(backend, "a")))
    backend.until("job-1", is_up)

    restarted = LocalLauncher(home, market_of(zone_of("z", NEVER)))
    do(restarted.submit(launch(backend, "a")))

    assert do(restarted.observe("job-1")).status is LaunchStatus.UP


def test_preempted_node_is_placed_again_in_the_same_tick(home: Path) -> None:
    backend = LocalBackend(home, market=market_of(zone_of("a", ALWAYS)))
    do(backend.launcher.submit(launch(backend, "a")))
    backend.until("job-1", is_up)

    do(backend.launcher.preempt("job-1", node=None, notice_s=None))
    seen = backend.until("job-1", lambda seen: seen.placements == 2)

    assert [each.zone for each in seen.recent_placements] == ["a", "a"]
    assert seen.recent_placements[0].detail == "node 0 preempted without notice"


def test_zone_that_the_market_lacks_is_refused(home: Path) -> None:
    backend = LocalBackend(home, market=market_of(zone_of("a", ALWAYS)))

    with pytest.raises(LaunchRefused, match="infra local/b is no zone of this market; it has a"):
        do(backend.launcher.submit(launch(backend, "b")))


def test_launcher_shows_the_recorded_market(home: Path) -> None:
    market = market_of(zone_of("a", "19"))
    launcher = LocalLauncher(home, market)
    assert isinstance(launcher, RecordedMarket)
    assert market.recording

    now = market.recording.start + timedelta(seconds=0.5)
    found, for_two = launcher.recorded_market(now), launcher.recorded_market(now, nodes=2)

    assert found
    assert for_two
    assert found.tick_s == TICK_S
    assert [(each.name, each.is_available) for each in found.places] == [("local/a", True)]
    assert [each.is_available for each in for_two.places] == [False]
    assert LocalLauncher(home, MarketParameters()).recorded_market(now) is None
