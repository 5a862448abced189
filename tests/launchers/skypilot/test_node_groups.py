"""Launches with node groups over a fake SkyPilot: each group runs once, is replaced alone, and ends with the others."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Cause,
    Event,
    Guard,
    LaunchRequested,
    NodeLost,
    NodesReady,
    Outcome,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.naming import MAX_NAME_CHARS, group_key, job_of, launch_key
from holdfast.ports import Launch, LogSource
from sqlalchemy import Engine
from support.skypilot.launcher import do
from support.skypilot.node_groups import (
    GROUPS,
    HEAD,
    JOB,
    KEY,
    MORE,
    WORKERS,
    GroupHarness,
    drilled_story,
    job_name,
)

NewGroups: TypeAlias = Callable[..., GroupHarness]


@pytest.fixture
def new_groups(tmp_path: Path, sqlite: Engine) -> NewGroups:
    """Return a factory of services with a job of three groups."""
    return lambda *args, **words: GroupHarness(sqlite, tmp_path / "home", *args, **words)


@pytest.fixture
def new_engine(
    pattern: Path, tmp_path: Path, open_engine: Callable[[str], Engine]
) -> Callable[[], Engine]:
    """Return a factory of empty databases."""
    numbers = itertools.count()
    return lambda: open_engine(
        f"sqlite:///{shutil.copy(pattern, tmp_path / f'{next(numbers)}.db')}"
    )


def kinds(log: list[Event], *which: type[Event]) -> list[Event]:
    return [event for event in log if isinstance(event, which)]


def lost_nodes(log: list[Event]) -> list[int]:
    """The lost nodes in order, without those whose program had ended."""
    return [e.node for e in log if isinstance(e, NodeLost) and e.cause is not Cause.ENDED]


# Names


def test_group_keys_fit_and_lead_back_to_their_launch() -> None:
    keys = [group_key(f"{JOB}-99", number) for number in range(26)]

    assert (keys[1], len(set(keys))) == (f"{JOB}b99", 26)
    assert {launch_key(key) for key in keys} == {f"{JOB}-99"}
    assert {job_of(key) for key in (*keys, f"{JOB}-99")} == {JOB}
    assert max(len(job_name(number, 99)) for number in range(3)) <= MAX_NAME_CHARS
    assert launch_key("job-1") == "job-1"


# From submission to the end


def test_groups_run_and_succeed_together(new_groups: NewGroups) -> None:
    harness = new_groups()

    harness.run(GroupHarness.is_whole)
    harness.pass_time(600)
    harness.exit_all(0)
    harness.run()

    assert harness.job.outcome is Outcome.SUCCEEDED
    assert [len(harness.managed(number)) for number in range(3)] == [1, 1, 1]
    assert [job.nodes for number in range(3) for job in harness.managed(number)] == [1, 2, 3]
    assert (harness.job.attempt, harness.job.preemptions) == (1, 0)
    [ready] = [event for event in harness.log if isinstance(event, NodesReady)]
    assert [group.name for group in ready.groups] == ["head", "workers", "more"]


def test_missing_groups_are_awaited_and_named(new_groups: NewGroups) -> None:
    harness = new_groups(more=JobSimulation(denial_rate=1, runs_s=1e9))

    harness.run(lambda h: h.job.placed and h.job.absent_nodes == (3, 4, 5))
    harness.pass_time(300)
    harness.step()

    assert harness.job.state is State.STARTING
    assert harness.job.detail == "waiting for nodes 3, 4 and 5 (more)"
    assert kinds(harness.log, CapacityDenied), "denials of a missing group are recorded"


def test_job_waits_for_a_missing_group_no_longer_than_max_wait(new_groups: NewGroups) -> None:
    harness = new_groups(more=JobSimulation(denial_rate=1, runs_s=1e9))

    harness.limits = Limits(max_wait="20m")

    harness.run(lambda h: h.job.guard)

    assert harness.job.guard is Guard.MAX_WAIT
    assert harness.job.detail.startswith("nodes 3, 4 and 5 (more) not there within max_wait")


def test_group_lost_twice_is_replaced_alone(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(lambda h: h.job.placed and h.managed(MORE)[-1].status == "STARTING")

    harness.run(lambda h: h.managed(MORE)[-1].placements == 1)
    harness.preempt(MORE)  # Its job has not run yet.
    harness.run(GroupHarness.is_whole)
    harness.preempt(MORE)
    harness.run(lambda h: h.job.lost_nodes)
    text = harness.job.detail
    harness.run(GroupHarness.is_whole)
    harness.exit_all(0)
    harness.run()

    assert text == "nodes 3, 4 and 5 (more) were lost; the others wait for their replacement"
    assert harness.job.outcome is Outcome.SUCCEEDED
    assert harness.job.attempt == 1
    assert lost_nodes(harness.log) == [3, 4, 5] * harness.job.preemptions
    assert harness.job.preemptions in {1, 2}, "nodes that were lost before they were reported"
    assert [job.runs for number in range(3) for job in harness.managed(number)] == [1, 1, 2]


def test_loss_of_the_first_group_begins_an_attempt_at_once(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    harness.preempt(HEAD)
    harness.run(lambda h: h.job.attempt == 2)
    text = harness.job.detail
    harness.run(GroupHarness.is_whole)

    lost, ready = kinds(harness.log, CapacityLost)[0], kinds(harness.log, NodesReady)[1]
    assert isinstance(ready, NodesReady)
    assert (ready.at, ready.absent_nodes) == (lost.at, (0,))
    assert text == "waiting for node 0 (head)"
    assert [job.runs for number in range(3) for job in harness.managed(number)] == [2, 1, 1]
    assert harness.job.preemptions == 1


def test_failed_program_ends_one_attempt_and_counts_once(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    harness.exit_all(3, restarts=True)
    harness.run(lambda h: h.job.attempt == 2 and h.is_whole())
    harness.pass_time(60)
    harness.exit_all(3)
    harness.run()

    assert (harness.job.outcome, harness.job.exit_code) == (Outcome.FAILED, 3)
    assert harness.job.detail == "group head: the program failed with exit code 3"
    assert (harness.job.failures, harness.job.preemptions, harness.job.attempt) == (2, 0, 2)


def test_group_that_fails_for_good_ends_the_job(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    harness.state.exit_program(harness.managed(MORE)[-1], 9)
    harness.run()

    assert (harness.job.outcome, harness.job.exit_code) == (Outcome.FAILED, 9)
    assert harness.job.detail == "group more: the program failed with exit code 9"
    assert {job.status for number in (HEAD, WORKERS) for job in harness.managed(number)} == {
        "CANCELLED"
    }


def test_others_are_cancelled_some_time_after_the_first_group(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    harness.state.exit_program(harness.managed(HEAD)[-1], 0)
    harness.run(lambda h: h.managed(HEAD)[-1].is_over)
    ended = harness.clock.now()
    harness.run()

    assert harness.job.outcome is Outcome.SUCCEEDED
    assert timedelta(minutes=2) < harness.clock.now() - ended < timedelta(minutes=6)
    assert harness.managed(MORE)[-1].status == "CANCELLED"


def test_cancel_of_one_managed_job_cancels_the_launch(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    list(harness.state.cancel([harness.managed(WORKERS)[-1].number]))
    harness.run()

    assert harness.job.outcome is Outcome.CANCELLED


def test_lost_record_of_a_group_leads_to_a_new_launch(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)
    number = harness.managed(WORKERS)[-1].number

    harness.state.terminate(harness.state.jobs[number].cluster)
    del harness.state.jobs[number]
    harness.run(lambda h: h.job.launch == 2 and h.is_whole())

    assert [e.cause for e in harness.log if isinstance(e, CapacityLost)] == [Cause.LAUNCHER_FORGOT]
    assert {job.status for job in harness.managed(HEAD)} == {"CANCELLED", "RUNNING"}


def test_first_group_that_begins_again_alone_is_relaunched(new_groups: NewGroups) -> None:  # fmt: skip
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    for number in (WORKERS, MORE):
        harness.state.exit_program(harness.managed(number)[-1], 0)
    harness.run(lambda h: h.managed(MORE)[-1].is_over and h.managed(WORKERS)[-1].is_over)
    harness.preempt(HEAD)
    harness.run(lambda h: h.job.launch == 2 and h.is_whole())
    harness.exit_all(0)
    harness.run()

    assert harness.job.outcome is Outcome.SUCCEEDED
    assert [len(harness.managed(number)) for number in range(3)] == [2, 2, 2]


def with_task(harness: GroupHarness, group: str, **words: object) -> Launch:
    """The launch of the job, with other words in the task of a group."""
    launch = harness.launch()
    tasks = {**launch.group_tasks, group: {**launch.group_tasks[group], **words}}
    return replace(launch, group_tasks=tasks)


def test_refusal_of_the_first_group_is_raised_at_once(new_groups: NewGroups) -> None:
    harness = new_groups()

    with pytest.raises(LaunchRefused, match="group head: workdir /nowhere is not a directory"):
        do(harness.launcher.submit(with_task(harness, "head", workdir="/nowhere")))
    harness.pass_time(100)

    assert not harness.state.jobs
    assert do(harness.launcher.observe(KEY)).status is LaunchStatus.ENDED


def test_refusal_of_a_later_group_ends_the_earlier_ones_first(new_groups: NewGroups) -> None:
    harness = new_groups()
    launch = with_task(harness, "more", workdir="/nowhere")
    harness.append(LaunchRequested(at=harness.clock.now(), launch=1))

    with pytest.raises(
        LauncherUnreachable, match=r"group more: workdir .*; ending the other groups"
    ):
        do(harness.launcher.submit(launch))
    harness.run()

    assert harness.job.outcome is Outcome.FAILED
    assert harness.job.detail.startswith("group more: workdir /nowhere is not a directory")
    assert all(job.is_over for job in harness.state.jobs.values())


# Cancels


@pytest.mark.parametrize("seconds", [0, 1, 5, 20, 40, 70, 120, 400])
def test_cancel_at_any_time_ends_all_groups(new_groups: NewGroups, seconds: int) -> None:
    harness = new_groups()
    harness.run(lambda h: h.job.is_launched, limit_s=60)
    harness.pass_time(seconds)
    for _ in range(seconds // 40):
        harness.step()

    harness.cancel()
    harness.run()
    before = len(harness.state.jobs)
    do(harness.launcher.submit(harness.launch()))
    harness.pass_time(600)

    assert harness.job.outcome is Outcome.CANCELLED
    assert len(harness.state.jobs) == before
    assert do(harness.launcher.observe(KEY)).status is LaunchStatus.ENDED


def test_cancel_of_a_launch_never_submitted_is_final(new_groups: NewGroups) -> None:
    harness = new_groups()

    do(harness.launcher.cancel(KEY))
    do(harness.launcher.submit(harness.launch()))
    harness.pass_time(100)
    seen = do(harness.launcher.observe(KEY))

    assert not harness.state.jobs
    assert seen.result
    assert seen.result.outcome is Outcome.CANCELLED
    assert seen.result.detail == "cancelled before it began"


# Crashes


def whole_story(harness: GroupHarness) -> None:
    """Run, lose each group once, and succeed."""
    harness.run(GroupHarness.is_whole)
    for number in (MORE, HEAD, WORKERS):
        harness.preempt(number)
        harness.run(lambda h: not h.is_whole())
        harness.run(GroupHarness.is_whole)
    harness.exit_all(0)
    harness.run()
    assert harness.job.outcome is Outcome.SUCCEEDED
    assert lost_nodes(harness.log) == [3, 4, 5, 1, 2]
    assert (harness.job.preemptions, harness.job.attempt) == (3, 2)


def cancelled_story(harness: GroupHarness) -> None:
    """Run, and cancel while a group is being replaced."""
    harness.run(GroupHarness.is_whole)
    harness.preempt(WORKERS)
    harness.run(lambda h: not h.is_whole())
    harness.cancel()
    harness.run()
    assert harness.job.outcome is Outcome.CANCELLED


def kill_at_moments(
    new_engine: Callable[[], Engine],
    folder: Path,
    story: Callable[[GroupHarness], None],
    stride: range,
    *,
    gated: bool = True,
) -> None:
    """Tell a story once for each of these moments, at which the service is killed."""
    first = GroupHarness(new_engine(), folder / "first", gated=gated)
    story(first)
    assert len(first.state.jobs) == len(GROUPS)
    for moment in range(stride.start, first.line.moments, stride.step):
        harness = GroupHarness(new_engine(), folder / str(moment), gated=gated)
        harness.line.dies_at = moment

        story(harness)

        assert harness.crashes == 1
        assert len(harness.state.jobs) == len(GROUPS), "no group was launched twice"


@pytest.mark.parametrize("story", [whole_story, cancelled_story, drilled_story])
def test_service_killed_between_some_requests(
    tmp_path: Path, new_engine: Callable[[], Engine], story: Callable[[GroupHarness], None]
) -> None:
    kill_at_moments(new_engine, tmp_path, story, range(7, 400, 240))


@pytest.mark.full
@pytest.mark.parametrize("start", range(0, 40, 3))
@pytest.mark.parametrize("story", [whole_story, cancelled_story, drilled_story])
@pytest.mark.parametrize("gated", [True, False])
def test_service_killed_between_any_two_requests(
    tmp_path: Path,
    new_engine: Callable[[], Engine],
    *,
    story: Callable[[GroupHarness], None],
    gated: bool,
    start: int,
) -> None:
    kill_at_moments(new_engine, tmp_path, story, range(start, 40 + start, 40), gated=gated)


# The bill


def test_bill_equals_the_time_that_each_group_stood(new_groups: NewGroups) -> None:
    harness = new_groups()

    whole_story(harness)

    bill = compute_bill(harness.log, {}, harness.clock.now(), with_rules=False)
    for number, shape in enumerate(GROUPS):
        [job] = harness.managed(number)
        billed_ms = sum(
            group.node_ms(item.begin_ms, item.end_ms)
            for item in bill.attempts
            for group in [item.groups[number]]
        )
        assert abs(billed_ms / 1000 - _stood_s(harness, job.number) * shape.nodes) < 0.01 * shape.nodes  # fmt: skip


def _stood_s(harness: GroupHarness, number: int) -> float:
    """Seconds between SkyPilot's events that nodes are there and that they are gone."""
    total, since = 0.0, None
    for event in harness.state.jobs[number].events:
        at = datetime.fromisoformat(event["timestamp"])
        if "Instances launched" in event["reason"] and since is None:
            since = at
        elif since and (event["new_status"] in {"RECOVERING", "SUCCEEDED", "CANCELLED"}):
            total += (at - since).total_seconds()
            since = None
    return total


