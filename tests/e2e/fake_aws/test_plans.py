"""Jobs with a plan on the real SkyPilot: from spot to on-demand nodes, from place to place, and with the service killed."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.fake_aws.catalog import CPUS
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import BUCKET, HoldfastService, s3_server
from e2e.fake_aws.jobs import ENDS

PLACES = ["aws/us-east-1", "aws/us-east-2"]
INSTANCE = "m6i.large"
SPOT_SHARE = 0.4
"""Spot price of the cloud's machines, as a share of the price on demand."""
STEPS = 400
WORK = "90s"
PLAN_EVERY_S = 30
SOON = "32m"
"""A deadline that leaves a few minutes for spot nodes: without measurements, on-demand nodes are expected to train 26
minutes after they are requested."""
LATE = "12h"
CHECKPOINT = {"store": f"s3://{BUCKET}/runs", "every": "50 steps"}
PACE_OF_LAUNCHES = "$([[ $SKYPILOT_TASK_ID == *-2_* ]] && echo 0.1 || echo 2)"
"""Seconds per step: the second managed job is fast."""
BILLED_EARLY_S, BILLED_LATE_S = 90.0, 120.0
"""Most seconds by which a bill may miss the begin and the end of a machine: SkyPilot notices both late, on a loaded
machine."""


@pytest.fixture
def service(aws: FakeAws, tmp_path: Path) -> Iterator[HoldfastService]:
    """Holdfast with that cloud, which decides about plans often."""
    service = HoldfastService(tmp_path, aws.paths)
    service.environment["HOLDFAST_PLAN_EVERY_S"] = str(PLAN_EVERY_S)
    service.start()
    yield service
    if service.process:
        service.end(signal.SIGTERM)


