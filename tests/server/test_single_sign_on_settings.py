"""Settings of single sign-on: what cannot work is a sentence that names the variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.access.group_roles import GroupRoles
from holdfast.domain.access.permissions import Role
from holdfast.errors import BadRequest
from holdfast.server.composition import build
from holdfast.server.single_sign_on import open_single_sign_on, provider_settings
from holdfast.settings import Settings, SimulatedMarketSettings

VALID = {
    "oidc_issuer": "https://login.example",
    "oidc_client_id": "holdfast",
    "oidc_client_secret": "secret",
    "oidc_groups": "staff=viewer",
}


def settings(home: Path, **change: Any) -> Settings:
    return Settings(home=home, **{**VALID, **change})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"oidc_issuer": None}, "HOLDFAST_OIDC_CLIENT_ID has no effect without HOLDFAST_OIDC_ISSUER"),
        ({"oidc_issuer": "login.example"}, "HOLDFAST_OIDC_ISSUER='login.example'"),
        ({"oidc_issuer": "https://a@login.example"}, "HOLDFAST_OIDC_ISSUER"),
        ({"oidc_issuer": "https://login.example/?a=b"}, "HOLDFAST_OIDC_ISSUER"),
        ({"oidc_issuer": "http://login.example"}, "has to begin with https://"),
        ({"oidc_client_id": None}, "HOLDFAST_OIDC_CLIENT_ID is missing"),
        ({"oidc_client_secret": ""}, "HOLDFAST_OIDC_CLIENT_SECRET is empty"),
        ({"oidc_client_secret": "a\nb"}, "HOLDFAST_OIDC_CLIENT_SECRET is empty, or has"),
        ({"oidc_client_secret_file": "/nowhere"}, "both set"),
        ({"oidc_client_secret": None, "oidc_client_secret_file": "/nowhere"}, "CLIENT_SECRET_FILE='/nowhere': cannot be read"),
        ({"oidc_scopes": "profile"}, "HOLDFAST_OIDC_SCOPES"),
        ({"oidc_groups_claim": ""}, "HOLDFAST_OIDC_GROUPS_CLAIM"),
        ({"oidc_groups": None}, "HOLDFAST_OIDC_GROUPS: names no group"),
        ({"oidc_groups": "staff"}, "names no group or no role"),
        ({"oidc_groups": "staff=boss"}, "gives the role 'boss'; the roles are viewer, member, admin"),
        ({"oidc_groups": "staff=N L P:member"}, "names the project 'N L P'"),
    ],
)  # fmt: skip
def test_setting_that_cannot_work_is_named(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    unused: Any = None  # A wrong setting is found before anything is opened.
    with pytest.raises(BadRequest) as refusal:
        open_single_sign_on(settings(tmp_path, **change), unused, unused, unused, b"")

    assert sentence in str(refusal.value)
    assert "secret'" not in str(refusal.value)


def test_service_starts_while_the_provider_is_away(tmp_path: Path) -> None:
    given = settings(tmp_path, oidc_issuer="http://127.0.0.1:9", oidc_groups="staff=viewer")

    services = build(given, SimulatedMarketSettings(), "http://127.0.0.1:1").services

    assert services.single_sign_on is not None
    assert not services.trusts_loopback()


def test_secret_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "oidc"
    file.write_text("secret of a file\n".replace(" ", "-"))

    found = provider_settings(
        settings(tmp_path, oidc_client_secret=None, oidc_client_secret_file=file)
    )

    assert found.client_secret == "secret-of-a-file"
    assert found.audience == "holdfast"
    assert "secret-of-a-file" not in repr(found)


def test_names_of_directory_groups_are_kept() -> None:
    roles = GroupRoles.parse("CN=nlp,OU=a=b = nlp:member ; /vision/leads=vision:admin;")

    access = roles.access_of({"CN=nlp,OU=a=b", "/vision/leads", "cn=nlp"}, ["other"])

    assert access.roles == {"nlp": Role.MEMBER, "vision": Role.ADMIN}
    assert roles.access_of({"CN=NLP,OU=a=b"}, ["other"]).is_nothing
