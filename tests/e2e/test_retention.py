"""A real service tidies the store of a real job; what it shows is what is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from support.live_service import EXAMPLE, Service

STEPS = 60


@pytest.fixture
def hasty(idle: Service) -> Service:
    """A service that is quick to tidy up."""
    idle.environment |= {"HOLDFAST_TIDY_EVERY_S": "0.3", "HOLDFAST_TIDY_GRACE_S": "1"}
    idle.start()
    return idle


def committed(store: Path) -> list[CheckpointName]:
    found = (
        CheckpointName.of_key(f"commits/{path.name}") for path in (store / "commits").glob("*.json")
    )
    return sorted(name for name in found if name)


@pytest.mark.full
def test_retained_checkpoints_match_job_file_and_listing(hasty: Service) -> None:
    keep = {"last": 2, "every": "20 steps", "best": {"metric": "loss", "mode": "min"}}
    where = f"file://{hasty.folder}/store"
    job = hasty.submit(
        name="tidy",
        workdir=str(EXAMPLE),
        run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.05",
        holdfast={"checkpoint": {"store": where, "every": "5 steps", "keep": keep}},
    )
    store = hasty.folder / "store" / job

    done = hasty.ended(job)
    hasty.wait(lambda: len(committed(store)) <= 5, "old checkpoints are removed")
    hasty.wait(
        lambda: {path.name for path in store.glob("step-*")} == {*map(str, committed(store))},
        "their data is removed",
    )
    result = hasty.json("checkpoints", job)
    kinds = [event["kind"] for event in hasty.json("events", job)]

    assert done["state"] == "succeeded"
    # On a busy machine a save waits for the one before it, so that it comes some steps later.
    steps = sorted(item["step"] for item in result)
    every = {min(step for step in steps if step >= due) for due in (20, 40, STEPS)}
    assert every | {*steps[-2:]} <= {name.step for name in committed(store)}
    complete = [item for item in result if item["state"] == "complete"]
    best = min(result, key=lambda item: (item["metrics"]["loss"]["value"], item["step"]))
    assert {item["checkpoint"] for item in complete} == {*map(str, committed(store))}
    assert best["state"] == "complete"
    assert {item["state"] for item in result} == {"complete", "removed"}
    assert len(steps) == kinds.count("CheckpointCommitted")
    assert "CheckpointsRemoved" in kinds
    assert hasty.json("show", job)["tidying"]["trouble"] is None
