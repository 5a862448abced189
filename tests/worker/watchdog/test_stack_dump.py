"""Stacks of a process, from py-spy or, without permission, from the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import stack_dump
from holdfast_worker.watchdog.hang_inspection import collectives_started
from holdfast_worker.watchdog.heartbeat import HeartbeatReader, HeartbeatWriter, Phase
from worker.support.run_driver import STARTED, wait_until

HANGS = """
import re, sys, threading
from pathlib import Path
from holdfast_worker.watchdog import stack_dump
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase
from holdfast_worker.run_dir import RunDir

def inner():
    threading.Event().wait()

def outer():
    inner()

stack_dump.install_stack_dump_handler(Path(sys.argv[1]) / "hang" / "rank-3.answers.txt")
beat = HeartbeatWriter.create(RunDir(Path(sys.argv[1])), 3)
beat.start_at(1200)
beat.enter(Phase.LOADING)
with beat.waiting_for_ranks():
    outer()
"""
NO_SPY = "/bin/false"
"""A program in place of py-spy that fails, as without permission."""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    STARTED.append(process)
    heartbeats = HeartbeatReader(RunDir(tmp_path), [3])
    wait_until(lambda: heartbeats.read()[0].is_waiting)
    yield process
    process.kill()
    process.wait()


def test_stack_dump_shows_all_frames_and_the_location(
    hanging: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    seen = stack_dump.dump_stacks(hanging.pid, tmp_path / "none")

    assert not stack_dump.is_stopped(hanging.pid)
    assert [frame.name for frame in seen.main if frame.file == "hangs.py"] == [
        "inner",
        "outer",
        "<module>",
    ]
    assert seen.location.startswith("Condition.wait (threading.py:")
    assert seen.location.endswith(", called from inner (hangs.py:9)")
    assert not seen.is_in_torch
    assert f"process {hanging.pid}, thread {hanging.pid}" in seen.text


def test_stacks_of_a_stopped_process_are_read(
    hanging: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    hanging.send_signal(signal.SIGSTOP)
    wait_until(lambda: stack_dump.is_stopped(hanging.pid))

    seen = stack_dump.dump_stacks(hanging.pid, tmp_path / "none")

    assert seen.location.endswith(", called from inner (hangs.py:9)")


@pytest.mark.parametrize("spy", [NO_SPY, "/nowhere/py-spy", None])
def test_process_that_py_spy_cannot_read_dumps_its_own_stacks(
    hanging: subprocess.Popen[bytes], tmp_path: Path, spy: str | None
) -> None:
    seen = stack_dump.dump_stacks(hanging.pid, tmp_path / "hang" / "rank-3.answers.txt", spy)
    again = stack_dump.dump_stacks(hanging.pid, tmp_path / "hang" / "rank-3.answers.txt", spy)

    assert [frame.name for frame in seen.main] == ["wait", "wait", "inner", "outer", "<module>"]
    assert seen.location.endswith(", called from inner (hangs.py:9)")
    assert again == seen


def test_missing_stacks_of_a_stopped_process_are_explained(
    hanging: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    hanging.send_signal(signal.SIGSTOP)

    seen = stack_dump.dump_stacks(hanging.pid, tmp_path / "hang" / "rank-3.answers.txt", None)

    assert seen == stack_dump.StackDump(
        f"no stacks of process {hanging.pid}: py-spy is not installed\n"
    )
    assert seen.location == ""


def test_heartbeat_of_a_stopped_or_killed_rank_is_readable(
    hanging: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    heartbeats = HeartbeatReader(RunDir(tmp_path), [3])
    hanging.send_signal(signal.SIGSTOP)
    wait_until(lambda: stack_dump.is_stopped(hanging.pid))
    [stopped] = heartbeats.read()
    hanging.kill()
    hanging.wait()
    [dead] = heartbeats.read()

    assert (stopped.rank, stopped.phase, stopped.step, stopped.steps_here) == (
        3,
        Phase.LOADING,
        1200,
        0,
    )
    assert (stopped.agreements, stopped.is_waiting) == (1, True)
    assert dead == stopped


def test_rank_without_a_run_has_an_absent_heartbeat(tmp_path: Path) -> None:
    [pulse] = HeartbeatReader(RunDir(tmp_path), [3]).read()

    assert pulse.phase is Phase.ABSENT
    assert not pulse.is_busy


def test_heartbeat_changes_with_each_step_and_beat(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    heartbeat, heartbeats = HeartbeatWriter.create(run_dir, 0), HeartbeatReader(run_dir, [0])
    before = heartbeats.read()[0]

    heartbeat.enter(Phase.STEPPING)
    heartbeat.complete_step(7)
    after = heartbeats.read()[0]
    heartbeat.mark_alive()
    alive = heartbeats.read()[0]

    assert (before.phase, after.phase) == (Phase.STARTING, Phase.STEPPING)
    assert (after.step, after.steps_here) == (7, 1)
    assert before.since_s < after.since_s < alive.since_s


def test_heartbeat_without_a_wrapper_is_not_published(tmp_path: Path) -> None:
    heartbeat = HeartbeatWriter.create(None, 0)

    heartbeat.complete_step(1)

    assert not heartbeat.is_published
    assert list(tmp_path.iterdir()) == []


def test_unwritable_run_directory_stops_only_the_watchdog(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ranks").touch()

    heartbeat = HeartbeatWriter.create(RunDir(tmp_path), 3)
    heartbeat.complete_step(1)

    assert not heartbeat.is_published
    assert capfd.readouterr().err.startswith("holdfast: a hang of rank 3 cannot be detected: ")


def test_record_request_succeeds_only_with_an_open_pipe(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    run_dir = RunDir(tmp_path)

    is_read_before = run_dir.request_record(0)
    pipe = run_dir.open_request_pipe(0)
    is_read = run_dir.request_record(0)

    assert not is_read_before
    assert is_read
    assert os.read(pipe, 1) == b"?"
    os.close(pipe)


def test_flight_record_is_read_by_process_group() -> None:
    found = {"last_enqueued_collective": "8", "last_completed_collective": "7"}

    assert collectives_started(
        {"gloo": {"pg_status": {"0": found}}, "nccl": {"pg_status": {}}}
    ) == {"gloo 0": 8}
