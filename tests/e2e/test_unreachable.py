"""Workers that cannot reach the service, nor leave anything on its disk but checkpoints: people see what they do all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.live_service import EXAMPLE, Service, free_port

STEPS = 30
SCRIPT = f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.05"


@pytest.fixture
def service(idle: Service) -> Service:
    """A service that looks into boxes often."""
    idle.environment |= {"HOLDFAST_INBOX_EVERY_S": "0.3"}
    idle.start()
    return idle


def behind_nat(folder: Path, *, numbered: bool) -> str:
    """What takes the way to the service from a worker: its address is closed, and its spool is nowhere that anybody looks.

    Without a number it is as a node of a launcher that recovers by itself.
    """
    away = f"HOLDFAST_URL=http://127.0.0.1:{free_port()} HOME={folder}/away"
    if numbered:
        return f"env {away} HOLDFAST_SPOOL={folder}/away/spool {SCRIPT}"
    names = ("ATTEMPT", "EPOCH", "SPOOL", "RUN_DIR")
    without = " ".join(f"-u HOLDFAST_{name}" for name in names)
    return f"env {without} {away} {SCRIPT}"


@pytest.mark.parametrize("numbered", [True, pytest.param(False, marks=pytest.mark.full)])
def test_progress_checkpoints_and_the_end_are_seen(service: Service, *, numbered: bool) -> None:
    (service.folder / "away").mkdir()
    where = f"file://{service.folder}/store"
    job = service.submit(
        name="nat",
        workdir=str(EXAMPLE),
        run=behind_nat(service.folder, numbered=numbered),
        holdfast={"checkpoint": {"store": where, "every": "10 steps"}},
    )
    found: list[list[str]] = []

    def is_told() -> bool:
        found.append([event["kind"] for event in service.json("events", job)])
        return "WorkerLeft" in found[-1]

    done = service.ended(job)
    service.wait(is_told, "the last words are taken")
    points = service.get(f"/v1/jobs/{job}/metrics").json()

    assert done["state"] == "succeeded"
    assert [kind for kind in found[-1] if kind in {"TrainingStarted", "WorkerLeft"}] == [
        "TrainingStarted",
        "WorkerLeft",
    ]
    assert found[-1].count("CheckpointCommitted") == 3
    assert [item["step"] for item in service.json("checkpoints", job)] == [30, 20, 10]
    assert service.json("show", job)["step"] == STEPS
    assert points[-1]["step"] == STEPS
    assert not [
        path for path in (service.folder / "store" / job / "inbox").rglob("*") if path.is_file()
    ]
