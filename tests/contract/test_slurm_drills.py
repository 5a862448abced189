"""Preemptions on request on a real Slurm: nodes end as if a spot market had taken them."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.launcher_backends import do, eventually, is_ended
from contract.slurm_launcher import PATIENCE_S, SlurmBackend
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import Observation
from holdfast.errors import NotPossibleNow
from local_slurm import SlurmCluster

SAVES = """
[ $HOLDFAST_ATTEMPT = 2 ] && exit 0
saved() { cat $HOLDFAST_RUN_DIR/../../node-*/run/saved 2> /dev/null | wc -l; }
leave() {
  cp $HOLDFAST_RUN_DIR/notice.json $HOLDFAST_RUN_DIR/draft
  echo >> $HOLDFAST_RUN_DIR/draft
  mv $HOLDFAST_RUN_DIR/draft $HOLDFAST_RUN_DIR/saved
  until [ $(saved) -ge $SKYPILOT_NUM_NODES ]; do sleep 0.1; done
  exit 75
}
trap leave TERM
touch $HOLDFAST_RUN_DIR/up
while :; do sleep 0.1; done
"""
"""A program that saves on notice and exits with the others, as ranks do. It succeeds in its second attempt."""
SAVES_WITHOUT_SHELL = """
[ $HOLDFAST_ATTEMPT = 2 ] && exit 0
save() {
  trap '' TERM
  kill -TERM $$
  while kill -0 $$ 2> /dev/null; do sleep 0.1; done
  touch $HOLDFAST_RUN_DIR/up
  until [ -e $HOLDFAST_RUN_DIR/notice.json ]; do sleep 0.1; done
  sleep 2
  echo '{"reason": "preempted"}' > $HOLDFAST_RUN_DIR/left.json
}
save &
while :; do sleep 0.1; done
"""
"""A program that saves on notice, and whose shell the signal has ended by then. It succeeds in its second attempt."""
FAILS = """
[ $HOLDFAST_ATTEMPT = 2 ] && exit 0
trap '' TERM
touch $HOLDFAST_RUN_DIR/up
while [ ! -e $HOLDFAST_RUN_DIR/notice.json ]; do sleep 0.1; done
exit 9
"""
"""A program that fails during its notice. It would succeed in its second attempt."""
ELASTIC = """
if [ $SKYPILOT_NODE_RANK = 0 ]; then touch $HOLDFAST_RUN_DIR/trained $HOLDFAST_RUN_DIR/waits-for-nodes; fi
touch $HOLDFAST_RUN_DIR/up
trap 'touch $DONE.signalled' TERM
until [ -e "$DONE" ]; do sleep 0.1; done
"""
"""A program in training whose ranks wait for those of a lost node."""


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmBackend:
    return SlurmBackend(slurm, slurm.new_folder())


def start(cluster: SlurmBackend, run: str, nodes: int = 2, min_nodes: int | None = None) -> Path:
    """Start a job, and return the directory of its first attempt once its program runs."""
    elastic = {} if min_nodes is None else {"HOLDFAST_MIN_NODES": str(min_nodes)}
    envs = {"DONE": str(cluster.home / "done"), **elastic}
    do(cluster.launcher.submit(cluster.script_launch("job-1", run, nodes=nodes, envs=envs)))
    attempt = cluster.folder("job-1") / "attempts" / "1"
    eventually(lambda: len([*attempt.glob("node-*/run/up")]) == nodes, PATIENCE_S)
    return attempt


def preempt(cluster: SlurmBackend, notice_s: float | None, node: int | None = None) -> None:
    do(cluster.launcher.preempt("job-1", node=node, notice_s=notice_s))


def ended(cluster: SlurmBackend) -> Observation:
    seen = cluster.until("job-1", is_ended)
    assert seen.result
    return seen


def check_requeued(cluster: SlurmBackend) -> None:
    """Check that a drill ends the first placement, and that the program succeeds in the second one."""
    seen = ended(cluster)
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    first, second = seen.recent_placements
    assert (first.cause, first.detail) == (Cause.NODE_FAILED, "preempted on request")
    assert second.cause is None


def test_program_saves_after_notice_and_is_requeued(cluster: SlurmBackend) -> None:
    attempt = start(cluster, SAVES)

    preempt(cluster, 120)
    with pytest.raises(NotPossibleNow, match="is being preempted already"):
        preempt(cluster, 120)

    check_requeued(cluster)
    assert all("deadline" in saved.read_text() for saved in attempt.glob("node-*/run/saved"))
    assert len([*attempt.glob("node-*/run/saved")]) == 2
    assert not [*attempt.glob("node-*/gone")], "it has exited before the end of the notice"


def test_program_saves_after_the_signal_has_ended_its_shell(cluster: SlurmBackend) -> None:
    """The signal reaches the shells of a node one after the other."""
    start(cluster, SAVES_WITHOUT_SHELL, nodes=1)

    preempt(cluster, 120)

    check_requeued(cluster)


def test_nodes_disappear_without_notice(cluster: SlurmBackend) -> None:
    attempt = start(cluster, SAVES)

    preempt(cluster, None)

    check_requeued(cluster)
    # Each node looks for the drill every few seconds. When one is gone, Slurm ends those that have not looked yet.
    gone = min(attempt.glob("node-*/gone"), key=lambda file: file.stat().st_mtime_ns)
    assert not (gone.parent / "run/saved").exists()
    assert not [*attempt.glob("node-*/run/notice.json")]


@pytest.mark.full
def test_program_that_fails_during_a_drill_has_failed(cluster: SlurmBackend) -> None:
    start(cluster, FAILS, nodes=1)

    preempt(cluster, 120)
    seen = ended(cluster)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == (Outcome.FAILED, 9)


def test_elastic_job_continues_without_the_node(cluster: SlurmBackend) -> None:
    attempt = start(cluster, ELASTIC, nodes=3, min_nodes=2)

    assert do(cluster.launcher.replaces_alone("job-1", node=2))
    preempt(cluster, 1)
    degraded = cluster.until("job-1", lambda seen: bool(seen.recent_placements[-1].node_changes))
    hints = [hint.parent.parent.name for hint in attempt.glob("node-*/run/hint.json")]
    is_last_one = not do(cluster.launcher.replaces_alone("job-1", node=1))
    (cluster.home / "done").touch()
    seen = ended(cluster)

    (change,) = degraded.recent_placements[-1].node_changes
    assert (change.node, change.nodes, change.detail) == (2, 2, "n3 was preempted on request")
    assert hints == ["node-2"]
    assert is_last_one, "two nodes are needed"
    assert not (cluster.home / "done.signalled").exists(), "the others continue"
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    assert len(seen.recent_placements) == 1


def test_preempting_a_launch_without_nodes_is_refused(cluster: SlurmBackend) -> None:
    with pytest.raises(NotPossibleNow, match="job-1 has no running nodes; its status is absent"):
        preempt(cluster, 30)
    assert not do(cluster.launcher.replaces_alone("job-1", node=None))
