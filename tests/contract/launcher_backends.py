"""Worlds in which the contract is tested: this machine with real processes, the simulated cloud, and SkyPilot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

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
DEADLINE_S = 20.0
"""For anything that real processes should do soon. Only a failing test waits for so long."""
FAIR = MarketParameters(provision_s=0.05)
"""A market without preemptions."""


class ProgramKind(StrEnum):
    """What the program of a launch does."""

    LASTS = "lasts"
    """It runs until it is stopped, and exits at once on a notice."""
    ENDS = "ends"
    BREAKS = "breaks"
    """It fails with exit code 3, before any step."""
    STUMBLES = "stumbles"
    """It fails with exit code 3, after a step."""


class PreemptibleLauncher(Launcher, Preemptible, Protocol):
    """A launcher that plays its own market."""


class LauncherBackend(Protocol):
    """A launcher and the time around it."""

    @property
    def launcher(self) -> Launcher: ...

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        """An order for this world's program."""
        ...

    def runs(self, key: str) -> int:
        """How often the program of a launch was started on its first node."""
        ...

    def until(self, key: str, met: Callable[[Observation], bool]) -> Observation:
        """The first sighting of `key` that meets a condition, some time from now."""
        ...


class PreemptibleBackend(LauncherBackend, Protocol):
    """A world whose launcher is the market, too, and knows why it takes nodes and what a program has said."""

    @property
    def launcher(self) -> PreemptibleLauncher: ...


NewWorld = Callable[..., LauncherBackend]
"""Makes a world of what its programs do, and its weather."""
NewMarket = Callable[..., PreemptibleBackend]


def is_up(seen: Observation) -> bool:
    return seen.status is LaunchStatus.UP


def is_ended(seen: Observation) -> bool:
    return seen.status is LaunchStatus.ENDED


def eventually(met: Callable[[], T], patience_s: float = DEADLINE_S) -> T:
    """The first true answer of `met`; fails the test if there is none in time."""
    deadline_s = time.monotonic() + patience_s
    while not (answer := met()):
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.02)
    return answer


SCRIPTS = {
    ProgramKind.LASTS: "sleep 1000",
    ProgramKind.ENDS: "echo bye from node $SKYPILOT_NODE_RANK",
    ProgramKind.BREAKS: "echo 'no module named foo' >&2; exit 3",
    ProgramKind.STUMBLES: "touch $HOLDFAST_RUN_DIR/trained; echo 'loss is nan' >&2; exit 3",
}


@dataclass
class LocalBackend:
    """This machine."""

    home: Path
    kind: ProgramKind = ProgramKind.LASTS
    climate: MarketParameters = FAIR
    launcher: LocalLauncher = field(init=False)

    def __post_init__(self) -> None:
        self.launcher = LocalLauncher(self.home, self.climate)

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        count = f"[ $SKYPILOT_NODE_RANK = 0 ] && echo $HOLDFAST_ATTEMPT >> {self.home}/{key}.runs"
        run = f"{count}\n{SCRIPTS[self.kind]}\n"
        return self.order(key, run, nodes=nodes, max_failures=max_failures)

    def order(
        self, key: str, run: str, *, nodes: int = 1, max_failures: int = 1, **task: Any
    ) -> Launch:
        """An order for a script."""
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
        def look() -> Observation | None:
            seen = do(self.launcher.observe(key))
            return seen if met(seen) else None

        seen = eventually(look)
        assert seen is not None
        return seen

    def folder(self, key: str) -> LaunchDir:
        """The launch directory of a key."""
        return LaunchDir(self.home / "launches" / key)

    def log(self, key: str, attempt: int = 1, node: int = 0) -> str:
        """What a node has printed so far."""
        path = self.folder(key).node(attempt, node).log
        return path.read_text() if path.exists() else ""


def program_of(kind: ProgramKind) -> SimulatedProgram:
    """A program that does so."""
    failure = {ProgramKind.BREAKS: Failure(0, 3, 99), ProgramKind.STUMBLES: Failure(2, 3, 99)}.get(
        kind
    )
    return SimulatedProgram(
        total_steps=20_000 if kind is ProgramKind.LASTS else 10,
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
    """The simulated cloud, and time that passes in quarters of a second."""

    kind: ProgramKind = ProgramKind.LASTS
    climate: MarketParameters = FAIR
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    launcher: SimulatedCloud = field(init=False)

    def __post_init__(self) -> None:
        program = program_of(self.kind)
        self.launcher = SimulatedCloud(self.clock, self.climate, program)

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
        raise AssertionError("it did not come to pass")


@dataclass
class DemoBackend(SimulatedBackend):
    """The launcher of a demonstration: the same cloud, one for each job, on a market with prices."""

    launcher: DemoLauncher = field(init=False)  # type: ignore[assignment]
    program: SimulatedProgram = field(init=False)

    def __post_init__(self) -> None:
        self.program = program_of(self.kind)
        self.launcher = DemoLauncher(self.clock, Prices(1, self.clock.now()))

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        launch = super().launch(key, nodes=nodes, max_failures=max_failures)
        if do(self.launcher.observe(key)).status is LaunchStatus.ABSENT:
            self.launcher.expect(launch.job_id, self._part(launch.job_id))
        return launch

    def _part(self, name: str) -> DemoJob:
        full = self.climate.on_demand_micros
        share = self.climate.spot_micros / full
        kind = replace(NODE_TYPES[0], on_demand_micros=full, spot_share=share)
        return DemoJob(
            name=name,
            owner="ada",
            project="nlp",
            start_h=0,
            node_type=kind,
            nodes=1,
            program=self.program,
            climate=self.climate,
        )


@dataclass
class SkyPilotBackend:
    """SkyPilot's stand-in, where everything takes a hundred times as long as elsewhere."""

    engine: Engine
    home: Path
    kind: ProgramKind = ProgramKind.LASTS
    climate: MarketParameters = FAIR
    harness: SkyPilotHarness = field(init=False)

    def __post_init__(self) -> None:
        nature = JobSimulation(
            provision_s=self.climate.provision_s * 100,
            denial_rate=self.climate.denial_rate,
            regions=self.climate.zones,
            mtbf_s=self.climate.mtbf_s * 100,
            runs_s=10 if self.kind is ProgramKind.ENDS else 1e9,
            breaks_with=3 if self.kind in {ProgramKind.BREAKS, ProgramKind.STUMBLES} else None,
        )
        self.harness = SkyPilotHarness(self.engine, self.home, nature, seed=self.climate.seed)

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
        raise AssertionError("it did not come to pass")


@contextmanager
def this_machine(
    home: Path, kind: ProgramKind, climate: MarketParameters
) -> Iterator[LocalBackend]:
    """A local world, of which nothing runs afterwards, whatever has gone wrong."""
    try:
        yield LocalBackend(home, kind, climate)
    finally:
        for path in (home / "launches").glob("*"):
            kill_marked_processes(LaunchDir(path))
