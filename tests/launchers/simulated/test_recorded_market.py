"""Launches over a recorded market, to the second, and as the planner's simulator replays them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from holdfast.clock import SIMULATION_START
from holdfast.domain.events import CapacityDenied, Cause, Event, NodesReady, Outcome
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.domain.jobs.reconcile import decide
from holdfast.domain.planning.recorded_places import recording_of
from holdfast.domain.planning.replay import replay
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LaunchRefused
from holdfast.launchers.simulated import SimulatedClock, SimulatedCloud, SimulatedProgram
from holdfast.ports import Launch, RecordedMarket
from holdfast_worker.protocol.reports import ReportKind
from support.events import launched, submitted
from support.recorded_markets import asks_for, recording_of_zones, zone_of
from support.skypilot.launcher import do
from support.spot_traces import (
    AWS_2022,
    Scripted,
    markets_of,
    recorded,
    terms_of,
    windows_of,
)

TICK_S, STEP_S = 600.0, 24.0
CHANGEOVER_S = 72.0
PROGRAM = SimulatedProgram(
    total_steps=10_000,
    step_s=STEP_S,
    setup_s=0.0,
    restore_s=0.0,
    checkpoint_every_steps=1,
    stall_s=0.0,
    upload_s=0.0,
    progress_every_steps=1_000_000,
)
HOUR = MarketParameters(
    provision_s=CHANGEOVER_S,
    notice_s=0.0,
    recording=recording_of_zones(zone_of("a", "011001"), zone_of("b", "000110", (7,) * 6)),
)


def cloud_of(
    market: MarketParameters, program: SimulatedProgram = PROGRAM
) -> tuple[SimulatedCloud, SimulatedClock]:
    clock = SimulatedClock()
    return SimulatedCloud(clock, market, program), clock


def launch(*zones: str, use_spot: bool = True, nodes: int = 1) -> Launch:
    task = {"num_nodes": nodes, **asks_for(*zones, use_spot=use_spot)}
    return Launch(key="job-1", job_id="job", first_attempt=1, task=task, max_failures=1)


def seconds(moment: datetime | None) -> float:
    assert moment
    return (moment - SIMULATION_START).total_seconds()


def saved_steps(cloud: SimulatedCloud) -> int:
    kind = ReportKind.CHECKPOINT_COMMITTED
    steps = [each.body["step"] for each in cloud.read_new("job", {}) if each.kind is kind]
    return max((step for step in steps if isinstance(step, int)), default=0)


def test_recorded_hour_is_met_to_the_second() -> None:
    cloud, clock = cloud_of(HOUR)
    do(cloud.submit(launch("a", "b")))

    clock.advance(3600)
    seen = do(cloud.observe("job-1"))

    assert [(seconds(each.at), each.zone) for each in seen.denials] == [
        *((0, "a"), (0, "b")),  # Nothing in the first tick.
        (1800, "a"),  # Lost there, but b is available at once.
        *((3600, "a"), (3600, "b")),  # The recording has ended.
    ]
    assert [
        (each.zone, seconds(each.ready_at), seconds(each.lost_at), each.cause)
        for each in seen.recent_placements
    ] == [
        ("a", 672, 1800, Cause.PREEMPTED),
        ("b", 1872, 3000, Cause.PREEMPTED),
        ("a", 3072, 3600, Cause.PREEMPTED),
    ]
    assert [each.micros_per_hour for each in seen.recent_placements] == [1_150_000, 7, 1_150_000]
    assert all(each.is_spot for each in seen.recent_placements)
    assert saved_steps(cloud) == (1128 + 1128 + 528) / STEP_S


def test_notice_comes_before_the_tick() -> None:
    cloud, clock = cloud_of(replace(HOUR, notice_s=100.0))
    do(cloud.submit(launch("a")))

    clock.advance(1800)
    reports = list(cloud.read_new("job", {}))

    [placed] = do(cloud.observe("job-1")).recent_placements
    assert seconds(placed.lost_at) == 672 + 43 * STEP_S
    # The step that runs at the notice is completed and saved.
    [noticed] = [each for each in reports if each.kind is ReportKind.PREEMPTION_NOTICED]
    assert seconds(datetime.fromisoformat(noticed.at)) == 672 + 43 * STEP_S
    assert saved_steps(cloud) == 43


def test_request_within_a_tick_is_placed_in_it() -> None:
    cloud, clock = cloud_of(HOUR)
    clock.advance(700)
    do(cloud.submit(launch("a")))

    clock.advance(1000)

    [placed] = do(cloud.observe("job-1")).recent_placements
    assert seconds(placed.ready_at) == 700 + CHANGEOVER_S


def test_on_demand_nodes_stay_until_the_end() -> None:
    cloud, clock = cloud_of(HOUR, replace(PROGRAM, total_steps=1000))
    do(cloud.submit(launch("b", use_spot=False, nodes=2)))

    clock.advance(CHANGEOVER_S + 1000 * STEP_S)
    seen = do(cloud.observe("job-1"))

    [placed] = seen.recent_placements
    assert (placed.zone, placed.is_spot, seconds(placed.ready_at)) == ("b", False, CHANGEOVER_S)
    assert placed.micros_per_hour == 2 * 3_670_000
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    assert seen.denials == ()


def test_launch_after_the_end_waits_until_it_is_cancelled() -> None:
    cloud, clock = cloud_of(HOUR)
    clock.advance(5000)
    do(cloud.submit(launch("a", "b")))
    clock.advance(100_000)

    waiting = do(cloud.observe("job-1"))
    do(cloud.cancel("job-1"))
    ended = do(cloud.observe("job-1"))

    assert (waiting.status, len(waiting.denials)) == (LaunchStatus.WAITING, 2)
    assert cloud.next_change_at("job-1") is None
    assert (ended.status, ended.since, ended.denials) == (
        LaunchStatus.ENDED,
        clock.now(),
        waiting.denials,
    )


@pytest.mark.parametrize("at_s", [0, 672, 1800, 1872, 3600])
def test_cancel_keeps_what_was_seen_at_its_moment(at_s: float) -> None:
    """Regression: a cancel at the moment of a denial or a placement erased it."""
    cloud, clock = cloud_of(HOUR)
    do(cloud.submit(launch("a", "b")))
    clock.advance(at_s)
    before = do(cloud.observe("job-1"))

    do(cloud.cancel("job-1"))
    clock.advance(3600)
    after = do(cloud.observe("job-1"))

    assert after.denials == before.denials
    assert after.placements == before.placements
    assert after.status is LaunchStatus.ENDED


def test_impossible_zone_is_refused() -> None:
    cloud, _ = cloud_of(HOUR)

    with pytest.raises(LaunchRefused, match="infra local/c is no zone of this market; it has a, b"):
        do(cloud.submit(launch("c")))

    assert do(cloud.observe("job-1")).status is LaunchStatus.ABSENT


def test_market_shows_what_the_recording_contains() -> None:
    cloud, _ = cloud_of(HOUR)
    calm, _ = cloud_of(MarketParameters())
    assert isinstance(cloud, RecordedMarket)

    found = cloud.recorded_market(SIMULATION_START + timedelta(seconds=1900))

    assert found
    assert found.tick_s == TICK_S
    assert [(each.name, each.is_available) for each in found.places] == [
        ("local/a", False),
        ("local/b", True),
    ]
    assert calm.recorded_market(SIMULATION_START) is None


@pytest.mark.parametrize("poll_s", [24, 600, 3600])
def test_recorded_hour_becomes_the_same_events(poll_s: float) -> None:
    cloud, clock = cloud_of(HOUR)
    do(cloud.submit(launch("a", "b")))
    log: list[Event] = [submitted(), launched()]

    while clock.now() < SIMULATION_START + timedelta(hours=1):
        clock.advance(poll_s)
        log += decide(fold("job", log), do(cloud.observe("job-1")), clock.now()).record

    job = fold("job", log)
    assert (job.attempt, job.preemptions) == (3, 3)
    denied = [each for each in log if isinstance(each, CapacityDenied)]
    assert [each.zone for each in denied] == ["a", "b", "a", "a", "b"]
    placed = [each for each in log if isinstance(each, NodesReady)]
    assert [(seconds(each.at), each.zone, each.is_spot) for each in placed] == [
        (672, "a", True),
        (1872, "b", True),
        (3072, "a", True),
    ]


@pytest.mark.parametrize("start", [0, 300, 900])
@pytest.mark.parametrize("is_billed", [False, True])
def test_spot_launch_makes_the_progress_of_the_simulator(start: int, is_billed: bool) -> None:
    """The changeover lies before the nodes are ready, or `is_billed` in the program's setup."""
    [trace] = [each for each in recorded(AWS_2022) if each.name == "us-west-2a_v100_1"]
    work_s = 40 * 3600.0
    market = MarketParameters(
        provision_s=0.0 if is_billed else CHANGEOVER_S,
        notice_s=0.0,
        recording=recording_of([trace], None, SIMULATION_START - timedelta(seconds=start * TICK_S)),
    )
    program = replace(
        PROGRAM, total_steps=round(work_s / STEP_S), setup_s=CHANGEOVER_S - market.provision_s
    )
    cloud, clock = cloud_of(market, program)
    # The scripted policy takes spot nodes whenever they are available.
    windows = windows_of(start, work_s=work_s, deadline_s=400 * 3600.0, changeover_s=CHANGEOVER_S)
    runs = replay(Scripted("s"), markets_of(trace), windows, terms_of())

    do(cloud.submit(launch(trace.name)))
    clock.advance(float(runs.finish_s[0]))
    seen = do(cloud.observe("job-1"))

    assert seen.status is LaunchStatus.ENDED
    assert seconds(seen.since) == runs.finish_s[0] - runs.tail_s[0]
    assert saved_steps(cloud) * STEP_S == work_s
    placements = seen.recent_placements
    assert len(placements) == runs.changeovers[0]
    assert sum(each.cause is Cause.PREEMPTED for each in placements) == runs.preemptions[0]
    assert len(seen.denials) == round(runs.idle_s[0] / TICK_S)
    ready_s = sum(
        seconds(each.lost_at or seen.since) - seconds(each.ready_at) for each in placements
    )
    assert ready_s + len(placements) * market.provision_s == runs.spot_s[0] - runs.tail_s[0]
