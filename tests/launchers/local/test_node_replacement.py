"""Which replacements a placement still needs when its program completes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast.clock import SIMULATION_START, SimulatedClock
from holdfast.domain.events import Cause
from holdfast.domain.simulation.recorded_market import RecordedZone
from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket
from holdfast.launchers.local.event_log import LaunchEntryKind
from holdfast.launchers.local.launch_dir import NodeDir
from holdfast.launchers.local.node_replacement import NodeReplacements
from holdfast.launchers.local.outcome import NodeExit
from holdfast_worker.protocol.environment import WAITS_FILE, Exit
from holdfast_worker.protocol.reports import Json
from support.recorded_markets import recording_of_zones, zone_of

NODES = 3


@dataclass
class Processes:
    """Nodes of a placement, as far as replacements need them."""

    folders: list[NodeDir]
    running: set[int] = field(default_factory=lambda: {*range(NODES)})
    exits: list[NodeExit] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    joined: set[int] = field(default_factory=lambda: {*range(NODES)})

    def has_joined(self, node: int) -> bool:
        return node in self.joined

    def signal_notice(self, node: int) -> None:
        pass

    def is_running(self, node: int) -> bool:
        return node in self.running

    def end(self, node: int) -> None:
        self.ended.append(node)
        self.running.discard(node)

    def exit(self, node: int, code: int | None) -> None:
        self.running.discard(node)
        self.exits.append(NodeExit(node, code))


@dataclass
class Source:
    """Starts the programs of replacements."""

    processes: Processes
    kinds: list[LaunchEntryKind] = field(default_factory=list)
    bodies: list[dict[str, Json]] = field(default_factory=list)

    def renew_node(self, _placement: int, _node: int) -> str:
        return ""

    def restart_node(self, _placement: int, node: int, _start: int) -> None:
        self.processes.running.add(node)
        self.processes.joined.discard(node)

    def record(self, kind: LaunchEntryKind, **body: Json) -> None:
        self.kinds.append(kind)
        self.bodies.append(body)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    folders = [NodeDir(tmp_path / f"node-{node}") for node in range(NODES)]
    folders[0].run.mkdir(parents=True)
    (folders[0].run / WAITS_FILE).touch()
    return Processes(folders)


def replacements(processes: Processes, *, denial_rate: float) -> NodeReplacements:
    market = SpotMarket(MarketParameters(provision_s=0, denial_rate=denial_rate), "job-1")
    return after_a_loss(processes, market, Source(processes))


def of_placement(processes: Processes, market: SpotMarket, source: Source) -> NodeReplacements:
    return NodeReplacements(
        processes,  # type: ignore[arg-type]
        source,
        market,
        SimulatedClock(),
        placement=1,
        prices=(1, 2),
    )


def after_a_loss(processes: Processes, market: SpotMarket, source: Source) -> NodeReplacements:
    found = of_placement(processes, market, source)
    processes.exit(2, None)
    found.poll()
    return found


def test_program_of_a_lost_node_is_killed(processes: Processes) -> None:
    replacements(processes, denial_rate=1.0)

    assert processes.ended == [2]


def test_program_completes_without_a_missing_node(processes: Processes) -> None:
    found = replacements(processes, denial_rate=1.0)

    processes.exit(0, Exit.DONE)
    processes.exit(1, Exit.DONE)

    assert found.absent == 1
    assert found.loss


def test_replacement_that_starts_too_late_is_not_needed(processes: Processes) -> None:
    source = Source(processes)
    found = after_a_loss(processes, SpotMarket(MarketParameters(provision_s=0), "job-1"), source)
    assert processes.is_running(2)

    processes.exit(0, Exit.DONE)
    found.poll()
    found.poll()

    assert not processes.is_running(2)
    assert found.absent == 1
    *_, end = source.bodies
    assert (end["node"], end["nodes"], end["cause"]) == (2, 2, Cause.ENDED)
    assert len(source.bodies) == 3


def test_replacement_that_has_joined_may_end_by_itself(processes: Processes) -> None:
    found = replacements(processes, denial_rate=0.0)
    processes.joined.add(2)

    processes.exit(1, Exit.DONE)
    processes.exit(0, Exit.DONE)
    found.poll()

    assert processes.is_running(2)
    assert found.are_unneeded
    assert found.absent == 1


def test_node_is_not_requested_after_the_program_has_completed(processes: Processes) -> None:
    market = MarketParameters(provision_s=0.05)
    source = Source(processes)
    found = after_a_loss(processes, SpotMarket(market, "job-1"), source)

    processes.exit(0, Exit.DONE)
    found.poll()

    assert found.next_s() == math.inf
    assert source.kinds == [LaunchEntryKind.NODE_LOST]
    assert found.absent == 1


@pytest.mark.parametrize("completed", [[0], [0, 1], [0, 2]])
def test_node_is_not_replaced_if_the_notice_ends_later(
    processes: Processes, completed: list[int]
) -> None:
    """A notice may end while the program completes; node 2 may still run its exit handlers then."""
    source = Source(processes)
    found = of_placement(processes, SpotMarket(MarketParameters(provision_s=0), "job-1"), source)
    found.reclaim(2, 0.0, "without notice")
    for node in completed:
        processes.exit(node, Exit.DONE)

    found.poll()

    is_released = 2 not in completed
    assert processes.ended == [2] * is_released
    assert [body["cause"] for body in source.bodies] == [Cause.ENDED] * is_released
    assert found.absent == is_released
    assert found.next_s() == math.inf


def test_exit_during_a_notice_does_not_count_for_the_replacement(processes: Processes) -> None:
    market = SpotMarket(MarketParameters(provision_s=0), "job-1")
    found = of_placement(processes, market, Source(processes))
    found.reclaim(2, 0.0, "without notice")
    processes.exit(2, Exit.DONE)

    found.poll()
    processes.exit(0, Exit.DONE)
    processes.exit(1, Exit.DONE)
    found.poll()

    assert [end.node for end in processes.exits] == [0, 1]
    assert found.absent == 1


def test_failure_of_a_late_replacement_does_not_count(processes: Processes) -> None:
    found = replacements(processes, denial_rate=0.0)
    processes.exit(1, Exit.DONE)
    processes.exit(0, Exit.DONE)

    processes.exit(2, Exit.FAILED)
    found.poll()

    assert [end.node for end in processes.exits] == [1, 0]
    assert found.absent == 1


def test_failure_of_a_replacement_that_is_needed_counts(processes: Processes) -> None:
    found = replacements(processes, denial_rate=0.0)

    processes.exit(2, Exit.FAILED)
    found.poll()

    assert [end.node for end in processes.exits] == [2]
    assert found.absent == 0


def recorded(*zones: RecordedZone, age_s: float = 0.0) -> SpotMarket:
    start = SIMULATION_START - timedelta(seconds=age_s)
    climate = MarketParameters(provision_s=0, recording=recording_of_zones(*zones, start=start))
    return SpotMarket(climate, "job-1", NODES).within("a")


def test_replacement_comes_from_the_zone_of_the_placement(processes: Processes) -> None:
    source = Source(processes)

    after_a_loss(processes, recorded(zone_of("b", "9"), zone_of("a", "1")), source)

    assert source.kinds == [LaunchEntryKind.NODE_LOST, LaunchEntryKind.NODE_REPLACED]


@pytest.mark.parametrize(("age_s", "next_s"), [(0.0, 600.0), (1200.0, math.inf)])
def test_denied_replacement_waits_for_the_next_tick(
    processes: Processes, age_s: float, next_s: float
) -> None:
    source = Source(processes)

    found = after_a_loss(
        processes, recorded(zone_of("b", "99"), zone_of("a", "09"), age_s=age_s), source
    )
    found.poll()

    assert source.kinds == [LaunchEntryKind.NODE_LOST, LaunchEntryKind.DENIED]
    assert math.isclose(found.next_s() - time.monotonic(), next_s, rel_tol=0.1)
