"""The service's home directory is private to its account."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast.clock import SystemClock
from holdfast.domain.access.audit import Actor
from holdfast.errors import StoreUnavailable
from holdfast.server import composition
from holdfast.server.home_dir import own_secret
from holdfast.settings import Settings, SimulatedMarketSettings


@pytest.mark.parametrize(("mode", "warned"), [(0o700, False), (0o755, True), (0o710, True)])
def test_home_open_to_others_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)

    with caplog.at_level(logging.WARNING):
        composed = composition.build(
            Settings(home=home), SimulatedMarketSettings(), "http://127.0.0.1:8642"
        )
    composed.services.engine.dispose()

    assert (f"chmod 700 {home}" in caplog.text) is warned


def test_members_are_refused_local_and_slurm_by_default(tmp_path: Path) -> None:
    composed = composition.build(
        Settings(home=tmp_path / "home"), SimulatedMarketSettings(), "http://127.0.0.1:8642"
    )
    composed.services.engine.dispose()

    confinement = composed.services.confinement
    assert {engine.value for engine in confinement.refused} == {"local", "slurm"}
    assert confinement.folders.home == tmp_path / "home"


@pytest.fixture
def replica(tmp_path: Path) -> Settings:
    """Settings of a replica without a shared home directory."""
    (tmp_path / "key").write_text("k" * 32)
    return Settings(home=tmp_path / "home", shares_home=False, secret_file=tmp_path / "key")


@pytest.mark.parametrize(
    ("named", "content", "sentence"),
    [
        (False, None, "HOLDFAST_SHARES_HOME=false needs HOLDFAST_SECRET_FILE"),
        (True, None, "cannot be read (No such file or directory)"),
        (True, "short", "has 5 characters, and a secret needs at least 32"),
        (True, " " * 40, "has 0 characters"),
    ],
)
def test_unusable_secret_file_is_refused(
    replica: Settings, named: bool, content: str | None, sentence: str
) -> None:
    assert replica.secret_file
    replica.secret_file.unlink()
    if content is not None:
        replica.secret_file.write_text(content)
    settings = replica if named else replica.model_copy(update={"secret_file": None})

    with pytest.raises(StoreUnavailable) as refused:
        own_secret(settings)

    assert sentence in str(refused.value)


def test_replicas_without_a_shared_home_have_the_same_token(replica: Settings) -> None:
    """The first token is derived from the secret; when it was revoked, the next one is."""
    url = f"sqlite:///{replica.home.parent / 'holdfast.db'}"
    owner, later = Actor(name="owner"), timedelta(minutes=1)

    def start(name: str) -> composition.Application:
        home = replica.home.parent / name
        return composition.build(
            replica.model_copy(update={"home": home, "database_url": url}),
            SimulatedMarketSettings(),
            "http://127.0.0.1:8642",
        )

    def token(name: str) -> str:
        return (replica.home.parent / name / "token").read_text()

    first, second = start("a"), start("b")
    access = second.services.access_tokens
    assert first.first_token
    assert second.first_token is None
    assert token("a") == token("b") == first.first_token
    assert not first.services.launchers, "local nodes belong to one machine"

    found = access.find(token("a"))
    assert found
    access.revoke(found.id, SystemClock().now() - later, owner)
    third = start("c")
    assert third.first_token == token("c") != token("a")

    renewed = access.find(token("c"))
    assert renewed
    access.rotate(renewed.id, SystemClock().now(), owner, grace=-later)
    fourth = start("d")
    assert not (replica.home.parent / "d/token").exists(), "the owner has another valid token"
    for one in (first, second, third, fourth):
        one.services.engine.dispose()
