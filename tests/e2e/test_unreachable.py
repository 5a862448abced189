"""Workers without a route to the service report through the checkpoint store."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.live_service import EXAMPLE, Service, free_port

STEPS = 30
SCRIPT = f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.05"


@pytest.fixture
def service(idle: Service) -> Service:
    """A service that imports reports from stores often."""
    idle.environment |= {"HOLDFAST_INBOX_EVERY_S": "0.3"}
    idle.start()
    return idle


def behind_nat(folder: Path, *, numbered: bool) -> str:
    """A command of a worker that reaches neither the service nor its spool folder.

    Without a number it runs like a node of a launcher that recovers by itself.
    """
    isolated = f"HOLDFAST_URL=http://127.0.0.1:{free_port()} HOME={folder}/away"
    if numbered:
        return f"env {isolated} HOLDFAST_SPOOL={folder}/away/spool {SCRIPT}"
    names = ("ATTEMPT", "EPOCH", "SPOOL", "RUN_DIR")
    without = " ".join(f"-u HOLDFAST_{name}" for name in names)
    return f"env {without} {isolated} {SCRIPT}"


@pytest.mark.parametrize("numbered", [True, pytest.param(False, marks=pytest.mark.full)])
def test_unreachable_worker_reports_through_its_store(service: Service, *, numbered: bool) -> None:
    (service.folder / "away").mkdir()
    where = f"file://{service.folder}/store"
    job = service.submit(
        name="nat",
        workdir=str(EXAMPLE),
        run=behind_nat(service.folder, numbered=numbered),
        holdfast={"checkpoint": {"store": where, "every": "10 steps"}},
    )
    found: list[list[str]] = []

    def has_exit_report() -> bool:
        found.append([event["kind"] for event in service.json("events", job)])
        return "WorkerLeft" in found[-1]

    done = service.ended(job)
    service.wait(has_exit_report, "the exit report is imported")
    points = service.get(f"/v1/jobs/{job}/metrics").json()

    assert done["state"] == "succeeded"
    assert [kind for kind in found[-1] if kind in {"TrainingStarted", "WorkerLeft"}] == [
        "TrainingStarted",
        "WorkerLeft",
    ]
    # Which steps are saved depends on the machine, as a save waits for the one before.
    commits = (service.folder / "store" / job / "commits").iterdir()
    saved = sorted((int(commit.name[:12]) for commit in commits), reverse=True)
    assert saved[0] == STEPS
    assert all(newer - older >= 10 for newer, older in pairwise(saved[1:])), "but for the last step"
    assert found[-1].count("CheckpointCommitted") == len(saved)
    assert [item["step"] for item in service.json("checkpoints", job)] == saved
    assert service.json("show", job)["step"] == STEPS
    assert points[-1]["step"] == STEPS
    assert not [
        path for path in (service.folder / "store" / job / "inbox").rglob("*") if path.is_file()
    ]
