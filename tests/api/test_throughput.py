"""Throughput and expected ends in the API and in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.domain.throughput.eta import NO_TOTAL
from holdfast_worker.protocol.reports import RuntimeMetricName
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

RATES: dict[str, float] = {
    RuntimeMetricName.STEPS: 4.0,
    RuntimeMetricName.SAMPLES: 32.0,
    RuntimeMetricName.TOKENS: 4096.0,
    RuntimeMetricName.MFU: 0.41,
    RuntimeMetricName.STALLED: 0.25,
    RuntimeMetricName.DATA_SECONDS: 0.05,
    RuntimeMetricName.COMPUTE_SECONDS: 0.15,
    RuntimeMetricName.COMMUNICATION_SECONDS: 0.03,
    RuntimeMetricName.SAVING_SECONDS: 0.02,
}

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def job_id(world: SimulatedService) -> str:
    """A job in the middle of its training, which lasts a minute."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    world.pass_time(25)
    return job


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def report(
    world: SimulatedService, job: str, *points: dict[str, float], **more: Any
) -> dict[str, Any]:
    """Report points as the worker of the newest attempt, after those of the simulated one, and return the answer."""
    shown = world.job(job)
    begun = world.services.journal.marks(job).get(shown["attempt"], 0)
    reports = [
        {
            "n": begun + i,
            "at": world.clock.now().isoformat(),
            "kind": "progress",
            "body": {"step": shown["step"], "values": values},
        }
        for i, values in enumerate(points, 1)
    ]
    body = {"attempt": shown["attempt"], "reports": reports, **more}
    answer = world.http.post(f"/v1/jobs/{job}/reports", json=body, headers=world.worker_token(job))
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def throughput(world: SimulatedService, job: str) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{job}/throughput")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_job_shows_its_newest_rates(world: SimulatedService, job_id: str) -> None:
    report(world, job_id, RATES, {**RATES, RuntimeMetricName.STEPS: 6.0}, {"loss": 1.0})

    [listed] = world.http.get("/v1/jobs").json()["jobs"]

    rates = listed["rates"]
    assert (rates["steps_per_s"], rates["tokens_per_s"], rates["mfu"]) == (6.0, 4096.0, 0.41)
    assert (rates["compute_s"], rates["rest_s"]) == (0.15, None)
    assert rates == world.job(job_id)["rates"] == throughput(world, job_id)["newest"]


def test_means_cover_all_reports(world: SimulatedService, job_id: str) -> None:
    report(world, job_id, RATES, {**RATES, RuntimeMetricName.STEPS: 6.0})

    mean = throughput(world, job_id)["mean"]

    assert (mean["steps_per_s"], mean["samples_per_s"], mean["at"]) == (5.0, 32.0, None)


def test_unmeasured_parts_of_a_step_are_its_rest(world: SimulatedService, job_id: str) -> None:
    known = (
        RuntimeMetricName.STEPS,
        RuntimeMetricName.DATA_SECONDS,
        RuntimeMetricName.SAVING_SECONDS,
    )
    report(world, job_id, {name: RATES[name] for name in known})

    rates = world.job(job_id)["rates"]

    assert rates["rest_s"] == pytest.approx(0.25 - 0.05 - 0.02)
    assert rates["compute_s"] is rates["communication_s"] is None


def test_older_worker_has_an_end_but_no_rates(world: SimulatedService, job_id: str) -> None:
    found = throughput(world, job_id)

    assert found["newest"] is found["mean"] is None
    assert found["training_step_s"] == pytest.approx(1, rel=0.1)
    assert found["eta"]["p50"] is not None


def test_worker_with_a_tracker_learns_the_expected_end(
    world: SimulatedService, job_id: str
) -> None:
    unasked = report(world, job_id)
    asked = report(world, job_id, asks_end=True)

    now, eta = world.clock.now(), world.job(job_id)["eta"]
    assert unasked["remaining"] is None
    assert asked["remaining"] == {
        f"{name}_s": pytest.approx((datetime.fromisoformat(eta[name]) - now).total_seconds())
        for name in ("p10", "p50", "p90")
    }
    assert 0 < asked["remaining"]["p10_s"] <= asked["remaining"]["p90_s"]