@pytest.mark.timeout(3000)
def test_job_without_spot_nodes_moves_to_on_demand(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    aws.deny(market="spot")
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = _submit(service, endpoint, "any_of", SOON)
        with _live_counts(service, job_id) as live:
            service.wait_for(job_id, "Finished")

        _check_succeeded(service, job_id, SOON)
        assert _kinds(service, job_id, but=("CapacityDenied",))[:8] == [
            *("Submitted", "Planned", "LaunchRequested", "Planned", "MoveRequested", "Moved"),
            *("LaunchRequested", "NodesReady"),
        ]
        assert service.events(job_id, "CapacityDenied"), "spot nodes were requested in vain"
        spot, on_demand = service.events(job_id, "Planned")
        assert (spot["body"]["capacity"], on_demand["body"]["capacity"]) == ("spot", "on_demand")
        assert spot["body"]["places"] == PLACES
        _check_launches(service, job_id, ["spot", "on_demand"])
        assert max(live) == 1, "managed jobs at once"
        _check_asked(aws, on_demand["at"])
        _check_nothing_left(aws, job_id)
        _check_bill(aws, service, job_id, ["on-demand"])

        # The next plan knows how long that start took.
        other = _submit(service, endpoint, "any_of", LATE)
        market = service.wait_for(other, "Planned")[0]["body"]["market"]
        assert market["changeover_samples"] == 1
        service.wait_for(other, "CapacityDenied")
        service.json("cancel", other)
        assert service.wait_for(other, "Finished")[0]["body"]["outcome"] == "cancelled"


@pytest.mark.timeout(3000)
def test_job_preempted_in_one_region_continues_in_the_next(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = _submit(service, endpoint, "ordered", LATE, steps=600)
        with _live_counts(service, job_id) as live:
            service.wait_for(job_id, "CheckpointCommitted")
            aws.deny(region="us-east-1", market="spot")
            aws.preempt()
            service.wait_for(job_id, "TrainingStarted", 2)
            service.wait_for(job_id, "Finished")

        _check_succeeded(service, job_id, LATE)
        assert max(live) == 1, "managed jobs at once"
        zones = [event["body"]["zone"] for event in service.events(job_id, "NodesReady")]
        assert [place in zone for place, zone in zip(PLACES, zones, strict=True)] == [True, True]
        planned = [event["body"]["capacity"] for event in service.events(job_id, "Planned")]
        assert set(planned) == {"spot"}
        _check_no_saved_step_lost(service, job_id)
        _check_nothing_left(aws, job_id)
        _check_bill(aws, service, job_id, ["spot", "spot"])


@pytest.mark.timeout(3000)
def test_training_job_saves_before_it_moves(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        # Measured steps show that spot nodes, which may be lost, would risk the deadline.
        run = f"holdfast-worker run train.py --steps {STEPS} --step-seconds {PACE_OF_LAUNCHES}"
        checkpoint = {**CHECKPOINT, "every": "25 steps"}
        job_id = _submit(service, endpoint, "ordered", "40m", run=run, checkpoint=checkpoint)
        with _live_counts(service, job_id) as live:
            service.wait_for(job_id, "Finished")

        _check_succeeded(service, job_id, "40m")
        kinds = ("TrainingStarted", "MoveRequested", "CapacityLost", "Moved", "LaunchRequested")
        shown = [event for event in service.events(job_id) if event["kind"] in kinds]
        assert [event["kind"] for event in shown] == ["LaunchRequested", *kinds, "TrainingStarted"]
        assert shown[3]["body"]["cause"] == "moved"
        assert service.events(job_id, "Planned")[-1]["body"]["reason"] == "safety_net"
        _check_launches(service, job_id, ["spot", "on_demand"])
        assert max(live) == 1, "managed jobs at once"
        _check_no_saved_step_lost(service, job_id)
        assert service.json("bill", job_id)["lost_steps"] == 0, "it was asked to save"
        _check_nothing_left(aws, job_id)
        _check_bill(aws, service, job_id, ["spot", "on-demand"])


@pytest.mark.timeout(3000)
def test_kill_after_each_event_of_a_move_doubles_nothing(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    aws.deny(market="spot")
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = _submit(service, endpoint, "ordered", SOON)
        with _live_counts(service, job_id) as live:
            _kill_after(service, job_id, "Planned", 1)
            _kill_after(service, job_id, "LaunchRequested", 1)
            service.wait_for(job_id, "CapacityDenied")
            # While SkyPilot does not respond, a plan is recorded without its move.
            with aws.blackout():
                _kill_after(service, job_id, "Planned", 2, starts_again=False)
            assert not _recorded(service, job_id, "MoveRequested")
            service.start()
            _kill_after(service, job_id, "MoveRequested", 1)
            _kill_after(service, job_id, "Moved", 1)
            _kill_after(service, job_id, "LaunchRequested", 2)
            service.wait_for(job_id, "Finished")

        _check_succeeded(service, job_id, SOON)
        _check_launches(service, job_id, ["spot", "on_demand"])
        assert max(live) == 1, "managed jobs at once"
        assert len(service.listed(job_id)) == 2
        _check_nothing_left(aws, job_id)
        _check_bill(aws, service, job_id, ["on-demand"])


def _submit(
    service: HoldfastService,
    endpoint: str,
    listed: str,
    deadline: str,
    *,
    steps: int = STEPS,
    checkpoint: Mapping[str, str] = CHECKPOINT,
    **words: Any,
) -> str:
    return service.submit_training(
        endpoint,
        steps=steps,
        **words,
        num_nodes=1,
        resources={"instance_type": INSTANCE, listed: [{"infra": place} for place in PLACES]},
        holdfast={
            "checkpoint": checkpoint,
            "plan": {"work": WORK, "margin": "0"},
            "limits": {"deadline": deadline},
        },
    )


@contextmanager
def _live_counts(service: HoldfastService, job_id: str) -> Iterator[list[int]]:
    """How many managed jobs of the job have not ended, as SkyPilot itself has recorded, several times a second."""
    counts = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.3):
            with suppress(sqlite3.OperationalError):  # The first job creates the database.
                rows = service.listed(job_id)
                counts.append(sum(row["status"] not in ENDS for row in rows))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()


def _kill_after(
    service: HoldfastService, job_id: str, kind: str, count: int, *, starts_again: bool = True
) -> None:
    """Kill the service as soon as it has recorded this number of events of a kind."""
    deadline_s = time.monotonic() + 600
    with closing(sqlite3.connect(service.home / "holdfast.db", timeout=30)) as connection:
        while _count(connection, job_id, kind) < count:
            assert time.monotonic() < deadline_s, f"waited too long for {kind} {count}"
            time.sleep(0.005)
    service.end(signal.SIGKILL)
    if starts_again:
        service.start()


def _recorded(service: HoldfastService, job_id: str, kind: str) -> int:
    """The number of events of a kind, also while the service is down."""
    with closing(sqlite3.connect(service.home / "holdfast.db", timeout=30)) as connection:
        return _count(connection, job_id, kind)


def _count(connection: sqlite3.Connection, job_id: str, kind: str) -> int:
    query = "select count(*) from job_events where job_id = ? and kind = ?"
    found: int = connection.execute(query, (job_id, kind)).fetchone()[0]
    return found


def _kinds(service: HoldfastService, job_id: str, but: tuple[str, ...]) -> list[str]:
    return [event["kind"] for event in service.events(job_id) if event["kind"] not in but]


def _check_succeeded(service: HoldfastService, job_id: str, deadline: str) -> None:
    job = service.json("show", job_id)
    assert job["state"] == "succeeded", job["detail"]
    assert job["failures"] == 0
    submitted, *_, finished = service.events(job_id)
    took = datetime.fromisoformat(finished["at"]) - datetime.fromisoformat(submitted["at"])
    unit = {"m": "minutes", "h": "hours"}[deadline[-1]]
    assert took < timedelta(**{unit: int(deadline[:-1])})


def _check_launches(service: HoldfastService, job_id: str, capacities: list[str]) -> None:
    """Each launch is one managed job, and asks SkyPilot for nodes of one kind alone, in the places of the plan."""
    asked = [event["body"]["placement"] for event in service.events(job_id, "LaunchRequested")]
    assert [each["capacity"] for each in asked] == capacities
    rows = sorted(service.listed(job_id), key=lambda row: int(row["id"]))
    tasks = [list(yaml.safe_load_all(row["task"]))[-1] for row in rows]
    assert len(tasks) == len(capacities)
    for task, placement in zip(tasks, asked, strict=True):
        entries = task["resources"]["ordered"]
        assert [entry["infra"] for entry in entries] == placement["places"]
        assert {entry["use_spot"] for entry in entries} == {placement["capacity"] == "spot"}
        assert "any_of" not in task["resources"]


def _check_asked(aws: FakeAws, moved_at: str) -> None:
    """Before the move SkyPilot requested spot nodes alone, and after it on-demand nodes alone."""
    denied = aws.events("nocapacity")
    assert {event["market"] for event in denied} == {"spot"}
    assert {event["region"] for event in denied} == {"us-east-1", "us-east-2"}
    (boot,) = aws.events("boot")
    assert boot["market"] == "on-demand"
    assert datetime.fromisoformat(boot["at"]) > datetime.fromisoformat(moved_at)
    assert all(event["at"] < boot["at"] for event in denied)


def _check_no_saved_step_lost(service: HoldfastService, job_id: str) -> None:
    """The second attempt continues at the newest checkpoint of the first one."""
    events = service.events(job_id)
    second = [event for event in events if event["kind"] == "TrainingStarted"][1]
    saved = [
        event["body"]["step"]
        for event in events
        if event["kind"] == "CheckpointCommitted" and event["body"]["attempt"] == 1
    ]
    assert second["body"]["step"] == max(saved)


def _check_nothing_left(aws: FakeAws, job_id: str) -> None:
    """No machine and no cluster is left, and no two machines existed at once."""
    assert not aws.instances(), "nothing is left running"
    assert not aws.clusters(), "SkyPilot has no cluster left"
    for earlier, later in pairwise(aws.lives(job_id)):
        assert earlier.ended_at <= later.began_at, "one machine at a time"


def _check_bill(aws: FakeAws, service: HoldfastService, job_id: str, markets: list[str]) -> None:
    """Each attempt is billed for the time in which the cloud had its machine, at its own price."""
    attempts: list[dict[str, Any]] = service.json("bill", job_id)["attempts"]
    lives = aws.lives(job_id)
    assert [life.market for life in lives] == markets
    (on_demand_usd,) = (usd for name, _, _, usd in CPUS if name == INSTANCE)
    for attempt, life in zip(attempts, lives, strict=True):
        usd_per_hour = on_demand_usd * (SPOT_SHARE if life.market == "spot" else 1.0)
        paid_s = attempt["paid_micros"] / 1e6 / usd_per_hour * 3600
        assert life.duration_s - BILLED_EARLY_S <= paid_s, (life, paid_s)
        assert paid_s <= life.duration_s + BILLED_LATE_S, (life, paid_s)
