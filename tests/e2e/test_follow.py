"""Following a job: Ctrl-C leaves it running, and the command ends with the job."""

from __future__ import annotations

import signal
import subprocess

from support.live_service import HOLDFAST, PATIENCE_S, Service


def test_ctrl_c_leaves_job_running_and_prints_a_notice(service: Service) -> None:
    job = service.submit(run="echo begun; sleep 600")
    watcher = subprocess.Popen(
        [HOLDFAST, "logs", "-f", job],
        env=service.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "begun\n"
    service.until(job, lambda job: job["state"] == "starting")

    watcher.send_signal(signal.SIGINT)
    _, result = watcher.communicate(timeout=PATIENCE_S)

    assert watcher.returncode == 130
    assert f"job {job} keeps running" in result
    assert service.json("show", job)["state"] == "starting"


def test_exit_code_of_following_is_that_of_the_job(service: Service) -> None:
    good, bad, stopped = (
        service.submit(run=run) for run in ("echo hi", "echo oh; exit 3", "sleep 600")
    )
    service.cli("cancel", stopped, "--reason", "enough")

    answers = [service.cli("logs", "-f", job) for job in (good, bad, stopped)]

    assert [answer.returncode for answer in answers] == [0, 100, 103]
    assert answers[0].stdout == "hi\n"
    assert "exited with 3: oh" in answers[1].stderr
    assert "enough" in answers[2].stderr


def test_logs_by_attempt_node_and_rank(service: Service) -> None:
    run = (
        'echo "attempt $HOLDFAST_ATTEMPT node $SKYPILOT_NODE_RANK"; '
        'echo "rank words" > $HOLDFAST_RUN_DIR/ranks/rank-$SKYPILOT_NODE_RANK.log; '
        "[ $HOLDFAST_ATTEMPT = 2 ] || sleep 600"
    )
    job = service.submit(run=run, num_nodes=2)
    service.until(job, lambda job: job["state"] == "starting")
    for node in ("0", "1"):
        service.wait(
            lambda node=node: (
                f"attempt 1 node {node}" in service.cli("logs", job, "--node", node).stdout
            ),
            "it prints",
        )
    service.cli("preempt", job, "--no-notice", "--force")
    service.ended(job)

    texts = {
        words: service.cli("logs", job, *words).stdout
        for words in [(), ("--attempt", "1"), ("--node", "1"), ("--rank", "1")]
    }
    followed = service.cli("logs", job, "-f")

    assert list(texts.values()) == [
        "attempt 2 node 0\n",
        "attempt 1 node 0\n",
        "attempt 2 node 1\n",
        "rank words\n",
    ]
    assert followed.stdout == "attempt 1 node 0\nattempt 2 node 0\n"
    listed = {(log["attempt"], log["node"], log["rank"]) for log in service.json("logs", job)}
    assert {(1, 0, None), (2, 1, None), (2, 1, 1)} <= listed


def test_followed_events_are_json_lines(service: Service) -> None:
    job = service.submit(run="true")

    followed = service.cli("events", job, "-f", "--json")

    kinds = [line.split('"kind":"')[1].split('"')[0] for line in followed.stdout.splitlines()]
    assert kinds == ["Submitted", "LaunchRequested", "NodesReady", "Finished"]
    assert followed.returncode == 0
