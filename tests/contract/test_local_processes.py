"""Processes of the local launcher: none is started twice, and none outlives its launch."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from contract.launcher_backends import LocalBackend, ProgramKind, do, eventually, is_ended, is_up
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.local.process_cleanup import MARK_ENV
from support.skypilot.server_dir import is_alive

STRAYS = """
(sleep 1000 & echo $! >> $FILE)
(setsid sleep 1000 & echo $! >> $FILE)
env -i FILE=$FILE bash -c '(setsid sleep 1000 & echo $! >> $FILE); exec sleep 1000' & echo $! >> $FILE
wait
"""
"""A program with processes that are hard to find: own sessions, no parents, no environment."""


def strays(machine: LocalBackend, key: str = "job-1") -> list[psutil.Process]:
    """The processes of the STRAYS script, once all of them run."""
    file = machine.home / "strays"
    do(machine.launcher.submit(machine.script_launch(key, STRAYS, envs={"FILE": str(file)})))
    eventually(lambda: file.exists() and file.read_text().count("\n") == 4)
    return [psutil.Process(int(pid)) for pid in file.read_text().split()]


def supervisor(machine: LocalBackend, key: str = "job-1") -> psutil.Process:
    """The supervisor process of a launch."""
    folder = str(machine.folder(key).path)
    marked = [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and "supervisor" in " ".join(_command(process))
    ]
    ours = [process for process in marked if _environment(process).get(MARK_ENV) == folder]
    pids = {process.pid for process in ours}
    return next(process for process in ours if process.ppid() not in pids)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.NoSuchProcess:
        return {}


def all_have_exited(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(process) for process in processes)


def test_launch_of_a_killed_supervisor_ends_and_is_forgotten(machine: LocalBackend) -> None:
    left = strays(machine)

    supervisor(machine).kill()
    eventually(lambda: all_have_exited(left))
    seen = machine.until("job-1", lambda seen: seen.status is LaunchStatus.FORGOTTEN)
    do(machine.launcher.submit(machine.launch("job-1")))

    assert seen.placements == 1
    assert do(machine.launcher.observe("job-1")) == seen


def test_observation_ends_processes_of_a_frozen_guard(machine: LocalBackend) -> None:
    left = strays(machine)
    dead = supervisor(machine)
    (guard,) = dead.children()
    guard.suspend()

    dead.kill()
    eventually(lambda: all_have_exited([dead]))
    machine.until("job-1", lambda seen: seen.status is LaunchStatus.FORGOTTEN)

    assert all_have_exited([*left, guard])


def test_shell_that_restarts_its_child_is_killed_with_it(machine: LocalBackend) -> None:
    """Supervisor and guard are dead, and the shell replaces a killed child within milliseconds."""
    file = machine.home / "shell"
    run = f"bash -c 'echo $$ > {file}; while true; do sleep 1000; done' & wait"
    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    eventually(lambda: file.exists() and file.read_text())
    shell = psutil.Process(int(file.read_text()))
    dead = supervisor(machine)
    (guard,) = dead.children()
    guard.suspend()  # It would kill the shell.

    dead.kill()
    guard.kill()
    eventually(lambda: all_have_exited([dead, guard]))
    seen = do(machine.launcher.observe("job-1"))

    assert seen.status is LaunchStatus.FORGOTTEN
    assert all_have_exited([shell])


def test_process_that_one_listing_misses_is_killed(
    machine: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its parent ends between the reads of both: without its guard, no mark leads to it."""
    left = strays(machine)
    dead = supervisor(machine)
    (guard,) = dead.children()
    guard.suspend()
    dead.kill()
    listed: list[int] = []
    children = psutil.Process.children

    def incomplete(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        is_first = process.pid not in listed
        listed.append(process.pid)
        return [] if is_first else children(process, recursive)

    monkeypatch.setattr(psutil.Process, "children", incomplete)
    eventually(lambda: all_have_exited([dead]))
    seen = do(machine.launcher.observe("job-1"))

    assert seen.status is LaunchStatus.FORGOTTEN
    assert all_have_exited([*left, guard])


def test_killed_guard_is_a_lost_node_without_processes(machine: LocalBackend) -> None:
    left = strays(machine)
    (guard,) = supervisor(machine).children()

    guard.kill()
    seen = machine.until("job-1", lambda seen: seen.placements == 2)

    assert all_have_exited(left)
    assert seen.recent_placements[0].cause is Cause.NODE_FAILED
    assert seen.recent_placements[0].detail == "node 0 was lost"


def test_background_processes_end_with_their_program(machine: LocalBackend) -> None:
    file = machine.home / "stray"
    run = f"env -i setsid sleep 1000 & echo $! > {file}"

    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    machine.until("job-1", is_ended)

    assert not psutil.pid_exists(int(file.read_text()))


def test_cancel_of_a_launch_without_supervisor_is_observed(machine: LocalBackend) -> None:
    left = strays(machine)
    supervisor(machine).kill()
    eventually(lambda: all_have_exited(left))

    do(machine.launcher.cancel("job-1"))
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.CANCELLED


def test_training_outlives_the_service_that_submitted_it(machine: LocalBackend) -> None:
    """The service is killed right after its submit; the next one finds the launch directory."""
    service = os.fork()
    if service == 0:
        try:
            do(machine.launcher.submit(machine.launch("job-1")))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(service, 0)

    another = LocalLauncher(machine.home, machine.market)
    seen = eventually(lambda: (seen := do(another.observe("job-1"))) and is_up(seen) and seen)
    eventually(lambda: machine.runs("job-1"))
    do(another.cancel("job-1"))

    assert seen
    machine.until("job-1", is_ended)
    assert machine.runs("job-1") == 1


def test_failed_node_ends_all_nodes_of_its_attempt(machine: LocalBackend) -> None:
    run = "[ $SKYPILOT_NODE_RANK = 1 ] && { echo out of memory; exit 9; }; exec sleep 1000"

    do(machine.launcher.submit(machine.script_launch("job-1", run, nodes=3)))
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.exit_code, seen.result.detail) == (9, "node 1 exited with 9: out of memory")


