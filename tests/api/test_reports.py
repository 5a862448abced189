"""Reports of workers over HTTP: in order, once, and never taken in part."""

from __future__ import annotations

from typing import Any

from world import World


def _report(n: int, kind: str = "progress", **body: Any) -> dict[str, Any]:
    return {"n": n, "at": "2026-01-01T00:00:10+00:00", "kind": kind, "body": body}


def _send(world: World, job_id: str, *reports: dict[str, Any], attempt: int = 1) -> Any:
    token = {"Authorization": f"Bearer {world.services.tokens.for_worker(job_id)}"}
    return world.http.post(
        f"/v1/jobs/{job_id}/reports",
        json={"attempt": attempt, "reports": list(reports)},
        headers=token,
    )


def test_reports_are_taken_once_however_often_they_come(world: World) -> None:
    job = world.submit()["id"]
    points = [_report(n, step=n, values={"loss": 1.5 / n}) for n in (1, 2, 3)]

    answers = [
        _send(world, job, *points[:2]),
        _send(world, job, *points),
        _send(world, job, *points),
    ]

    assert [answer.json()["next"] for answer in answers] == [3, 4, 4]
    assert [p["step"] for p in world.http.get(f"/v1/jobs/{job}/metrics").json()] == [1, 2, 3]


def test_a_gap_is_answered_with_the_place_to_go_on(world: World) -> None:
    job = world.submit()["id"]

    answer = _send(world, job, _report(5, step=5, values={}))

    assert answer.json() == {"next": 1}
    assert world.http.get(f"/v1/jobs/{job}/metrics").json() == []


def test_a_bad_report_takes_nothing_of_its_batch(world: World) -> None:
    job = world.submit()["id"]

    wrong_kind = _send(world, job, _report(1, step=1, values={}), _report(2, "gossip"))
    wrong_body = _send(
        world, job, _report(1, step=1, values={}), _report(2, "training_started", step="x")
    )

    assert (wrong_kind.status_code, wrong_body.status_code) == (422, 422)
    assert "'gossip' is not a kind of report" in wrong_kind.json()["detail"]
    assert "step" in wrong_body.json()["detail"]
    assert world.http.get(f"/v1/jobs/{job}/metrics").json() == []


def test_a_number_that_is_not_finite_is_kept_as_null(world: World) -> None:
    job = world.submit()["id"]
    token = world.services.tokens.for_worker(job)

    world.http.post(
        f"/v1/jobs/{job}/reports",
        content=b'{"attempt":1,"reports":[{"n":1,"at":"2026-01-01T00:00:10Z","kind":"progress",'
        b'"body":{"step":1,"values":{"loss":NaN}}}]}',
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )

    (point,) = world.http.get(f"/v1/jobs/{job}/metrics").json()
    assert point["values"] == {"loss": None}
