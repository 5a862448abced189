"""A lost node of a running job is replaced alone: the other nodes wait in their processes, and no step is lost.

In an elastic job, they train with its ranks in the meantime. With a sharded model, all ranks start again from snapshots in memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from holdfast_worker.protocol.environment import WAITS_FILE
from support.held_example import held_example, release
from support.live_service import Service
from worker.support.run_driver import wait_until

STEPS = 80


def submitted(
    service: Service,
    nodes: int | dict[str, int] = 2,
    *,
    steps: int = STEPS,
    options: str = "",
    start: str = "",
    **hold: float,
) -> str:
    """Submit a job on two nodes, and wait until the first one would wait for a lost one.

    Its program is held until a node is lost. `start`: commands before it.
    """
    job = service.submit(
        name="replaced",
        workdir=str(held_example(service.folder, **hold)),
        num_nodes=nodes,
        run=f"{start}holdfast-worker run train.py --steps {steps} --step-seconds 0.1 {options}",
        holdfast={
            "checkpoint": {
                "store": f"file://{service.folder}/store",
                "every": "10 steps",
                "memory": "4 steps",
            }
        },
    )
    service.until(job, lambda job: (job["last_checkpoint_step"] or 0) >= 10)
    [run_dir] = service.home.rglob(f"{job}-*/attempts/1/node-0/run")
    wait_until((run_dir / WAITS_FILE).exists)
    return job


def guard_of(service: Service, job: str, node: int) -> psutil.Process:
    """The guard of a node, the parent of the shell that runs its program."""
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except psutil.Error:
            continue
        if env.get("HOLDFAST_JOB") == job and env.get("SKYPILOT_NODE_RANK") == str(node):
            parents = process.parents()
            return next(p for p in parents if "HOLDFAST_JOB" not in p.environ())
    raise AssertionError(f"node {node} does not run")


def kill_guard(service: Service, job: str) -> None:
    os.kill(guard_of(service, job, 1).pid, signal.SIGKILL)
    release(service.folder)


def preempt(service: Service, job: str) -> None:
    assert service.cli("preempt", job, "--node", "1", "--notice", "3s").returncode == 0
    release(service.folder)


def kill_guard_without_service(service: Service, job: str) -> None:
    """Kill the guard of a node while the service is away; it returns when the node is replaced."""
    service.end(signal.SIGKILL)
    kill_guard(service, job)
    [history] = service.home.rglob(f"{job}-1/history.jsonl")
    wait_until(lambda: "node_replaced" in history.read_text())
    service.start()


@pytest.mark.parametrize(
    ("lose", "cause"),
    [
        (kill_guard_without_service, "node_failed"),
        pytest.param(kill_guard, "node_failed", marks=pytest.mark.full),
        pytest.param(preempt, "preempted", marks=pytest.mark.full),
    ],
)
def test_lost_node_costs_no_step_and_no_attempt(
    service: Service, lose: Callable[[Service, str], None], cause: str
) -> None:
    job = submitted(service)

    lose(service, job)
    done: dict[str, Any] = service.ended(job)

    assert (done["state"], done["step"], done["attempt"]) == ("succeeded", STEPS, 1)
    assert (done["preemptions"], done["failures"]) == (1, 0)
    events = service.json("events", job)
    kinds = [event["kind"] for event in events]
    once = ("NodesReady", "TrainingStarted", "NodeLost", "NodeReplaced", "RanksReplaced")
    assert {kind: kinds.count(kind) for kind in once} == dict.fromkeys(once, 1)
    assert "CapacityLost" not in kinds
    bodies = {event["kind"]: event["body"] for event in events}
    lost, replaced = bodies["NodeLost"], bodies["NodeReplaced"]
    assert (lost["node"], lost["nodes"], lost["cause"]) == (1, 1, cause)
    assert (replaced["node"], replaced["nodes"]) == (1, 2)
    price = bodies["NodesReady"]["micros_per_hour"]
    assert lost["micros_per_hour"] * 2 == price
    assert replaced["micros_per_hour"] == price
    assert bodies["RanksReplaced"]["ranks"] == [1]
    assert service.json("bill", job)["lost_steps"] == 0


@pytest.mark.parametrize(
    ("lose", "cause"),
    [(kill_guard, "node_failed"), pytest.param(preempt, "preempted", marks=pytest.mark.full)],
)
def test_sharded_job_keeps_its_other_node(
    service: Service, lose: Callable[[Service, str], None], cause: str
) -> None:
    job = submitted(service, options="--shard")

    lose(service, job)
    done: dict[str, Any] = service.ended(job)

    assert (done["state"], done["step"], done["attempt"]) == ("succeeded", STEPS, 1)
    assert (done["preemptions"], done["failures"]) == (1, 0)
    events = service.json("events", job)
    kinds = [event["kind"] for event in events]
    counts = {"NodesReady": 1, "NodeLost": 1, "NodeReplaced": 1, "RanksRestarted": 1}
    assert {kind: kinds.count(kind) for kind in counts} == counts
    assert {"CapacityLost", "RanksReplaced"}.isdisjoint(kinds)
    bodies = {event["kind"]: event["body"] for event in events}
    assert bodies["NodeLost"]["cause"] == cause
    restart, resumed = bodies["RanksRestarted"], bodies["TrainingStarted"]
    assert restart["node_lost"] is True
    assert service.json("bill", job)["lost_steps"] == restart["step"] - resumed["step"] <= 20
    sentences = [item["text"] for item in service.json("why", job)]
    assert any(text.startswith("Ranks started again with a new node") for text in sentences)


def test_elastic_job_trains_on_fewer_nodes(service: Service) -> None:
    # Steps are long until both moves of the ranks are seen, and the replacement waits until the first one is.
    steps = 120
    seen = service.folder / "seen"
    job = submitted(
        service,
        {"min": 1, "max": 2},
        steps=steps,
        start=f'[ "$HOLDFAST_NODE_START" = 0 ] || until [ -e {seen} ]; do sleep 0.1; done; ',
        first=15,
        last=steps,
        most_s=2.0,
    )

    os.kill(guard_of(service, job, 1).pid, signal.SIGKILL)
    degraded = service.until(job, lambda job: job["state"] == "degraded")
    seen.touch()
    whole = service.until(job, lambda job: job["state"] == "training")
    release(service.folder)
    done = service.ended(job)

    assert (degraded["nodes"], degraded["min_nodes"]) == (2, 1)
    assert "training on 1 of 2 nodes" in degraded["detail"]
    assert whole["step"] < steps, "the ranks moved to the replacement before the end"
    assert (done["state"], done["attempt"], done["preemptions"]) == ("succeeded", 1, 1)
    events = service.json("events", job)
    kinds = [event["kind"] for event in events]
    once = ("NodesReady", "TrainingStarted", "NodeLost", "NodeReplaced")
    assert {kind: kinds.count(kind) for kind in once} == dict.fromkeys(once, 1)
    replaced = [event["body"] for event in events if event["kind"] == "RanksReplaced"]
    assert [body["hosted_nodes"] for body in replaced] == [[1], []]
    logs = service.get(f"/v1/jobs/{job}/logs").json()
    assert [log["node"] for log in logs if log["rank"] == 1] == [0, 1]
    bill = service.json("bill", job)
    [attempt] = bill["attempts"]
    assert (bill["lost_steps"], attempt["ms"]["lost"]) == (0, 0)
    assert 0 < attempt["degraded_ms"] <= attempt["ms"]["useful"]