def test_program_that_ignores_a_notice_is_ended_later(machine: LocalBackend) -> None:
    run = "trap 'echo noticed >> noticed' TERM; echo ready; while true; do sleep 0.05; done"
    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    eventually(lambda: "ready" in machine.log("job-1"))
    node = machine.folder("job-1").node(1, 0)

    def deadline() -> datetime:
        notice = json.loads((node.run / "notice.json").read_text())
        return datetime.fromisoformat(notice["deadline"])

    do(machine.launcher.preempt("job-1", node=0, notice_s=600))
    eventually((node.workdir / "noticed").exists)
    first = deadline()
    do(machine.launcher.preempt("job-1", node=0, notice_s=0.5))
    lost = machine.until(
        "job-1", lambda seen: bool(seen.recent_placements[0].lost_at)
    ).recent_placements[0]

    assert lost.lost_at
    assert deadline() <= lost.lost_at < first, "the first one to come counts"


def test_shell_ended_by_a_notice_leaves_its_child_time_to_save(
    machine: LocalBackend,
) -> None:
    """bash exits immediately on SIGTERM, while the worker below it is still saving."""
    worker = (
        "trap 'sleep 0.5; touch $SAVED; exit 75' TERM; echo ready; while true; do sleep 0.05; done"
    )
    saved = machine.home / "saved"
    run = 'bash -c "$WORKER"\necho unreachable\n'
    envs = {"WORKER": worker, "SAVED": str(saved)}
    do(machine.launcher.submit(machine.script_launch("job-1", run, envs=envs)))
    eventually(lambda: "ready" in machine.log("job-1"))

    do(machine.launcher.preempt("job-1", node=0, notice_s=600))
    lost = machine.until("job-1", lambda seen: seen.placements == 2).recent_placements[0]

    assert saved.exists()
    assert lost.lost_at
    assert (lost.lost_at - lost.ready_at).total_seconds() < 600, "it waits for the program only"
    assert lost.cause is Cause.PREEMPTED


