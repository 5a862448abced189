"""A real service deletes old checkpoints of a real job; its listing matches the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from support.live_service import EXAMPLE, Service

STEPS = 60


@pytest.fixture
def eager_service(idle: Service) -> Service:
    """A service with frequent retention runs."""
    idle.environment |= {"HOLDFAST_TIDY_EVERY_S": "0.3", "HOLDFAST_TIDY_GRACE_S": "1"}
    idle.start()
    return idle


def committed(store: Path) -> list[CheckpointName]:
    found = (
        CheckpointName.of_key(f"commits/{path.name}") for path in (store / "commits").glob("*.json")
    )
    return sorted(name for name in found if name)


@pytest.mark.full
def test_retained_checkpoints_match_job_file_and_listing(eager_service: Service) -> None:
    keep = {"last": 2, "every": "20 steps", "best": {"metric": "loss", "mode": "min"}}
    where = f"file://{eager_service.folder}/store"
    job = eager_service.submit(
        name="retention",
        workdir=str(EXAMPLE),
        run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.05",
        holdfast={"checkpoint": {"store": where, "every": "5 steps", "keep": keep}},
    )
    store = eager_service.folder / "store" / job

    done = eager_service.ended(job)
    eager_service.wait(lambda: len(committed(store)) <= 5, "old checkpoints are removed")
    listings: list[Any] = []

    def agree() -> bool:
        """Whether the data in the store and the listing are those of the committed checkpoints; one is removed after the other."""
        listings.append(eager_service.json("checkpoints", job))
        listed = {item["checkpoint"] for item in listings[-1] if item["state"] == "complete"}
        stored = {path.name for path in store.glob("step-*")}
        return listed == stored == {*map(str, committed(store))}

    eager_service.wait(agree, "store and listing agree")
    result = listings[-1]
    kinds = [event["kind"] for event in eager_service.json("events", job)]

    assert done["state"] == "succeeded"
    # On a busy machine a save waits for the previous one, and has a higher step.
    steps = sorted(item["step"] for item in result)
    every = {min(step for step in steps if step >= due) for due in (20, 40, STEPS)}
    assert every | {*steps[-2:]} <= {name.step for name in committed(store)}
    best = min(result, key=lambda item: (item["metrics"]["loss"]["value"], item["step"]))
    assert best["state"] == "complete"
    assert {item["state"] for item in result} == {"complete", "removed"}
    assert len(steps) == kinds.count("CheckpointCommitted")
    assert "CheckpointsRemoved" in kinds
    assert eager_service.json("show", job)["tidying"]["trouble"] is None
