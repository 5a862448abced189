"""What a supervisor does when, by a clock that only its waits move."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from holdfast.clock import SIMULATION_START, SimulatedClock
from holdfast.domain.events import Outcome
from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket
from holdfast.launchers.local import process_group, supervisor
from holdfast.launchers.local.event_log import LaunchEntryKind, observe
from holdfast.launchers.local.launch_dir import LaunchDir, NodeDir, PreemptRequest
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.node_replacement import NodeReplacements
from holdfast.launchers.local.outcome import NodeExit, RecallReason
from holdfast.launchers.local.supervisor import TICK_S, AttemptMonitor, Supervisor

MARKET = MarketParameters(provision_s=0)


@dataclass
class Processes:
    """A node whose program has failed, or ignores all signals."""

    folders: list[NodeDir]
    exits: list[NodeExit] = field(default_factory=list)
    deadlines: list[datetime] = field(default_factory=list)
    """Those of notices."""
    trained: bool = True

    @property
    def have_all_exited(self) -> bool:
        return bool(self.exits)

    def reap(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def is_running(self, _node: int) -> bool:
        return not self.exits

    def send_notice(self, deadline: datetime, _leaving: object) -> None:
        self.deadlines.append(deadline)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    """A clock that only the waits of supervisors move."""
    clock = SimulatedClock()

    def elapsed_s() -> float:
        return (clock.now() - SIMULATION_START).total_seconds()

    ended = SimpleNamespace(
        SIGCHLD=None, sigtimedwait=lambda _signals, timeout_s: clock.advance(timeout_s)
    )
    time = SimpleNamespace(monotonic=elapsed_s, sleep=clock.advance)
    monkeypatch.setattr(supervisor, "signal", ended)
    monkeypatch.setattr(supervisor, "time", time)
    return clock


def test_program_that_ignores_a_notice_is_ended_at_its_deadline(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    folder = LaunchDir(tmp_path)
    processes = Processes([folder.node(1, 0)])
    market = SpotMarket(MARKET, "job-1")
    monitor = AttemptMonitor(
        processes,  # type: ignore[arg-type]
        NodeReplacements(processes, processes, market, clock, placement=1, prices=(1, 2)),  # type: ignore[arg-type]
        folder,
        clock,
        placement=1,
        lifetime=market.lifetime(1),
    )
    folder.request_preemption(PreemptRequest(placement=1, node=0, notice_s=7.25))

    found = monitor.wait()

    assert found == RecallReason(False, "node 0 preempted with 7.25 s of notice")
    deadline = SIMULATION_START + timedelta(seconds=7.25)
    assert processes.deadlines == [deadline]
    assert deadline <= clock.now() < deadline + timedelta(seconds=TICK_S / 2)


def test_failed_program_restarts_after_doubling_pauses(
    tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LaunchDir(tmp_path)
    for part in (folder.snapshot, folder.spool):
        part.mkdir()
    spec = LaunchSpec(
        key="job-1",
        job_id="job",
        first_attempt=1,
        max_failures=4,
        nodes=1,
        setup="",
        run="exit 3",
        env={},
        workdir=None,
        cell=None,
        climate=MARKET,
        restart_s=0.5,
    )
    monkeypatch.setattr(
        process_group,
        "start",
        lambda nodes, _cell: Processes([node for node, _ in nodes], [NodeExit(0, 3)]),
    )

    Supervisor(folder, spec, clock).supervise()

    entries = folder.history.read()
    lost = [entry.at for entry in entries if entry.kind is LaunchEntryKind.LOST]
    placed = [entry.at for entry in entries if entry.kind is LaunchEntryKind.PLACED]
    pauses_s = [(p - at).total_seconds() for at, p in zip(lost, placed[1:], strict=True)]
    assert pauses_s == pytest.approx([0.5, 1.0, 2.0])
    result = observe(entries).result
    assert result
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, 3)


def test_rendezvous_port_is_none_of_outgoing_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = supervisor._free_port()
    monkeypatch.setattr(supervisor, "PORTS", range(port, port + 1))

    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="are in use"):
        supervisor._free_port()

    assert 10_000 <= port < 20_000
