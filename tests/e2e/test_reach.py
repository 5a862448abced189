"""A real job on this machine: a command on each of its nodes, a shell, and its output files."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.live_service import Service
from support.user_terminal import UserTerminal

SCRIPT = """
import os, pathlib, time
rank, stop = os.environ["RANK"], pathlib.Path(os.environ["STOP"])
pathlib.Path("results").mkdir(exist_ok=True)
pathlib.Path(f"results/{rank}.txt").write_text(rank)
stop.with_name(f"ready-{rank}").touch()
while not stop.exists():
    time.sleep(0.1)
"""


@pytest.mark.full
def test_nodes_of_a_real_job_are_reached(service: Service) -> None:
    code = service.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    stop = service.folder / "stop"
    job = service.submit(
        name="reach",
        workdir=str(code),
        num_nodes=2,
        run="holdfast-worker run train.py",
        envs={"STOP": str(stop)},
        holdfast={
            "checkpoint": {"store": f"file://{service.folder}/store"},
            "outputs": ["results/*.txt"],
        },
    )
    ready = [service.folder / f"ready-{rank}" for rank in (0, 1)]
    service.wait(lambda: all(file.exists() for file in ready), "its ranks run")

    found = [
        service.cli(
            "exec", job, "--node", str(node), "--", "sh", "-c", "cat results/*; echo $$ >&2; exit 3"
        )
        for node in (0, 1)
    ]
    stop.touch()
    done = service.ended(job)
    service.cli("outputs", job, "--download", str(service.folder / "target"))

    assert [(one.returncode, one.stdout) for one in found] == [(3, "0"), (3, "1")], found
    assert done["state"] == "succeeded"
    assert (service.folder / "target/results/0.txt").read_text() == "0"
    assert (service.folder / "target/node-1/results/1.txt").read_text() == "1"
    assert json.loads(service.cli("outputs", job, "--json").stdout)["exit_code"] == 0


WAITING = """
import os, pathlib, time
pathlib.Path(os.environ["STOP"]).with_name("ready").touch()
while not pathlib.Path(os.environ["STOP"]).exists():
    time.sleep(0.1)
"""


def test_shell_on_a_node_survives_a_killed_service(service: Service) -> None:
    code = service.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(WAITING)
    stop = service.folder / "stop"
    job = service.submit(
        name="shell",
        workdir=str(code),
        run="holdfast-worker run train.py",
        envs={"STOP": str(stop)},
    )
    service.wait((service.folder / "ready").exists, "its rank runs")

    refused = service.cli("shell", job)
    with UserTerminal(service, "shell", job, "--", "sh") as user:
        user.type("echo $((6 * 7)) at $(pwd); tty; stty size\r")
        user.shows("42 at ")
        user.shows("30 100\r\n")
        user.resize(columns=132, rows=43)
        user.type("while [ \"$(stty size)\" != '43 132' ]; do sleep 0.1; done; echo resized-$?\r")
        user.shows("resized-0")
        service.end(signal.SIGKILL)
        user.type("echo after-$((1 + 1))\r")
        service.start()
        user.shows("after-2")
        user.type("exit 9\r")
        left = user.exit_code()
    with UserTerminal(service, "shell", job) as user:
        user.type("echo pid-$$-\r")
        pid = user.shows(r"pid-(\d+)-")
        user.type("~.")
        ended = user.exit_code()
    service.wait(lambda: not Path(f"/proc/{pid}/cwd").is_dir(), "the shell is gone")
    stop.touch()

    assert service.ended(job)["state"] == "succeeded"
    assert (left, ended) == (9, 130)
    assert refused.returncode == 2
    assert "use `holdfast exec JOB -- COMMAND`" in " ".join(refused.stderr.split())


FAILING = """
import os, pathlib
from holdfast_worker import Run

run = Run.start()
pathlib.Path("evidence").write_text("left by the program")
raise ValueError("no such layer")
"""


def test_nodes_of_a_failed_job_are_kept_and_reached(service: Service) -> None:
    code = service.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(FAILING)
    job = service.submit(
        name="kept",
        workdir=str(code),
        run="holdfast-worker run train.py",
        holdfast={"keep_failed": "1h", "limits": {"max_failures": 1}},
    )
    kept = service.until(job, lambda job: "its nodes are kept" in job["detail"])

    found = service.cli("exec", job, "--", "cat", "evidence")
    service.cli("cancel", job)
    done = service.ended(job)

    assert (found.returncode, found.stdout) == (0, "left by the program"), found.stderr
    assert "holdfast exec" in kept["detail"]
    assert done["state"] == "cancelled"
    kinds = [event["kind"] for event in service.json("events", job)]
    assert kinds.count("NodesKept") == 1
    sentences = [item["text"] for item in service.json("why", job)]
    assert any(text.startswith("The program has failed; its nodes are kept") for text in sentences)
