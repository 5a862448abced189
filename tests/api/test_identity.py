"""Users in the API: projects of their jobs, tokens, actors in the audit log, and revocation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from holdfast.api.app import create_app
from holdfast.domain.access.permissions import WORKER_GRACE, Role, TokenScope
from holdfast.domain.events import CancelRequested, Submitted
from holdfast.store.tables.identity import audit
from sqlalchemy import text
from support.principals import FAR, FOREIGN, OWN, STAGE, Principals, create_principals
from support.simulated_service import JOB_FILE, SimulatedService, client

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    return create_principals(world)


def submit(caller: Any, file: str = JOB_FILE, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return caller.post("/v1/jobs", json={"task": file, **body}, headers=headers)


def in_project(name: str) -> str:
    return JOB_FILE + f"  project: {name}\n"


# Jobs


def test_job_records_its_project_and_owner(principals: Principals) -> None:
    principals.world.services.users.add_project("third", STAGE)
    principals.world.services.users.set_member("third", "member", Role.MEMBER, STAGE)
    member = principals.person("member")

    sent = [
        submit(member, in_project("third"), project=OWN, default_project="default"),
        submit(member, in_project("third"), default_project=OWN),
        submit(member, default_project=OWN),
    ]

    body = [(answer.json()["project"], answer.json()["owner"]) for answer in sent]
    assert body == [(OWN, "member"), ("third", "member"), (OWN, "member")]
    event = principals.world.services.journal.events(sent[0].json()["id"])[0].event
    assert isinstance(event, Submitted)
    assert (event.by, event.project) == ("member", OWN)


def test_project_is_implied_when_only_one_applies(principals: Principals) -> None:
    assert submit(principals.person("member")).json()["project"] == OWN
    assert submit(principals.person("boss", project=FOREIGN)).json()["project"] == FOREIGN
    assert submit(principals.world.http).json()["project"] == "default"


def test_no_or_several_projects_require_project_option(principals: Principals) -> None:
    principals.world.services.users.set_member(FOREIGN, "member", Role.MEMBER, STAGE)

    answers = [submit(principals.person("outsider")), submit(principals.person("member"))]

    for answer in answers:
        assert answer.status_code == 403
        assert "--project" in answer.json()["detail"]


def test_archived_project_refuses_new_jobs(principals: Principals) -> None:
    before = submit(principals.person("member"), key="before")
    principals.person("boss").patch(f"/v1/projects/{OWN}", json={"is_archived": True})

    answer = submit(principals.person("member"))
    repeated = submit(principals.person("member"), key="before")

    assert answer.status_code == 409
    assert "archived" in answer.json()["detail"]
    assert repeated.json() == before.json()
    assert principals.person("member").get(f"/v1/jobs/{principals.own}").status_code == 200


def test_owner_naming_an_unknown_project_is_refused(principals: Principals) -> None:
    answer = submit(principals.world.http, project="nowhere")

    assert answer.status_code == 404
    assert "nowhere" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["", "Big", "a b", "-a", "a" * 64, "ä"])
def test_invalid_project_name_in_a_job_file_is_refused(principals: Principals, name: str) -> None:
    answer = submit(principals.world.http, in_project(f'"{name}"'))

    assert answer.status_code == 422
    assert "/holdfast/project" in answer.text


def test_idempotency_keys_are_separate_per_user(
    principals: Principals,
) -> None:
    mine = submit(principals.person("member"), key="monday")
    again = submit(principals.person("member"), key="monday")
    other = submit(principals.person("lead"), key="monday")
    owners = submit(principals.world.http, key="monday")

    ids = [answer.json()["id"] for answer in (mine, again, other, owners)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_cancel_records_its_actor(principals: Principals) -> None:
    principals.person("member").post(
        f"/v1/jobs/{principals.own}/cancel", json={"reason": "too dear"}
    )

    events = [
        recorded.event for recorded in principals.world.services.journal.events(principals.own)
    ]
    (requested,) = [event for event in events if isinstance(event, CancelRequested)]
    assert (requested.by, requested.reason) == ("member", "too dear")
    entry = principals.world.services.audit.page(limit=1)[0]
    assert (entry.audit_action.action, entry.audit_action.target) == ("job.cancel", principals.own)
    assert (entry.audit_action.actor.name, entry.audit_action.actor.address) == ("member", FAR)
    assert entry.audit_action.actor.request_id


def test_job_list_filters_by_project_and_user(principals: Principals) -> None:
    mine = submit(principals.person("member")).json()["id"]
    boss = principals.person("boss")

    of_project = boss.get("/v1/jobs", params={"project": OWN}).json()["jobs"]
    of_member = boss.get("/v1/jobs", params={"owner": "member"}).json()["jobs"]

    assert {job["id"] for job in of_project} == {mine, principals.own}
    assert [job["id"] for job in of_member] == [mine]
    answer = principals.person("member").get("/v1/jobs", params={"project": FOREIGN})
    assert answer.status_code == 404


def test_allowed_actions_of_a_job_follow_the_callers_role(principals: Principals) -> None:
    path = f"/v1/jobs/{principals.own}"

    by = {who: principals.person(who).get(path).json()["can"] for who in ("viewer", "member")}
    (listed,) = principals.person("viewer").get("/v1/jobs").json()["jobs"]

    assert by["member"]["cancel"] == {"allowed": True, "reason": None}
    assert not any(item["allowed"] for item in by["viewer"].values())
    assert "allows only reading" in by["viewer"]["cancel"]["reason"]
    assert listed["can"] == by["viewer"]


def test_allowed_actions_beyond_jobs_are_listed(principals: Principals) -> None:
    lead, member = principals.person("lead"), principals.person("member")
    boss = principals.person("boss").get("/v1/whoami").json()["can"]

    refused = member.put("/v1/projects/own/members/guest", json={"role": "viewer"}).json()
    (seen,) = member.get("/v1/projects").json()
    (led,) = lead.get("/v1/projects").json()

    assert seen["can"]["manage_members"] == {"allowed": False, "reason": refused["detail"]}
    assert led["can"]["manage_members"] == {"allowed": True, "reason": None}
    assert "role" not in str(lead.get("/v1/whoami").json()["can"]["audit"]["reason"])
    assert all(item["allowed"] for item in boss.values())


# Tokens


def test_a_token_is_made_used_rotated_and_revoked(principals: Principals) -> None:
    lead = principals.person("lead")
    made = lead.post("/v1/tokens", json={"name": "ci", "days": 7}).json()
    ci = principals.with_token(made["token"])

    before = ci.get("/v1/jobs").status_code
    rotated = lead.post(f"/v1/tokens/{made['kept']['id']}/rotate").json()
    both = [
        principals.with_token(text).get("/v1/jobs").status_code
        for text in (made["token"], rotated["token"])
    ]
    principals.world.clock.advance(24 * 3600)
    old_after_a_day = ci.get("/v1/jobs")
    lead.delete(f"/v1/tokens/{rotated['kept']['id']}")
    revoked = principals.with_token(rotated["token"]).get("/v1/jobs")

    assert (before, both) == (200, [200, 200])
    assert made["kept"]["scopes"] == ["read", "write"]
    assert (old_after_a_day.status_code, revoked.status_code) == (401, 401)
    assert "expired" in old_after_a_day.json()["detail"]
    assert "revoked" in revoked.json()["detail"]


def test_token_cannot_create_a_more_privileged_one(principals: Principals) -> None:
    narrow = principals.person("boss", scopes=[TokenScope.READ, TokenScope.ADMIN])
    confined = principals.person("boss", project=OWN)

    more = narrow.post("/v1/tokens", json={"name": "x", "scopes": ["write"]})
    foreign = confined.post("/v1/tokens", json={"name": "x", "project": FOREIGN})
    within = confined.post("/v1/tokens", json={"name": "x"})
    others = principals.person("lead").post("/v1/tokens", json={"name": "x", "user": "boss"})

    assert (more.status_code, "yours lacks the scope write" in more.json()["detail"]) == (403, True)
    assert foreign.status_code == 404
    assert (within.status_code, within.json()["kept"]["project"]) == (201, OWN)
    assert others.status_code == 403


def test_token_cannot_rotate_a_more_privileged_one(principals: Principals) -> None:
    """A rotation returns the text of the new token, so it must not raise permissions."""
    _, wide = principals.token("boss")
    narrow = principals.person("boss", scopes=[TokenScope.READ, TokenScope.ADMIN])
    confined = principals.person("boss", project=OWN)

    assert narrow.post(f"/v1/tokens/{wide.id}/rotate").status_code == 403
    assert confined.post(f"/v1/tokens/{wide.id}/rotate").status_code == 404
    assert confined.delete(f"/v1/tokens/{wide.id}").status_code == 404


def test_only_admins_manage_tokens_of_other_users(
    principals: Principals,
) -> None:
    boss = principals.person("boss")

    made = boss.post("/v1/tokens", json={"name": "laptop", "user": "viewer"}).json()
    unknown = boss.post("/v1/tokens", json={"name": "laptop", "user": "stranger"})
    mine = principals.with_token(made["token"]).get("/v1/tokens")
    everybodys = boss.get("/v1/tokens", params={"everybodys": True})
    refused = principals.person("lead").get("/v1/tokens", params={"everybodys": True})

    assert principals.with_token(made["token"]).get("/v1/whoami").json()["user"] == "viewer"
    assert unknown.status_code == 404
    assert [token["id"] for token in mine.json()] == [made["kept"]["id"]]
    assert {token["user"] for token in everybodys.json()} >= {"boss", "viewer"}
    assert refused.status_code == 403
    assert made["token"] not in everybodys.text + mine.text


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x", "days": 0},
        {"name": "x", "days": 367},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "project": "Not a name"},
    ],
)
def test_invalid_token_request_is_refused(principals: Principals, body: dict[str, Any]) -> None:
    answer = principals.person("boss").post("/v1/tokens", json=body)

    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_user_token_is_valid_for_90_days_by_default(principals: Principals) -> None:
    boss = principals.person("boss", lasts=timedelta(days=366))
    kept = boss.post("/v1/tokens", json={"name": "x"}).json()["kept"]

    (token,) = [
        t for t in principals.world.services.access_tokens.list_tokens("boss") if t.id == kept["id"]
    ]
    assert token.expires_at == token.created_at + timedelta(days=90)


def test_revocation_applies_to_all_replicas_at_once(principals: Principals) -> None:
    """Tokens are not cached between requests, so a revocation applies at once."""
    text, token = principals.token("boss")
    other = client(
        create_app(replace(principals.world.services)), FAR, Authorization=f"Bearer {text}"
    )
    before = other.get("/v1/jobs").status_code

    principals.person("boss").delete(f"/v1/tokens/{token.id}")

    assert (before, other.get("/v1/jobs").status_code) == (200, 401)


# Callers without a token


def test_loopback_is_trusted_until_a_user_exists(world: SimulatedService) -> None:
    before = world.http.get("/v1/jobs").status_code
    world.http.post("/v1/users", json={"name": "ada", "is_admin": True})

    after = world.http.get("/v1/jobs")

    assert (before, after.status_code) == (200, 401)
    assert "holdfast login" in after.json()["detail"]


@pytest.mark.parametrize(("setting", "status"), [(True, 200), (False, 401)])
def test_setting_overrides_trust_in_loopback(
    world: SimulatedService, setting: bool, status: int
) -> None:
    world.app.state.services = replace(world.services, trust_loopback=setting)

    assert world.http.get("/v1/jobs").status_code == status


@pytest.mark.parametrize("name", ["owner", "Ada", "", "a b", "-a", "a/b", "x" * 65])
def test_invalid_user_name_is_refused(principals: Principals, name: str) -> None:
    answer = principals.person("boss").post("/v1/users", json={"name": name})

    assert answer.status_code in {400, 422}


# Workers


def test_reports_are_accepted_for_an_hour_after_the_end(
    principals: Principals,
) -> None:
    """The response explains the refusal instead of rejecting the token.

    A forgotten node would train on unobserved.
    """
    worker, empty = principals.worker(OWN), {"attempt": 1, "reports": []}
    principals.world.until(principals.own, "succeeded")
    path = f"/v1/jobs/{principals.own}/reports"

    soon = worker.post(path, json=empty)
    principals.world.clock.advance(WORKER_GRACE.total_seconds() + 60)
    late = worker.post(path, json=empty)

    assert soon.status_code == 200
    assert late.status_code == 409
    assert late.json()["type"].endswith("#fenced")


# The audit log


def test_audit_log_names_actors_and_can_be_verified(principals: Principals) -> None:
    boss = principals.person("boss")
    boss.post("/v1/users", json={"name": "ada"})
    boss.put(f"/v1/projects/{OWN}/members/ada", json={"role": "viewer"})

    rows = boss.get("/v1/audit", params={"actor": "boss"}).json()["rows"]
    decision = boss.get("/v1/audit/verdict").json()
    with_head = boss.get("/v1/audit/verdict", params={"head": decision["head"]}).json()
    forged = boss.get("/v1/audit/verdict", params={"head": f"{rows[0]['seq']}:{'0' * 64}"}).json()

    assert [(row["action"], row["target"]) for row in rows] == [
        ("member.set", f"{OWN}/ada"),
        ("user.add", "ada"),
    ]
    assert (decision["sound"], with_head["sound"], forged["sound"]) == (True, True, False)
    assert decision["rows"] == rows[0]["seq"]


@pytest.mark.parametrize("odd", ["x'ff00'", "CAST(x'61ff' AS TEXT)", "'[1]'", "'['", "'{\"a\": NaN}'", "'{\"a\": \"\\ud800\"}'"])  # fmt: skip
def test_audit_log_lists_values_of_any_type(principals: Principals, odd: str) -> None:
    boss, engine = principals.person("boss"), principals.world.services.engine
    columns = [column.name for column in audit.columns if column.name != "seq"]
    for number, name in enumerate(columns):
        boss.post("/v1/users", json={"name": f"user-{number}"})
        newest = "(SELECT max(seq) FROM audit WHERE typeof(seq) = 'integer')"
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER IF EXISTS audit_is_not_changed"))
            connection.exec_driver_sql(f"UPDATE audit SET {name} = {odd} WHERE seq = {newest}")
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER audit_is_not_replaced"))
        connection.exec_driver_sql(f"INSERT INTO audit SELECT {odd}, at, actor, token_id, address, request_id, action, target, before, after, previous_hash, hash FROM audit WHERE seq = 1")  # fmt: skip

    listed = boss.get("/v1/audit", params={"limit": 1000})
    decision = boss.get("/v1/audit/verdict")
    added = boss.post("/v1/users", json={"name": "ada"})

    assert [listed.status_code, decision.status_code, added.status_code] == [200, 200, 201]
    seqs = [row["seq"] for row in listed.json()["rows"]]
    assert seqs == list(range(len(seqs), 0, -1))
    assert len(seqs) > len(columns)
    assert not decision.json()["sound"]
    assert decision.json()["problem"].startswith("row ")


def test_audit_log_is_paginated(principals: Principals) -> None:
    boss, seen, cursor = principals.person("boss"), [], None
    while True:
        page = boss.get("/v1/audit", params={"limit": 3, **({"cursor": cursor} if cursor else {})})
        seen += [row["seq"] for row in page.json()["rows"]]
        cursor = page.json()["next"]
        if cursor is None:
            break

    assert seen == list(range(len(seen), 0, -1))
    assert len(seen) > 3


def test_refused_login_is_audited_without_the_secret(principals: Principals) -> None:
    principals.with_token("hf_0123456789ab_hush-hush").get("/v1/jobs")

    entry = principals.world.services.audit.page(limit=1)[0]
    assert (entry.audit_action.action, entry.audit_action.target) == (
        "login.refused",
        "0123456789ab",
    )
    assert entry.audit_action.actor.address == FAR
    assert "hush" not in str(entry)


@pytest.mark.parametrize("malformed", ["hush-hush-hush-hush", "hf_hush-hush-hush", "hf_hush"])
def test_malformed_token_is_neither_audited_nor_echoed(
    principals: Principals, malformed: str
) -> None:
    answer = principals.with_token(malformed).get("/v1/jobs")

    (entry,) = principals.world.services.audit.page(limit=1)
    assert entry.audit_action.action == "login.refused"
    assert "hush" not in str(entry) + answer.text


def test_token_records_its_last_use(principals: Principals) -> None:
    text, token = principals.token("boss")

    client(principals.world.app, FAR, Authorization=f"Bearer {text}").get("/v1/jobs")

    assert (
        principals.world.services.access_tokens.get(token.id).last_used_at
        == principals.world.clock.now()
    )
