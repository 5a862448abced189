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
