"""A killed rank of a running job is replaced on its node, in the same attempt and without a launch."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from holdfast_worker.run_dir import RunDir
from support.held_example import held_example, release
from support.live_service import Service

STEPS = 60


def kill_a_rank(service: Service, recovery: str) -> tuple[str, dict[str, Any]]:
    """Run a job in which rank 1 is killed; return the job and its end."""
    job = service.submit(
        name="restarted",
        workdir=str(held_example(service.folder)),
        num_nodes=2,
        run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.1",
        holdfast={
            "checkpoint": {"store": f"file://{service.folder}/store", "every": "10 steps"},
            "recovery": recovery,
        },
    )
    service.until(job, lambda job: (job["last_checkpoint_step"] or 0) >= 10)
    [run_dir] = service.home.rglob(f"{job}-*/attempts/1/node-1/run")
    [rank] = RunDir(run_dir).registered_pids().values()
    os.kill(rank, signal.SIGKILL)
    release(service.folder)
    return job, service.ended(job)


def test_killed_rank_costs_no_step(service: Service) -> None:
    job, done = kill_a_rank(service, "in_process")

    assert (done["state"], done["step"], done["attempt"]) == ("succeeded", STEPS, 1)
    assert (done["preemptions"], done["failures"]) == (0, 0)
    events = service.json("events", job)
    kinds = [event["kind"] for event in events]
    assert kinds.count("TrainingStarted") == kinds.count("NodesReady") == 1
    [replaced] = (event["body"] for event in events if event["kind"] == "RanksReplaced")
    assert replaced["ranks"] == [1]
    assert replaced["cause"] == "rank 1 on node 1 was killed by signal 9"
    bill = service.json("bill", job)
    assert (bill["lost_steps"], bill["losses"]) == (0, [])
    sentences = [item["text"] for item in service.json("why", job)]
    assert any(text.startswith("Rank 1 was replaced") for text in sentences)


@pytest.mark.full
def test_killed_rank_costs_no_attempt(service: Service) -> None:
    job, done = kill_a_rank(service, "restart")

    assert (done["state"], done["step"], done["attempt"]) == ("succeeded", STEPS, 1)
    assert (done["preemptions"], done["failures"]) == (0, 1)
    events = service.json("events", job)
    kinds = [event["kind"] for event in events]
    assert kinds.count("LaunchRequested") == kinds.count("NodesReady") == 1
    assert kinds.count("RanksRestarted") == 1
    assert "CapacityLost" not in kinds
    [restart] = (event["body"] for event in events if event["kind"] == "RanksRestarted")
    assert restart["detail"] == "rank 1 on node 1 was killed by signal 9"
    begun = [event["body"]["step"] for event in events if event["kind"] == "TrainingStarted"]
    bill = service.json("bill", job)
    assert bill["lost_steps"] == restart["step"] - begun[1]
    assert bill["losses"] == []
    sentences = [item["text"] for item in service.json("why", job)]
    assert any(text.startswith("Ranks started again on the same nodes") for text in sentences)
