"""A job with node groups over a fake SkyPilot, driven by the decisions of the reconciler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import httpx2
from fake_skypilot import FaultyTransport, Job, JobSimulation
from fault_injection.faulty_ports import Crash
from holdfast.domain.events import (
    CancelRequested,
    CapacityLost,
    Cause,
    Event,
    Finished,
    NodeLost,
    Outcome,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.drills import group_drills, request_drill
from holdfast.domain.jobs.job import Job as HoldfastJob
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.jobs.reconcile import Effect, ReconcileContext, decide
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot import NodeGroupLauncher
from holdfast.launchers.skypilot.group_history import GroupShape
from holdfast.launchers.skypilot.naming import group_key
from holdfast.ports import Launch
from holdfast_worker.protocol.environment import Exit
from sqlalchemy import Engine
from support.events import submitted
from support.skypilot.launcher import NAMES, SkyPilotHarness, do, launcher_over

JOB = "j0123456789ab"
KEY = f"{JOB}-1"
GROUPS = (GroupShape("head", 1), GroupShape("workers", 2), GroupShape("more", 3))
HEAD, WORKERS, MORE = range(3)
NODES = (range(1), range(1, 3), range(3, 6))
"""The nodes of each group."""
STEADY = JobSimulation(runs_s=1e9)
"""A job that runs until a test ends it."""


def job_name(group: int, launch: int = 1) -> str:
    """The name of a group's managed job."""
    return NAMES.job_name(group_key(f"{JOB}-{launch}", group))


class DyingTransport(FaultyTransport):
    """A transport of a process that is killed before or after one of its requests."""

    dies_at: int | None = None
    """Number of the moment at which it is killed, from 0; two for each request."""
    moments = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self._live()
        answer = await super().handle_async_request(request)
        self._live()
        return answer

    def _live(self) -> None:
        number, self.moments = self.moments, self.moments + 1
        if number == self.dies_at:
            raise Crash