# Logs


def test_logs_of_groups_are_those_of_their_attempts(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)
    do(harness.launcher.copy_logs(KEY))
    harness.preempt(MORE)
    harness.run(lambda h: not h.is_whole())
    harness.run(GroupHarness.is_whole)
    harness.pass_time(60)
    harness.sky.server.prints = b"again\n"

    sources = do(harness.launcher.logs(KEY))

    assert [(source.attempt, source.node, source.size_bytes) for source in sources] == [
        (1, 0, 6),
        (1, 1, 6),
        (1, 3, 12),
    ]
    last = sources[-1]
    assert harness.launcher.read_log(KEY, last, 0, 100) == b"hello\n"
    assert harness.launcher.read_log(KEY, last, 6, 100) == b"again\n"
    assert harness.launcher.read_log(KEY, last, 12, 100) == b""
    other = LogSource(attempt=1, node=2, rank=None, size_bytes=0)
    assert harness.launcher.read_log(KEY, other, 0, 100) == b""
    assert harness.launcher.keys_with_files() == [KEY]
    harness.launcher.discard(KEY)
    assert harness.launcher.keys_with_files() == []


# Orphans


def test_groups_of_a_launch_that_is_over_are_swept(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)
    asked = set[str]()

    def is_live(key: str) -> bool | None:
        asked.add(key)
        return False

    for _ in range(30):
        found = do(harness.launcher.sweep(is_live))
        assert {orphan.key for orphan in found} <= {KEY}
        harness.sky.pass_time(60)

    assert asked == {KEY}
    assert all(job.is_over for job in harness.state.jobs.values())
    assert not harness.state.running_clusters()


def test_groups_of_a_live_launch_are_left_alone(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    for _ in range(30):
        assert do(harness.launcher.sweep(lambda key: key == KEY)) == []
        harness.sky.pass_time(60)

    assert not any(job.is_over for job in harness.state.jobs.values())
    assert do(harness.launcher.sweep(lambda _: None)) == []


def test_job_without_groups_is_one_managed_job(new_groups: NewGroups) -> None:
    harness = new_groups()

    do(harness.launcher.submit(harness.sky.launch("job-1")))
    harness.pass_time(60)

    assert [job.name for job in harness.state.jobs.values()] == [harness.sky.jobs("job-1")[0].name]
    assert do(harness.launcher.observe("job-1")).status is LaunchStatus.UP
