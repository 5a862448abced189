"""Filters of lists, and actions on a selection of jobs, over the API."""

from __future__ import annotations

from typing import Any

import pytest
from support.simulated_service import JOB_FILE, SimulatedService


def submit(world: SimulatedService, name: str, tags: str) -> str:
    file = JOB_FILE.replace("name: tiny", f"name: {name}").replace("{team: nlp}", tags)
    job_id: str = world.submit(file)["id"]
    return job_id


def act(world: SimulatedService, body: dict[str, Any], status: int = 200, key: str = "") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    answer = world.http.post("/v1/jobs/actions", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def results(answer: Any) -> dict[str, str]:
    return {job["name"]: job["result"] for job in answer["jobs"]}


def test_selection_is_previewed_then_cancelled(world: SimulatedService) -> None:
    for name, tags in (("a", "{team: nlp}"), ("b", "{team: nlp, stage: dev}"), ("c", "{x: y}")):
        submit(world, name, tags)
    ended = submit(world, "d", "{team: nlp}")
    world.http.post(f"/v1/jobs/{ended}/cancel", json={})
    world.until(ended, "cancelled")
    asked = {"action": "cancel", "selection": {"selector": "team=nlp"}, "reason": "a mistake"}

    preview = act(world, {**asked, "dry_run": True})
    ids = [job["job_id"] for job in preview["jobs"] if job["result"] == "done"]
    late = submit(world, "late", "{team: nlp}")
    done = act(world, {**asked, "job_ids": ids})
    again = act(world, {**asked, "job_ids": ids})

    assert results(preview) == {"a": "done", "b": "done", "d": "unchanged"}
    assert (preview["done"], preview["unchanged"], preview["dry_run"]) == (2, 1, True)
    assert results(done) == {"a": "done", "b": "done"}
    assert results(again) == {"a": "unchanged", "b": "unchanged"}
    assert world.job(late)["state"] not in {"stopping", "cancelled"}
    assert all(world.until(job_id, "cancelled")["detail"] == "a mistake" for job_id in ids)


def test_jobs_that_changed_since_the_preview_are_refused(world: SimulatedService) -> None:
    job_id = submit(world, "a", "{team: nlp}")
    asked = {"action": "cancel", "selection": {"tag": ["team:nlp"]}}
    act(world, {"action": "label", "job_ids": [job_id], "tags": {"team": "vision"}})

    done = act(world, {**asked, "job_ids": [job_id, "gone"]})

    assert [(job["result"], job["reason"]) for job in done["jobs"]] == [
        ("refused", f"there is no job {job_id}, or it no longer matches the selection"),
        ("refused", "there is no job gone, or it no longer matches the selection"),
    ]


def test_pause_resume_and_retry_answer_for_each_job(world: SimulatedService) -> None:
    ids = [submit(world, name, "{team: nlp}") for name in "ab"]
    for job_id in ids:
        world.until(job_id, "training")
    world.pass_time(60)

    paused = act(world, {"action": "pause", "job_ids": ids})
    for job_id in ids:
        world.until(job_id, "paused")
    early = act(world, {"action": "retry", "job_ids": ids})
    resumed = act(world, {"action": "resume", "job_ids": ids})
    twice = act(world, {"action": "resume", "job_ids": ids})
    act(world, {"action": "cancel", "job_ids": ids})
    for job_id in ids:
        world.until(job_id, "cancelled")
    retried = act(world, {"action": "retry", "job_ids": ids}, key="once")
    repeated = act(world, {"action": "retry", "job_ids": ids}, key="once")

    assert results(paused) == results(resumed) == results(retried) == {"a": "done", "b": "done"}
    assert results(early) == results(twice) == {"a": "refused", "b": "refused"}
    assert "it is paused; resume it with" in early["jobs"][0]["reason"]
    made = [job["new_job_id"] for job in retried["jobs"]]
    assert made == [job["new_job_id"] for job in repeated["jobs"]]
    assert [world.job(job_id)["from_job"] for job_id in made] == ids


def test_labels_change_lists_history_and_audit(world: SimulatedService) -> None:
    job_id = submit(world, "a", "{team: nlp, stage: dev}")

    changes = {"action": "label", "job_ids": [job_id], "tags": {"stage": None, "team": "vision"}}
    done, again = act(world, changes), act(world, changes)

    assert (results(done), results(again)) == ({"a": "done"}, {"a": "unchanged"})
    assert world.job(job_id)["tags"] == {"team": "vision"}
    story = world.http.get(f"/v1/jobs/{job_id}/story").json()
    assert any("they are now: team=vision" in item["text"] for item in story), story


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("launcher=local", ["alpha", "beta"]),
        ("launcher=slurm", []),
        ("selector=team%3Dnlp,!stage", ["alpha"]),
        ("selector=stage", ["beta"]),
        ("find=BETA&status=queued", ["beta"]),
    ],
)
def test_lists_are_filtered(world: SimulatedService, query: str, names: list[str]) -> None:
    submit(world, "alpha", "{team: nlp}")
    submit(world, "beta", "{team: nlp, stage: dev}")

    page = world.http.get(f"/v1/jobs?{query}").json()

    assert sorted(job["name"] for job in page["jobs"]) == names


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("launcher=cloud", "launcher: 'cloud' is not a launcher; use one of local, slurm"),
        ("status=done", "status: 'done' is not a state; use one of queued,"),
        ("selector=a%3E3", "selector: 'a>3' is not a condition; write name=value"),
    ],
)
def test_bad_filters_are_named(world: SimulatedService, query: str, why: str) -> None:
    answer = world.http.get(f"/v1/jobs?{query}")

    assert answer.status_code == 400
    assert why in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"action": "cancel"}, "selection: give a selection or job_ids"),
        (
            {"action": "cancel", "selection": {}},
            "job_ids: send the ids that a request with dry_run",
        ),
        ({"action": "label", "selection": {}, "dry_run": True}, "tags: give the changes"),
        ({"action": "pause", "tags": {"a": "b"}, "job_ids": ["x"]}, "tags: give the changes"),
        ({"action": "pause", "selection": {"selector": "(("}, "dry_run": True}, "selector: "),
        ({"action": "pause", "selection": {"since": "x"}, "dry_run": True}, "since: 'x' is not"),
    ],
)
def test_bad_actions_are_named(world: SimulatedService, body: dict[str, Any], why: str) -> None:
    assert why in act(world, body, 400)["detail"]
