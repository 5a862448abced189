"""A service with random faults: crashing replicas, lost responses, preemptions.

Steps of the reconciler are coroutines that pause at every launcher call. A seed determines which one
continues, which one crashes, and what happens in between. All invariants are checked after every event.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar

import yaml
from fault_injection.faulty_ports import (
    Crash,
    FaultChances,
    FaultyInbox,
    FaultyJournal,
    FaultyLauncher,
    Step,
    run_without_waiting,
)
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.access.audit import Actor
from holdfast.domain.events import (
    Admitted,
    Cause,
    Event,
    Finished,
    LaunchRequested,
    MarketState,
    Paused,
    PlaceState,
    Submitted,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, create_job
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.domain.planning.placement import PlacementPlanner
from holdfast.domain.planning.situation import PlacementPolicy
from holdfast.domain.queue.quotas import Quota
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import (
    BadLimits,
    LauncherUnreachable,
    NotPossibleNow,
    StaleWrite,
    StoreUnavailable,
)
from holdfast.launchers.simulated import Failure, LauncherBehavior, SimulatedCloud, SimulatedProgram
from holdfast.market.planners import Planners
from holdfast.rendering import render
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from sqlalchemy import Connection, Engine, event
from support.fakes import FixedClock

LIVE = frozenset({LaunchStatus.WAITING, LaunchStatus.UP})
TICK_S = 0.000_001
"""Time between two events, so that no two events have the same time."""
PACE = PollIntervals(poll_every_s=5.0, lease_s=10.0)


class RestlessPlanners(Planners):
    """Planners over a market that changes every few seconds and is known by chance."""

    shared: ClassVar[dict[str, PlacementPolicy]] = {}
    """Policies of all scenarios, as some keep tables."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tick_s = rng.choice([2.0, 7.0, 30.0])
        self._sees_all = rng.random() < 0.5
        self._on_demand_wait_s = rng.choice([0.0, 10.0])
        self._seed = rng.random()
        self._policies = self.shared

    def plan_of_job(self) -> dict[str, Any]:
        """The plan of a new job file."""
        names = ["threshold", "uniform-progress", "greedy", "holdfast", "on-demand"]
        margin = self._rng.choice(["0", "20s"])
        if self._rng.random() < 0.2:
            return {"objective": "fastest", "work": "100s", "margin": margin}
        on_demand = self._rng.random() < 0.9
        return {
            "work": "100s",
            "policy": self._rng.choice(names),
            "margin": margin,
            "on_demand": on_demand,
        }

    def of(self, spec: JobSpec, now: datetime) -> PlacementPlanner | None:
        """The planner of a job, without a forecast."""
        plan = spec.holdfast.plan
        if plan is None:
            return None
        market = MarketState(
            at=now,
            places=tuple(self._place(name, now) for name in ("local/local-a", "local/local-b")),
            tick_s=self._tick_s,
            changeover_s=10.0,
            on_demand_wait_s=self._on_demand_wait_s,
            sees_all=self._sees_all,
        )
        policy = self.policy(plan.policy_name if plan.on_demand else "spot")
        return PlacementPlanner(plan, spec.holdfast.limits, market, policy)

    async def prepare(self, spec: JobSpec, now: datetime) -> PlacementPlanner | None:
        """As `of`, without a thread, which steps of this service do not have."""
        return self.of(spec, now)

    def _place(self, name: str, now: datetime) -> PlaceState:
        tick = int(now.timestamp() // (3 * self._tick_s))
        draw = random.Random(f"{self._seed} {name} {tick}")
        return PlaceState(
            name=name,
            region=name,
            spot_usd_per_hour=draw.choice([0.5, 0.6]),
            on_demand_usd_per_hour=1.5,
            is_available=draw.random() < 0.5,
            seen_at=now,
            age_s=draw.choice([0.0, 4000.0]),
        )


@dataclass
class Replica:
    """One process of the service: a reconciler and its current step."""

    reconciler: Reconciler
    job_id: str = ""
    step: Step | None = None

    def die(self) -> None:
        if self.step is not None:
            self.step.close()


class FaultyService:
    """Jobs, replicas and a cloud, with the faults between them."""

    def __init__(
        self,
        seed: int,
        engine: Engine,
        faulty_engine: Engine,
        *,
        has_plans: bool = False,
        quota: Quota | None = None,
    ) -> None:
        """`has_plans`: most jobs have plans, over a market that changes every few seconds.

        `quota` is set before the first job.
        """
        self.rng = random.Random(seed)
        self.planners = RestlessPlanners(random.Random(seed)) if has_plans else None
        self.chances = FaultChances(self.rng)
        self.clock = FixedClock()
        self.faulty_engine = faulty_engine
        self.cloud = SimulatedCloud(
            self.clock,
            self._market(seed),
            self._program(),
            self._launcher_behavior(),
        )
        self.launcher = FaultyLauncher(self.cloud, self.chances)
        self.journal = Journal(engine, self.clock)
        self.api = FaultyJournal(faulty_engine, self.clock, self.chances)
        self.queries = Queries(engine)
        self.replicas = [self._replica(), self._replica()]
        self.folds: dict[str, Job] = {}
        self._cursor = 0
        self.held: dict[str, int] = {}
        """Nodes of the shares that the log has admitted, by job."""
        self.quota = quota
        if quota:
            action = Actor(name="admin").audit_action("quota.set", quota.name)
            self.journal.queue.set_quota(quota, action)
        event.listen(faulty_engine, "commit", self._on_commit)

    def _market(self, seed: int) -> MarketParameters:
        return MarketParameters(
            seed=seed,
            provision_s=self.rng.choice([1.0, 20.0, 90.0]),
            denial_rate=self.rng.choice([0.0, 0.3, 0.7]),
            mtbf_s=self.rng.choice([0.0, 90.0, 200.0]),
            notice_s=self.rng.choice([5.0, 30.0]),
            no_notice_rate=self.rng.choice([0.0, 0.5, 1.0]),
        )

    def _launcher_behavior(self) -> LauncherBehavior:
        return LauncherBehavior(
            saves_on_cancel=self.rng.random() < 0.5,
            reports_reclaims=self.rng.random() < 0.5,
            restart_on=self.rng.choice([frozenset(), frozenset({1, 75})]),
        )

    def _program(self) -> SimulatedProgram:
        failure = Failure(
            step=self.rng.choice([0, 30]),
            exit_code=self.rng.choice([1, 1, 75]),
            times=self.rng.choice([1, 2, 9]),
        )
        return SimulatedProgram(
            total_steps=100,
            setup_s=self.rng.choice([2.0, 20.0]),
            restore_s=3.0,
            checkpoint_every_steps=20,
            stall_s=0.5,
            upload_s=self.rng.choice([1.0, 15.0]),
            progress_every_steps=25,
            failure=failure if self.rng.random() < 0.3 else None,
        )

    def _replica(self) -> Replica:
        return Replica(
            Reconciler(
                journal=FaultyJournal(self.faulty_engine, self.clock, self.chances),
                leases=LeaseTable(self.faulty_engine),
                tokens=ServiceTokens(self.faulty_engine, b"secret"),
                launchers={Kind.LOCAL: self.launcher},
                inbox=FaultyInbox(self.cloud, self.chances),
                clock=self.clock,
                intervals=PACE,
                worker_url="http://127.0.0.1",
                secrets=Secrets(self.faulty_engine, b"secret"),
                planners=self.planners,
            )
        )

    def _on_commit(self, _: Connection) -> None:
        if self.chances.occurs(0.005):
            raise Crash

    # Events

    def move(self) -> None:
        """Apply one random event and check all invariants."""
        actions: dict[Callable[[], None], float] = {
            self._continue_step: 60,
            self._kill: 4,
            self._wait: 20,
            self._deliver: 8,
            self._preempt: 8,
            self._submit: 3,
            self._cancel: 1,
            self._pause: 3,
            self._resume: 5,
            self._change_limits: 1,
            self._forget_launch: 2,
        }
        [action] = self.rng.choices([*actions], [*actions.values()])
        self.clock.advance(TICK_S)
        action()
        self.check()

    def disable_faults(self) -> None:
        """Disable faults; calls in progress never return."""
        self.chances.is_disabled = True
        for number in range(len(self.replicas)):
            self._restart(number)

    def _continue_step(self) -> None:
        number = self.rng.randrange(len(self.replicas))
        replica = self.replicas[number]
        if replica.step is None:
            if not self.folds:
                return
            replica.job_id = self.rng.choice(sorted(self.folds))
            replica.step = Step(replica.reconciler.step(replica.job_id))
        try:
            replica.step.resume()
        except (StopIteration, StaleWrite, LauncherUnreachable, StoreUnavailable):
            replica.step = None
        except Crash:
            self._restart(number)

    def _kill(self) -> None:
        self._restart(self.rng.randrange(len(self.replicas)))

    def _restart(self, number: int) -> None:
        self.replicas[number].die()
        self.replicas[number] = self._replica()

    def _wait(self) -> None:
        self.clock.advance(self.rng.expovariate(1 / self.rng.choice([0.5, 10, 60])))

    def _submit(self) -> None:
        if len(self.folds) >= 3:
            return
        job_id = f"job-{len(self.folds)}"
        resources = {"infra": "local", "use_spot": self.rng.random() < 0.9}
        store = {"store": "s3://bucket/prefix"} if self.rng.random() < 0.8 else None
        block: dict[str, Any] = {"checkpoint": store, "limits": self._limits()}
        if self.planners and store and self.rng.random() < 0.9:
            resources["use_spot"] = True
            block["plan"] = self.planners.plan_of_job()
            block["limits"] = {"deadline": self.rng.choice(["3m", "10m"]), **block["limits"]}
        fields = {"name": job_id, "run": "train", "resources": resources, "holdfast": block}
        spec = parse_job_file(yaml.safe_dump({**fields, "num_nodes": self.rng.randint(1, 3)})).spec
        body = spec.model_dump(mode="json")
        submitted = Submitted(at=self.clock.now(), name=job_id, spec=body, task=render(spec).text)
        with suppress(Crash):
            self.api.submit(job_id, submitted)

    def _limits(self) -> dict[str, Any]:
        chosen = {
            "max_cost_usd": self.rng.choice([0.02, 0.1, 1]),
            "max_hourly_cost_usd": self.rng.choice([1, 2.5]),
            "deadline": self.rng.choice(["100s", "10m"]),
            "max_duration": self.rng.choice(["60s", "5m"]),
            "max_wait": self.rng.choice(["30s", "10m"]),
            "max_failures": self.rng.choice([1, 2, 4]),
        }
        return {name: value for name, value in chosen.items() if self.rng.random() < 0.15}

    def _cancel(self) -> None:
        self._append_command(lambda job: commands.cancel(job, self.clock.now(), "enough"))

    def _pause(self) -> None:
        self._append_command(lambda job: commands.pause(job, self.clock.now(), "later"))

    def _resume(self) -> None:
        changes = self._limits() if self.rng.random() < 0.5 else dict.fromkeys(Limits.model_fields)
        self._append_command(lambda job: self._resumed(job, changes))

    def _resumed(self, job: Job, changes: dict[str, Any]) -> Sequence[Event]:
        now = self.clock.now()
        return commands.resume(job, self.limits(job), changes, now, reason="continue")

    def _change_limits(self) -> None:
        changes = self._limits()
        self._append_command(
            lambda job: commands.change_limits(job, self.limits(job), changes, self.clock.now())
        )

    def _append_command(self, command: Callable[[Job], Sequence[Event]]) -> None:
        """Append the events of a command, as the API does."""
        if job := self._any_job():
            with suppress(NotPossibleNow, BadLimits, StaleWrite, StoreUnavailable, Crash):
                self.api.append(job, command(job))

    def limits(self, job: Job) -> Limits:
        """Return the current limits of a job."""
        spec = JobSpec.model_validate(self.journal.submission(job.id).spec)
        return job.limits or spec.holdfast.limits

    def cancel_all(self) -> None:
        """Cancel all jobs, as users do with jobs that do not end."""
        for job in self.folds.values():
            self.journal.append(job, commands.cancel(job, self.clock.now(), "enough"))

    def resume_paused(self) -> None:
        """Resume all paused jobs without limits."""
        for job in self.folds.values():
            if job.state is State.PAUSED:
                # A job that failed too often stays paused: its limit cannot be disabled.
                with suppress(NotPossibleNow):
                    facts = self._resumed(job, dict.fromkeys(Limits.model_fields))
                    self.journal.append(self.journal.read(job.id), facts)
                    LeaseTable(self.faulty_engine).make_due(job.id, self.clock.now())

    def _preempt(self) -> None:
        if job := self._any_job():
            notice_s = self.rng.choice([None, 3.0, 40.0])
            with suppress(NotPossibleNow):
                run_without_waiting(
                    self.cloud.preempt(job.launch_key, node=None, notice_s=notice_s)
                )

    def _forget_launch(self) -> None:
        job = self._any_job()
        if job and self.actual(job.launch_key).status in LIVE:
            self.cloud.forget(job.launch_key)

    def _deliver(self) -> None:
        """Deliver some reports of a worker to the API, possibly old ones or with a gap before them."""
        if not (job := self._any_job()):
            return
        by_attempt = groupby(self.cloud.read_new(job.id, {}), key=lambda report: report.attempt)
        reported = {attempt: list(reports) for attempt, reports in by_attempt}
        if reported:
            attempt = self.rng.choice(sorted(reported))
            start = self.rng.randrange(len(reported[attempt]))
            part = reported[attempt][start : start + self.rng.randint(1, 20)]
            with suppress(StoreUnavailable, Crash):
                ingested = self.api.ingest(job.id, attempt, part)
                if ingested.job.is_leaving and attempt == job.attempt:
                    self.cloud.request_shutdown(job.launch_key)

    def _check_quota(self, job_id: str, recorded: Event) -> None:
        """Check that no launch precedes its admission, and that the quota is never exceeded."""
        match recorded:
            case Admitted(demand=demand):
                assert job_id not in self.held, f"{job_id} was admitted twice"
                self.held[job_id] = demand.nodes
            case Paused() | Finished():
                self.held.pop(job_id, None)
            case LaunchRequested():
                assert job_id in self.held or not self.quota, f"{job_id} was not admitted"
        if self.quota:
            assert sum(self.held.values()) <= (self.quota.nodes or 0), f"too much: {self.held}"

    def _any_job(self) -> Job | None:
        return self.rng.choice([*self.folds.values()]) if self.folds else None

    # Invariants

    def actual(self, key: str) -> Observation:
        """The actual state of a launch."""
        return run_without_waiting(self.cloud.observe(key))

    def launches(self, job_id: str) -> list[Observation]:
        """The actual states of all launches of a job, in order."""
        count = self.folds[job_id].launch
        return [self.actual(f"{job_id}-{number}") for number in range(1, count + 1)]

    def check(self) -> None:
        """Check that rows are folds of their logs, and that one launch runs at a time, once."""
        for item in self.queries.stream(after=self._cursor, limit=100_000):
            self._cursor = item.cursor
            if isinstance(item.event, Submitted):
                self.folds[item.job_id] = create_job(item.job_id, item.event)
            else:
                self.folds[item.job_id] = advance(self.folds[item.job_id], item.event)
            self._check_quota(item.job_id, item.event)
        rows = {job.id: job for job in self.queries.jobs(limit=len(self.folds) + 1).jobs}
        assert rows == self.folds
        for job_id, job in self.folds.items():
            live = [seen for seen in self.launches(job_id) if seen.status in LIVE]
            assert len(live) <= 1, f"{job_id} runs {len(live)} times"
            assert not live or job.is_launched, f"{job_id} is {job.status}, and runs"
        twice = [key for key, starts in self.launcher.starts.items() if starts > 1]
        assert not twice, f"started more than once: {twice}"


@dataclass(frozen=True)
class Span:
    """One placement as the cloud had it, and its cost."""

    attempt: int
    ready_at: datetime
    ended_at: datetime
    micros_per_hour: int
    lost: bool
    """False if the job ended with it."""
    cause: Cause | None
    """The cause given by the cloud; None if it forgot or ended the launch, as for a pause."""

    @property
    def micros(self) -> int:
        return (_ms(self.ended_at) - _ms(self.ready_at)) * self.micros_per_hour // 3_600_000


def spans(launches: Sequence[Observation]) -> Iterator[Span]:
    """Yield the actual placements of a job over all launches, in order.

    Only the last launch can end the job; placements of earlier launches that the cloud ended were released
    for a pause or a move.
    """
    attempt = 0
    for number, seen in enumerate(launches, 1):
        for nodes in seen.recent_placements:
            attempt += 1
            ended_at = nodes.lost_at or seen.since
            gone = seen.status is LaunchStatus.FORGOTTEN or number < len(launches)
            lost = nodes.lost_at is not None or gone
            rate = nodes.micros_per_hour
            yield Span(attempt, nodes.ready_at, ended_at, rate, lost, nodes.cause)


def _ms(at: datetime) -> int:
    return (
        at.toordinal() * 86_400_000
        + ((at.hour * 60 + at.minute) * 60 + at.second) * 1000
        + at.microsecond // 1000
    )
