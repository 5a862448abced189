"""Single nodes of the local launcher are replaced if the others wait, and are otherwise lost with all others."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from contract.launcher_backends import (
    NO_PREEMPTIONS,
    LocalBackend,
    ProgramKind,
    do,
    eventually,
    is_ended,
    local_backend,
)
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import NodeChange, Observation

WAITS = "[ $SKYPILOT_NODE_RANK = 0 ] && touch $HOLDFAST_RUN_DIR/waits-for-nodes"
"""What the worker of node 0 does while its ranks would wait for another node."""
SAY = "echo start $HOLDFAST_NODE_START of $SKYPILOT_NODE_RANK; echo $$ > shell"
RUN = f"{WAITS}\n{SAY}\nexec sleep 1000"


def start(machine: LocalBackend, run: str = RUN) -> None:
    """Start a launch on three nodes, and wait for their programs."""
    do(machine.launcher.submit(machine.script_launch("job-1", run, nodes=3)))
    eventually(lambda: all("start 0" in machine.log("job-1", node=node) for node in range(3)))
    if WAITS in run:
        eventually((machine.folder("job-1").node(1, 0).run / "waits-for-nodes").exists)


def program(machine: LocalBackend, node: int) -> psutil.Process:
    """The program of a node."""
    shell = machine.folder("job-1").node(1, node).workdir / "shell"
    return psutil.Process(int(eventually(lambda: shell.exists() and shell.read_text())))


def kill_guard(machine: LocalBackend, node: int) -> psutil.Process:
    """Kill the guard of a node; return its program."""
    lost = program(machine, node)
    guard = lost.parent()
    assert guard
    guard.kill()
    return lost


def changes(machine: LocalBackend, count: int) -> tuple[NodeChange, ...]:
    """The changes of nodes in the first placement, once there are `count`."""

    def enough(seen: Observation) -> bool:
        return bool(seen.placements) and len(seen.recent_placements[0].node_changes) >= count

    seen = machine.until("job-1", enough)
    assert seen.placements == 1
    return seen.recent_placements[0].node_changes


def test_lost_node_is_replaced_while_the_others_run(machine: LocalBackend) -> None:
    start(machine)
    others = [program(machine, node) for node in (0, 1)]

    lost_program = kill_guard(machine, 2)
    lost, replaced = changes(machine, 2)

    eventually(lambda: "start 1 of 2" in machine.log("job-1", node=2))
    assert "start 0 of 2" in machine.log("job-1", node=2), "the log of the lost node is kept"
    assert not lost_program.is_running()
    assert all(other.is_running() for other in others)
    assert (lost.node, lost.nodes, lost.cause) == (2, 2, Cause.NODE_FAILED)
    assert (replaced.node, replaced.nodes, replaced.cause) == (2, 3, None)
    assert lost.micros_per_hour * 3 == replaced.micros_per_hour * 2
    assert lost.on_demand_micros_per_hour * 3 == replaced.on_demand_micros_per_hour * 2


def test_preempted_node_runs_until_its_notice_ends(machine: LocalBackend) -> None:
    start(
        machine,
        f"trap 'echo noticed' TERM\n{RUN.replace('exec sleep 1000', 'sleep 1000 & wait; wait')}",
    )

    do(machine.launcher.preempt("job-1", node=1, notice_s=1.0))
    lost, replaced = changes(machine, 2)

    assert (lost.node, lost.cause) == (1, Cause.PREEMPTED)
    assert lost.detail == "with 1 s of notice"
    assert replaced.at > lost.at
    eventually(lambda: "start 1 of 1" in machine.log("job-1", node=1))
    notice = machine.folder("job-1").node(1, 0).run / "notice.json"
    assert not notice.exists(), "only the worker of the node gets the notice"


def test_node_can_be_lost_repeatedly(machine: LocalBackend) -> None:
    start(machine)

    kill_guard(machine, 1)
    changes(machine, 2)
    eventually(lambda: "start 1 of 1" in machine.log("job-1", node=1))
    kill_guard(machine, 1)
    seen = changes(machine, 4)

    assert [change.nodes for change in seen] == [2, 3, 2, 3]
    eventually(lambda: "start 2 of 1" in machine.log("job-1", node=1))


def test_killed_program_starts_again_on_its_node(machine: LocalBackend) -> None:
    start(machine)

    program(machine, 1).send_signal(signal.SIGKILL)

    eventually(lambda: "start 1 of 1" in machine.log("job-1", node=1))
    assert changes(machine, 0) == ()


def test_late_replacement_is_released_when_the_program_completes(machine: LocalBackend) -> None:
    done = machine.home / "done"
    start(
        machine,
        f"{WAITS}\n{SAY}\n[ $HOLDFAST_NODE_START = 1 ] && sleep 1000\n"
        f"touch $HOLDFAST_RUN_DIR/joined\nuntil [ -e {done} ]; do sleep 0.05; done",
    )
    joined = machine.folder("job-1").node(1, 2).run / "joined"
    eventually(joined.exists)

    kill_guard(machine, 2)
    eventually(lambda: "start 1 of 2" in machine.log("job-1", node=2))
    assert not joined.exists()
    done.touch()
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    *_, released = seen.recent_placements[0].node_changes
    assert (released.node, released.nodes, released.cause) == (2, 2, Cause.ENDED)


@pytest.mark.parametrize(
    ("run", "node"),
    [(RUN, 0), (f"{SAY}\nexec sleep 1000", 1)],
    ids=["node-0", "others-do-not-wait"],
)
def test_all_nodes_are_lost_if_the_others_do_not_wait(
    machine: LocalBackend, run: str, node: int
) -> None:
    start(machine, run)

    kill_guard(machine, node)
    seen = machine.until("job-1", lambda seen: seen.placements == 2)

    assert seen.recent_placements[0].cause is Cause.NODE_FAILED
    assert seen.recent_placements[0].detail == f"node {node} was lost"
    assert seen.recent_placements[0].node_changes == ()


def test_placement_is_lost_if_the_others_wait_in_vain(tmp_path: Path) -> None:
    # With this seed, the market has nodes once, and then denies 247 requests.
    scarce = replace(NO_PREEMPTIONS, provision_s=0.2, denial_rate=0.97, seed=3452)
    with local_backend(tmp_path, ProgramKind.RUNS, scarce) as machine:
        stop = machine.home / "stop"
        start(machine, f"{WAITS}\n{SAY}\nuntil [ -e {stop} ]; do sleep 0.05; done; exit 1")

        kill_guard(machine, 2)
        changes(machine, 1)
        stop.touch()
        seen = machine.until("job-1", lambda seen: seen.recent_placements[0].lost_at is not None)
        do(machine.launcher.cancel("job-1"))

        assert seen.recent_placements[0].cause is Cause.NODE_FAILED, "not a failure of the program"
        assert seen.recent_placements[0].detail == "node 2 was lost"


def test_cancel_ends_a_launch_with_a_missing_node(machine: LocalBackend) -> None:
    start(machine)
    do(machine.launcher.preempt("job-1", node=1, notice_s=None))

    do(machine.launcher.cancel("job-1"))
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.CANCELLED


def test_denied_replacement_is_requested_again(tmp_path: Path) -> None:
    # With this seed, the market has nodes once, and then denies three requests.
    scarce = replace(NO_PREEMPTIONS, denial_rate=0.5, seed=8)
    with local_backend(tmp_path, ProgramKind.RUNS, scarce) as machine:
        start(machine)

        kill_guard(machine, 1)
        changes(machine, 2)
        seen = do(machine.launcher.observe("job-1"))

        assert len(seen.denials) == 3
        assert seen.recent_placements[0].ready_at < seen.denials[0].at
