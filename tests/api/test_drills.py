"""Preemptions on request: they are recorded, listed and billed, and say nothing about the market."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from holdfast.domain.jobfile.spec import Engine
from support.simulated_service import JOB_FILE, SimulatedService
from support.snapshots import created_once


def drill_and_preempt(world: SimulatedService) -> str:
    """Run a job that loses its nodes in a drill and then to the market."""
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    world.pass_time(25)
    assert world.drill(job_id, 10, node=1).status_code == 202
    world.pass_time(15)
    world.until(job_id, "training")
    world.pass_time(8)
    world.take_node(job_id, notice_s=10, then_s=15)
    world.until(job_id, "succeeded")
    return job_id


@pytest.fixture
def drilled(world: SimulatedService) -> str:
    """A job that lost its nodes in a drill and then to the market, and succeeded."""
    return created_once(world, drill_and_preempt)


def get(world: SimulatedService, path: str) -> Any:
    answer = world.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_request_and_loss_are_marked_in_the_events(world: SimulatedService, drilled: str) -> None:
    events = get(world, f"/v1/jobs/{drilled}/events")

    [request] = [event for event in events if event["kind"] == "DrillRequested"]
    lost = [event["body"]["drill"] for event in events if event["kind"] == "CapacityLost"]
    assert request["source"] == "user"
    assert request["body"] == {
        "attempt": 1,
        "node": 1,
        "notice_s": 10.0,
        "by": "",
        "through_worker": False,
        "group": "",
    }
    assert lost == [True, False]


def test_job_and_bill_show_which_loss_was_a_drill(world: SimulatedService, drilled: str) -> None:
    job, bill = world.job(drilled), get(world, f"/v1/jobs/{drilled}/bill")

    assert (job["preemptions"], job["drills"]) == (2, 1)
    assert [loss["drill"] for loss in bill["losses"]] == [True, False]
    assert [attempt["drill"] for attempt in bill["attempts"]] == [True, False, False]
    assert all(attempt["paid_micros"] > 0 for attempt in bill["attempts"])


def test_why_names_the_drill_and_its_request(world: SimulatedService, drilled: str) -> None:
    lines = [line["text"] for line in get(world, f"/v1/jobs/{drilled}/story")]

    assert "Drill requested: preempt node 1 with 10 s of notice." in lines
    ends = [line for line in lines if line.startswith("Attempt") and " ended: " in line]
    assert [" ended: preempted in a drill" in line for line in ends] == [True, False]


def test_statistics_of_the_market_exclude_a_drill(world: SimulatedService, drilled: str) -> None:
    body = get(world, "/v1/preemptions")
    notices = get(world, "/v1/preemptions/notices")
    [cost] = get(world, "/v1/preemptions/jobs")["jobs"]

    total = body["total"]
    assert (total["taken"], total["drills"], total["noticed"]) == (1, 1, 1)
    assert total["causes"] == {"drill": 1, "preempted": 1}
    assert sum(step["taken"] for step in body["survival"]) == 1
    assert sum(item["taken"] for item in notices["notices"]) == 1
    assert cost["taken"] == 1


def test_history_lists_a_drill_that_no_day_counts(world: SimulatedService, drilled: str) -> None:
    history = get(world, "/v1/preemptions/history")

    listed = [(one["drill"], one["cause"], one["attempt"]) for one in history["preemptions"]]
    assert listed == [(False, "preempted", 2), (True, "drill", 1)]
    assert [day["taken"] for day in history["days"]] == [1]
    assert history["left_out"] == 0


def test_running_job_has_the_same_statistics(world: SimulatedService) -> None:
    job = world.submit(JOB_FILE.replace("tiny", "endless"))["id"]
    world.until(job, "training")
    world.pass_time(20)

    world.drill(job, 10)
    world.pass_time(15)
    world.until(job, "training")

    body = get(world, "/v1/preemptions")
    history = get(world, "/v1/preemptions/history")
    assert (body["total"]["taken"], body["total"]["drills"]) == (0, 1)
    assert sum(step["taken"] for step in body["survival"]) == 0
    assert get(world, "/v1/preemptions/jobs")["jobs"] == []
    assert [one["drill"] for one in history["preemptions"]] == [True]
    assert history["days"] == []


def test_prometheus_counts_drills_as_their_own_cause(world: SimulatedService, drilled: str) -> None:
    get(world, "/v1/preemptions")  # It adds ended jobs to the totals.

    text = world.http.get("/metrics").text

    assert 'holdfast_losses{cause="drill"} 1.0' in text
    assert 'holdfast_losses{cause="preempted"} 1.0' in text


def test_refused_drill_is_not_recorded(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")

    refused = world.drill(job, 10, node=7)

    assert refused.status_code == 409
    assert "DrillRequested" not in {event["kind"] for event in get(world, f"/v1/jobs/{job}/events")}


def train_past_checkpoint(world: SimulatedService) -> str:
    """Run a job until it has reported steps that no checkpoint contains."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    for _ in range(60):
        world.pass_time(1)
        shown = world.job(job)
        if shown["step"] > (shown["last_checkpoint_step"] or shown["step"]):
            return job
    pytest.fail(f"all steps of {job} are saved")


