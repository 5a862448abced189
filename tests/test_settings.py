"""Settings come from HOLDFAST_* variables; an invalid value is reported in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.errors import BadRequest
from holdfast.settings import Settings, SimulatedMarketSettings, read_market, read_settings


@pytest.fixture(autouse=True)
def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix, model in (("HOLDFAST_", Settings), ("HOLDFAST_LOCAL_", SimulatedMarketSettings)):
        for name in model.model_fields:
            monkeypatch.delenv(f"{prefix}{name.upper()}", raising=False)


def test_default_paths_are_below_the_default_home() -> None:
    settings = read_settings()

    assert settings.home == Path("~/.holdfast").expanduser()
    assert settings.sqlalchemy_url == f"sqlite:///{settings.home}/holdfast.db"
    assert settings.url == "http://127.0.0.1:8642"
    assert settings.token is None


def test_home_determines_the_default_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))

    settings = read_settings()

    assert settings.sqlalchemy_url == f"sqlite:///{tmp_path}/holdfast.db"
    assert settings.token_file == tmp_path / "token"


def test_relative_home_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", "here")

    assert read_settings().home == tmp_path / "here"


def test_explicit_database_url_overrides_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://db/holdfast")

    assert read_settings().sqlalchemy_url == "postgresql://db/holdfast"


def test_token_is_absent_from_the_repr_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_secret")

    settings = read_settings()

    assert "hf_secret" not in repr(settings)
    assert settings.token is not None
    assert settings.token.get_secret_value() == "hf_secret"


def test_capacity_hints_are_of_known_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().capacity_hints is None
    monkeypatch.setenv("HOLDFAST_CAPACITY_HINTS", "aws")
    assert read_settings().capacity_hints == ("aws",)
    monkeypatch.setenv("HOLDFAST_CAPACITY_HINTS", "aws, gcp,azure")
    assert read_settings().capacity_hints == ("aws", "gcp", "azure")

    monkeypatch.setenv("HOLDFAST_CAPACITY_HINTS", "aws,ibm")
    words = "HOLDFAST_CAPACITY_HINTS='ibm': input should be 'aws', 'gcp' or 'azure'"
    with pytest.raises(BadRequest, match=words):
        read_settings()


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "601", "nan", "inf"])
def test_invalid_polling_interval_is_reported(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOLDFAST_LOOK_EVERY_S", value)

    with pytest.raises(BadRequest) as error:
        read_settings()

    assert error.value.detail.startswith(f"HOLDFAST_LOOK_EVERY_S={value!r}: input should be ")
    assert ";" not in error.value.detail


@pytest.mark.parametrize("value", ["", "long", "0", "-1", "nan"])
def test_invalid_lease_is_reported(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOLDFAST_REPLICAS_LEASE_S", value)

    with pytest.raises(BadRequest, match=f"^HOLDFAST_REPLICAS_LEASE_S='{value}': input should be "):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEED", "lucky"),
        ("PROVISION_S", "-1"),
        ("PROVISION_S", "nan"),
        ("DENIAL_RATE", "1"),
        ("DENIAL_RATE", "-0.1"),
        ("MTBF_S", "-1"),
        ("NOTICE_S", "two minutes"),
        ("SPOT_USD_PER_HOUR", "0"),
        ("ON_DEMAND_USD_PER_HOUR", "free"),
    ],
)
def test_invalid_market_setting_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"HOLDFAST_LOCAL_{name}", value)

    with pytest.raises(
        BadRequest, match=f"^HOLDFAST_LOCAL_{name}='{value}': input should be [^;]+$"
    ):
        read_market()


def test_two_invalid_values_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOOK_EVERY_S", "0")
    monkeypatch.setenv("HOLDFAST_REPLICAS_LEASE_S", "0")

    with pytest.raises(BadRequest, match=r"HOLDFAST_LOOK_EVERY_S=.*; HOLDFAST_REPLICAS_LEASE_S="):
        read_settings()
