"""A real job on this machine: a command on each of its nodes, and its output files."""

from __future__ import annotations

import json

import pytest
from support.live_service import Service

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
    assert json.loads(service.cli("outputs", job, "--json").stdout)["exit_code"] == 0


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
