"""Checkpoints of a job in the API and on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.domain.events import CheckpointsRemoved, Finished, Removal
from holdfast.domain.events.values import Metric, PassedOver
from holdfast_worker.protocol.policies import RetentionOwner
from support.events import at, failing, launched, ready, saved, submitted, training
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

BEST = {"last": 2, "every": "100 steps", "best": {"metric": "val_loss", "mode": "min", "count": 2}}
JOB = "job-1"


def metrics(**values: float | None) -> dict[str, Metric]:
    return {name: Metric(value=value, step=7) for name, value in values.items()}


@pytest.fixture
def service(world: SimulatedService) -> SimulatedService:
    """A job with a checkpoint of each kind, whose old checkpoints the service deletes."""
    journal = world.services.journal
    checkpoint = {"store": "s3://bucket/runs", "keep": BEST}
    journal.submit(JOB, submitted(checkpoint=checkpoint), tidied_by=RetentionOwner.SERVICE)
    over = (PassedOver(checkpoint="c", reason="c/rank-0/000000 is missing"),)
    removed = CheckpointsRemoved(
        at=at(60), checkpoints=("a",), removal=Removal.SUPERSEDED, size_bytes=1
    )
    recorded = [
        launched(),
        ready(1),
        training(2),
        saved(10, step=10, name="a", metrics=metrics(val_loss=0.5)),
        saved(20, step=20, name="b", size_bytes=1_500_000_000, stall_ms=40, metrics=metrics(val_loss=0.25, loss=None)),
        saved(30, step=30, name="c"),
        saved(32, step=32, name="d"),
        failing(35, step=35),
        replace(training(40, attempt=2, step=20), restored_from="b", passed_over=over),
        removed,
    ]  # fmt: skip
    journal.append(journal.read(JOB), recorded)
    return world


def listed(world: SimulatedService, **params: Any) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{JOB}/checkpoints", params=params)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def test_save_attempts_are_listed_newest_first_with_state(
    service: SimulatedService,
) -> None:
    items = listed(service)["checkpoints"]

    assert [
        (item["step"], item["checkpoint"], item["state"], item["detail"]) for item in items
    ] == [
        (35, None, "failed", "no room"),
        (32, "d", "abandoned", "attempt 2 resumed from step 20"),
        (30, "c", "damaged", "attempt 2 could not use it: c/rank-0/000000 is missing"),
        (20, "b", "complete", ""),
        (10, "a", "removed", "the retention policy no longer keeps it"),
    ]


def test_checkpoint_is_listed_with_all_details(service: SimulatedService) -> None:
    *_, b, a = listed(service)["checkpoints"]

    assert b | {"at": None, "taken_at": None} == {
        "step": 20,
        "checkpoint": "b",
        "state": "complete",
        "detail": "",
        "attempt": 1,
        "at": None,
        "taken_at": None,
        "size_bytes": 1_500_000_000,
        "stall_ms": 40,
        "upload_ms": 0,
        "weights_sha256": "00",
        "metrics": {"val_loss": {"value": 0.25, "step": 7}, "loss": {"value": None, "step": 7}},
        "restored_by": [2],
        "passed_over": [],
        "removed_at": None,
        "superseded": False,
    }
    assert a["removed_at"] == "2026-03-01T12:01:00Z"


def test_checkpoints_beyond_keep_wait_for_removal(world: SimulatedService) -> None:
    journal = world.services.journal
    checkpoint = {"store": "s3://bucket/runs", "keep": {"last": 3}}
    journal.submit(JOB, submitted(checkpoint=checkpoint), tidied_by=RetentionOwner.SERVICE)
    saves = [saved(10 * n, step=10 * n, name=f"c{n}") for n in range(1, 15)]
    journal.append(journal.read(JOB), [launched(), ready(1), training(2), *saves])

    page = listed(world)

    assert [item["step"] for item in page["checkpoints"] if not item["superseded"]] == [
        140,
        130,
        120,
    ]
    (note,) = page["notes"]
    assert note.startswith("11 of 14 complete checkpoints wait for deletion")


def test_superseded_checkpoints_note_deletion_by_the_worker(world: SimulatedService) -> None:
    journal = world.services.journal
    checkpoint = {"store": "s3://bucket/runs", "keep": {"last": 3}, "tidy": "worker"}
    journal.submit(JOB, submitted(checkpoint=checkpoint), tidied_by=RetentionOwner.WORKER)
    saves = [saved(10 * n, step=10 * n, name=f"c{n}") for n in range(1, 6)]
    journal.append(journal.read(JOB), [launched(), ready(1), training(2), *saves])

    page = listed(world)
    with served(world) as url:
        shown = CliRunner().invoke(app, ["checkpoints", JOB], env={"HOLDFAST_URL": url}).stdout

    assert {item["detail"] for item in page["checkpoints"] if item["superseded"]} == {
        "the worker deletes it at a save, without a report"
    }
    assert page["notes"][0].startswith("2 of 5 complete checkpoints are superseded")
    assert (shown.count("✓ complete"), shown.count("○ superseded")) == (3, 2)


def test_checkpoint_pages_and_state_filter(service: SimulatedService) -> None:
    first = listed(service, limit=2)
    second = listed(service, limit=2, cursor=first["next"])
    third = listed(service, limit=2, cursor=second["next"])
    chosen = listed(service, state=["complete", "removed"], limit=1)
    rest = listed(service, state=["complete", "removed"], limit=1, cursor=chosen["next"])

    pages = (first, second, third, chosen, rest)
    steps = [[item["step"] for item in page["checkpoints"]] for page in pages]
    assert steps == [[35, 32], [30, 20], [10], [20], [10]]
    assert (third["next"], rest["next"]) == (None, None)


@pytest.mark.parametrize("params", [{"cursor": "77"}, {"state": "lost"}, {"limit": 0}])
def test_invalid_checkpoint_query_is_refused(
    service: SimulatedService, params: dict[str, Any]
) -> None:
    answer = service.http.get(f"/v1/jobs/{JOB}/checkpoints", params=params)

    assert answer.status_code in {400, 422}
    assert answer.json()["type"].endswith("#bad-request")


def test_retention_policy_and_its_errors_are_shown(service: SimulatedService) -> None:
    upkeep, now = service.services.retention_queue, at(100)
    fresh = listed(service)["tidying"]
    [turn] = upkeep.claim(now, 60, limit=1)
    upkeep.mark_failed(turn, "s3://bucket/runs/job-1: AccessDenied", now, now + timedelta(hours=1))

    blocked = listed(service)["tidying"]

    assert fresh == {
        "by": "service",
        "keep": {
            "last": 2,
            "every_steps": 100,
            "best": {"metric": "val_loss", "mode": "min", "count": 2},
        },
        "tidied_at": None,
        "trouble": None,
        "since": None,
    }
    assert blocked["trouble"] == "s3://bucket/runs/job-1: AccessDenied"
    assert blocked["since"] == "2026-03-01T12:01:40Z"
    job = service.job(JOB)
    assert job["tidying"] == blocked
    assert job["warning"] == "old checkpoints are not deleted: s3://bucket/runs/job-1: AccessDenied"


def test_unlogged_best_metric_is_noted_with_logged_metrics(
    world: SimulatedService,
) -> None:
    journal = world.services.journal
    for job_id, metric in [("near", "val_los"), ("far", "accuracy")]:
        keep = {"best": {"metric": metric, "mode": "max"}}
        submission = submitted(checkpoint={"store": "s3://b", "keep": keep})
        journal.submit(job_id, submission, tidied_by=RetentionOwner.SERVICE)
        save = saved(10, step=10, metrics=metrics(val_loss=0.5, loss=1))
        journal.append(journal.read(job_id), [save])

    near, far = (world.http.get(f"/v1/jobs/{id_}/checkpoints").json() for id_ in ("near", "far"))

    [note] = near["notes"]
    assert note.startswith(
        "no checkpoint is kept as best: none has the metric 'val_los' of keep.best; "
    )
    assert note.endswith("keep.best; did the script mean 'val_loss'?")
    assert far["notes"][0].endswith("logged metrics: loss, val_loss")


def test_retention_owner_follows_the_job_file(world: SimulatedService) -> None:
    store = "holdfast: {checkpoint: {store: 's3://b'%s}}"
    here = "run: x\nresources: {infra: local}\n"

    by = [
        world.submit(f"{here}{checkpoint}")["tidying"]
        for checkpoint in (store % "", store % ", tidy: worker", "")
    ]

    assert [tidying and tidying["by"] for tidying in by] == ["service", "worker", None]


def test_job_shows_time_of_its_last_checkpoint(world: SimulatedService) -> None:
    job = world.submit()
    before = world.job(job["id"])["last_checkpoint_at"]
    done = world.until(job["id"], "succeeded")

    saves = world.http.get(f"/v1/jobs/{job['id']}/checkpoints").json()["checkpoints"]

    assert before is None
    assert done["last_checkpoint_at"] == saves[0]["taken_at"]
    assert saves[0]["step"] == done["last_checkpoint_step"]
    assert saves[0]["metrics"]["loss"]["step"] == saves[0]["step"]


# The command line


@pytest.fixture
def at_terminal(service: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(service) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def test_command_line_lists_checkpoints_and_retention(at_terminal: CliRunner) -> None:
    shown = at_terminal.invoke(app, ["checkpoints", JOB])

    assert shown.exit_code == 0, shown.output
    heading, failed, _, _, complete, removed = map(str.rstrip, shown.stdout.splitlines())
    assert heading.split("  ")[0] == "STEP"
    assert "VAL_LOSS" in heading
    assert "RESTORED BY" in heading
    assert re.search(r"35 +✗ failed .* no room$", failed)
    assert re.search(r"20 +✓ complete .* 1\.5 GB +0\.0 s +0\.0 s +1 +2 +0\.25 +b$", complete)
    assert removed.endswith("the retention policy no longer keeps it (2026-03-01 12:01:00Z)")
    result = "retention: the last 2; one of every 100 steps; the 2 with the lowest val_loss"
    assert result in shown.stderr


def test_blocked_retention_is_shown_with_its_reason(
    service: SimulatedService, at_terminal: CliRunner
) -> None:
    upkeep, now = service.services.retention_queue, at(100)
    [turn] = upkeep.claim(now, 60, limit=1)
    upkeep.mark_failed(turn, "s3://bucket/runs/job-1: AccessDenied", now, now + timedelta(hours=1))

    listing = at_terminal.invoke(app, ["checkpoints", JOB, "--limit", "2"])
    job = at_terminal.invoke(app, ["show", JOB])

    trouble = "since 2026-03-01 12:01:40Z: s3://bucket/runs/job-1: AccessDenied"
    assert f"! old checkpoints are not deleted {trouble}" in listing.stderr
    assert "only the newest 2 are shown; raise --limit to see more" in listing.stderr
    assert f"  retention   {trouble}" in job.stdout
    assert re.search(r"checkpoint  step 20, \d+ d \d\d h old", job.stdout)


def test_json_output_lists_checkpoints(at_terminal: CliRunner) -> None:
    command = ["checkpoints", JOB, "--state", "complete", "--state", "removed", "--json"]

    shown = at_terminal.invoke(app, command)

    assert [item["checkpoint"] for item in json.loads(shown.stdout)] == ["b", "a"]
    assert shown.stderr == ""


def test_later_deletions_do_not_end_a_job_again(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    begun = world.http.get(f"/v1/jobs/{job_id}").json()["ended_at"]
    world.until(job_id, "succeeded")
    ended = world.http.get(f"/v1/jobs/{job_id}").json()
    world.pass_time(300)
    journal = world.services.journal
    removed = CheckpointsRemoved(
        at=world.clock.now(), checkpoints=("a",), removal=Removal.SUPERSEDED, size_bytes=1
    )
    journal.append(journal.read(job_id), [removed])

    later = world.http.get(f"/v1/jobs/{job_id}").json()

    [finished] = [item.event for item in journal.events(job_id) if isinstance(item.event, Finished)]
    assert begun is None
    assert datetime.fromisoformat(later["ended_at"]) == finished.at
    assert later["ended_at"] == ended["ended_at"]
    assert later["updated_at"] > later["ended_at"]
