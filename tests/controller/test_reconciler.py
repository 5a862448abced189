"""The reconciler with refusing launchers, faster replicas and malformed reports."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from holdfast.controller.reconciler import PollIntervals
from holdfast.domain.events import CancelRequested, CapacityLost, LaunchRequested, Outcome
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.observation import Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused, StaleWrite
from holdfast.ingest.spool_reader import SpoolReader
from holdfast.log_context import current_context
from holdfast.ports import Launch
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.protocol.spool_segments import Segment
from support.events import at, submitted
from support.fakes import FileLauncher, FixedClock
from support.reconciler import PACE, NewReconcilerHarness, said
from support.sql_log import statements


class RefusingLauncher(FileLauncher):
    """A launcher that permanently rejects this job."""

    async def submit(self, launch: Launch) -> None:
        raise LaunchRefused("the workdir does not exist")


class SilentLauncher(FileLauncher):
    """A launcher that does not respond."""

    async def observe(self, key: str) -> Observation:
        raise LauncherUnreachable("no answer for 30 s")


class InterruptedLauncher(FileLauncher):
    """A launcher during whose observation other events occur."""

    during_observation: Callable[[], Awaitable[Any]] | None = None

    async def observe(self, key: str) -> Observation:
        seen = await super().observe(key)
        if self.during_observation:
            callback, self.during_observation = self.during_observation, None
            await callback()
        return seen


class ContextLauncher(FileLauncher):
    """A launcher that keeps the context of its log records."""

    contexts: ClassVar[list[dict[str, str]]] = []

    async def submit(self, launch: Launch) -> None:
        self.contexts.append({**current_context()})
        await super().submit(launch)

    async def observe(self, key: str) -> Observation:
        self.contexts.append({**current_context()})
        return await super().observe(key)


def test_launchers_log_with_the_job_and_launch(new_harness: NewReconcilerHarness) -> None:
    home = new_harness(ContextLauncher)
    home.launcher.contexts.clear()

    home.sweep()
    home.sweep()

    assert home.launcher.contexts == [{"job": "job-1", "launch": "job-1-1"}] * 2


def test_job_runs_to_its_end_and_is_no_longer_polled(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness()

    for _ in range(4):
        home.sweep()

    assert [type(event).__name__ for event in home.log()] == [
        "Submitted",
        "LaunchRequested",
        "NodesReady",
        "Finished",
    ]
    assert home.journal.read("job-1").outcome is Outcome.SUCCEEDED
    assert home.watches.next_due() is None


def test_launch_request_is_recorded_before_submission(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(RefusingLauncher)

    home.step()

    kinds = [type(event).__name__ for event in home.log()]
    assert kinds == ["Submitted", "LaunchRequested", "Finished"]


def test_a_launch_that_is_refused_has_failed_with_the_reason(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(RefusingLauncher)

    home.sweep()

    job = home.journal.read("job-1")
    assert (job.outcome, job.detail) == (Outcome.FAILED, "the workdir does not exist")
    assert home.watches.next_due() is None


def test_outage_is_shown_and_changes_no_state(
    new_harness: NewReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    home = new_harness(SilentLauncher)
    home.sweep()
    before = home.log()

    for _ in range(100):
        home.sweep(60)

    assert home.log() == before
    assert home.reading.last_observation("job-1").error == "no answer for 30 s"
    assert "job-1: no answer for 30 s" in caplog.text


def test_missing_launcher_is_an_error_but_does_not_end_a_job(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness()
    home.journal.submit("job-2", submitted(infra="slurm"))

    home.sweep()

    assert home.journal.read("job-2").state is State.QUEUED
    assert "without the Slurm launcher" in (home.reading.last_observation("job-2").error or "")
    assert home.journal.read("job-1").state is State.PROVISIONING


def test_launch_carries_key_task_and_worker_environment(new_harness: NewReconcilerHarness) -> None:
    launches: list[Launch] = []

    class RecordingLauncher(FileLauncher):
        async def submit(self, launch: Launch) -> None:
            launches.append(launch)

    new_harness(RecordingLauncher).step()

    [launch] = launches
    assert (launch.key, launch.job_id, launch.first_attempt) == ("job-1-1", "job-1", 1)
    assert launch.task["run"] == "true"
    assert launch.env["HOLDFAST_JOB"] == "job-1"
    assert launch.env["HOLDFAST_URL"] == "http://127.0.0.1:8642"
    assert launch.env["HOLDFAST_TOKEN"].startswith("hfw_job-1_")


def test_cancel_during_an_observation_is_not_lost(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(InterruptedLauncher)
    home.step()
    home.clock.advance(5)

    async def cancel() -> None:
        job = home.journal.read("job-1")
        home.journal.append(job, [CancelRequested(at=home.clock.now())])

    home.launcher.during_observation = cancel
    with pytest.raises(StaleWrite):
        home.step()
    home.step()

    assert home.journal.read("job-1").state is State.STOPPING
    assert home.launcher.deeds()[-1]["deed"] == "cancel"


def test_observation_older_than_a_relaunch_is_dropped(
    new_harness: NewReconcilerHarness,
) -> None:
    """Reports are imported after the observation.

    Their events must not make an old observation look current.
    """
    home = new_harness(InterruptedLauncher)
    home.launcher.says = [said(1, ReportKind.RESTORE_STARTED)]
    home.step()
    home.clock.advance(4)
    home.launcher.forget("job-1-1")

    async def relaunch_from_another_replica() -> None:
        await home.reconciler.step("job-1")
        home.launcher.says = [*home.launcher.says, said(2, ReportKind.TRAINING_STARTED, step=0)]

    home.launcher.during_observation = relaunch_from_another_replica
    with pytest.raises(StaleWrite):
        home.step()

    launches = [event.launch for event in home.log() if isinstance(event, LaunchRequested)]
    losses = [event for event in home.log() if isinstance(event, CapacityLost)]
    assert launches == [1, 2]
    assert len(losses) == 1


def test_reports_missing_before_a_spool_are_not_awaited(
    new_harness: NewReconcilerHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The service was restored from an old backup, and reads the spool directory itself."""
    home = new_harness(FileLauncher)
    spool = tmp_path / "launches" / "job-1-1" / "spool"
    spool.mkdir(parents=True)
    reports = [said(90, ReportKind.TRAINING_STARTED, step=0), said(91, ReportKind.PROGRESS, step=1)]
    lines = "".join(f"{report.line()}\n" for report in reports)
    (spool / Segment(1, 90).name).write_text(lines)
    home.reconciler._inbox = SpoolReader(tmp_path)

    home.sweep()
    home.sweep()

    assert home.journal.read("job-1").state is State.TRAINING
    assert home.journal.marks("job-1") == {1: 91}
    assert "job-1 attempt 1: reports 1 to 89 are missing" in caplog.text


