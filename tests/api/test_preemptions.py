"""The history of losses, and the story of one job, over the API and on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from holdfast.api.preemptions import POINTS, _rates, _thinned
from holdfast.cli.app import app
from holdfast.domain.chances import Step
from holdfast.store.losses import Losses
from typer.testing import CliRunner
from world import World, served


@pytest.fixture
def url(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the world, for the command line."""
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        yield address


@pytest.fixture
def survivor(world: World) -> str:
    """A job that was preempted with notice once, and came through."""
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{job_id}/preempt", json={"notice_s": 10})
    world.pass_time(15)
    world.until(job_id, "succeeded")
    return job_id


def test_a_preemption_is_in_the_history_with_its_recovery(world: World, survivor: str) -> None:
    told = world.http.get("/v1/preemptions", params={"by": "type", "since": "2d"}).json()

    [kind] = told["preemptions"]
    bill = world.http.get(f"/v1/jobs/{survivor}/bill").json()
    assert (kind["instance_type"], kind["taken"], kind["noticed"]) == ("simulated", 1, 1)
    assert kind["notice_used"] == 1
    assert kind["notice_s"] == pytest.approx(10, abs=1.5)
    assert kind["lost_steps"] == bill["lost_steps"]
    assert kind["node_hours"] * 3_600_000 == pytest.approx(2 * bill["provisioned_ms"])
    assert kind["recovery"]["wait_s"] * 1000 == bill["attempts"][1]["waiting_ms"]
    assert kind["recovery"]["restore_s"] == pytest.approx(1, abs=0.1)
    assert kind["per_100_node_hours"] is None
    assert (kind["simulated"], kind["is_price_estimate"]) == (True, False)
    assert told["total"]["causes"] == {"preempted": 1}
    assert [step["taken"] for step in told["survival"]] == [1]


@pytest.mark.parametrize("by", ["zone", "hour", "cause", "zone-hour"])
def test_it_is_told_apart_as_is_asked(world: World, survivor: str, by: str) -> None:
    told = world.http.get("/v1/preemptions", params={"by": by}).json()

    assert sum(item["taken"] for item in told["preemptions"]) == 1
    named = {"zone-hour": ("zone", "hour")}.get(by, (by,))
    assert all(item[word] is not None for item in told["preemptions"] for word in named)


def test_what_cannot_be_told_apart_is_refused(world: World) -> None:
    assert world.http.get("/v1/preemptions", params={"by": "colour"}).status_code == 422
    assert world.http.get("/v1/preemptions", params={"since": "x"}).status_code == 400


def test_a_rate_is_told_from_five_losses_on_and_never_of_other_causes() -> None:
    few, enough = Losses(node_ms=360_000_000), Losses(node_ms=360_000_000)
    own = Losses(node_ms=360_000_000, cause="user_error")
    few.causes.update(preempted=4, user_error=9)
    enough.causes.update(preempted=3, node_failed=2)
    own.causes.update(user_error=9)

    assert _rates(few) == _rates(own) == (None, None, None)
    assert _rates(enough) == pytest.approx((5, 1.970, 10.513), abs=0.001)


def test_a_long_curve_is_thinned_to_its_end() -> None:
    steps = [Step(n, 1 - n / 1000, 1000, 1) for n in range(999)]

    thin = _thinned(steps)

    assert len(thin) <= POINTS
    assert thin[-1] == steps[-1]
    assert _thinned([]) == []


def test_the_story_is_told_in_order_after_what_matters_most(world: World, survivor: str) -> None:
    told = world.http.get(f"/v1/jobs/{survivor}/story").json()

    assert told[0]["text"].startswith("It has succeeded, at step 60.")
    assert told[1]["text"].startswith("It has cost ~$")
    assert [sentence["at"] for sentence in told[:2]] == [None, None]
    times = [sentence["at"] for sentence in told[2:]]
    assert times == sorted(times)
    assert any("the market took its nodes" in sentence["text"] for sentence in told)


def test_the_command_line_tells_both(url: str, survivor: str) -> None:
    run = CliRunner().invoke

    table = run(app, ["preemptions", "--by", "zone-hour", "--type", "simulated"]).output
    story = run(app, ["why", survivor]).output
    missing = run(app, ["why", "nothing"]).exception

    assert "local-" in table
    assert "a rate is told from 5 losses on" in table
    assert re.search(r"[0-9]+ steps, ~\$", table)
    assert "~ some prices are simulated" in table
    assert re.search(r"half of all placements last longer than [0-9.]+ (s|m)\b", table)
    assert story.startswith("It has succeeded")
    assert "Attempt 1 ended: the market took its nodes" in story
    assert "no job" in str(missing)
