"""Rate limits: sent in headers, and counted per request class and caller."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.rate_limit import RateLimiter, RateLimits
from support.principals import OWN, Principals, create_principals
from support.simulated_service import JOB_FILE, SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    made = create_principals(world)
    limits = RateLimits(ask=20, spend=2, report=5, fail=3, guess=12, note=2)
    traffic = RateLimiter(lambda: 0.0, limits)
    world.services = replace(world.services, rate_limiter=traffic)
    world.app.state.services = world.services
    return made


def test_answer_states_the_remaining_rate_limit(principals: Principals) -> None:
    answer = principals.person("viewer").get("/v1/jobs")

    assert answer.headers["ratelimit-policy"] == '"ask";q=20;w=60'
    assert answer.headers["ratelimit"] == '"ask";r=19;t=3'


def test_submissions_are_limited_per_user_across_tokens(
    principals: Principals,
) -> None:
    statuses = [
        principals.person("member").post("/v1/jobs", json={"task": JOB_FILE}).status_code
        for _ in range(3)
    ]
    refused = principals.person("member").post("/v1/jobs", json={"task": JOB_FILE})

    assert statuses == [201, 201, 429]
    assert refused.headers["retry-after"] == "30"
    assert refused.json()["type"].endswith("#too-many-requests")
    assert "2 submissions in a minute" in refused.json()["detail"]
    assert principals.person("lead").post("/v1/jobs", json={"task": JOB_FILE}).status_code == 201
    assert principals.person("member").get("/v1/jobs").status_code == 200


def test_users_and_workers_have_separate_rate_limits(principals: Principals) -> None:
    viewer, worker = principals.person("viewer"), principals.worker(OWN)
    path, empty = f"/v1/jobs/{principals.own}/reports", {"attempt": 1, "reports": []}

    asked = [viewer.get("/v1/jobs").status_code for _ in range(21)]
    reported = [worker.post(path, json=empty).status_code for _ in range(6)]

    assert asked == [200] * 20 + [429]
    assert reported == [200] * 5 + [429]
    assert principals.person("lead").get("/v1/jobs").status_code == 200


def test_owner_is_not_rate_limited(principals: Principals) -> None:
    owner = principals.person(None)

    statuses = {owner.post("/v1/jobs", json={"task": JOB_FILE}).status_code for _ in range(5)}

    assert statuses == {201}
    assert "ratelimit" not in owner.get("/v1/jobs").headers


def test_wrong_tokens_are_limited_and_valid_ones_are_not(
    principals: Principals,
) -> None:
    same = [
        principals.with_token("hf_000000000000_x").get("/v1/jobs").status_code for _ in range(6)
    ]
    others = [
        principals.with_token(f"hf_00000000001{n}_x").get("/v1/jobs").status_code for n in range(8)
    ]

    assert same == [401] * 3 + [429] * 3
    assert others == [401] * 6 + [429] * 2  # 12 requests of any class from one address.
    assert principals.person("viewer").get("/v1/jobs").status_code == 200


def test_failed_logins_of_others_do_not_hide_token_expiry(principals: Principals) -> None:
    expired = principals.person("viewer", lasts=timedelta(seconds=-1))

    for _ in range(6):
        principals.with_token("hf_000000000000_x").get("/v1/jobs")
    answer = expired.get("/v1/jobs")

    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"] or "ended" in answer.json()["detail"]


def test_flood_of_wrong_tokens_adds_few_audit_entries(principals: Principals) -> None:
    before = principals.world.services.audit.head().seq

    for _ in range(50):
        principals.with_token("hf_000000000000_x").get("/v1/jobs")

    assert principals.world.services.audit.head().seq == before + 2
