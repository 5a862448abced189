"""Elastic jobs on a real Slurm: other nodes continue without a lost one while enough are left."""

from __future__ import annotations

import pytest
from contract.launcher_backends import do, eventually, is_ended
from contract.slurm_launcher import PATIENCE_S, SlurmBackend
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from local_slurm import SlurmCluster

WAITS = """
run=$HOLDFAST_RUN_DIR
if [ $SKYPILOT_NODE_RANK = 0 ]; then touch $run/trained $run/waits-for-nodes; fi
[ $HOLDFAST_ATTEMPT = 2 ] && exit 0
[ $SKYPILOT_NODE_RANK = 2 ] && echo hosted > $run/ranks/rank-1.hosted.log
touch $run/up
until [ -e "$DONE" ]; do
  [ ! -e "$DONE.$SKYPILOT_NODE_RANK" ] || exit 9
  sleep 0.1
done
"""
"""A program in training whose ranks wait for those of a lost node. It succeeds in its second attempt."""


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmBackend:
    return SlurmBackend(slurm, slurm.new_folder())


def submit(cluster: SlurmBackend, min_nodes: int, run: str = WAITS) -> None:
    """Submit an elastic job on three nodes."""
    envs = {"HOLDFAST_MIN_NODES": str(min_nodes), "DONE": str(cluster.home / "done")}
    do(cluster.launcher.submit(cluster.script_launch("job-1", run, nodes=3, envs=envs)))


def wait_until_up(cluster: SlurmBackend) -> None:
    attempt = cluster.folder("job-1") / "attempts" / "1"
    eventually(lambda: len([*attempt.glob("node-*/run/up")]) == 3, PATIENCE_S)


def fail_node(cluster: SlurmBackend, name: str) -> None:
    cluster.cluster.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")


def has_lost_node(seen: Observation) -> bool:
    return bool(seen.recent_placements and seen.recent_placements[-1].node_changes)


def test_other_nodes_complete_without_a_lost_one(cluster: SlurmBackend) -> None:
    submit(cluster, min_nodes=2)
    wait_until_up(cluster)

    fail_node(cluster, "n2")
    degraded = cluster.until("job-1", has_lost_node)
    (cluster.home / "done").touch()
    seen = cluster.until("job-1", is_ended)

    assert degraded.status is LaunchStatus.UP
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    (placement,) = seen.recent_placements
    (change,) = placement.node_changes
    assert (change.node, change.nodes, change.micros_per_hour) == (1, 2, 2_000_000)
    assert (change.cause, change.detail) == (Cause.NODE_FAILED, "Slurm has lost n2")
    assert placement.lost_at is None


@pytest.mark.parametrize(
    ("is_hosted", "detail"),
    [
        (True, "n3 was lost to the others"),
        pytest.param(False, "the program on n3 exited with 9", marks=pytest.mark.full),
    ],
)
def test_job_completes_without_a_failed_program(
    cluster: SlurmBackend, is_hosted: bool, detail: str
) -> None:
    """Slurm knows nothing of such a loss, of which the worker of another node may know."""
    submit(cluster, min_nodes=2)
    wait_until_up(cluster)

    (cluster.home / "done.2").touch()
    if is_hosted:
        (cluster.folder("job-1") / "attempts/1/node-1/run/hosted-2-1").mkdir()
    degraded = cluster.until("job-1", has_lost_node)
    (cluster.home / "done").touch()
    seen = cluster.until("job-1", is_ended)

    (change,) = degraded.recent_placements[-1].node_changes
    assert (change.node, change.nodes, change.detail) == (2, 2, detail)
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result


def test_log_of_hosted_rank_is_listed_with_its_host(cluster: SlurmBackend) -> None:
    submit(cluster, min_nodes=2)
    wait_until_up(cluster)
    do(cluster.launcher.cancel("job-1"))

    (hosted,) = [log for log in do(cluster.launcher.logs("job-1")) if log.rank is not None]

    assert (hosted.node, hosted.rank, hosted.is_hosted) == (2, 1, True)
    assert cluster.launcher.read_log("job-1", hosted, 0, 100) == b"hosted\n"


def test_degraded_job_is_cancelled_with_notice(cluster: SlurmBackend) -> None:
    submit(cluster, min_nodes=2)
    wait_until_up(cluster)
    fail_node(cluster, "n2")
    cluster.until("job-1", has_lost_node)

    do(cluster.launcher.cancel("job-1"))
    seen = cluster.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.CANCELLED, seen.result
    attempt = cluster.folder("job-1") / "attempts" / "1"
    assert "deadline" in (attempt / "node-2" / "run" / "notice.json").read_text()


def test_job_with_too_few_nodes_left_is_requeued(cluster: SlurmBackend) -> None:
    submit(cluster, min_nodes=3)
    wait_until_up(cluster)

    fail_node(cluster, "n3")
    seen = cluster.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    assert [placement.cause for placement in seen.recent_placements] == [Cause.NODE_FAILED, None]
    assert [placement.nodes for placement in seen.recent_placements] == [3, 3]
    assert "why=lost\n" in (cluster.folder("job-1") / "facts" / "left.1").read_text()


def test_failed_program_ends_all_nodes_before_training(cluster: SlurmBackend) -> None:
    submit(cluster, 1, "[ $SKYPILOT_NODE_RANK = 1 ] && { echo no room; exit 9; }; exec sleep 1000")
    seen = cluster.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.exit_code, seen.result.detail) == (9, "node 1 exited with 9: no room")


@pytest.mark.full
@pytest.mark.parametrize("without_service", [True, False])
def test_loss_of_first_node_requeues_the_job(cluster: SlurmBackend, without_service: bool) -> None:
    """Slurm itself keeps the job, of which only the other nodes are left."""
    submit(cluster, min_nodes=1)
    wait_until_up(cluster)

    cluster.cluster.cut("n1")
    if without_service:
        # As the worker does without its first node.
        for node in (1, 2):
            (cluster.home / f"done.{node}").touch()
        eventually((cluster.folder("job-1") / "facts" / "placed.2").exists, PATIENCE_S)
    seen = cluster.until("job-1", is_ended)

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    assert [placement.cause for placement in seen.recent_placements] == [Cause.NODE_FAILED, None]
    assert [placement.nodes for placement in seen.recent_placements] == [3, 3]
