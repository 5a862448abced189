"""Prometheus metrics: each is described, has bounded labels, and matches the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast.api.routes.prometheus import TRAINING
from holdfast.domain.access.permissions import TokenScope
from holdfast_worker.protocol.reports import Json, Report, ReportKind, RuntimeMetricName
from prometheus_client.parser import text_string_to_metric_families
from support.principals import create_principals
from support.simulated_service import SimulatedService, client
from support.snapshots import created_once

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "holdfast.json").read_text())
ALERTS = (ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text()
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
MAY_BE_ABSENT = {
    "holdfast_backup_age_seconds",
    "holdfast_budget_spent_ratio",
    "holdfast_training_remaining_seconds",
}
"""Metrics without samples for these jobs; `test_fleet_metrics.py` shows that they have them for others."""
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scraped(world: SimulatedService) -> Samples:
    """Every sample by its name and labels."""
    answer = world.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(figures: Samples, name: str, **labels: str) -> float:
    return figures[name][tuple(sorted(labels.items()))]


@pytest.fixture
def busy(world: SimulatedService) -> SimulatedService:
    """Three kinds of jobs: ended after a preemption, in training (two), and queued."""
    created_once(world, run_jobs)
    return world


def run_jobs(world: SimulatedService) -> None:
    done = world.submit()["id"]
    world.until(done, "training")
    world.take_node(done, notice_s=None)
    world.until(done, "recovering")
    world.until(done, "succeeded")
    for utilization in (0.5, 0.9):
        training = world.submit()["id"]
        world.until(training, "training")
        measure(world, training, utilization)
    world.submit()


def measure(world: SimulatedService, job_id: str, utilization: float) -> None:
    """Report points of the first attempt, of which the first one has the runtime metrics."""
    n = world.services.journal.marks(job_id).get(1, 0)
    measured = dict.fromkeys(RuntimeMetricName, utilization)
    points: list[dict[str, Json]] = [{"loss": 1.0, **measured}, {"loss": 0.9}]
    reports = [
        Report(
            1,
            n + i,
            world.clock.now().isoformat(),
            ReportKind.PROGRESS,
            {"step": i, "values": values},
        )
        for i, values in enumerate(points, 1)
    ]
    world.services.journal.ingest(job_id, 1, reports)


def test_metrics_match_the_api(busy: SimulatedService) -> None:
    total = busy.http.get("/v1/costs").json()["total"]

    result = scraped(busy)

    assert value(result, "holdfast_jobs", state="training") == 2
    assert value(result, "holdfast_jobs", state="succeeded") == 1
    assert value(result, "holdfast_jobs", state="failed") == 0
    assert value(result, "holdfast_losses", cause="preempted") == 1
    assert value(result, "holdfast_watched_jobs", launcher="local") == 3
    usd = {"simulated": "true"}
    assert value(result, "holdfast_paid_usd", **usd) == pytest.approx(total["paid_micros"] / 1e6)
    saved = value(result, "holdfast_on_demand_usd", **usd) - value(
        result, "holdfast_paid_usd", **usd
    )
    assert saved == pytest.approx(total["saved_micros"] / 1e6)
    for phase, micros in total["micros"].items():
        if phase != "total":
            paid = value(result, "holdfast_phase_usd", phase=phase, **usd)
            assert paid == pytest.approx(micros / 1e6), phase
    assert value(result, "holdfast_paid_usd", simulated="false") == 0
    hourly = value(result, "holdfast_standing_usd_per_hour", **usd)
    live = busy.http.get("/v1/jobs", params={"status": "training"}).json()["jobs"]
    rates = [busy.services.journal.read(job["id"]).account.micros_per_hour for job in live]
    assert all(rates)
    assert hourly == pytest.approx(sum(rates) / 1e6)


def test_failed_observation_is_counted(busy: SimulatedService) -> None:
    busy.cloud.dark = True
    busy.pass_time(5)
    busy.clock.advance(100)

    result = scraped(busy)

    assert value(result, "holdfast_unseen_jobs", launcher="local") >= 1
    assert value(result, "holdfast_look_overdue_seconds") == pytest.approx(100, abs=5)


def test_responses_are_timed_by_route_not_by_path(busy: SimulatedService) -> None:
    for path in ("/v1/jobs/j000000000000", "/nowhere/at/all", "/v1/jobs?limit=0"):
        busy.http.get(path)
    busy.http.request("BREW", "/v1/jobs")

    result = scraped(busy)["holdfast_http_request_seconds_count"]

    routes = {dict(labels)["route"] for labels in result}
    known = {route.path for route in busy.app.routes if hasattr(route, "path")}
    paths = set(busy.app.openapi()["paths"])
    assert "/v1/jobs/{job_id}" in routes
    assert "none" in routes
    assert not {route for route in routes - paths - known if route != "none"}
    assert {dict(labels)["method"] for labels in result} <= {"GET", "POST", "other"}
    refused = {"method": "GET", "route": "/v1/jobs/{job_id}", "status": "4xx"}
    assert result[tuple(sorted(refused.items()))] == 1


def test_unhandled_error_is_counted_as_a_5xx_response(world: SimulatedService) -> None:
    world.app.add_api_route("/boom", lambda: None)  # It declares no permissions.
    assert world.http.get("/boom").status_code == 500

    result = scraped(world)["holdfast_http_request_seconds_count"]

    assert result[tuple(sorted({"method": "GET", "route": "/boom", "status": "5xx"}.items()))] == 1


def test_report_deliveries_are_counted_by_outcome(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    headers = world.worker_token(job_id)
    point = {"n": 1, "at": "2026-03-01T12:00:00Z", "kind": "progress", "body": {"step": 1}}
    bad = {**point, "n": 2, "body": {}}
    for reports in ([point], [bad]):
        body = {"attempt": 1, "reports": reports}
        world.http.post(f"/v1/jobs/{job_id}/reports", json=body, headers=headers)

    result = scraped(world)

    counts = {
        outcome: value(result, "holdfast_intake_deliveries_total", outcome=outcome)
        for outcome in ("taken", "refused", "failed")
    }
    assert counts == {"taken": 1, "refused": 1, "failed": 0}
    assert value(result, "holdfast_intake_group_reports_sum") == 2
    assert value(result, "holdfast_intake_commit_seconds_count") == 2
    assert value(result, "holdfast_intake_waiting_reports") == 0
    labels = {"method": "POST", "route": "/v1/jobs/{job_id}/reports"}
    assert value(result, "holdfast_http_request_seconds_count", status="2xx", **labels) == 1
    assert value(result, "holdfast_http_request_seconds_count", status="4xx", **labels) == 1


def test_metrics_are_readable_with_a_read_only_token(world: SimulatedService) -> None:
    principals = create_principals(world)
    monitor = principals.person("boss", scopes=[TokenScope.READ])

    assert monitor.get("/metrics").status_code == 200
    assert monitor.post("/v1/projects", json={"name": "new"}).status_code == 403
    assert principals.person("lead").get("/metrics").status_code == 403
    assert client(world.app, "192.0.2.8").get("/metrics").status_code == 401


def names(text: str) -> set[str]:
    return set(re.findall(r"\b(?:holdfast|process)_\w+", text))


def test_every_metric_is_documented(busy: SimulatedService) -> None:
    families = {
        family.name
        for family in text_string_to_metric_families(busy.http.get("/metrics").text)
        if family.name.startswith("holdfast_")
    }
    described = set(re.findall(r"^\| `(holdfast_\w+)`", PAGE, re.MULTILINE))

    # The parser removes `_total` from the names of counters.
    assert {name.removesuffix("_total") for name in described} == families


def panels() -> Iterator[dict[str, object]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def test_dashboard_metrics_are_all_exported(busy: SimulatedService) -> None:
    busy.http.get("/v1/jobs")  # Requests are counted from the first one on.
    result = scraped(busy)

    asked = {name for panel in panels() for name in names(json.dumps(panel["targets"]))}

    assert len(asked) > 15
    assert asked - result.keys() <= MAY_BE_ABSENT


def test_alert_metrics_are_all_exported(busy: SimulatedService) -> None:
    busy.http.get("/v1/jobs")
    expressions = [part.partition("labels:")[0] for part in ALERTS.split("expr:")[1:]]

    asked = {name for text in expressions for name in names(text)}

    assert len(asked) > 15
    assert asked - scraped(busy).keys() <= MAY_BE_ABSENT


@pytest.mark.full
def test_runtime_metrics_of_training_jobs_are_exported(busy: SimulatedService) -> None:
    samples = scraped(busy)

    shown = json.dumps(DASHBOARD)
    exported = [metric for metric, _ in TRAINING.values()]
    assert TRAINING.keys() == set(RuntimeMetricName)
    for metric in exported:
        assert value(samples, metric, stat="min") == 0.5
        assert value(samples, metric, stat="mean") == pytest.approx(0.7)
        assert value(samples, metric, stat="max") == 0.9
        assert metric in shown
    busy.pass_time(3600)
    assert not set(exported) & scraped(busy).keys(), "no job is in training"


def test_grafana_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