def test_drill_that_loses_steps_needs_force(world: SimulatedService) -> None:
    job = train_past_checkpoint(world)

    refused = world.drill(job)
    accepted = world.drill(job, force=True)

    assert (refused.status_code, accepted.status_code) == (409, 202)
    shown = world.job(job)
    lost = shown["step"] - (shown["last_checkpoint_step"] or 0)
    assert lost > 0
    assert f"would lose {lost} step" in refused.json()["detail"]
    events = [event["kind"] for event in get(world, f"/v1/jobs/{job}/events")]
    assert events.count("DrillRequested") == 1


def test_drill_of_a_job_without_a_store_needs_force(world: SimulatedService) -> None:
    job = world.submit("run: 'true'\nresources: {infra: local, use_spot: false}")["id"]
    world.until(job, "training")

    refused = world.drill(job, 120)

    assert refused.status_code == 409
    assert "it has no checkpoint store" in refused.json()["detail"]
    assert world.drill(job, 120, force=True).status_code == 202


def test_drill_of_a_node_that_is_replaced_alone_needs_no_force(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replaces_alone(_key: str, *, node: int | None) -> bool:
        return node == 1

    job = train_past_checkpoint(world)
    monkeypatch.setattr(world.cloud, "replaces_alone", replaces_alone)

    assert world.drill(job, node=0).status_code == 409
    assert world.drill(job, node=1).status_code == 202


class WithoutPreemption:
    """A launcher that cannot preempt nodes, and whose worker leaves on request, as SkyPilot's."""

    saves_on_cancel = False


@pytest.fixture
def trained(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job in training whose launcher cannot preempt nodes."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    launchers = cast("dict[Engine, object]", world.services.launchers)
    monkeypatch.setitem(launchers, Engine.LOCAL, WithoutPreemption())
    return job


def leave_within_s(world: SimulatedService, job: str, attempt: int = 1) -> float | None:
    """The request in the response to a delivery of reports."""
    body: Mapping[str, object] = {"attempt": attempt, "reports": []}
    path, token = f"/v1/jobs/{job}/reports", world.worker_token(job)
    within_s: float | None = world.http.post(path, json=body, headers=token).json()[
        "leave_within_s"
    ]
    return within_s


def test_worker_is_asked_to_leave_if_the_launcher_cannot(
    world: SimulatedService, trained: str
) -> None:
    before = leave_within_s(world, trained)

    accepted = world.drill(trained, 30)
    asked = leave_within_s(world, trained)
    world.clock.advance(10)

    assert accepted.status_code == 202
    assert (before, asked, leave_within_s(world, trained)) == (None, 30, 20)


def test_next_worker_is_not_asked_to_leave(world: SimulatedService, trained: str) -> None:
    world.drill(trained, 30)

    assert leave_within_s(world, trained, attempt=2) is None


def test_worker_is_not_asked_after_its_notice(world: SimulatedService, trained: str) -> None:
    """It would have no time to save."""
    world.drill(trained, 30)
    world.clock.advance(30)

    assert leave_within_s(world, trained) is None


@pytest.mark.parametrize(
    ("notice_s", "node", "words"),
    [
        (None, None, "needs a notice of at least 30 s"),
        (29, None, "needs a notice of at least 30 s"),
        (30, 1, "omit the node"),
    ],
)
def test_worker_needs_notice_and_leaves_on_all_nodes(
    world: SimulatedService, trained: str, notice_s: float | None, node: int | None, words: str
) -> None:
    refused = world.drill(trained, notice_s, node=node, force=True)

    assert refused.status_code == 409
    assert words in refused.json()["detail"]
