"""Registration of workers under capacity losses, late observations and lost responses.

A launcher like SkyPilot recovers by itself: it gives each placement the same environment, reports nodes some
time after their worker started, and reports a loss before the next worker starts. The live worker always
receives the attempt number that the journal gives to its nodes, and replaced workers are fenced.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest
from fault_injection.faulty_ports import Step, pause
from holdfast.controller.reconciler import Lease, PollIntervals, Reconciler
from holdfast.domain.events import Cause, NodesReady, TrainingStarted
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus, Observation, Placement
from holdfast.errors import Fenced, LauncherUnreachable, NotObservedYet
from holdfast.ports import Launch, LogSource
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.incarnations import Incarnations, JobPosition
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.secrets import Secrets
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine
from support.events import ON_DEMAND, SPOT, at, submitted
from support.fakes import FixedClock
from support.repetitions import FAULT_SEEDS

MOVES = 250
REPLICAS = 2


class FaultFreeRandom(random.Random):
    """A random generator that draws no fault."""

    def random(self) -> float:
        return 0.999


@dataclass
class RecoveringLauncher:
    """A launcher that recovers by itself, and responds when the schedule permits."""

    clock: FixedClock
    rng: random.Random
    placements: list[Placement] = field(default_factory=list)
    submitted_at: datetime | None = None
    saves_on_cancel: bool = False

    async def submit(self, launch: Launch) -> None:
        self.submitted_at = self.clock.now()

    async def observe(self, key: str) -> Observation:
        await pause()
        seen = self._seen()
        await pause()
        if self.rng.random() < 0.1:
            raise LauncherUnreachable("the reply was lost")
        return seen

    async def cancel(self, key: str) -> None:
        raise AssertionError("no cancellation is expected")

    async def logs(self, key: str) -> Sequence[LogSource]:
        return ()

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return b""

    def read_new(self, job_id: str, seen: Any) -> Any:
        return iter(())

    def report_nodes(self) -> None:
        """Report new nodes, whose worker may have started long before."""
        nodes = Placement(
            ready_at=self.clock.now(),
            zone="a",
            nodes=1,
            micros_per_hour=SPOT,
            on_demand_micros_per_hour=ON_DEMAND,
            simulated=True,
        )
        self.placements.append(nodes)

    def lost(self, cause: Cause) -> None:
        nodes = self.placements[-1]
        self.placements[-1] = Placement(
            **{
                **{name: getattr(nodes, name) for name in nodes.__slots__},
                "lost_at": self.clock.now(),
                "cause": cause,
            }
        )

    @property
    def has_nodes(self) -> bool:
        return bool(self.placements) and self.placements[-1].lost_at is None

    def _seen(self) -> Observation:
        if self.submitted_at is None:
            return Observation(status=LaunchStatus.ABSENT, since=self.clock.now())
        status = LaunchStatus.UP if self.has_nodes else LaunchStatus.WAITING
        placements = tuple(self.placements)
        return Observation(
            status=status,
            since=self.clock.now(),
            placements=len(placements),
            recent_placements=placements,
        )


@dataclass
class Worker:
    """The worker of one placement."""

    incarnation: str
    position: JobPosition | None = None
    """None until it is known."""
    has_registered: bool = False
    placement: int | None = None
    """The placement number of its nodes; None until the launcher reports them."""


class FaultyRun:
    """One job with a recovering launcher, its workers and two replicas."""

    def __init__(self, seed: int, engine: Engine) -> None:
        self.rng, self.clock = random.Random(seed), FixedClock()
        self.launcher = RecoveringLauncher(self.clock, self.rng)
        self.journal, self.leases = Journal(engine, self.clock), LeaseTable(engine)
        self.incarnations = Incarnations(engine, self.clock)
        # Losses come from the market and the program; their number is not under test.
        self.journal.submit("job-1", submitted(limits={"max_failures": 100, "max_wait": "52w"}))
        self.reconciler = Reconciler(
            journal=self.journal,
            leases=self.leases,
            tokens=ServiceTokens(engine, b"secret"),
            launchers={Kind.LOCAL: self.launcher},
            inbox=self.launcher,
            clock=self.clock,
            intervals=PollIntervals(),
            worker_url="http://127.0.0.1",
            secrets=Secrets(engine, b"secret"),
        )
        self.steps: list[Step] = []
        self.zombies: list[Worker] = []
        self.worker: Worker | None = None
        self._begin_step()
        self.finish_steps()

    def move(self) -> None:
        self.clock.advance(0.001)
        actions = {
            self._register_worker: 12,
            self._register_zombie: 5,
            self._report: 5,
            self._begin_step: 8,
            self._continue_step: 40,
            self._nodes_change: 3,
        }
        [action] = self.rng.choices([*actions], [*actions.values()])
        action()

    def disable_faults(self) -> None:
        """Stop losses, register the live worker, and complete all observations."""
        self.finish_steps()
        self.rng = self.launcher.rng = FaultFreeRandom()
        self.worker = self.worker or Worker("last")
        for _ in range(2):
            self.clock.advance(1)
            self._register_worker()
            self.clock.advance(1)
            self._begin_step()
            self.finish_steps()

    def finish_steps(self) -> None:
        """Finish all steps in progress."""
        while self.steps:
            self._continue_step()

    def _begin_step(self) -> None:
        if len(self.steps) == REPLICAS:
            return
        lease = Lease("job-1", Kind.LOCAL, self.clock.now())
        self.leases.make_due("job-1", lease.until)
        self.steps.append(Step(self.reconciler.process(lease)))

    def _continue_step(self) -> None:
        if self.steps:
            step = self.rng.choice(self.steps)
            try:
                step.resume()
            except StopIteration:
                self.steps.remove(step)

    def _nodes_change(self) -> None:
        """Advance the current placement: its worker starts, its nodes are reported or lost.

        Any of these may be skipped.
        """
        worker = self.worker
        if worker is None:
            self.worker = Worker(f"{self.rng.randrange(16**12):012x}")
        elif worker.placement is None and self.rng.random() < 0.7:
            self.launcher.report_nodes()
            worker.placement = len(self.launcher.placements)
        elif worker.placement is not None and self.rng.random() < 0.2:
            # The program was restarted on the same nodes, without the launcher's knowledge.
            self._replace(worker)
            self.worker = Worker(f"{self.rng.randrange(16**12):012x}", placement=worker.placement)
        else:
            if worker.placement is not None:
                causes = [Cause.NODE_FAILED, Cause.USER_ERROR, Cause.PREEMPTED]
                self.launcher.lost(self.rng.choice(causes))
            self._replace(worker)
            self.worker = None

    def _replace(self, worker: Worker) -> None:
        if worker.has_registered and self.rng.random() < 0.7:
            self.zombies.append(worker)

    def _register_worker(self) -> None:
        if self.worker is None:
            return
        self.worker.has_registered = True
        with suppress(NotObservedYet):
            position = self.incarnations.register("job-1", self.worker.incarnation)
            if self.rng.random() < 0.3:
                return  # The response was lost; the worker retries.
            assert self.worker.position is None or self.worker.position.attempt == position.attempt
            self.worker.position = position
            self._check_number(self.worker)

    def _check_number(self, worker: Worker) -> None:
        assert worker.position is not None
        if worker.placement is not None:
            assert worker.position.attempt == worker.placement
        else:  # Its nodes are reported next, or never.
            assert worker.position.attempt == len(self.launcher.placements) + 1

    def _report(self) -> None:
        if self.worker and self.worker.position:
            attempt, n = self.worker.position.attempt, self.worker.position.next
            body = {
                "step": self.clock.now().microsecond
            }  # Always a higher step, so that the launch makes progress.
            report = Report(attempt, n, at(n).isoformat(), ReportKind.TRAINING_STARTED, body)
            result = self.journal.ingest("job-1", attempt, [report], self.worker.incarnation)
            assert result.next == n + 1, "the worker knows the number of its next report"
            self.worker.position = replace(self.worker.position, next=n + 1)

    def _register_zombie(self) -> None:
        if not self.zombies or not (self.worker and self.worker.has_registered):
            return  # The worker has not been replaced yet.
        zombie = self.rng.choice(self.zombies)
        with pytest.raises(Fenced):
            self.incarnations.register("job-1", zombie.incarnation)
        if zombie.position:
            attempt, n = zombie.position.attempt, zombie.position.next
            report = Report(attempt, n, at(n).isoformat(), ReportKind.TRAINING_STARTED, {"step": 9})
            with pytest.raises(Fenced):
                self.journal.ingest("job-1", attempt, [report], zombie.incarnation)


@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
def test_live_workers_get_numbers_and_replaced_ones_are_fenced(
    fast_sqlite: list[Engine], seed: int
) -> None:
    run = FaultyRun(seed, fast_sqlite[0])

    for _ in range(MOVES):
        run.move()
    run.disable_faults()

    log = [item.event for item in run.journal.events("job-1")]
    recorded = [event.attempt for event in log if isinstance(event, NodesReady)]
    begun = [event.attempt for event in log if isinstance(event, TrainingStarted)]
    assert run.worker
    assert run.worker.position, "a worker that retries long enough is answered"
    assert recorded == [*range(1, len(run.launcher.placements) + 1)]
    assert max(begun, default=0) <= len(recorded) + 1
    assert run.journal.read("job-1") == fold("job-1", log)
