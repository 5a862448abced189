"""Reports of workers over HTTP: in order, once, and each batch as a whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.guards import SAVE_GRACE_S
from holdfast_worker.protocol.reports import Leader, Meeting
from holdfast_worker.telemetry.service_client import (
    ReportRejected,
    ServiceClient,
    Superseded,
    UnknownIncarnation,
)
from support.simulated_service import SimulatedService, served


def _report(n: int, kind: str = "progress", **body: Any) -> dict[str, Any]:
    return {"n": n, "at": "2026-01-01T00:00:10+00:00", "kind": kind, "body": body}


def _send(
    world: SimulatedService, job_id: str, *reports: dict[str, Any], attempt: int = 1, **more: Any
) -> Any:
    body = {"attempt": attempt, "reports": list(reports), **more}
    return world.http.post(
        f"/v1/jobs/{job_id}/reports", json=body, headers=world.worker_token(job_id)
    )


def _muster(world: SimulatedService, job_id: str, incarnation: str) -> Any:
    return world.http.post(
        f"/v1/jobs/{job_id}/muster",
        json={"incarnation": incarnation},
        headers=world.worker_token(job_id),
    )


def test_repeated_reports_are_accepted_once(world: SimulatedService) -> None:
    job = world.submit()["id"]
    points = [_report(n, step=n, values={"loss": 1.5 / n}) for n in (1, 2, 3)]

    answers = [
        _send(world, job, *points[:2]),
        _send(world, job, *points),
        _send(world, job, *points),
    ]

    assert [answer.json()["next"] for answer in answers] == [3, 4, 4]
    assert [p["step"] for p in world.http.get(f"/v1/jobs/{job}/metrics").json()] == [1, 2, 3]


def test_gap_is_answered_with_the_expected_report_number(world: SimulatedService) -> None:
    job = world.submit()["id"]

    answer = _send(world, job, _report(5, step=5, values={}))

    assert answer.json() == {
        "next": 1,
        "leave_within_s": None,
        "stop": None,
        "drills": [],
        "remaining": None,
    }
    assert world.http.get(f"/v1/jobs/{job}/metrics").json() == []


def test_worker_continues_from_its_oldest_report(world: SimulatedService) -> None:
    job = world.submit()["id"]

    answers = [
        _send(world, job, _report(5, step=5, values={}), _report(6, step=6, values={}), **more)
        for more in ({}, {"oldest": None}, {"oldest": 5}, {"oldest": 5})
    ]

    assert [answer.json()["next"] for answer in answers] == [1, 1, 7, 7]
    assert [p["step"] for p in world.http.get(f"/v1/jobs/{job}/metrics").json()] == [5, 6]


def test_invalid_report_rejects_its_whole_batch(world: SimulatedService) -> None:
    job = world.submit()["id"]

    wrong_body = _send(
        world, job, _report(1, step=1, values={}), _report(2, "training_started", step="x")
    )

    assert wrong_body.status_code == 422
    assert "step" in wrong_body.json()["detail"]
    assert world.http.get(f"/v1/jobs/{job}/metrics").json() == []


def test_replaced_ranks_keep_the_job_training(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    before = world.http.get(f"/v1/jobs/{job}").json()
    n = world.services.journal.marks(job)[1] + 1
    at = world.clock.now().isoformat()
    body = {"step": before["step"] + 5, "ranks": [1, 3], "cause": "rank 1 was killed"}
    report = _report(n, "ranks_replaced", **body, paused_ms=800) | {"at": at}

    answer = _send(world, job, report)

    after = world.http.get(f"/v1/jobs/{job}").json()
    assert answer.json() == {
        "next": n + 1,
        "leave_within_s": None,
        "stop": None,
        "drills": [],
        "remaining": None,
    }
    assert (after["state"], after["step"]) == ("training", body["step"])
    assert [after[name] for name in ("attempt", "failures", "preemptions")] == [1, 0, 0]
    [event] = [
        event
        for event in world.http.get(f"/v1/jobs/{job}/events").json()
        if event["kind"] == "RanksReplaced"
    ]
    assert event["body"] == {"attempt": 1, **body, "paused_ms": 800, "hosted_nodes": []}
    texts = [item["text"] for item in world.http.get(f"/v1/jobs/{job}/story").json()]
    assert any(text.startswith("Ranks 1, 3 were replaced after step") for text in texts)


def test_report_of_too_many_replaced_ranks_is_refused(world: SimulatedService) -> None:
    job = world.submit()["id"]
    ranks = [*range(4097)]

    answer = _send(
        world, job, _report(1, "ranks_replaced", step=5, ranks=ranks, cause="", paused_ms=800)
    )

    assert answer.status_code == 422
    assert "report 1 (ranks_replaced): ranks: " in answer.json()["detail"]


def test_known_reports_of_a_newer_worker_are_accepted(world: SimulatedService) -> None:
    job = world.submit()["id"]
    known = _report(3, step=2, values={"loss": 1.0}) | {"priority": "high"}

    answer = _send(
        world,
        job,
        _report(1, step=1, values={}, unit="tokens"),
        _report(2, "node_measured", gbps=92.5),
        known,
        _report(4, "worker_left", step=2, reason="bored", exit_code=0, detail=""),
        protocol="2",
    )
    mustered = world.http.post(
        f"/v1/jobs/{job}/muster",
        json={"incarnation": "abc", "protocol": 2},
        headers=world.worker_token(job),
    )

    assert answer.json() == {
        "next": 5,
        "leave_within_s": None,
        "stop": None,
        "drills": [],
        "remaining": None,
    }
    assert [p["step"] for p in world.http.get(f"/v1/jobs/{job}/metrics").json()] == [1, 2]
    assert mustered.status_code != 422


def test_non_finite_number_is_stored_as_null(world: SimulatedService) -> None:
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


def _left(n: int) -> dict[str, Any]:
    return _report(n, "worker_left", step=5, reason="preempted", exit_code=75, detail="")


def test_stopping_job_reports_the_remaining_time_to_its_worker(
    world: SimulatedService,
) -> None:
    """A notice without a time counts as the shortest of any cloud, and a big model is not saved."""
    job = world.submit()["id"]
    before = _send(world, job)
    world.http.post(f"/v1/jobs/{job}/cancel")

    response = _send(world, job)
    world.clock.advance(SAVE_GRACE_S - 1)
    repeated = _send(world, job)
    world.until(job, "cancelled")
    after = _send(world, job)

    left_s = [a.json()["leave_within_s"] for a in (before, response, repeated, after)]
    assert left_s == [None, SAVE_GRACE_S, 1, 0]


@pytest.mark.parametrize(
    ("stop", "stopping", "state", "stopped"),
    [
        ("cancel", "cancelled", "cancelled", "cancelled"),
        ("pause", "paused", "paused", "paused"),
    ],
)
def test_worker_learns_what_becomes_of_its_job(
    world: SimulatedService, stop: str, stopping: str, state: str, stopped: str
) -> None:
    """Its trackers show it."""
    job = world.submit()["id"]
    before = _send(world, job)
    world.http.post(f"/v1/jobs/{job}/{stop}")

    response = _send(world, job)
    world.until(job, state)
    after = _send(world, job)

    found = [answer.json()["stop"] for answer in (before, response, after)]
    assert found == [None, stopping, stopped]


def test_job_is_polled_at_once_after_its_worker_left(
    world: SimulatedService,
) -> None:
    job = world.submit()["id"]
    world.pass_time(3)
    world.http.post(f"/v1/jobs/{job}/cancel")
    world.services.leases.claim(Engine.LOCAL, world.clock.now(), 600, 9)

    _send(world, job, _left(1))

    assert world.services.leases.next_due() == world.clock.now()


def test_worker_learns_its_attempt_after_the_next_observation(
    world: SimulatedService,
) -> None:
    job = world.submit()["id"]
    world.pass_time(10)

    early = _muster(world, job, "aa11")
    world.pass_time(2)
    result = _muster(world, job, "aa11")
    reported = _send(world, job, _report(9, step=1, values={}), incarnation="aa11")

    assert (early.status_code, early.headers["Retry-After"]) == (503, "1")
    assert early.json()["type"].endswith("#not-looked-yet")
    assert result.json() == {"attempt": 1, "next": 4, "before": 3}, (
        "the simulated worker has also reported"
    )
    assert reported.json() == {
        "next": 4,
        "leave_within_s": None,
        "stop": None,
        "drills": [],
        "remaining": None,
    }


def test_replaced_worker_is_fenced(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.pass_time(10)
    _muster(world, job, "aa11")
    world.pass_time(2)
    _muster(world, job, "aa11")
    _muster(world, job, "bb22")

    muster = _muster(world, job, "aa11")
    reports = _send(world, job, _left(4), incarnation="aa11")

    for answer in (muster, reports):
        assert answer.status_code == 409
        assert answer.json()["type"] == "/docs/errors#fenced"
        assert (
            answer.json()["title"] == "A newer attempt of this job has replaced this worker; stop."
        )
    kinds = [event["kind"] for event in world.http.get(f"/v1/jobs/{job}/events").json()]
    assert "WorkerLeft" not in kinds


def test_nodes_of_groups_meet_through_the_service(world: SimulatedService) -> None:
    job = world.submit()["id"]
    path, token = f"/v1/jobs/{job}/rendezvous", world.worker_token(job)
    head = {"node": 0, "group": "head", "incarnation": "a1", "addresses": ["10.0.0.1", "fd00::1"]}
    node = {"node": 2, "group": "workers", "incarnation": "c1"}

    early = world.http.post(path, json=node, headers=token)
    world.http.post(path, json={**head, "port": 29400}, headers=token)
    late = world.http.post(path, json=node, headers=token)
    foreign = world.http.post(
        path, json=node, headers=world.worker_token(world.submit(name="b")["id"])
    )

    assert early.json() == {"leader": None, "start": 0}
    leader = {key: value for key, value in head.items() if key != "node"} | {"port": 29400}
    assert late.json() == {"leader": leader, "start": 0}
    assert foreign.status_code == 401


def test_worker_understands_the_rendezvous_of_the_service(world: SimulatedService) -> None:
    job = world.submit()["id"]
    token = world.services.tokens.for_worker(job)
    head = Leader("head", "a1", ["10.0.0.1"], 29400)

    with served(world) as url:
        client = ServiceClient(url, job, token)
        early = client.meet(1, Leader("workers", "b1", [], 0))
        own = client.meet(0, head)
        late = client.meet(1, Leader("workers", "b2", [], 0))
        with pytest.raises(Superseded, match="another machine"):
            client.meet(1, Leader("workers", "b1", [], 0), joined=1)
        world.http.post(f"/v1/jobs/{job}/cancel")
        with pytest.raises(Superseded, match="no worker may start"):
            client.meet(1, Leader("workers", "b2", [], 0))

    assert (early, own, late) == (Meeting(None, 0), Meeting(head, 0), Meeting(head, 0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", 1000),
        ("node", -1),
        ("group", ""),
        ("incarnation", "a b"),
        ("addresses", ["10.0.0.1"] * 17),
        ("addresses", ["a" * 256]),
        ("addresses", ["http://evil/"]),
        ("port", 65536),
    ],
)
def test_rendezvous_limits_its_input(world: SimulatedService, field: str, value: Any) -> None:
    job = world.submit()["id"]
    body = {"node": 0, "group": "head", "incarnation": "a1", "addresses": [], "port": 1}

    answer = world.http.post(
        f"/v1/jobs/{job}/rendezvous", json={**body, field: value}, headers=world.worker_token(job)
    )

    assert answer.status_code == 422
    assert field in answer.text


def test_muster_requires_the_job_token_and_a_name(world: SimulatedService) -> None:
    job, other = world.submit()["id"], world.submit()["id"]
    body = {"incarnation": "aa11"}

    bare = world.http.post(f"/v1/jobs/{job}/muster", json=body)
    foreign = world.http.post(
        f"/v1/jobs/{job}/muster", json=body, headers=world.worker_token(other)
    )
    nameless = _muster(world, job, "a b")

    assert (bare.status_code, foreign.status_code, nameless.status_code) == (401, 401, 422)


def test_workers_distinguish_causes_of_refusal(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.pass_time(10)
    _muster(world, job, "aa11")
    world.pass_time(2)
    _muster(world, job, "bb22")
    own, other = (world.services.tokens.for_worker(name) for name in (job, "j-unheard-of"))

    with served(world) as address:
        for url, meaning in (
            (ServiceClient(address, "j-unheard-of", other, "aa11"), ReportRejected),
            (ServiceClient(address, job, other, "aa11"), ReportRejected),
            (ServiceClient(address, job, own, "cc33"), UnknownIncarnation),
            (ServiceClient(address, job, own, "aa11"), Superseded),
        ):
            with pytest.raises(meaning):
                url.deliver(1, [])


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
def test_half_a_surrogate_pair_in_a_report_is_accepted(world: SimulatedService, kind: str) -> None:
    """The fast parser refuses half of a surrogate pair.

    A permanently refused batch would block all later ones.
    """
    job = world.submit()["id"]
    token = world.services.tokens.for_worker(job)

    answer = world.http.post(
        f"/v1/jobs/{job}/reports",
        content=b'{"attempt":1,"reports":[{"n":1,"at":"2026-01-01T00:00:10Z","kind":"checkpoint_failed",'
        b'"body":{"step":1,"detail":"half \\ud83d"}}]}',
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
    )

    assert answer.status_code == 200
    assert answer.json()["next"] == 2


def test_job_stays_readable_after_half_a_surrogate_pair(world: SimulatedService) -> None:
    job = world.submit()["id"]
    reports = [
        ("checkpoint_failed", rb'{"step": 1, "detail": "half \ud83d"}'),
        ("run_described", rb'{"manifest": {"name \ud83d": "half \ud83d"}}'),
    ]
    reported = b",".join(
        b'{"n":%d,"at":"2026-01-01T00:00:10Z","kind":"%s","body":%s}' % (n, kind.encode(), body)
        for n, (kind, body) in enumerate(reports, 1)
    )
    headers = {**world.worker_token(job), "Content-Type": "application/json"}

    world.http.post(
        f"/v1/jobs/{job}/reports",
        content=b'{"attempt":1,"reports":[%s]}' % reported,
        headers=headers,
    ).raise_for_status()

    events, checkpoints, manifest = (
        world.http.get(f"/v1/jobs/{job}/{place}") for place in ("events", "checkpoints", "manifest")
    )
    assert "half ?" in events.text
    assert "half ?" in checkpoints.text
    assert '"name ?":"half ?"' in manifest.text


def test_fast_path_refusals_are_ordinary_problems(world: SimulatedService) -> None:
    job = world.submit()["id"]
    path, body = f"/v1/jobs/{job}/reports", {"attempt": 1, "reports": []}

    stranger = world.http.post(path, json=body, headers={"Authorization": "Bearer hfw_x"})
    unknown = world.http.post(
        "/v1/jobs/job-x/reports", json=body, headers=world.worker_token("job-x")
    )
    misfit = world.http.post(path, json=body | {"attempt": "x"}, headers=world.worker_token(job))

    assert [a.status_code for a in (stranger, unknown, misfit)] == [401, 404, 422]
    assert stranger.headers["www-authenticate"] == "Bearer"
    assert "there is no job job-x" in unknown.json()["detail"]
    assert "attempt" in misfit.json()["detail"]
    assert all(a.json()["request_id"] for a in (stranger, unknown, misfit))
