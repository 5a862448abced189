"""Launcher backends under contract test: local processes, the simulated cloud and SkyPilot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
from fake_skypilot import JobSimulation
from holdfast.demo.history.jobs import DemoJob
from holdfast.demo.history.launcher import DemoLauncher
from holdfast.demo.history.market import NODE_TYPES
from holdfast.demo.history.market import Market as Prices
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.launchers.local.process_cleanup import kill_marked_processes
from holdfast.launchers.simulated import Failure, SimulatedClock, SimulatedCloud, SimulatedProgram
from holdfast.ports import Launch, Launcher, Preemptible
from sqlalchemy import Engine
from support.skypilot.launcher import SkyPilotHarness, do

T = TypeVar("T")
DEADLINE_S = 120.0
"""Timeout for actions of real processes, which only a failing test reaches."""
NO_PREEMPTIONS = MarketParameters(provision_s=0.05)
"""A market without preemptions."""


class ProgramKind(StrEnum):
    """Behavior of the program of a launch."""

    RUNS = "runs"
    """Runs until it is stopped, and exits at once on a notice."""
    SUCCEEDS = "succeeds"
    FAILS_UNTRAINED = "fails-untrained"
    """Fails with exit code 3, before any step."""
    FAILS_TRAINED = "fails-trained"
    """Fails with exit code 3, after a step."""


class PreemptibleLauncher(Launcher, Preemptible, Protocol):
    """A launcher that also simulates the market, so that tests can preempt its nodes."""


class LauncherBackend(Protocol):
    """A launcher, with control over the time that it sees."""

    @property
    def launcher(self) -> Launcher: ...

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        """A launch of the backend's program."""
        ...

    def runs(self, key: str) -> int:
        """Number of starts of a launch's program on its first node."""
        ...

    def until(self, key: str, met: Callable[[Observation], bool]) -> Observation:
        """Wait for the first observation of `key` that meets a condition."""
        ...


class PreemptibleBackend(LauncherBackend, Protocol):
    """A backend whose launcher is also the market.

    It reports why it preempts nodes and what a program has printed.
    """

    @property
    def launcher(self) -> PreemptibleLauncher: ...


NewBackend = Callable[..., LauncherBackend]
"""Creates a backend from the kind of its programs and the behavior of its launcher."""
NewMarket = Callable[..., PreemptibleBackend]


def is_up(seen: Observation) -> bool:
    return seen.status is LaunchStatus.UP


def is_ended(seen: Observation) -> bool:
    return seen.status is LaunchStatus.ENDED