def test_worker_learns_no_end_without_an_estimate(world: SimulatedService) -> None:
    job: str = world.submit()["id"]
    world.until(job, "training")

    assert world.job(job)["eta"]["p50"] is None
    assert report(world, job, asks_end=True)["remaining"] is None


def test_rate_by_the_clock_counts_time_without_nodes(world: SimulatedService, job_id: str) -> None:
    before = throughput(world, job_id)["wall_steps_per_s"]
    world.take_node(job_id, None, then_s=1)
    waiting = throughput(world, job_id)["wall_steps_per_s"]
    world.until(job_id, "succeeded")
    after = throughput(world, job_id)["wall_steps_per_s"]

    assert 0.6 < before <= 1, "its worker reports every tenth step"
    assert waiting < before, "the steps since the checkpoint are lost"
    assert waiting < after < 0.9, "60 steps of a second, and the time without nodes"


def test_end_is_expected_where_the_job_ends(world: SimulatedService, job_id: str) -> None:
    eta = world.job(job_id)["eta"]
    world.until(job_id, "succeeded")
    ended_at = datetime.fromisoformat(world.job(job_id)["ended_at"])

    assert eta["reason"] is None
    assert abs(datetime.fromisoformat(eta["p50"]) - ended_at) < timedelta(seconds=10)
    assert eta["p10"] <= eta["p50"] <= eta["p90"]
    assert world.job(job_id)["eta"]["reason"] == "it has ended"


def test_new_job_has_a_reason_in_place_of_an_end(world: SimulatedService) -> None:
    eta = world.submit()["eta"] or world.http.get("/v1/jobs").json()["jobs"][0]["eta"]

    assert eta["p50"] is None
    assert eta["reason"] == NO_TOTAL


def test_comparison_shows_the_rates_of_both_runs(
    world: SimulatedService, job_id: str, at_terminal: CliRunner
) -> None:
    other = world.submit()["id"]
    world.until(other, "training")
    manifest = {"manifest": {"torch": "2.9"}}
    for job, steps_per_s in ((job_id, 4.0), (other, 3.0)):
        attempt = world.job(job)["attempt"]
        begun = world.services.journal.marks(job).get(attempt, 0)
        at = world.clock.now().isoformat()
        described = {"n": begun + 1, "at": at, "kind": "run_described", "body": manifest}
        body = {"attempt": attempt, "reports": [described]}
        world.http.post(f"/v1/jobs/{job}/reports", json=body, headers=world.worker_token(job))
        report(world, job, {**RATES, RuntimeMetricName.STEPS: steps_per_s})

    answer = world.http.get(f"/v1/jobs/{job_id}/diff", params={"other": other}).json()
    shown = at_terminal.invoke(app, ["diff", job_id, other])

    assert answer["rates_before"]["steps_per_s"] == 4.0
    assert answer["rates_after"]["steps_per_s"] == 3.0
    assert "communication s/step" in shown.stdout


def test_terminal_shows_rates_and_end(
    world: SimulatedService, job_id: str, at_terminal: CliRunner
) -> None:
    report(world, job_id, RATES)

    listed = at_terminal.invoke(app, ["ps"]).stdout
    shown = at_terminal.invoke(app, ["show", job_id]).stdout

    assert "STEPS/S" in listed
    assert "ENDS IN" in listed
    assert "4 steps/s · 32 samples/s · 4,096 tokens/s · MFU 41% · stalled 25% of the time" in shown
    assert "0.25 s: data 0.05 s · compute 0.15 s · communication 0.03 s · saving 0.02 s" in shown
    assert "steps/s by the clock" in shown
    assert "  ends        in " in shown
