"""Ranks that fail start again on their node, unless a retry needs a different node or would fail again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.failure_cause import FailureCause, RestartPolicy
from worker.support.run_driver import (
    DDP_SCRIPT,
    TIMEOUT_S,
    TOTAL,
    RunDriver,
    free_port,
    wait_until,
)

ONCE = {"HOLDFAST_MAX_RESTARTS": "1"}
TWO_RANKS = ("--nproc-per-node", "2", DDP_SCRIPT)
ENDLESS = "1000000"


@pytest.fixture
def driver(tmp_path: Path) -> RunDriver:
    return RunDriver(tmp_path, extra=ONCE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDriver:
    """A finished run without a failure."""
    driver = RunDriver(tmp_path_factory.mktemp("undisturbed"))
    code, _, err = driver.run_wrapper(*TWO_RANKS, TOTAL)
    assert code == Exit.DONE, err
    return driver


def cause(code: int, step: int) -> FailureCause:
    return FailureCause(code, step, "a reason")


def counts(driver: RunDriver, *kinds: ReportKind) -> list[int]:
    return [len(driver.reports(kind)) for kind in kinds]


def test_killed_rank_is_replaced_within_the_attempt(
    driver: RunDriver, undisturbed: RunDriver
) -> None:
    fall = ("--fall", f"1:26:{signal.SIGKILL}")

    code, _, err = driver.run_wrapper(*TWO_RANKS, TOTAL, *fall, "--once")

    assert code == Exit.DONE, err
    assert driver.result == undisturbed.result
    [restart] = driver.reports(ReportKind.RANKS_RESTARTED)
    assert restart.attempt == 1
    assert restart.body["exit_code"] == 128 + signal.SIGKILL
    assert restart.body["detail"] == "rank 1 was killed by signal 9"
    first, second = driver.reports(ReportKind.TRAINING_STARTED)
    assert first.n < restart.n < second.n
    assert second.body["restored_from"]
    assert counts(driver, ReportKind.WORKER_LEFT) == [1]
    assert "starting all ranks again on the same nodes: rank 1 was killed by signal 9" in err


def test_killed_agent_is_replaced_by_its_successor(driver: RunDriver) -> None:
    wrapper = driver.start_wrapper(*TWO_RANKS, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)
    [agent] = psutil.Process(wrapper.pid).children()
    ranks = RunDir(driver.run_dir).registered_pids()
    [successor] = {child.pid for child in agent.children()} - {*ranks.values()}

    agent.kill()
    wait_until(lambda: counts(driver, ReportKind.TRAINING_STARTED) == [2])
    replaced = RunDir(driver.run_dir).registered_pids()

    assert {psutil.Process(pid).ppid() for pid in replaced.values()} == {successor}
    assert not {*replaced.values()} & {*ranks.values()}
    wrapper.kill()
    wait_until(lambda: not any(map(psutil.pid_exists, replaced.values())))


def test_ranks_of_all_nodes_start_again_together(driver: RunDriver, undisturbed: RunDriver) -> None:
    nodes = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "HOLDFAST_RECOVERY": "restart",
    }
    port = str(free_port())
    wrappers = []
    for node in range(2):
        own = {"SKYPILOT_NODE_RANK": str(node), "HOLDFAST_RUN_DIR": str(driver.path / f"n{node}")}
        driver.extra = {**ONCE, **nodes, **own, "HOLDFAST_MASTER_PORT": port}
        driver.attempt = 0
        fall = ("--fall", f"1:26:{signal.SIGKILL}", "--once")
        wrappers.append(driver.start_wrapper("--nproc-per-node", "1", DDP_SCRIPT, TOTAL, *fall))

    errors = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in wrappers]

    assert [wrapper.returncode for wrapper in wrappers] == [Exit.DONE, Exit.DONE], errors
    assert driver.result == undisturbed.result
    [restart] = driver.reports(ReportKind.RANKS_RESTARTED)
    assert restart.body["detail"] == "rank 1 on node 1 was killed by signal 9"


def test_failure_at_the_same_step_ends_the_attempt(driver: RunDriver) -> None:
    code, _, _ = driver.run_wrapper(*TWO_RANKS, TOTAL, "--error", "26")

    assert code == Exit.FAILED
    assert counts(driver, ReportKind.RANKS_RESTARTED, ReportKind.WORKER_LEFT) == [1, 1]


def test_failure_before_the_first_step_ends_the_attempt(driver: RunDriver) -> None:
    script = driver.path / "script.py"
    script.write_text("raise ValueError('the reason')\n")

    code, _, _ = driver.run_wrapper(str(script))

    assert code == Exit.FAILED
    assert counts(driver, ReportKind.RANKS_RESTARTED, ReportKind.WORKER_LEFT) == [0, 1]


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "debug"])
def test_run_of_a_person_ends_with_its_first_error(driver: RunDriver, by_hand: bool) -> None:
    driver.extra = {"HOLDFAST_JOB": "", "HOLDFAST_MAX_RESTARTS": ""} if by_hand else ONCE
    debug = () if by_hand else ("--debug",)

    code, _, err = driver.run_wrapper(*debug, *TWO_RANKS, TOTAL, "--error", "26")

    assert code == Exit.FAILED
    assert "starting all ranks again" not in err


def test_ranks_do_not_start_again_after_a_notice(driver: RunDriver) -> None:
    wrapper = driver.start_wrapper(*TWO_RANKS, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)
    RunDir(driver.run_dir).record_notice(None)

    os.kill(RunDir(driver.run_dir).registered_pids()[1], signal.SIGKILL)
    wrapper.communicate(timeout=TIMEOUT_S)

    assert wrapper.returncode != Exit.DONE
    assert counts(driver, ReportKind.RANKS_RESTARTED) == [0]


@pytest.mark.parametrize(
    "code",
    [
        *(set(Exit) - {Exit.FAILED}),
        *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_codes_with_a_meaning_permit_no_restart(code: int) -> None:
    assert not RestartPolicy(9).allows(cause(code, 5))


@pytest.mark.parametrize("code", [1, 3, 128 + signal.SIGKILL, 128 + signal.SIGSEGV])
def test_failures_of_a_program_permit_a_restart(code: int) -> None:
    assert RestartPolicy(1).allows(cause(code, 5))
    assert not RestartPolicy(0).allows(cause(code, 5))


def test_restarts_count_until_the_run_gets_further() -> None:
    policy = RestartPolicy(2)

    for _ in range(2):
        assert policy.allows(cause(1, 5))
        policy.record(cause(1, 5))

    assert not policy.allows(cause(1, 5))
    assert not policy.allows(cause(1, 4))
    assert policy.allows(cause(1, 6))
    policy.record(cause(1, 6))
    assert policy.allows(cause(1, 6))