class GroupHarness:
    """One service with one job of three node groups, and its SkyPilot."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        simulation: JobSimulation = STEADY,
        *,
        gated: bool = True,
        seed: int = 1,
        **groups: JobSimulation,
    ) -> None:
        self.sky = SkyPilotHarness(engine, folder, simulation, gated=gated, seed=seed)
        self.state, self.clock, self.book = self.sky.state, self.sky.clock, self.sky.book
        for number, shape in enumerate(GROUPS):
            if shape.name in groups:
                for launch in range(1, 4):
                    self.state.simulations[job_name(number, launch)] = groups[shape.name]
        self.line = DyingTransport(self.sky.server)
        self.launcher = self.replica()
        self.log: list[Event] = [submitted(infra="aws", nodes=(None, 6))]
        self.job: HoldfastJob = fold(JOB, self.log)
        self.limits = Limits()
        self.drills: dict[datetime, tuple[int, int, datetime]] = {}
        """Drills that node 0 has heard of, by request: the group, its run, and when it ends."""
        self.ended_drills = set[datetime]()
        self.crashes = 0
        self.refusal = ""

    def replica(self) -> NodeGroupLauncher:
        """Another process of this service."""
        managed = launcher_over(self.line, self.book, self.sky.folder, self.clock)
        return NodeGroupLauncher(
            managed,
            memory=self.book,
            groups_of=lambda job: GROUPS if job == JOB else (),
            clock=self.clock,
        )

    def launch(self, number: int = 1) -> Launch:
        """The launch of the job."""
        recovery = {"job_recovery": {"max_restarts_on_errors": 1}}
        tasks = {
            shape.name: {"run": "true", "num_nodes": shape.nodes, "resources": recovery}
            for shape in GROUPS
        }
        one = self.sky.launch(f"{JOB}-{number}", **tasks["head"])
        attempt = self.job.attempts_before_launch + 1
        return replace(one, group_tasks=tasks, first_attempt=attempt)

    def observe(self) -> Observation:
        return do(self.launcher.observe(self.job.launch_key))

    def step(self) -> None:
        """One step of the reconciler, whose process may be killed; then check all invariants."""
        try:
            self._step()
        except LauncherUnreachable:
            pass
        except Crash:
            self.crashes += 1
            self.launcher = self.replica()
        self.check()

    def _step(self) -> None:
        if self.job.outcome:
            return
        now = self.clock.now()
        seen = self.observe() if self.job.is_launched else None
        context = ReconcileContext(saves_on_cancel=False, limits=self.limits)
        plan = decide(self.job, seen, now, context)
        self.append(*plan.record)
        match plan.effect:
            case Effect.SUBMIT:
                try:
                    do(self.launcher.submit(self.launch(self.job.launch)))
                except LaunchRefused as refusal:
                    self.refusal = refusal.detail
            case Effect.CANCEL:
                do(self.launcher.cancel(self.job.launch_key))
            case None:
                pass

    def append(self, *events: Event) -> None:
        for event in events:
            self.log.append(event)
            self.job = advance(self.job, event)

    def cancel(self) -> None:
        self.append(CancelRequested(at=self.clock.now()))

    def run(
        self, until: Callable[[GroupHarness], object] = lambda h: h.job.outcome, *, limit_s: float = 14_400
    ) -> None:  # fmt: skip
        """Take steps until a condition is met."""
        for _ in range(int(limit_s / 5)):
            if until(self):
                return
            self.step()
            self.pass_time(5)
        raise AssertionError(f"it was not met in time: {self.job}")

    def pass_time(self, seconds: float) -> None:
        self.sky.pass_time(seconds)
        self._run_worker()
        self.check()

    def managed(self, group: int) -> list[Job]:
        """All managed jobs of a group, in order."""
        names = {job_name(group, launch) for launch in range(1, 4)}
        return [job for job in self.state.jobs.values() if job.name in names]

    def check(self) -> None:
        """Check that no group runs twice, and that nothing runs after the end of the job."""
        for number, shape in enumerate(GROUPS):
            live = [job for job in self.managed(number) if not job.is_over]
            assert len(live) <= 1, f"{shape.name} runs twice"
        if any(isinstance(event, Finished) for event in self.log):
            self.check_gone()

    def check_gone(self) -> None:
        """Check that nothing of the job runs."""
        left = [job.name for job in self.state.jobs.values() if not job.is_over]
        assert not left, "jobs are left"
        late = [cluster.name for cluster in self.state.running_clusters() if not cluster.is_late]
        assert not late, "clusters are left"

    def preempt(self, group: int) -> None:
        """Take the nodes of a group now."""
        self.state.preempt(self.managed(group)[-1])

    def request_drill(self, group: int, notice_s: float | None = None) -> None:
        """Request the preemption of a group, as a user does."""
        request = request_drill(
            self.job,
            self.clock.now(),
            node=None,
            notice_s=notice_s,
            through_worker=True,
            group=GROUPS[group].name,
        )
        self.append(*request)

    def _run_worker(self) -> None:
        """What the wrappers do: those of a group exit when a drill that node 0 has heard of is due."""
        now = self.clock.now()
        if not self.managed(0) or self.managed(0)[-1].status != "RUNNING":
            return
        for drill in group_drills(self.job, self.job.attempt, now):
            group = next(g for g, nodes in enumerate(NODES) if drill.nodes == tuple(nodes))
            due = now + timedelta(seconds=drill.within_s)
            self.drills.setdefault(drill.requested_at, (group, self.managed(group)[-1].runs, due))
        for at, (group, runs, due) in self.drills.items():
            job = self.managed(group)[-1]
            if at not in self.ended_drills and now >= due:
                self.ended_drills.add(at)
                if job.runs == runs and job.status == "RUNNING":
                    self.state.exit_program(job, Exit.PREEMPTED, restarts=True)

    def exit_all(self, code: int, *, restarts: bool = False) -> None:
        """Let the program exit on all nodes now."""
        for number in range(len(GROUPS)):
            self.state.exit_program(self.managed(number)[-1], code, restarts=restarts)

    def is_whole(self) -> bool:
        """Whether all nodes of the job run, as far as reported."""
        return self.job.placed and not self.job.awaited_nodes


def drilled_story(harness: GroupHarness) -> None:
    """Run, preempt each group once on request, and succeed."""
    harness.run(GroupHarness.is_whole)
    for count, (number, notice_s) in enumerate([(MORE, 30), (HEAD, 60), (WORKERS, None)], 1):
        harness.request_drill(number, notice_s)
        harness.run(lambda h: h.job.drills == count, limit_s=600)  # noqa: B023
        harness.run(GroupHarness.is_whole, limit_s=600)
    harness.exit_all(0)
    harness.run()
    assert harness.job.outcome is Outcome.SUCCEEDED
    losses = [event for event in harness.log if isinstance(event, NodeLost | CapacityLost)]
    losses = [loss for loss in losses if loss.cause is not Cause.ENDED]
    nodes = [loss.node for loss in losses if isinstance(loss, NodeLost)]
    assert nodes == [*NODES[MORE], *NODES[WORKERS]]
    assert all(loss.drill for loss in losses)
    assert (harness.job.preemptions, harness.job.drills, harness.job.attempt) == (3, 3, 2)
    assert [harness.managed(number)[0].runs for number in range(3)] == [2, 2, 2]
