"""Ranks of a sharded model start again from snapshots in the memory of nodes: few steps are repeated, and no bit differs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from worker.support.groups_driver import Groups
from worker.support.nodes_driver import SCRIPT, Nodes
from worker.support.run_driver import TIMEOUT_S, RunDriver, wait_until

STEPS = 30
EVERY = 3
"""Steps between two snapshots in memory."""
MEMORY = {"HOLDFAST_MEMORY": f"{EVERY} steps", "HOLDFAST_MAX_RESTARTS": "1"}
SHARDED = ("--shard", "--pause", "0.1", "--settle")
"""Each step ends once the copies and saves that it began are complete, so that these are taken in known steps."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    nodes = started(tmp_path_factory.mktemp("undisturbed"), HOLDFAST_MEMORY="off")
    nodes.finish()
    return nodes


def started(path: Path, *arguments: str, every: str = "1000 steps", **extra: str) -> Nodes:
    """A run on three nodes, of which a lost one is replaced alone."""
    nodes = Nodes(path, 3, STEPS, HOLDFAST_NODE_START="0", **{**MEMORY, **extra})
    nodes.driver.every = every
    nodes.start(*SHARDED, *arguments)
    return nodes


def held(path: Path, *steps: int, every: str = "1000 steps", memory: str = "8 steps") -> Nodes:
    """Such a run whose ranks wait for the test in these steps, and are in the first of them."""
    holds = [word for step in steps for word in ("--hold", str(step))]
    nodes = started(path, *holds, every=every, HOLDFAST_MEMORY=memory)
    wait_until(lambda: nodes.is_held(steps[0]))
    wait_until(lambda: nodes.would_wait)
    return nodes


def starts(driver: RunDriver | Groups) -> list[tuple[int, bool]]:
    """The step of each start, and whether it was from memory."""
    reports = driver.reports(ReportKind.TRAINING_STARTED)
    return [(int(str(r.body["step"])), "held_at" in r.body) for r in reports]


def assert_equal(nodes: Nodes | Groups, undisturbed: Nodes) -> None:
    """The weights and the loss of each step are those of an undisturbed run, also where steps are repeated."""
    assert nodes.results == undisturbed.results
    for rank in range(3):
        assert {*nodes.losses(rank)} == {*undisturbed.losses(rank)}


def assert_few_repeated(nodes: Nodes) -> None:
    """The last start repeated few steps, and was from memory."""
    [restarted] = nodes.driver.reports(ReportKind.RANKS_RESTARTED)
    step, is_from_memory = starts(nodes.driver)[-1]
    assert is_from_memory
    assert int(str(restarted.body["step"])) - step <= EVERY


@pytest.mark.parametrize(
    "moment", ["forward", pytest.param("backward", marks=pytest.mark.full), "step"]
)
def test_killed_rank_costs_few_steps(tmp_path: Path, undisturbed: Nodes, moment: str) -> None:
    # A snapshot is taken just before step 15: the rank is lost while it copies, or just after that.
    nodes = started(tmp_path, "--fall", f"1:15:{moment}")
    nodes.finish()

    assert_equal(nodes, undisturbed)
    assert_few_repeated(nodes)
    assert nodes.counts(ReportKind.CHECKPOINT_COMMITTED) == [1], "only that of the end"


@pytest.mark.parametrize("lost", [1, pytest.param(2, marks=pytest.mark.full)])
def test_lost_node_costs_few_steps(tmp_path: Path, undisturbed: Nodes, lost: int) -> None:
    nodes = held(tmp_path, 14)

    nodes.kill(lost)
    nodes.release()
    nodes.replace(lost)
    logs = nodes.finish()

    assert_equal(nodes, undisturbed)
    assert starts(nodes.driver) == [(0, False), (8, True)]
    [restarted] = nodes.driver.reports(ReportKind.RANKS_RESTARTED)
    assert restarted.body["node_lost"] is True
    assert f"starting all ranks again with a new node: node {lost} was lost" in logs