@pytest.mark.timeout(120)
def test_pipe_in_place_of_a_spool_does_not_stop_the_reconciler(
    new_harness: NewReconcilerHarness, tmp_path: Path
) -> None:
    home = new_harness(FileLauncher)
    spool = tmp_path / "launches" / "job-1-1" / "spool"
    spool.mkdir(parents=True)
    os.mkfifo(spool / Segment(1, 1).name)
    home.reconciler._inbox = SpoolReader(tmp_path)

    for _ in range(4):
        home.sweep()

    assert home.journal.read("job-1").outcome is Outcome.SUCCEEDED


def test_reports_during_an_observation_do_not_make_it_stale(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(InterruptedLauncher)
    home.launcher.says = [said(2, ReportKind.TRAINING_STARTED, step=0)]
    home.step()
    home.clock.advance(4)

    async def report_from_worker() -> None:
        home.journal.ingest("job-1", 1, [said(1, ReportKind.RESTORE_STARTED)])

    home.launcher.during_observation = report_from_worker
    home.step()

    assert home.journal.read("job-1").state is State.TRAINING


def test_overtaken_replica_observes_again_at_once(new_harness: NewReconcilerHarness) -> None:
    home = new_harness(InterruptedLauncher)
    home.sweep()

    async def observe_from_another_replica() -> None:
        await home.reconciler.step("job-1")

    home.launcher.during_observation = observe_from_another_replica
    home.sweep(0)

    assert home.watches.next_due() == home.clock.now()


def test_malformed_report_does_not_stop_the_reconciler(
    new_harness: NewReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    home = new_harness()
    home.launcher.says = [said(1, ReportKind.WORKER_LEFT, step=-1)]

    for _ in range(4):
        home.sweep()

    assert home.journal.read("job-1").outcome is Outcome.SUCCEEDED
    assert "job-1 attempt 1: report 1 (worker_left)" in caplog.text


def test_exit_report_is_recorded_before_the_end(new_harness: NewReconcilerHarness) -> None:
    home = new_harness()
    body: dict[str, Json] = {"step": 9, "reason": "finished", "exit_code": 0, "detail": ""}
    home.launcher.says = [said(1, ReportKind.WORKER_LEFT, **body)]
    home.step()
    home.clock.advance(60)

    home.step()

    assert [type(event).__name__ for event in home.log()][2:] == [
        "WorkerLeft",
        "NodesReady",
        "Finished",
    ]


def test_ended_job_still_watched_is_released(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(RefusingLauncher)
    home.step()

    home.sweep()

    assert home.watches.next_due() is None


def test_jobs_of_a_dead_replica_are_processed_after_its_lease(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness()
    home.watches.claim(Engine.LOCAL, home.clock.now(), PACE.lease_s, 9)

    home.sweep(PACE.lease_s)
    still = home.journal.read("job-1").state
    home.sweep()

    assert still is State.QUEUED
    assert home.journal.read("job-1").state is State.PROVISIONING


def test_each_launcher_has_its_own_poll_interval(new_harness: NewReconcilerHarness) -> None:
    pace = PollIntervals(poll_every_s=5, by_engine={Engine.LOCAL: 30})
    home = new_harness(pace=pace)

    home.sweep()

    assert (pace.interval_s(Engine.LOCAL), pace.interval_s(Engine.SKYPILOT)) == (30, 5)
    assert home.watches.next_due() == at(30)


def test_observation_time_is_when_the_call_started(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(InterruptedLauncher)
    home.sweep()

    async def advance_clock() -> None:
        home.clock.advance(7)

    home.launcher.during_observation = advance_clock
    home.sweep()

    assert home.reading.last_observation("job-1").seen_at == at(5)
    assert home.watches.next_due() == at(5 + 7 + 5)


def test_nudge_during_an_observation_is_not_lost(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(InterruptedLauncher)
    home.sweep()

    async def nudge() -> None:
        home.watches.make_due("job-1", home.clock.now())

    home.launcher.during_observation = nudge
    home.sweep(0)

    assert home.watches.next_due() == home.clock.now()


def test_secrets_reach_the_launch_but_not_its_repr(
    new_harness: NewReconcilerHarness,
) -> None:
    launches: list[Launch] = []

    class RecordingLauncher(FileLauncher):
        async def submit(self, launch: Launch) -> None:
            launches.append(launch)

    class FakeSecretStore:
        def open(self, job_id: str) -> Mapping[str, str]:
            return {"HF_TOKEN": f"of {job_id}"}

        def forget(self, job_id: str) -> None:
            raise AssertionError("the job has not ended")

    new_harness(RecordingLauncher, safe=FakeSecretStore()).step()

    assert launches[0].secrets == {"HF_TOKEN": "of job-1"}
    assert "of job-1" not in repr(launches[0])


def test_many_jobs_of_a_launcher_do_not_delay_another(
    new_harness: NewReconcilerHarness, tmp_path: Path
) -> None:
    pace = PollIntervals(poll_every_s=5, poll_cost_s={Engine.LOCAL: 1, Engine.SKYPILOT: 10})
    cloud = FileLauncher(tmp_path / "cloud.jsonl", FixedClock())
    home = new_harness(pace=pace, cloud=cloud)
    for number in range(2, 9):
        home.journal.submit(f"job-{number}", submitted(infra="aws"))

    home.sweep(0)

    assert home.watches.next_due() == at(5)
    assert home.watches.claim(Engine.LOCAL, at(5), 9, limit=9) == ["job-1"]
    assert home.watches.claim(Engine.SKYPILOT, at(69), 9, limit=9) == []
    assert len(home.watches.claim(Engine.SKYPILOT, at(70), 9, limit=9)) == 7


def test_watched_jobs_are_not_counted_at_each_release(new_harness: NewReconcilerHarness) -> None:
    home = new_harness(pace=PollIntervals(poll_every_s=5, poll_cost_s={Engine.LOCAL: 1}))
    for number in range(2, 22):
        home.journal.submit(f"job-{number}", submitted())

    with statements(home.engine) as executed:
        home.sweep(0)

    assert sum("watches SET trouble" in statement for statement in executed) == 21
    assert sum("count(*)" in statement for statement in executed) == 1
    assert home.watches.next_due() == at(21)
