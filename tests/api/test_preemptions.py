"""Capacity losses of all jobs and the timeline of one job, in the API and the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from holdfast.api.routes.preemptions import POINTS, _rates, _thinned
from holdfast.api.schemas.preemptions import PreemptionsOut
from holdfast.cli.app import app
from holdfast.cli.preemptions import print_preemptions
from holdfast.domain.access.audit import Actor
from holdfast.domain.preemptions.survival import SurvivalPoint
from holdfast.errors import BadRequest
from holdfast.store.billing.preemptions import LossTotal
from support.events import SPOT, at, node_lost, node_replaced
from support.simulated_service import JOB_FILE, SimulatedService, served
from support.snapshots import created_once
from typer.testing import CliRunner


@pytest.fixture
def url(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the simulated service, set for the command line."""
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        yield address


@pytest.fixture
def survivor(world: SimulatedService) -> str:
    """A job that was preempted once with notice, and succeeded."""
    return created_once(world, preempt_once)


def preempt_once(world: SimulatedService) -> str:
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    world.pass_time(25)
    world.take_node(job_id, notice_s=10, then_s=15)
    world.until(job_id, "succeeded")
    return job_id


def test_a_preemption_is_in_the_history_with_its_recovery(
    world: SimulatedService, survivor: str
) -> None:
    body = world.http.get("/v1/preemptions", params={"by": "type", "since": "2d"}).json()

    [kind] = body["preemptions"]
    bill = world.http.get(f"/v1/jobs/{survivor}/bill").json()
    assert (kind["instance_type"], kind["taken"], kind["noticed"]) == ("simulated", 1, 1)
    assert kind["notice_used"] == 1
    assert kind["notice_s"] == pytest.approx(10, abs=1.5)
    assert kind["lost_steps"] == bill["lost_steps"]
    assert kind["node_hours"] * 3_600_000 == pytest.approx(2 * bill["provisioned_ms"])
    assert kind["recovery"]["wait_s"] * 1000 == pytest.approx(bill["attempts"][1]["waiting_ms"])
    assert kind["recovery"]["restore_s"] == pytest.approx(1, abs=0.1)
    assert kind["per_100_node_hours"] is None
    assert (kind["simulated"], kind["is_price_estimate"]) == (True, False)
    assert body["total"]["causes"] == {"preempted": 1}
    assert [step["taken"] for step in body["survival"]] == [1]
    assert body["survival_mean_hours"] is None


def test_losses_are_grouped_as_requested(world: SimulatedService, survivor: str) -> None:
    for by in ("zone", "hour", "cause", "zone-hour"):
        body = world.http.get("/v1/preemptions", params={"by": by}).json()

        assert sum(item["taken"] for item in body["preemptions"]) == 1, by
        named = {"zone-hour": ("zone", "hour")}.get(by, (by,))
        assert all(item[word] is not None for item in body["preemptions"] for word in named), by


@pytest.fixture
def preempted_job(world: SimulatedService) -> str:
    """A job in training that lost its nodes three times.

    The first notice was sufficient, the second was too short, and the third loss had no notice.
    """
    return created_once(world, preempt_three_times)


def preempt_three_times(world: SimulatedService) -> str:
    job_id: str = world.submit(JOB_FILE.replace("tiny", "bereft"))["id"]
    for notice_s in (10, 1.2, None):
        world.until(job_id, "training")
        world.pass_time(8)
        world.take_node(job_id, notice_s, then_s=13)
    world.until(job_id, "training")
    return job_id


def test_notices_are_counted_by_warning_time(
    world: SimulatedService, preempted_job: str, survivor: str
) -> None:
    total = world.http.get("/v1/preemptions").json()["total"]

    body = world.http.get("/v1/preemptions/notices", params={"since": "2d"}).json()

    spans = [(item["over_s"], item["until_s"]) for item in body["notices"]]
    assert spans == [(0, 10), (10, 30), (30, 60), (60, 120), (120, None)]
    assert (body["without"], body["unsaid"]["taken"]) == (1, 0)
    # Whether a save in progress completes within 1.2 s depends on the simulated market.
    assert (used := total["notice_used"]) in {2, 3}
    assert [(item["taken"], item["used"]) for item in body["notices"]] == [(3, used), *[(0, 0)] * 4]
    assert sum(item["taken"] for item in body["notices"]) == total["noticed"]
    assert sum(item["used"] for item in body["notices"]) == total["notice_used"]