@pytest.mark.full
def test_replacement_has_copies_for_the_next_loss(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = held(tmp_path, 18, 23, memory="12 steps")
    for lost, step in ((1, 18), (2, 23)):
        wait_until(lambda step=step: nodes.is_held(step))
        nodes.kill(lost)
        nodes.release(step)
        nodes.replace(lost)
        wait_until(lambda count=lost + 1: len(starts(nodes.driver)) == count)
    nodes.finish()

    assert_equal(nodes, undisturbed)
    assert starts(nodes.driver) == [(0, False), (12, True), (12, True)]


def test_loss_of_two_neighbors_repeats_from_the_store(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = held(tmp_path, 17, every="12 steps", memory="7 steps")

    nodes.kill(1)
    nodes.kill(2)
    nodes.release()
    time.sleep(1)
    nodes.replace(2)
    nodes.replace(1)
    nodes.finish()

    assert_equal(nodes, undisturbed)
    assert starts(nodes.driver) == [(0, False), (12, False)]
    log = nodes.run_dir(0).log_file(0).read_text()
    assert "in memory is not complete" in log
    assert "all ranks continue from the newest checkpoint in the store" in log


@pytest.mark.full
def test_notice_for_one_node_keeps_the_others(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = held(tmp_path, 14)

    nodes.wrappers[2].send_signal(signal.SIGTERM)
    wait_until(nodes.run_dir(2).is_hinted)
    nodes.kill(2)
    nodes.replace(2)
    nodes.finish()

    assert_equal(nodes, undisturbed)


@pytest.mark.full
def test_loss_of_a_replacement_is_awaited_as_well(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = held(tmp_path, 14)

    nodes.kill(2)
    nodes.release()
    for _ in range(2):
        nodes.replace(2)
        time.sleep(0.5)
        nodes.kill(2)
    nodes.replace(2)
    nodes.finish()

    assert_equal(nodes, undisturbed)
    assert starts(nodes.driver)[-1][1]


def test_lost_group_costs_few_steps(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, steps=STEPS, every="1000 steps", HOLDFAST_MEMORY="8 steps")
    with groups.opened():
        groups.start(*SHARDED, "--hold", "14")
        wait_until(lambda: groups.is_held(14))
        groups.kill(2)
        groups.release()
        groups.start_group(2)
        logs = groups.finish()

    assert_equal(groups, undisturbed)
    assert starts(groups) == [(0, False), (8, True)]
    [restarted] = groups.reports(ReportKind.RANKS_RESTARTED)
    assert restarted.body["node_lost"] is True
    assert "starting all ranks again with a new node: node 2 was lost" in logs


@pytest.mark.full
def test_next_leader_starts_from_the_store(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, steps=STEPS, every="12 steps", HOLDFAST_MEMORY="7 steps")
    with groups.opened():
        groups.start(*SHARDED, "--hold", "17", "--hold", "22")
        wait_until(lambda: groups.is_held(17))
        groups.kill(0)
        groups.release(17)
        groups.start_group(0)
        wait_until(lambda: groups.is_held(22))
        groups.kill(2)  # What nodes 1 and 2 have in memory may be of the former leader.
        groups.start_group(2)
        groups.finish()

    assert_equal(groups, undisturbed)
    assert starts(groups)[1] == (12, False)
    assert len(starts(groups)) == 3


def single(path: Path, *arguments: str, **extra: str) -> tuple[RunDriver, str]:
    """A finished run of two ranks on one node, whose rank 1 is killed in step 20."""
    driver = RunDriver(path, every="7 steps", extra={**MEMORY, **extra})
    program = path / "wrapper.py"
    command = ("--nproc-per-node", "2", SCRIPT, str(STEPS), str(path), *SHARDED)
    fall = ("--fall", "1:20:end")
    if program.exists():
        wrapper = driver.start_python(program.read_text(), "run", *command, *fall, *arguments)
    else:
        wrapper = driver.start_wrapper(*command, *fall, *arguments)
    out, err = wrapper.communicate(timeout=TIMEOUT_S)
    assert wrapper.returncode == Exit.DONE, err
    return driver, out + err


@pytest.fixture(scope="module")
def undisturbed_single(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("single")
    (path / "has-fallen").touch()
    single(path, HOLDFAST_MEMORY="off")
    return (path / "result-0").read_text()


def test_ranks_of_one_node_restart_from_its_memory(tmp_path: Path, undisturbed_single: str) -> None:
    driver, _ = single(tmp_path)

    assert starts(driver) == [(0, False), (18, True)]
    assert (tmp_path / "result-0").read_text() == undisturbed_single


def test_memory_that_is_off_is_not_used(tmp_path: Path, undisturbed_single: str) -> None:
    driver, _ = single(tmp_path, HOLDFAST_MEMORY="off")

    assert starts(driver) == [(0, False), (14, False)]
    assert (tmp_path / "result-0").read_text() == undisturbed_single


WRAPPER = "from holdfast_worker.__main__ import main\nmain()\n"
NO_ROOM = """
from holdfast_worker.node_memory import holder, room
holder.MemoryHolder.__init__.__defaults__ = (lambda: room.Room(10**9, 10**8),)
"""
DAMAGED = """
from holdfast_worker.node_memory import holder
def receive_into(connection, buffer, receive=holder.receive_into):
    receive(connection, buffer)
    if len(buffer) > 100 and bytes(buffer[:1]) != b"{":
        buffer[5] ^= 1
holder.receive_into = receive_into
"""


def test_machine_without_room_uses_the_store(tmp_path: Path, undisturbed_single: str) -> None:
    (tmp_path / "wrapper.py").write_text(NO_ROOM + WRAPPER)

    driver, logs = single(tmp_path)

    assert starts(driver) == [(0, False), (14, False)]
    assert (tmp_path / "result-0").read_text() == undisturbed_single
    sentence = "snapshots are not kept in memory, and a restart loads the newest checkpoint: node 0 has no room for"
    # Once in each start.
    assert logs.count(sentence) == 2


def test_damaged_memory_is_passed_over(tmp_path: Path, undisturbed_single: str) -> None:
    (tmp_path / "wrapper.py").write_text(DAMAGED + WRAPPER)

    driver, logs = single(tmp_path)

    assert starts(driver) == [(0, False), (14, False)]
    assert (tmp_path / "result-0").read_text() == undisturbed_single
    assert "in memory is damaged" in logs


def test_replaced_attempt_does_not_continue_from_memory(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, every="7 steps", extra=MEMORY)
    arguments = ("--shard", "--pause", "0.1")
    command = ("--nproc-per-node", "2", SCRIPT, "1000", str(tmp_path), *arguments)
    wrapper = driver.start_wrapper(*command)
    store = tmp_path / "store" / "lesson"
    wait_until((store / "newest.json").exists)
    newest = (store / "newest.json").read_bytes()
    wait_until(lambda: (store / "newest.json").read_bytes() != newest)
    (store / "claims" / "000000000002").write_text("{}")
    commits = len([*(store / "commits").iterdir()])

    os.kill(RunDir(driver.run_dir).registered_pids()[1], signal.SIGKILL)
    wrapper.communicate(timeout=TIMEOUT_S)

    assert wrapper.returncode == Exit.FENCED
    assert len(starts(driver)) == 1
    assert len([*(store / "commits").iterdir()]) <= commits + 1, "at most the one in progress"
