"""Whole runs that hang or lose a rank end on all nodes, and name the causing rank."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.heartbeat import HeartbeatReader, Phase
from holdfast_worker.watchdog.node_channel import PORT_COUNT
from worker.support.run_driver import TIMEOUT_S, RunDriver, free_port, wait_until

SCRIPT = str(Path(__file__).parents[1] / "scripts/hang.py")
TWO_RANKS = ("--nproc-per-node", "2", SCRIPT)
ENDLESS = "1000000"
SHORT = {"HOLDFAST_MAX_STALL": "3s"}


def nodes_of(tmp_path: Path, port: int | None = None) -> list[RunDriver]:
    """Two nodes of one attempt on this machine."""
    port = port or free_port()
    node_variables = {
        **SHORT,
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "HOLDFAST_MASTER_PORT": str(port),
        "HOLDFAST_STORE": f"file://{tmp_path}/store",
    }
    return [
        RunDriver(tmp_path / str(node), extra={**node_variables, "SKYPILOT_NODE_RANK": str(node)})
        for node in (0, 1)
    ]


def ends(wrappers: list[subprocess.Popen[str]]) -> list[str]:
    """Stderr of each wrapper, once all have ended."""
    return [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in wrappers]


def exit_record(driver: RunDriver) -> dict[str, object]:
    exit_fields: dict[str, object] = json.loads((driver.run_dir / "left.json").read_text())
    return exit_fields


def detail_of(driver: RunDriver) -> str:
    """The detail of the only exit report."""
    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert left.body["reason"] == "failed"
    return str(left.body["detail"])


def have_exited(driver: RunDriver) -> bool:
    pids = RunDir(driver.run_dir).registered_pids().values()
    return not any(Path(f"/proc/{pid}/fd/0").exists() for pid in pids)


@pytest.mark.parametrize(
    ("how", "blamed_rank", "doing"),
    [
        (
            "stop",
            1,
            r"in its step, stopped by a signal or a debugger, in stop \(.*hang.py:\d+\)",
        ),
        ("spin", 0, r"in its step, in spin_around \(.*hang.py:\d+\)"),
        ("load", 1, r"loading a batch, in .*, called from sleep_for_ever \(.*hang.py:\d+\)"),
    ],
    ids=["stop", "spin", "load"],
)
def test_hanging_run_ends_and_names_the_hanging_rank(
    tmp_path: Path, how: str, blamed_rank: int, doing: str
) -> None:
    driver = RunDriver(tmp_path, extra=SHORT)

    code, _, err = driver.run_wrapper(*TWO_RANKS, ENDLESS, "--rank", str(blamed_rank), "--how", how)

    detail = detail_of(driver)
    assert code == Exit.STALLED
    assert re.fullmatch(
        rf"rank {blamed_rank} made no step for \d+ s after step 9: it was {doing}; "
        "the other one waited for it",
        detail,
    )
    assert driver.reports(ReportKind.WORKER_LEFT)[0].body["step"] == 9
    assert exit_record(driver)["detail"] == detail
    assert f"holdfast: ending all ranks: {detail}\n" in err
    assert "call run.beat() in it or increase holdfast.limits.max_stall" in err
    wait_until(lambda: have_exited(driver))


def test_hang_writes_stacks_and_flight_records(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, extra=SHORT)

    driver.run_wrapper(*TWO_RANKS, ENDLESS, "--rank", "0", "--how", "sleep")

    hang = driver.run_dir / "hang"
    record = json.loads((hang / "rank-1.flight.json").read_text())
    stacks = [(hang / f"rank-{rank}.stacks.txt").read_text() for rank in (0, 1)]
    assert "sleep_for_ever (" in stacks[0]
    assert "all_reduce (torch/distributed/" in stacks[1]
    assert record["gloo"]["entries"][-1]["profiling_name"] == "gloo:all_reduce"
    for rank in (0, 1):
        assert (
            f"holdfast: this rank is stalled; the stacks of all threads are in {hang}\n"
            in driver.log(rank)
        )
    assert re.search(
        r"^holdfast:     sleep_for_ever \(.*hang.py:\d+\)$", driver.log(0), re.MULTILINE
    )


@pytest.mark.parametrize("how", ["dawdle", "evaluate"])
def test_slow_or_beating_rank_is_left_running(tmp_path: Path, how: str) -> None:
    driver = RunDriver(tmp_path, extra={"HOLDFAST_MAX_STALL": "6s"})

    code, _, err = driver.run_wrapper(*TWO_RANKS, "10", "--rank", "0", "--how", how)

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert code == Exit.DONE
    assert left.body["reason"] == "finished"
    assert "ending all ranks" not in err


def test_killed_rank_is_named_instead_of_its_consequence(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)

    code, out, _ = driver.run_wrapper(*TWO_RANKS, ENDLESS, "--rank", "1", "--how", "die")

    assert code == 128 + signal.SIGKILL
    assert "by peer" in out  # Rank 0, which reports, failed as a consequence.
    assert detail_of(driver) == "rank 1 was killed by signal 9"


def test_ranks_unaware_of_a_dead_rank_are_ended(tmp_path: Path) -> None:
    """Such as ranks that wait for a GPU; torchrun alone would wait for 30 s after SIGTERM."""
    driver = RunDriver(tmp_path)

    code, _, err = driver.run_wrapper(
        *TWO_RANKS, ENDLESS, "--rank", "1", "--how", "die", "--other", "sleep"
    )

    assert code == 128 + signal.SIGKILL
    assert detail_of(driver) == "rank 1 was killed by signal 9"
    assert "holdfast: ending all ranks: rank 1 was killed by signal 9\n" in err


@pytest.mark.parametrize("other", ["sleep", "nothing"])
def test_dead_rank_ends_other_nodes_with_its_cause(tmp_path: Path, other: str) -> None:
    nodes = nodes_of(tmp_path)

    wrappers = [
        node.start_wrapper(SCRIPT, ENDLESS, "--rank", "1", "--how", "die", "--other", other)
        for node in nodes
    ]
    errs = ends(wrappers)

    cause = "rank 1 on node 1 was killed by signal 9"
    assert [wrapper.returncode for wrapper in wrappers] == [137, 137]
    assert [exit_record(node)["detail"] for node in nodes] == [cause, cause]
    assert all(f"holdfast: ending all ranks: {cause}\n" in err for err in errs)
    assert detail_of(nodes[0]) == cause
    assert nodes[1].reports() == []


def test_hanging_rank_is_named_on_all_nodes(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path)

    wrappers = [
        node.start_wrapper(SCRIPT, ENDLESS, "--rank", "1", "--how", "stop") for node in nodes
    ]
    ends(wrappers)

    detail = detail_of(nodes[0])
    assert [wrapper.returncode for wrapper in wrappers] == [Exit.STALLED, Exit.STALLED]
    assert re.match(r"rank 1 on node 1 made no step for \d+ s after step 9: it was in its", detail)
    assert [exit_record(node)["detail"] for node in nodes] == [detail, detail]
    for rank, node in enumerate(nodes):
        assert (node.run_dir / "hang" / f"rank-{rank}.stacks.txt").exists()


@pytest.mark.parametrize("gone", [0, pytest.param(1, marks=pytest.mark.full)])
def test_killed_wrapper_ends_the_ranks_of_all_nodes(tmp_path: Path, gone: int) -> None:
    """The remaining ranks do not detect the loss; only their own wrapper can end them."""
    nodes = nodes_of(tmp_path)
    for node in nodes:
        node.extra = {**node.extra, "HOLDFAST_MAX_STALL": "1h"}
    wrappers = [
        node.start_watched(SCRIPT, ENDLESS, "--step", "2", "--other", "sleep") for node in nodes
    ]
    left = wrappers[1 - gone]
    for rank, node in enumerate(nodes):
        heartbeats = HeartbeatReader(RunDir(node.run_dir), [rank])
        wait_until(lambda heartbeats=heartbeats: _is_in_step_two(heartbeats))  # type: ignore[misc]
    wait_until(lambda: all(node.is_connected for node in nodes))

    wrappers[gone].kill()
    wrappers[gone].wait()
    [err] = ends([left])

    assert left.returncode == Exit.FAILED
    assert f"holdfast: ending all ranks: node {gone} is lost: its connection broke" in err
    assert str(exit_record(nodes[1 - gone])["detail"]).startswith(f"node {gone} is lost")
    wait_until(lambda: all(have_exited(node) for node in nodes))


def _is_in_step_two(heartbeats: HeartbeatReader) -> bool:
    [pulse] = heartbeats.read()
    return pulse.steps_here == 1 and pulse.phase is Phase.STEPPING and not pulse.is_waiting


def test_run_continues_without_a_node_channel(tmp_path: Path) -> None:
    with busy_channel() as port:
        nodes = nodes_of(tmp_path, port)
        wrappers = [node.start_wrapper(SCRIPT, "20") for node in nodes]
        errs = ends(wrappers)

    assert [wrapper.returncode for wrapper in wrappers] == [Exit.DONE, Exit.DONE]
    assert f"holdfast: the ports {port + 1} to {port + PORT_COUNT} are in use: " in errs[0]
    assert "ending all ranks" not in "".join(errs)


def test_hang_is_ended_without_a_node_channel(tmp_path: Path) -> None:
    with busy_channel() as port:
        nodes = nodes_of(tmp_path, port)
        wrappers = [
            node.start_wrapper(SCRIPT, ENDLESS, "--rank", "1", "--how", "load") for node in nodes
        ]
        ends(wrappers)

    detail = str(exit_record(nodes[1])["detail"])
    assert wrappers[1].returncode == Exit.STALLED
    assert re.match(r"rank 1 made no step for \d+ s after step 9: it was loading a batch", detail)
    assert wrappers[0].returncode != Exit.DONE


@contextmanager
def busy_channel() -> Iterator[int]:
    """A port for a rendezvous, beside which all ports of a channel are in use."""
    while True:
        port = free_port()
        with ExitStack() as busy_ports:
            try:
                for number in range(1, PORT_COUNT + 1):
                    busy_ports.enter_context(socket.create_server(("127.0.0.1", port + number)))
            except OSError:
                continue
            yield port
            return
