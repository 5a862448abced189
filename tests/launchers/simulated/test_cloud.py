"""The simulated cloud: a reproducible history, and training that loses only unsaved steps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from threading import Event
from typing import Any, TypeVar

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.domain.jobs.reports import parse_report
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.simulated import (
    LIKE_SKYPILOT,
    Failure,
    LauncherBehavior,
    SimulatedClock,
    SimulatedCloud,
    SimulatedProgram,
)
from holdfast.ports import Launch
from holdfast_worker.protocol.reports import Report, ReportKind
from hypothesis import given
from hypothesis import strategies as st

T = TypeVar("T")
STORMY = MarketParameters(
    seed=2, provision_s=30, denial_rate=0.3, mtbf_s=300, notice_s=30, no_notice_rate=0.5
)
PROGRAM = SimulatedProgram(
    total_steps=1_500, checkpoint_every_steps=100, setup_s=20, restore_s=10, upload_s=15
)


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def launch_request(launch: int = 1, first_attempt: int = 1) -> Launch:
    return Launch(
        key=f"job-{launch}",
        job_id="job",
        first_attempt=first_attempt,
        task={"num_nodes": 2},
        max_failures=3,
    )


def cloud(climate: MarketParameters = STORMY) -> tuple[SimulatedCloud, SimulatedClock]:
    clock = SimulatedClock()
    return SimulatedCloud(clock, climate, PROGRAM), clock


def ended(market_cloud: SimulatedCloud, clock: SimulatedClock, key: str = "job-1") -> Observation:
    """Observe a launch until it has ended."""
    for _ in range(10_000):
        seen = do(market_cloud.observe(key))
        if seen.status is LaunchStatus.ENDED:
            return seen
        clock.advance(30)
    raise AssertionError("it never ended")


def steps(reports: list[Report], kind: ReportKind) -> list[int]:
    return [int(str(report.body["step"])) for report in reports if report.kind is kind]


def test_history_is_independent_of_observations() -> None:
    watched, fast = cloud()
    unwatched, slow = cloud()
    do(watched.submit(launch_request()))
    do(unwatched.submit(launch_request()))

    seen = ended(watched, fast)
    slow.advance((fast.now() - slow.now()).total_seconds())

    assert do(unwatched.observe("job-1")) == seen
    assert list(unwatched.read_new("job", {})) == list(watched.read_new("job", {}))


def test_launch_observed_by_two_threads_is_simulated_once() -> None:
    """Logs are read in one thread while the reconciler runs in another."""
    is_read, may_go_on = Event(), Event()

    class FarZones(tuple[str, ...]):
        __slots__ = ()

        def __getitem__(self, at: Any) -> Any:
            is_read.set()
            may_go_on.wait(120)
            return super().__getitem__(at)

    market_cloud, _ = cloud(replace(STORMY, zones=FarZones(STORMY.zones)))
    do(market_cloud.submit(launch_request()))

    with ThreadPoolExecutor() as threads:
        first = threads.submit(market_cloud.observe_sync, "job-1")
        assert is_read.wait(120)
        second = threads.submit(market_cloud.observe_sync, "job-1")
        wait([second], timeout=0.2)
        may_go_on.set()

    assert first.result() == second.result()


def test_repeated_preemptions_lose_only_unsaved_steps() -> None:
    market_cloud, clock = cloud()
    do(market_cloud.submit(launch_request()))

    seen = ended(market_cloud, clock)
    reports = list(market_cloud.read_new("job", {}))

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    assert seen.placements > 2
    assert seen.denials
    saved = 0
    for report in reports:
        if report.kind is ReportKind.TRAINING_STARTED:
            assert report.body["step"] == saved
        elif report.kind is ReportKind.CHECKPOINT_COMMITTED:
            saved = int(str(report.body["step"]))
    assert saved == PROGRAM.total_steps


def test_all_reports_are_numbered_ordered_and_parsable() -> None:
    market_cloud, clock = cloud()
    do(market_cloud.submit(launch_request()))
    ended(market_cloud, clock)

    reports = list(market_cloud.read_new("job", {}))

    for attempt in {report.attempt for report in reports}:
        mine = [report for report in reports if report.attempt == attempt]
        assert [report.n for report in mine] == list(range(1, len(mine) + 1))
        assert [report.at for report in mine] == sorted(report.at for report in mine)
    assert all(Report.parse(report.line()) == report for report in reports)
    assert all(parse_report(report) for report in reports)


def test_reports_are_read_from_the_given_position() -> None:
    market_cloud, clock = cloud(MarketParameters(provision_s=1))
    do(market_cloud.submit(launch_request()))
    clock.advance(100)
    first = list(market_cloud.read_new("job", {}))

    clock.advance(100)
    second = list(market_cloud.read_new("job", {1: first[-1].n}))

    assert first
    assert second
    assert first + second == list(market_cloud.read_new("job", {}))


def test_step_has_equal_weights_in_every_attempt() -> None:
    market_cloud, clock = cloud()
    other, later = cloud(MarketParameters(seed=9, provision_s=1))
    do(market_cloud.submit(launch_request()))
    do(other.submit(launch_request()))
    ended(market_cloud, clock)
    ended(other, later)

    digests = {
        (report.body["step"], report.body["weights_sha256"])
        for report in [*market_cloud.read_new("job", {}), *other.read_new("job", {})]
        if report.kind is ReportKind.CHECKPOINT_COMMITTED
    }

    assert len(digests) == len({step for step, _ in digests})


def test_new_launch_resumes_from_checkpoint_of_forgotten_one() -> None:
    market_cloud, clock = cloud(MarketParameters(provision_s=1))
    do(market_cloud.submit(launch_request()))
    clock.advance(400)
    market_cloud.forget("job-1")
    clock.advance(100)
    saved = max(steps(list(market_cloud.read_new("job", {})), ReportKind.CHECKPOINT_COMMITTED))

    forgotten = do(market_cloud.observe("job-1"))
    do(market_cloud.submit(launch_request(launch=2, first_attempt=2)))
    clock.advance(100)
    started = steps(list(market_cloud.read_new("job", {1: 10_000})), ReportKind.TRAINING_STARTED)

    assert forgotten.status is LaunchStatus.FORGOTTEN
    assert forgotten.since == clock.now() - timedelta(seconds=200)
    assert started == [saved]


def test_notice_with_time_to_save_loses_no_step() -> None:
    market_cloud, clock = cloud(MarketParameters(provision_s=1))
    do(market_cloud.submit(launch_request()))
    clock.advance(150)

    do(market_cloud.preempt("job-1", node=None, notice_s=60))
    clock.advance(60)
    seen = do(market_cloud.observe("job-1"))
    reports = list(market_cloud.read_new("job", {}))

    assert seen.recent_placements[0].cause is Cause.PREEMPTED
    assert steps(reports, ReportKind.PREEMPTION_NOTICED) == steps(reports, ReportKind.WORKER_LEFT)


@given(
    looks=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    disturbance=st.sampled_from(["cancel", "preempt", "preempt at once", "forget"]),
)
def test_user_actions_never_change_past_observations(looks: list[int], disturbance: str) -> None:
    market_cloud, clock = cloud()
    do(market_cloud.submit(launch_request()))
    for wait_s in looks:
        clock.advance(wait_s)
    seen, reports = do(market_cloud.observe("job-1")), list(market_cloud.read_new("job", {}))

    if disturbance == "cancel":
        do(market_cloud.cancel("job-1"))
    elif disturbance == "forget":
        market_cloud.forget("job-1")
    elif seen.status is LaunchStatus.UP:
        notice_s = 20.0 if disturbance == "preempt" else None
        do(market_cloud.preempt("job-1", node=0, notice_s=notice_s))
    clock.advance(1)
    after = do(market_cloud.observe("job-1"))

    assert after.denials[: len(seen.denials)] == seen.denials
    assert [each for each in seen.recent_placements if each.lost_at] == [
        each
        for each in after.recent_placements[: seen.placements]
        if each.lost_at and each in seen.recent_placements
    ]
    assert list(market_cloud.read_new("job", {}))[: len(reports)] == reports


# Behavior of SkyPilot


def test_failing_program_is_restarted_on_the_same_nodes() -> None:
    clock = SimulatedClock()
    habits = LauncherBehavior(restart_on=frozenset({3}))
    program = SimulatedProgram(total_steps=100, failure=Failure(step=50, exit_code=3, times=5))
    market_cloud = SimulatedCloud(clock, MarketParameters(provision_s=60), program, habits)
    do(market_cloud.submit(launch_request()))

    seen = ended(market_cloud, clock)

    assert [placed.cause for placed in seen.recent_placements] == [Cause.USER_ERROR] * 5 + [None]
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    for before, after in pairwise(seen.recent_placements):
        assert before.lost_at
        assert after.ready_at - before.lost_at == timedelta(seconds=5)
        assert (after.zone, after.micros_per_hour) == (before.zone, before.micros_per_hour)


def test_placement_may_mix_spot_and_on_demand() -> None:
    clock = SimulatedClock()
    habits = LauncherBehavior(on_demand_nodes=1)
    market_cloud = SimulatedCloud(clock, MarketParameters(spread=0.0), PROGRAM, habits)
    do(market_cloud.submit(launch_request()))
    clock.advance(100)

    [placed] = do(market_cloud.observe("job-1")).recent_placements

    assert [(group.nodes, group.is_spot) for group in placed.groups] == [(1, True), (1, False)]
    assert [g.micros_per_hour for g in placed.groups] == [1_150_000, 3_670_000]
    assert (placed.nodes, placed.micros_per_hour) == (2, 4_820_000)
    assert placed.on_demand_micros_per_hour == 2 * 3_670_000


def test_reclaim_may_be_reported_as_a_failure() -> None:
    clock = SimulatedClock()
    market_cloud = SimulatedCloud(clock, MarketParameters(), PROGRAM, LIKE_SKYPILOT)
    do(market_cloud.submit(launch_request()))
    clock.advance(100)
    do(market_cloud.preempt("job-1", node=0, notice_s=None))
    clock.advance(10)

    [first, *_] = do(market_cloud.observe("job-1")).recent_placements

    assert (first.cause, first.detail) == (Cause.NODE_FAILED, "nodes preempted or failed")


def test_cancel_without_saving_releases_nodes_at_once() -> None:
    clock = SimulatedClock()
    market_cloud = SimulatedCloud(clock, MarketParameters(), PROGRAM, LIKE_SKYPILOT)
    do(market_cloud.submit(launch_request()))
    clock.advance(100)

    do(market_cloud.cancel("job-1"))

    seen = do(market_cloud.observe("job-1"))
    assert (seen.status, seen.since) == (LaunchStatus.ENDED, clock.now())
    assert not steps(list(market_cloud.read_new("job", {})), ReportKind.WORKER_LEFT)


def test_cancel_at_the_loss_time_keeps_the_placement_lost() -> None:
    """Regression: the cancellation restored a placement that had exited on a notice."""

    def leaving() -> tuple[SimulatedCloud, SimulatedClock]:
        clock = SimulatedClock()
        market_cloud = SimulatedCloud(clock, MarketParameters(), PROGRAM, LIKE_SKYPILOT)
        do(market_cloud.submit(launch_request()))
        clock.advance(100)
        market_cloud.request_shutdown("job-1")
        return market_cloud, clock

    oracle, later = leaving()
    later.advance(60)
    lost_at = do(oracle.observe("job-1")).recent_placements[0].lost_at
    assert lost_at
    market_cloud, clock = leaving()
    clock.advance((lost_at - clock.now()).total_seconds())
    result = do(market_cloud.observe("job-1")).recent_placements

    do(market_cloud.cancel("job-1"))

    seen = do(market_cloud.observe("job-1"))
    assert (result[0].lost_at, seen.recent_placements) == (clock.now(), result)
    assert (seen.status, seen.since) == (LaunchStatus.ENDED, clock.now())


def test_requested_shutdown_saves_and_exits_once() -> None:
    clock = SimulatedClock()
    market_cloud = SimulatedCloud(clock, MarketParameters(), PROGRAM, LIKE_SKYPILOT)
    market_cloud.request_shutdown("job-1")
    do(market_cloud.submit(launch_request()))
    clock.advance(100)

    for _ in range(3):
        market_cloud.request_shutdown("job-1")
        clock.advance(10)

    reports = list(market_cloud.read_new("job", {}))
    [left] = steps(reports, ReportKind.WORKER_LEFT)
    assert left == steps(reports, ReportKind.CHECKPOINT_COMMITTED)[-1]
    assert do(market_cloud.observe("job-1")).recent_placements[0].cause is Cause.NODE_FAILED


def test_program_can_exit_as_if_preempted() -> None:
    clock = SimulatedClock()
    program = SimulatedProgram(failure=Failure(step=30, exit_code=75, times=2))
    market_cloud = SimulatedCloud(clock, MarketParameters(), program)
    do(market_cloud.submit(launch_request()))
    clock.advance(300)

    seen, reports = do(market_cloud.observe("job-1")), list(market_cloud.read_new("job", {}))

    assert {placed.cause for placed in seen.recent_placements[:-1]} == {Cause.NODE_FAILED}
    assert {str(report.body["reason"]) for report in reports if "reason" in report.body} == {
        "preempted"
    }


def test_next_change_time_matches_the_next_new_observation() -> None:
    market_cloud, clock = cloud()
    do(market_cloud.submit(launch_request()))
    seen = do(market_cloud.observe("job-1"))

    changes = 0
    while (at := market_cloud.next_change_at("job-1")) is not None:
        clock.advance((at - clock.now()).total_seconds() - 0.001)
        assert do(market_cloud.observe("job-1")) == seen, "nothing new before that"
        clock.advance(0.001)
        fresh = do(market_cloud.observe("job-1"))
        assert fresh != seen
        seen, changes = fresh, changes + 1

    assert seen.status is LaunchStatus.ENDED
    assert changes >= 2 * seen.placements + len(seen.denials)
    assert market_cloud.next_change_at("job-2") is None