def eventually(met: Callable[[], T], timeout_s: float = DEADLINE_S) -> T:
    """Poll `met` until it returns a true value; fail the test at the deadline."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := met()):
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.02)
    return answer


SCRIPTS = {
    ProgramKind.RUNS: "sleep 1000",
    ProgramKind.SUCCEEDS: "echo bye from node $SKYPILOT_NODE_RANK",
    ProgramKind.FAILS_UNTRAINED: "echo 'no module named foo' >&2; exit 3",
    ProgramKind.FAILS_TRAINED: "touch $HOLDFAST_RUN_DIR/trained; echo 'loss is nan' >&2; exit 3",
}


@dataclass
class LocalBackend:
    """The local launcher, with real processes."""

    home: Path
    kind: ProgramKind = ProgramKind.RUNS
    market: MarketParameters = NO_PREEMPTIONS
    launcher: LocalLauncher = field(init=False)

    def __post_init__(self) -> None:
        self.launcher = LocalLauncher(self.home, self.market)

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        count = f"[ $SKYPILOT_NODE_RANK = 0 ] && echo $HOLDFAST_ATTEMPT >> {self.home}/{key}.runs"
        run = f"{count}\n{SCRIPTS[self.kind]}\n"
        return self.script_launch(key, run, nodes=nodes, max_failures=max_failures)

    def script_launch(
        self, key: str, run: str, *, nodes: int = 1, max_failures: int = 1, **task: Any
    ) -> Launch:
        """A launch of a script."""
        return Launch(
            key=key,
            job_id=key.rpartition("-")[0],
            first_attempt=1,
            task={"run": run, "num_nodes": nodes, **task},
            max_failures=max_failures,
        )

    def runs(self, key: str) -> int:
        file = self.home / f"{key}.runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def until(self, key: str, met: Callable[[Observation], bool]) -> Observation:
        def poll() -> Observation | None:
            seen = do(self.launcher.observe(key))
            return seen if met(seen) else None

        seen = eventually(poll)
        assert seen is not None
        return seen

    def folder(self, key: str) -> LaunchDir:
        """The launch directory of a key."""
        return LaunchDir(self.home / "launches" / key)

    def log(self, key: str, attempt: int = 1, node: int = 0) -> str:
        """Output of a node so far."""
        path = self.folder(key).node(attempt, node).log
        return path.read_text() if path.exists() else ""


def simulated_program(kind: ProgramKind) -> SimulatedProgram:
    """The simulated program of a kind."""
    failure = {
        ProgramKind.FAILS_UNTRAINED: Failure(0, 3, 99),
        ProgramKind.FAILS_TRAINED: Failure(2, 3, 99),
    }.get(kind)
    return SimulatedProgram(
        total_steps=20_000 if kind is ProgramKind.RUNS else 10,
        step_s=0.5,
        setup_s=0.1,
        restore_s=0.1,
        stall_s=0,
        upload_s=0.1,
        checkpoint_every_steps=1_000,
        progress_every_steps=1_000,
        failure=failure,
    )


@dataclass
class SimulatedBackend:
    """The simulated cloud, with a clock that advances in quarters of a second."""

    kind: ProgramKind = ProgramKind.RUNS
    market: MarketParameters = NO_PREEMPTIONS
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    launcher: SimulatedCloud = field(init=False)

    def __post_init__(self) -> None:
        program = simulated_program(self.kind)
        self.launcher = SimulatedCloud(self.clock, self.market, program)

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        return Launch(
            key=key,
            job_id=key.rpartition("-")[0],
            first_attempt=1,
            task={"num_nodes": nodes},
            max_failures=max_failures,
        )

    def runs(self, key: str) -> int:
        return do(self.launcher.observe(key)).placements

    def until(self, key: str, met: Callable[[Observation], bool]) -> Observation:
        for _ in range(10_000):
            if met(seen := do(self.launcher.observe(key))):
                return seen
            self.clock.advance(0.25)
        raise AssertionError("the condition was not met in time")


@dataclass
class DemoBackend(SimulatedBackend):
    """The launcher of the demo: one simulated cloud for each job, on a market with prices."""

    launcher: DemoLauncher = field(init=False)  # type: ignore[assignment]
    program: SimulatedProgram = field(init=False)

    def __post_init__(self) -> None:
        self.program = simulated_program(self.kind)
        self.launcher = DemoLauncher(self.clock, Prices(1, self.clock.now()))

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        launch = super().launch(key, nodes=nodes, max_failures=max_failures)
        if do(self.launcher.observe(key)).status is LaunchStatus.ABSENT:
            self.launcher.expect(launch.job_id, self._part(launch.job_id))
        return launch

    def _part(self, name: str) -> DemoJob:
        full = self.market.on_demand_micros
        share = self.market.spot_micros / full
        kind = replace(NODE_TYPES[0], on_demand_micros=full, spot_share=share)
        return DemoJob(
            name=name,
            owner="ada",
            project="nlp",
            start_h=0,
            node_type=kind,
            nodes=1,
            program=self.program,
            climate=self.market,
        )


@dataclass
class SkyPilotBackend:
    """The fake SkyPilot, where every step takes a hundred times as long as elsewhere."""

    engine: Engine
    home: Path
    kind: ProgramKind = ProgramKind.RUNS
    market: MarketParameters = NO_PREEMPTIONS
    harness: SkyPilotHarness = field(init=False)

    def __post_init__(self) -> None:
        simulation = JobSimulation(
            provision_s=self.market.provision_s * 100,
            denial_rate=self.market.denial_rate,
            regions=self.market.zones,
            mtbf_s=self.market.mtbf_s * 100,
            runs_s=10 if self.kind is ProgramKind.SUCCEEDS else 1e9,
            breaks_with=3
            if self.kind in {ProgramKind.FAILS_UNTRAINED, ProgramKind.FAILS_TRAINED}
            else None,
        )
        self.harness = SkyPilotHarness(self.engine, self.home, simulation, seed=self.market.seed)

    @property
    def launcher(self) -> Launcher:
        return self.harness.launcher

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        recovery = {"job_recovery": {"max_restarts_on_errors": max_failures - 1}}
        return self.harness.launch(key, num_nodes=nodes, resources=recovery)

    def runs(self, key: str) -> int:
        return sum(job.runs for job in self.harness.jobs(key))

    def until(self, key: str, met: Callable[[Observation], bool]) -> Observation:
        for _ in range(10_000):
            if met(seen := self.harness.look(key)):
                return seen
            self.harness.pass_time(2.5)
        raise AssertionError("the condition was not met in time")


@contextmanager
def local_backend(
    home: Path, kind: ProgramKind, market: MarketParameters
) -> Iterator[LocalBackend]:
    """A local backend; all its processes are killed at the end, also after an error."""
    try:
        yield LocalBackend(home, kind, market)
    finally:
        for path in (home / "launches").glob("*"):
            kill_supervisor(path)
            kill_marked_processes(LaunchDir(path))


def kill_supervisor(path: Path) -> None:
    """Kill the supervisor of a launch, which would replace nodes that are killed before it."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "holdfast.launchers.local.supervisor" in words and str(path) in words:
            with suppress(psutil.NoSuchProcess):
                process.kill()