def test_jobs_with_most_losses_are_listed_first(
    world: SimulatedService, preempted_job: str, survivor: str
) -> None:
    total = world.http.get("/v1/preemptions").json()["total"]

    body = world.http.get("/v1/preemptions/jobs").json()["jobs"]

    assert [(job["job_id"], job["name"], job["taken"]) for job in body] == [
        (preempted_job, "bereft", 3),
        (survivor, "tiny", 1),
    ]
    bill = world.http.get(f"/v1/jobs/{preempted_job}/bill").json()
    lost = [attempt for attempt in bill["attempts"] if attempt["cause"]]
    assert body[0]["lost_micros"] == sum(attempt["micros"]["lost"] for attempt in lost) > 0
    assert body[0]["lost_steps"] == sum(attempt["lost_steps"] for attempt in lost)
    assert body[0]["wait_ms"] == sum(attempt["waiting_ms"] for attempt in bill["attempts"][1:])
    assert sum(job["lost_micros"] for job in body) == total["lost_micros"]
    assert world.http.get("/v1/preemptions/jobs?limit=1").json()["jobs"] == body[:1]


def test_history_lists_single_preemptions_newest_first(
    world: SimulatedService, preempted_job: str, survivor: str
) -> None:
    total = world.http.get("/v1/preemptions").json()["total"]

    history = world.http.get("/v1/preemptions/history").json()

    found = history["preemptions"]
    assert [one["at"] for one in found] == sorted((one["at"] for one in found), reverse=True)
    assert sorted((one["name"], one["attempt"]) for one in found) == [
        *(("bereft", attempt) for attempt in (1, 2, 3)),
        ("tiny", 1),
    ]
    assert {one["job_id"] for one in found} == {preempted_job, survivor}
    assert sum(one["lost_micros"] for one in found) == total["lost_micros"]
    assert sum(one["is_noticed"] for one in found) == total["noticed"]
    assert all((one["notice_s"] is not None) == one["is_noticed"] for one in found)
    assert history["left_out"] == 0


def test_lost_node_is_in_history_bill_and_timeline(world: SimulatedService, url: str) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    journal, now = world.services.journal, world.clock.now()
    after = (now - at(0)).total_seconds()
    changes = [node_lost(after, nodes=1), node_replaced(after + 3.2, micros=3 * SPOT)]
    journal.append(journal.read(job_id), changes[:1])
    waiting = world.http.get(f"/v1/jobs/{job_id}").json()
    journal.append(journal.read(job_id), changes[1:])
    world.pass_time(5)

    bill = world.http.get(f"/v1/jobs/{job_id}/bill").json()
    [one] = world.http.get("/v1/preemptions/history").json()["preemptions"]
    story = [line["text"] for line in world.http.get(f"/v1/jobs/{job_id}/story").json()]
    result = CliRunner().invoke(app, ["bill", job_id])

    assert waiting["detail"] == "node 1 was lost; the others wait for its replacement"
    assert (waiting["state"], waiting["preemptions"]) == ("training", 1)
    [loss] = bill["losses"]
    assert (loss["node"], loss["replaced_after_ms"], loss["cause"]) == (1, 3_200, "preempted")
    steps = bill["attempts"][0]["price_changes"]
    assert [(step["micros_per_hour"], step["source"]) for step in steps] == [
        (SPOT, "node 1 was lost"),
        (3 * SPOT, "node 1 was replaced"),
    ]
    assert (one["node"], one["wait_ms"], one["attempt"]) == (1, 3_200, 1)
    assert "Node 1 was preempted; the others wait for its replacement." in story
    assert "Node 1 was replaced after 3.2 s." in story
    assert "attempt 1 node 1 preempted" in result.output
    assert "replaced after 3.2 s" in result.output


def test_history_days_include_losses_beyond_the_limit(
    world: SimulatedService, preempted_job: str
) -> None:
    total = world.http.get("/v1/preemptions").json()["total"]

    history = world.http.get("/v1/preemptions/history?limit=1").json()

    [newest] = history["preemptions"]
    assert (newest["attempt"], history["left_out"]) == (3, 2)
    assert history["days"][-1]["day"] == newest["at"][:10]
    for name in ("taken", "noticed", "notice_used"):
        assert sum(day[name] for day in history["days"]) == total[name]


def test_end_of_a_job_does_not_change_its_losses(
    world: SimulatedService, preempted_job: str
) -> None:
    """Losses of a live job are computed on request; those of an ended job are stored in rows."""
    paths = [f"/v1/preemptions/{what}" for what in ("jobs", "notices", "history")]
    live = [world.http.get(path).json() for path in paths]

    world.until(preempted_job, "succeeded")

    assert [world.http.get(path).json() for path in paths] == live


def test_filters_exclude_other_losses(world: SimulatedService, preempted_job: str) -> None:
    world.services.users.add_project("x", Actor(name="test"))

    for query in ("zone=nowhere", "type=nothing", "until=2025-12-31", "project=x"):
        notices = world.http.get(f"/v1/preemptions/notices?{query}").json()
        jobs = world.http.get(f"/v1/preemptions/jobs?{query}").json()
        history = world.http.get(f"/v1/preemptions/history?{query}").json()

        assert notices["without"] == sum(item["taken"] for item in notices["notices"]) == 0, query
        assert jobs["jobs"] == [], query
        assert (history["days"], history["preemptions"]) == ([], []), query


