"""Workers that do not know which attempt they are, in any order of losses, looks, lost answers and zombies.

A launcher like SkyPilot recovers by itself: it gives each placement the same environment, tells of nodes a while after
their worker began, and of a loss before the next worker begins. Whatever happens in between, the worker that lives is
given the number that the journal gives to its nodes, and replaced workers are fenced.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest
from fault_injection.faulty_ports import pause
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


class Calm(random.Random):
    """Draws nothing bad."""

    def random(self) -> float:
        return 0.999


@dataclass
class Recovering:
    """A launcher that recovers by itself, and answers whenever the storm lets it."""

    clock: FixedClock
    rng: random.Random
    trail: list[Placement] = field(default_factory=list)
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
        raise AssertionError("nobody asked for an end")

    async def logs(self, key: str) -> Sequence[LogSource]:
        return ()

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return b""

    def read_new(self, job_id: str, seen: Any) -> Any:
        return iter(())

    def stood_up(self) -> None:
        """It reports nodes; their worker may have begun long before."""
        nodes = Placement(
            ready_at=self.clock.now(),
            zone="a",
            nodes=1,
            micros_per_hour=SPOT,
            on_demand_micros_per_hour=ON_DEMAND,
            simulated=True,
        )
        self.trail.append(nodes)

    def lost(self, cause: Cause) -> None:
        nodes = self.trail[-1]
        self.trail[-1] = Placement(
            **{
                **{name: getattr(nodes, name) for name in nodes.__slots__},
                "lost_at": self.clock.now(),
                "cause": cause,
            }
        )

    @property
    def stands(self) -> bool:
        return bool(self.trail) and self.trail[-1].lost_at is None

    def _seen(self) -> Observation:
        if self.submitted_at is None:
            return Observation(status=LaunchStatus.ABSENT, since=self.clock.now())
        standing = LaunchStatus.UP if self.stands else LaunchStatus.WAITING
        trail = tuple(self.trail)
        return Observation(
            status=standing, since=self.clock.now(), placements=len(trail), recent_placements=trail
        )


@dataclass
class Worker:
    """One placement's worker."""

    incarnation: str
    place: JobPosition | None = None
    """None until it was reported."""
    asked: bool = False
    placement: int | None = None
    """Which of the launcher's placements its nodes became; None while the launcher tells of none."""