def test_exit_report_overrides_an_exit_code_hidden_by_a_pipe(
    machine: LocalBackend,
) -> None:
    left = {"reason": "preempted", "exit_code": 75, "step": 7, "detail": ""}
    run = f"echo '{json.dumps(left)}' > $HOLDFAST_RUN_DIR/left.json; exit 0"

    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    seen = machine.until("job-1", lambda seen: seen.placements == 2)

    assert seen.recent_placements[0].cause is Cause.NODE_FAILED
    assert "without a notice from Holdfast" in seen.recent_placements[0].detail


def test_each_attempt_starts_with_the_submitted_files(
    machine: LocalBackend, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("as submitted")
    run = "cat train.py; echo spoiled > train.py; ls $HOLDFAST_RUN_DIR; exec sleep 1000"
    do(machine.launcher.submit(machine.script_launch("job-1", run, workdir=str(source))))
    eventually(lambda: "as submitted" in machine.log("job-1"))
    (source / "train.py").write_text("edited later")

    do(machine.launcher.preempt("job-1", node=None, notice_s=None))
    eventually(lambda: "ranks" in machine.log("job-1", attempt=2))

    assert machine.log("job-1", attempt=2) == "as submittedranks\n"


def test_logs_of_nodes_and_ranks_are_read_in_pieces(machine: LocalBackend) -> None:
    run = "printf hello; printf 'step 1' > $HOLDFAST_RUN_DIR/ranks/rank-$SKYPILOT_NODE_RANK.log"
    do(machine.launcher.submit(machine.script_launch("job-1", run, nodes=2)))
    machine.until("job-1", is_ended)

    sources = do(machine.launcher.logs("job-1"))
    node, _, _, rank = sources

    assert [(each.attempt, each.node, each.rank, each.size_bytes) for each in sources] == [
        (1, 0, None, 5),
        (1, 0, 0, 6),
        (1, 1, None, 5),
        (1, 1, 1, 6),
    ]
    assert machine.launcher.read_log("job-1", node, 1, 3) == b"ell"
    assert machine.launcher.read_log("job-1", rank, 5, 100) == b"1"
    assert machine.launcher.read_log("job-1", rank, 6, 100) == b""


def test_launch_unknown_to_the_database_is_only_listed(machine: LocalBackend) -> None:
    do(machine.launcher.submit(machine.launch("job-1")))
    machine.until("job-1", is_up)

    found = do(machine.launcher.sweep(lambda key: None))
    strangers = [stray.key for stray in machine.launcher.strangers]
    do(machine.launcher.sweep(lambda key: True))
    known = machine.launcher.strangers
    do(machine.launcher.cancel("job-1"))
    machine.until("job-1", is_ended)
    do(machine.launcher.sweep(lambda key: None))

    assert (list(found), strangers, known) == ([], ["job-1"], ())
    assert machine.launcher.strangers == ()


def test_failed_program_restarts_after_pauses(
    machine: LocalBackend,
) -> None:
    machine.launcher = LocalLauncher(machine.home, machine.market, restart_s=0.5)
    machine.kind = ProgramKind.FAILS_TRAINED
    usage_error = machine.script_launch(
        "job-2", "touch $HOLDFAST_RUN_DIR/trained; exit 2", max_failures=3
    )

    do(machine.launcher.submit(machine.launch("job-1", max_failures=3)))
    do(machine.launcher.submit(usage_error))
    failed, useless = machine.until("job-1", is_ended), machine.until("job-2", is_ended)

    first, second, third = failed.recent_placements
    assert first.lost_at
    assert second.lost_at
    pauses_s = [
        (second.ready_at - first.lost_at).total_seconds(),
        (third.ready_at - second.lost_at).total_seconds(),
    ]
    assert pauses_s[0] >= 0.5
    assert pauses_s[1] >= 1.0
    assert failed.result
    assert (failed.result.outcome, failed.result.exit_code) == (Outcome.FAILED, 3)
    assert useless.result
    assert (useless.result.exit_code, useless.placements) == (2, 1)