def test_hours_are_grouped_as_requested(world: SimulatedService, survivor: str) -> None:
    one = world.http.get("/v1/preemptions?by=zone-hour").json()["preemptions"]

    three = world.http.get("/v1/preemptions?by=zone-hour&hours=3").json()["preemptions"]

    assert {item["hour"] for item in three} <= set(range(0, 24, 3))
    for what in ("taken", "lost_micros", "node_hours"):
        assert sum(item[what] for item in three) == pytest.approx(sum(item[what] for item in one))
    assert world.http.get("/v1/preemptions?by=hour&hours=5").status_code == 422


def test_invalid_grouping_or_time_is_refused(world: SimulatedService) -> None:
    assert world.http.get("/v1/preemptions", params={"by": "colour"}).status_code == 422
    assert world.http.get("/v1/preemptions", params={"since": "x"}).status_code == 400


def test_rates_need_five_losses_not_caused_by_the_program() -> None:
    few, enough = LossTotal(node_ms=360_000_000), LossTotal(node_ms=360_000_000)
    own = LossTotal(node_ms=360_000_000, cause="user_error")
    few.causes.update(preempted=4, user_error=9)
    enough.causes.update(preempted=3, node_failed=2)
    own.causes.update(user_error=9)

    assert _rates(few) == _rates(own) == (None, None, None)
    assert _rates(enough) == pytest.approx((5, 1.970, 10.513), abs=0.001)


def test_long_survival_curve_is_downsampled() -> None:
    steps = [SurvivalPoint(n, 1 - n / 1000, 1000, 1) for n in range(999)]

    thin = _thinned(steps)

    assert len(thin) <= POINTS
    assert thin[-1] == steps[-1]
    assert _thinned([]) == []


def test_timeline_is_chronological_after_its_summary(
    world: SimulatedService, survivor: str
) -> None:
    body = world.http.get(f"/v1/jobs/{survivor}/story").json()

    assert body[0]["text"].startswith("Succeeded at step 60.")
    assert body[1]["text"].startswith("Cost: ~$")
    assert [sentence["at"] for sentence in body[:2]] == [None, None]
    times = [sentence["at"] for sentence in body[2:]]
    assert times == sorted(times)
    assert any("ended: preempted" in sentence["text"] for sentence in body)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--notices", "--worst", "3"], "--notices and --worst exclude each other"),
        (["--notices", "--by", "hour"], "--by and --hours do not apply"),
        (["--worst", "3", "--hours", "2"], "--by and --hours do not apply"),
    ],
)
def test_ineffective_options_are_refused(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["preemptions", *arguments]).exception

    assert isinstance(refused, BadRequest)
    assert refused.detail.startswith(message)


def test_estimated_prices_are_marked_and_explained(
    world: SimulatedService, survivor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = PreemptionsOut.model_validate(world.http.get("/v1/preemptions").json())
    body.total.simulated, body.total.is_price_estimate = False, True

    print_preemptions(body)

    assert "~ some prices are unknown and assumed high" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    ["costs", "preemptions", "preemptions/notices", "preemptions/jobs", "preemptions/history"],
)
@pytest.mark.parametrize("query", ["until=9999-12-31", "since=0001-01-01"])
def test_out_of_range_day_is_refused(world: SimulatedService, path: str, query: str) -> None:
    answer = world.http.get(f"/v1/{path}?{query}")

    name, _, text = query.partition("=")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"{name}: {text!r} is not a day")


def test_command_line_prints_preemptions_and_timeline(url: str, survivor: str) -> None:
    run = CliRunner().invoke

    table = run(app, ["preemptions", "--by", "zone-hour", "--type", "simulated"]).output
    output = run(app, ["why", survivor]).output
    missing = run(app, ["why", "nothing"]).exception
    notices = run(app, ["preemptions", "--notices"]).output
    worst = run(app, ["preemptions", "--worst", "3", "--type", "simulated"]).output
    listed = run(app, ["preemptions", "--worst", "3", "--json"]).output

    assert "local-" in table
    assert "rates need at least 5 preemptions" in table
    assert re.search(r"[0-9]+ steps, ~\$", table)
    assert "~ some prices are simulated" in table
    assert "median attempt lifetime: below one minute" in table
    assert re.search(r"over 0 to 10 s +1 +1", notices)
    assert re.search(rf"{survivor} +tiny +default +1", worst)
    assert "~ some prices are simulated" in worst
    assert json.loads(listed)["jobs"][0]["job_id"] == survivor
    assert output.startswith("Succeeded")
    assert "Attempt 1 ended: preempted" in output
    assert "no job" in str(missing)


def test_job_shows_a_notice_until_its_nodes_are_gone(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    before = world.until(job_id, "training")

    world.take_node(job_id, notice_s=30)
    phases = []
    while (now := world.job(job_id))["state"] == "training":
        phases.append(now["notice"] and now["notice"]["phase"])
        world.pass_time(0.2, tick_s=0.2)

    assert before["notice"] is now["notice"] is None
    assert phases[-1] == "saving"