class FaultyRun:
    """One job at such a launcher."""

    def __init__(self, seed: int, engine: Engine) -> None:
        self.rng, self.clock = random.Random(seed), FixedClock()
        self.launcher = Recovering(self.clock, self.rng)
        self.journal, self.watches = Journal(engine, self.clock), LeaseTable(engine)
        self.musters = Incarnations(engine, self.clock)
        # Its losses are the market's and the program's; how often is not what is tried here.
        self.journal.submit("job-1", submitted(limits={"max_failures": 100, "max_wait": "52w"}))
        self.reconciler = Reconciler(
            journal=self.journal,
            leases=self.watches,
            tokens=ServiceTokens(engine, b"secret"),
            launchers={Kind.LOCAL: self.launcher},
            inbox=self.launcher,
            clock=self.clock,
            intervals=PollIntervals(),
            worker_url="http://127.0.0.1",
            secrets=Secrets(engine, b"secret"),
        )
        self.looks: list[Coroutine[Any, Any, None]] = []
        self.zombies: list[Worker] = []
        self.worker: Worker | None = None
        self._begin_look()
        self.settle()

    def move(self) -> None:
        self.clock.advance(0.001)
        deeds = {
            self._worker_calls: 12,
            self._zombie_calls: 5,
            self._worker_says: 5,
            self._begin_look: 8,
            self._look_on: 40,
            self._nodes_change: 3,
        }
        [deed] = self.rng.choices([*deeds], [*deeds.values()])
        deed()

    def calm_down(self) -> None:
        """No losses from now on: all live workers register, and observations are complete."""
        self.settle()
        self.rng = self.launcher.rng = Calm()
        self.worker = self.worker or Worker("last")
        for _ in range(2):
            self.clock.advance(1)
            self._worker_calls()
            self.clock.advance(1)
            self._begin_look()
            self.settle()

    def settle(self) -> None:
        """Everybody finishes what they are at."""
        while self.looks:
            self._look_on()

    def _begin_look(self) -> None:
        if len(self.looks) == REPLICAS:
            return
        lease = Lease("job-1", Kind.LOCAL, self.clock.now())
        self.watches.make_due("job-1", lease.until)
        self.looks.append(self.reconciler.process(lease))

    def _look_on(self) -> None:
        if self.looks:
            look = self.rng.choice(self.looks)
            try:
                look.send(None)
            except StopIteration:
                self.looks.remove(look)

    def _nodes_change(self) -> None:
        """The life of a placement: its worker begins, its nodes are told of, they are lost; any may be missing."""
        worker = self.worker
        if worker is None:
            self.worker = Worker(f"{self.rng.randrange(16**12):012x}")
        elif worker.placement is None and self.rng.random() < 0.7:
            self.launcher.stood_up()
            worker.placement = len(self.launcher.trail)
        elif worker.placement is not None and self.rng.random() < 0.2:
            # The program was restarted on the same nodes, and the launcher does not even know.
            self._bury(worker)
            self.worker = Worker(f"{self.rng.randrange(16**12):012x}", placement=worker.placement)
        else:
            if worker.placement is not None:
                causes = [Cause.NODE_FAILED, Cause.USER_ERROR, Cause.PREEMPTED]
                self.launcher.lost(self.rng.choice(causes))
            self._bury(worker)
            self.worker = None

    def _bury(self, worker: Worker) -> None:
        if worker.asked and self.rng.random() < 0.7:
            self.zombies.append(worker)

    def _worker_calls(self) -> None:
        if self.worker is None:
            return
        self.worker.asked = True
        with suppress(NotObservedYet):
            place = self.musters.register("job-1", self.worker.incarnation)
            if self.rng.random() < 0.3:
                return  # The answer was lost; it asks again.
            assert self.worker.place is None or self.worker.place.attempt == place.attempt
            self.worker.place = place
            self._check_number(self.worker)

    def _check_number(self, worker: Worker) -> None:
        assert worker.place is not None
        if worker.placement is not None:
            assert worker.place.attempt == worker.placement
        else:  # Its nodes are told of next, or never.
            assert worker.place.attempt == len(self.launcher.trail) + 1

    def _worker_says(self) -> None:
        if self.worker and self.worker.place:
            attempt, n = self.worker.place.attempt, self.worker.place.next
            body = {
                "step": self.clock.now().microsecond
            }  # Ever further; no launch is to be given up here.
            report = Report(attempt, n, at(n).isoformat(), ReportKind.TRAINING_STARTED, body)
            taken = self.journal.ingest("job-1", attempt, [report], self.worker.incarnation)
            assert taken.next == n + 1, "it was told the number of its next report"
            self.worker.place = replace(self.worker.place, next=n + 1)

    def _zombie_calls(self) -> None:
        if not self.zombies or not (self.worker and self.worker.asked):
            return  # It has not been replaced yet.
        zombie = self.rng.choice(self.zombies)
        with pytest.raises(Fenced):
            self.musters.register("job-1", zombie.incarnation)
        if zombie.place:
            attempt, n = zombie.place.attempt, zombie.place.next
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
    run.calm_down()

    log = [item.event for item in run.journal.events("job-1")]
    recorded = [event.attempt for event in log if isinstance(event, NodesReady)]
    begun = [event.attempt for event in log if isinstance(event, TrainingStarted)]
    assert run.worker
    assert run.worker.place, "who asks long enough is answered"
    assert recorded == [*range(1, len(run.launcher.trail) + 1)]
    assert max(begun, default=0) <= len(recorded) + 1
    assert run.journal.read("job-1") == fold("job-1", log)
