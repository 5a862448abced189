"""SkyPilot with random faults: crashing replicas, a forgetful server, a bad connection.

The steps of the reconciler are tasks that pause before each call to SkyPilot and before each response. A seed
determines which one continues. All invariants are checked against the state of the fake server after every
event.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from fake_skypilot import FaultyTransport, JobSimulation, Server, SkyPilotState
from fake_skypilot import Job as SkyJob
from fake_skypilot.job_simulation import EMERGENCY, LEFT, PLUGIN, PREEMPTED
from fake_skypilot.state import Cluster
from fault_injection.faulty_ports import Crash, FaultChances, FaultyJournal
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.events import CancelRequested, Finished, Outcome, Submitted
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, create_job
from holdfast.errors import LauncherUnreachable, StaleWrite, StoreUnavailable
from holdfast.ports import Launcher
from holdfast.rendering import render
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from sqlalchemy import Connection, Engine, event
from support.fakes import FixedClock
from support.skypilot.launcher import NAMES, answer_admission, launcher_over

SECRET = b"secret"
PACE = PollIntervals(poll_every_s=5.0, lease_s=10.0)
WRITES = {"open", "tombstone", "assume_admitted", "renew", "mark_posting", "record_request_id", "record_engine_id", "record_missing", "append_events"}  # fmt: skip


class NoInbox:
    """An inbox without reports: SkyPilot is the only source of events."""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Any:
        return iter(())


class FaultyLaunchBook(LaunchBook):
    """Launch rows whose writer crashes, or whose database fails, before or after a write."""

    def __init__(self, engine: Engine, chances: FaultChances) -> None:
        super().__init__(engine, SECRET)
        self._chances = chances

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in WRITES:
            return found

        def faulty_call(*args: Any) -> Any:
            self._maybe_fail()
            answer = found(*args)
            self._maybe_fail()
            return answer

        return faulty_call

    def _maybe_fail(self) -> None:
        if self._chances.occurs(0.01):
            raise Crash
        if self._chances.occurs(0.01):
            raise StoreUnavailable


@dataclass
class Replica:
    """One process of the service and its current task."""

    launcher: Launcher
    reconciler: Reconciler
    line: FaultyTransport
    task: asyncio.Task[Any] | None = None
    _gates: list[asyncio.Future[None]] = field(default_factory=list)
    """Calls that wait; several if a task makes them concurrently."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self) -> None:
        """Wait until the scheduler lets this replica continue."""
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        self._idle.set()
        await gate

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: self._idle.set())

    async def resume(self) -> bool:
        """Continue until the next call or response; return False if the process crashed."""
        self._idle.clear()
        gates, self._gates = self._gates, []
        for gate in gates:
            if not gate.done():
                gate.set_result(None)
        await self._idle.wait()
        assert self.task
        if not self.task.done():
            return True
        task, self.task = self.task, None
        try:
            task.result()
        except (StaleWrite, LauncherUnreachable, StoreUnavailable):
            pass
        except Crash:
            return False
        return True

    async def die(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            self.task = None


class FaultySkyPilot:
    """Jobs, replicas and a SkyPilot server, with the faults between them."""

    id_prefix = "job"
    """Ids of jobs, without their number."""

    def __init__(self, seed: int, engine: Engine, faulty_engine: Engine, folder: Path, *, gated: bool) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.chances = FaultChances(self.rng)
        self.clock = FixedClock()
        self.gated = gated
        self.folder = folder
        self.faulty_engine = faulty_engine
        self.book = LaunchBook(engine, SECRET)
        self.state = SkyPilotState(self.clock, self._job_simulation(), seed=seed, policy=self._policy if gated else None)  # fmt: skip
        self.state.delay_s = self.rng.choice([0.5, 5, 60, 240])
        self.state.upload_s = self.rng.choice([0.1, 5, 60])
        self.state.fails_after_row = self.rng.choice([0, 0.1])
        self.state.fails_before_row = self.rng.choice([0, 0.1])
        self.state.policy_lost = self.rng.choice([0, 0.1])
        self.state.late_clusters = self.rng.choice([0, 0.3])
        self.kill_effect = self.rng.choice(["forgotten", "forgotten", "interrupted", "again"])
        self.goes_stale = self.rng.random() < 0.3
        self.may_lose_jobs = self.rng.random() < 0.2
        self.lost_jobs = False
        """Whether SkyPilot lost its jobs: then their capacity losses are not recorded."""
        self.server = Server(self.state)
        self.bad = self.rng.choice([0.01, 0.03])
        self.dark_until: datetime | None = None
        self.stale_until: datetime | None = None
        self.journal = Journal(engine, self.clock)
        self.api = FaultyJournal(faulty_engine, self.clock, self.chances)
        self.queries = Queries(engine)
        self.replicas = [self._replica(), self._replica()]
        self.folds: dict[str, Job] = {}
        self.ended: set[str] = set()
        self._cursor = 0
        event.listen(faulty_engine, "commit", self._on_commit)

    def _job_simulation(self) -> JobSimulation:
        broken = self.rng.random() < 0.2
        return JobSimulation(
            queue_s=self.rng.choice([1, 30]),
            provision_s=self.rng.choice([5, 60]),
            setup_s=self.rng.choice([5, 60]),
            denial_rate=self.rng.choice([0, 0, 0.4, 0.7, 1]),
            backoff_s=self.rng.choice([30, 120]),
            runs_s=self.rng.choice([30, 300, 1200]),
            mtbf_s=self.rng.choice([0, 60, 300]),
            losses=self.rng.choice([(PREEMPTED,), (PREEMPTED, LEFT, EMERGENCY, PLUGIN)]),
            breaks_with=self.rng.choice([1, 137]) if broken else None,
            leaks=self.rng.choice([0, 0, 0.3]),
        )

    def _policy(self, raw: bytes) -> tuple[int, str]:
        """The admission response to SkyPilot's policy."""
        if self.chances.occurs(0.1):
            raise ConnectionError("connection refused")
        return answer_admission(self.book, raw, self.clock.now())

    def _replica(self) -> Replica:
        line = FaultyTransport(self.server, self.rng)
        line.bad = 0 if self.chances.is_disabled else self.bad
        book = FaultyLaunchBook(self.faulty_engine, self.chances)
        launcher = self._launcher(line, book)
        reconciler = Reconciler(
            journal=FaultyJournal(self.faulty_engine, self.clock, self.chances),
            leases=LeaseTable(self.faulty_engine),
            tokens=ServiceTokens(self.faulty_engine, SECRET),
            launchers={Kind.SKYPILOT: launcher},
            inbox=NoInbox(),
            clock=self.clock,
            intervals=PACE,
            worker_url="http://127.0.0.1",
            secrets=Secrets(self.faulty_engine, SECRET),
        )
        replica = Replica(launcher, reconciler, line)
        if not self.chances.is_disabled:
            line.wait = replica.pause
        return replica

    def _launcher(self, line: FaultyTransport, book: LaunchBook) -> Launcher:
        return launcher_over(line, book, self.folder, self.clock)

    def _on_commit(self, _: Connection) -> None:
        if self.chances.occurs(0.002):
            raise Crash

    # Events

    async def move(self) -> None:
        """Apply one random event and check all invariants."""
        actions: dict[Callable[[], Any], float] = {
            self._continue_task: 80,
            self._kill: 2,
            self._wait: 12,
            self._submit: 2,
            self._cancel: 0.5,
            self._kill_server: 0.5,
            self._start_outage: 0.2,
            self._make_queue_stale: 1 if self.goes_stale else 0,
            self._lose_jobs: 0.5 if self.may_lose_jobs else 0,
        }
        [action] = self.rng.choices([*actions], [*actions.values()])
        self.clock.advance(0.000_1)
        outcome = action()
        if outcome is not None:
            await outcome
        self._update_outages()
        self.check()

    async def disable_faults(self) -> None:
        """Disable faults; calls in progress never return."""
        self.chances.is_disabled = True
        self.state.fails_after_row = self.state.fails_before_row = self.state.policy_lost = 0
        self.dark_until = self.stale_until = None
        self.server.old_queue = None
        for number in range(len(self.replicas)):
            await self._restart(number)

    def _update_outages(self) -> None:
        now = self.clock.now()
        dark = bool(self.dark_until and now < self.dark_until)
        for replica in self.replicas:
            replica.line.dark = dark
        if self.stale_until and now >= self.stale_until:
            self.stale_until = self.server.old_queue = None

    async def _continue_task(self) -> None:
        number = self.rng.randrange(len(self.replicas))
        replica = self.replicas[number]
        if replica.task is None:
            if not self.folds:
                return
            if self.rng.random() < 0.1:
                replica.begin(replica.reconciler.orphan_cleaner.sweep())
            else:
                replica.begin(replica.reconciler.step(self.rng.choice(sorted(self.folds))))
        for _ in range(self.rng.choice([1, 1, 10])):
            if replica.task is not None and not await replica.resume():
                await self._restart(number)
                break

    async def _kill(self) -> None:
        await self._restart(self.rng.randrange(len(self.replicas)))

    async def _restart(self, number: int) -> None:
        await self.replicas[number].die()
        self.replicas[number] = self._replica()

    def _wait(self) -> None:
        self.clock.advance(self.rng.expovariate(1 / self.rng.choice([0.5, 5, 30, 90])))

    def _kill_server(self) -> None:
        self.state.catch_up()
        self.state.kill(self.kill_effect)

    def _start_outage(self) -> None:
        self.dark_until = self.clock.now() + timedelta(seconds=self.rng.choice([60, 3600]))

    def _make_queue_stale(self) -> None:
        if self.stale_until is None:
            self.state.catch_up()
            self.server.old_queue = self.server.queue()
            self.stale_until = self.clock.now() + timedelta(seconds=30)

    def _lose_jobs(self) -> None:
        self.state.catch_up()
        self.state.lose_jobs()
        self.lost_jobs = True

    def _submit(self) -> None:
        if len(self.folds) >= 3:
            return
        job_id = f"{self.id_prefix}{len(self.folds)}"
        resources = {"infra": "aws", "accelerators": "A100:8"}
        limits = {"max_wait": "20m"} if self.rng.random() < 0.3 else {}
        limits |= {"max_failures": 2} if self.rng.random() < 0.3 else {}
        fields = {"name": job_id, "run": "train", "resources": resources, **self._nodes()}
        fields["holdfast"] = {"limits": limits, **fields.get("holdfast", {})}
        spec = parse_job_file(yaml.safe_dump(fields)).spec
        body = spec.model_dump(mode="json")
        submitted = Submitted(at=self.clock.now(), name=job_id, spec=body, task=render(spec).text)
        with suppress(Crash):
            self.api.submit(job_id, submitted)

    def _nodes(self) -> dict[str, Any]:
        """The keys of a job file about its nodes."""
        return {"num_nodes": self.rng.randint(1, 3)}

    def _cancel(self) -> None:
        job = self.rng.choice([*self.folds.values()]) if self.folds else None
        if job and job.state not in {State.STOPPING, State.ENDED}:
            with suppress(StaleWrite, StoreUnavailable, Crash):
                self.api.append(job, [CancelRequested(at=self.clock.now())])

    def cancel_all(self) -> None:
        """Cancel all jobs, as impatient users do."""
        for job in self.folds.values():
            if job.state not in {State.STOPPING, State.ENDED}:
                self.journal.append(self.journal.read(job.id), [CancelRequested(at=self.clock.now())])  # fmt: skip

    # Invariants

    def jobs_of(self, job: Job) -> list[SkyJob]:
        """The managed jobs of all launches of a job."""
        names = self.names_of(job, range(1, job.launch + 1))
        return [each for each in self.state.jobs.values() if each.name in names]

    def names_of(self, job: Job, launches: range) -> set[str]:
        """The names of the managed jobs of these launches."""
        return {NAMES.job_name(f"{job.id}-{launch}") for launch in launches}

    def check(self) -> None:
        """Check that no launch is admitted or runs twice, and that nothing runs after its job ended."""
        self.state.catch_up()
        for item in self.queries.stream(after=self._cursor):
            self._cursor = item.cursor
            if isinstance(item.event, Submitted):
                self.folds[item.job_id] = create_job(item.job_id, item.event)
                continue
            job = self.folds[item.job_id] = advance(self.folds[item.job_id], item.event)
            if isinstance(item.event, Finished):
                self.ended.add(job.id)
                self._check_end(job, item.event)
        if self.gated:
            twice = [token for token, times in Counter(self.state.admitted).items() if times > 1]
            assert not twice, f"admitted twice: {twice}"
            names = Counter(job.name for job in self.state.jobs.values() if not job.is_over)
            assert not [n for n, times in names.items() if times > 1], f"runs twice: {names}"
            for job_id in self.ended:
                self.check_gone(self.folds[job_id])
            self._check_alone()

    def check_gone(self, job: Job) -> None:
        """Check that nothing of an ended job runs, except for clusters that appeared later."""
        jobs = self.jobs_of(job)
        left = [each for each in jobs if not each.is_over]
        assert not left, f"{job.id} has ended, and {left} has not"
        if job.leftovers:
            return  # The cluster was recorded as a leftover.
        clusters = self._clusters_of(job, range(1, job.launch + 1))
        assert not clusters, f"{job.id} has ended, and {clusters} still run"

    def check_numbers(self) -> None:
        """Check that no process waits for a job that never began or that SkyPilot lost."""
        for job in self.folds.values():
            row = self.book.find(job.launch_key)
            if job.state is not State.ENDED and row and row.engine_id is not None:
                known = self.state.jobs.get(row.engine_id)
                began = known and (known.status, known.schedule) != ("CANCELLED", "INACTIVE")
                assert began, f"{job.id} waits for {known}"

    def _check_alone(self) -> None:
        """Check that clusters of replaced launches are recorded as leftovers."""
        for job in self.folds.values():
            clusters = self._clusters_of(job, range(1, job.launch))
            unreported = [c for c in clusters if f"SkyPilot cluster {c.name}" not in job.leftovers]
            assert not unreported, (
                f"{job.id} has reached launch {job.launch}, and {unreported} still run"
            )

    def _clusters_of(self, job: Job, launches: range) -> list[Cluster]:
        """The clusters of these launches of a job, except for those that appeared after their end."""
        names = self.names_of(job, launches)
        clusters = (c for c in self.state.running_clusters() if not c.is_late)
        return [c for c in clusters if c.name.rpartition("-")[0] in names]

    def _check_end(self, job: Job, end: Finished) -> None:
        if end.outcome is not Outcome.CANCELLED or job.launch == 0:
            return
        row = self.book.find(job.launch_key)
        is_over = row is None or row.cancelled_at or row.missing_since
        assert is_over, f"{job.id} is cancelled, and its launch is neither that nor lost"
        assert row is None or row.state != "issued", f"{job.id} is cancelled, and may yet begin"
