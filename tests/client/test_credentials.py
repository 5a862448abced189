"""Stored credentials: private, for one address, and overridden by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.errors import BadRequest
from holdfast.settings import Settings

TEAM = "https://holdfast.example"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a user who has configured only the data directory."""
    return Settings(home=tmp_path / "home", config_home=tmp_path / "config" / "holdfast")


def bearer(client: Client) -> str | None:
    return client._http.headers.get("Authorization")


def test_login_is_stored_readable_by_its_user_only(settings: Settings) -> None:
    login = Credentials(url=TEAM, token="hf_a_b", project="nlp")

    nothing = Credentials.read(settings.login_file)
    login.write(settings.login_file)

    assert nothing == Credentials()
    assert Credentials.read(settings.login_file) == login
    assert settings.login_file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in settings.config_home.iterdir()] == ["login.json"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"tokens": 1}', "3"])
def test_malformed_credentials_file_is_named(settings: Settings, content: str) -> None:
    settings.config_home.mkdir(parents=True)
    settings.login_file.write_text(content)

    with pytest.raises(BadRequest, match=r"login\.json is not a login file; delete it"):
        Credentials.read(settings.login_file)


def test_unwritable_credentials_folder_is_named(settings: Settings) -> None:
    settings.config_home.parent.write_text("a file, and no folder")

    with pytest.raises(BadRequest, match="HOLDFAST_CONFIG_HOME"):
        Credentials().write(settings.login_file)


def test_login_determines_address_and_token(settings: Settings) -> None:
    Credentials(url=TEAM, token="hf_a_b").write(settings.login_file)

    client = Client.from_settings(settings)

    assert (client.url, bearer(client)) == (TEAM, "Bearer hf_a_b")


def test_the_token_of_one_service_is_not_sent_to_another(settings: Settings) -> None:
    Credentials(url=TEAM, token="hf_a_b").write(settings.login_file)

    client = Client.from_settings(
        Settings(url="https://other.example", config_home=settings.config_home)
    )

    assert (client.url, bearer(client)) == ("https://other.example", None)


def test_environment_token_overrides_the_login(settings: Settings) -> None:
    Credentials(url=TEAM, token="hf_a_b").write(settings.login_file)

    client = Client.from_settings(Settings(token="hf_c_d", config_home=settings.config_home))

    assert (client.url, bearer(client)) == (TEAM, "Bearer hf_c_d")


def test_owner_without_a_login_uses_the_token_file(settings: Settings) -> None:
    settings.home.mkdir()
    settings.token_file.write_text("hf_e_f\n")

    client = Client.from_settings(settings)

    assert bearer(client) == "Bearer hf_e_f"
