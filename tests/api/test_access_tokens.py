"""Access tokens and the tokens made with them: they expire and are revoked together."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.principals import Principals, create_principals
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    return create_principals(world)


def test_token_expires_no_later_than_its_parent(principals: Principals) -> None:
    text, maker = principals.token("boss", lasts=timedelta(days=30))
    _, other = principals.token("lead", lasts=timedelta(days=300))
    boss = principals.with_token(text)

    made = boss.post("/v1/tokens", json={"name": "x", "days": 366}).json()["kept"]
    rotated = boss.post(f"/v1/tokens/{other.id}/rotate").json()["kept"]

    tokens = {
        token.id: token
        for token in principals.world.services.access_tokens.list_tokens(None, of_all=True)
    }
    assert tokens[made["id"]].expires_at == maker.expires_at
    assert tokens[rotated["id"]].expires_at == maker.expires_at


def test_revoking_a_token_revokes_its_descendants(principals: Principals) -> None:
    scopes = ["read", "write", "admin"]
    text, root = principals.token("boss")
    texts, callers = [text], [principals.with_token(text)]
    for name in ("child", "grandchild"):
        made = callers[-1].post("/v1/tokens", json={"name": name, "scopes": scopes}).json()
        texts.append(made["token"])
        callers.append(principals.with_token(made["token"]))
    successor = callers[0].post(f"/v1/tokens/{root.id}/rotate").json()["kept"]["id"]
    before = [caller.get("/v1/jobs").status_code for caller in callers]

    principals.person("boss").delete(f"/v1/tokens/{successor}")
    after = [caller.get("/v1/jobs").status_code for caller in callers]

    assert before == [200, 200, 200]
    assert after == [200, 401, 401]  # A rotation keeps the old token valid for one day.
    entries = principals.person("boss").get("/v1/audit").json()["rows"]
    assert [entry["action"] for entry in entries].count("token.revoke") == 3
