"""`holdfast login --sso` and `holdfast users link`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast.cli import identity, main
from holdfast.client.credentials import Credentials

TOKEN = "hf_0123456789ab_secret"
CODE = {
    "handle": "sealed",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://login.example/device",
    "verification_uri_complete": None,
    "expires_in_s": 30,
    "interval_s": 5,
}
PENDING = (200, {"token": None, "slow_down": False})
SLOW_DOWN = (200, {"token": None, "slow_down": True})
KEPT = {"id": "0123456789ab", "name": "cli", "user": "ada", "project": None, "scopes": ["read"]}
KEPT |= dict.fromkeys(("expires_at", "last_used_at", "revoked_at", "replaced_by"))
DONE = (200, {"token": {"token": TOKEN, "kept": {**KEPT, "created_at": "2026-01-01T00:00:00Z", "is_good": True}}, "slow_down": False})  # fmt: skip
WHO = {
    "user": "ada",
    "is_admin": False,
    "roles": {},
    "scopes": ["read"],
    "token_id": "0123456789ab",
}
WHO |= {"project": None, "demo_seed": None}


def problem(status: int, slug: str, detail: str) -> tuple[int, dict[str, Any]]:
    body = {"type": f"/docs/errors#{slug}", "title": slug, "status": status, "detail": detail}
    return status, body


class ScriptedService:
    """A service that answers polls in a fixed order."""

    polls: list[tuple[int, dict[str, Any]]]
    url: str


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    scripted = ScriptedService()
    scripted.polls = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_start = self.path == "/v1/sign-in/device"
            self._send(*((201, CODE) if is_start else scripted.polls.pop(0)))

        def do_GET(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            self._send(200, WHO)

        def _send(self, status: int, fields: dict[str, Any]) -> None:
            body = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scripted.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield scripted
        server.shutdown()
        thread.join()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The pauses between polls, which take no time."""
    waited: list[float] = []
    # Only here: threads of the test process sleep as well.
    monkeypatch.setattr(identity, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setenv("HOLDFAST_CONFIG_HOME", str(tmp_path))
    return waited


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch, service: ScriptedService) -> Callable[..., int]:
    def run(*words: str) -> int:
        monkeypatch.setattr(
            "sys.argv", ["holdfast", "login", "--sso", "--url", service.url, *words]
        )
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return run


def test_login_waits_for_the_person(
    service: ScriptedService,
    pauses: list[float],
    login: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = problem(503, "identity-provider-failed", "away")
    service.polls = [PENDING, SLOW_DOWN, away, DONE]

    assert login() == 0
    said = capsys.readouterr()
    assert "https://login.example/device" in said.err + said.out
    assert "WDJB-MJHT" in said.err + said.out
    assert TOKEN not in said.err + said.out
    assert pauses == [5, 5, 10, 15]
    assert Credentials.read(tmp_path / "login.json").token == TOKEN


def test_refused_login_keeps_the_one_before(
    service: ScriptedService,
    pauses: list[float],
    login: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Credentials(url="http://before", token="hf_before").write(tmp_path / "login.json")
    service.polls = [problem(403, "sign-in-refused", "none of your groups gives a role")]

    assert login() == 5
    assert "none of your groups" in capsys.readouterr().err
    assert Credentials.read(tmp_path / "login.json").token == "hf_before"


def test_login_ends_when_the_code_has_expired(
    service: ScriptedService,
    pauses: list[float],
    login: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    service.polls = [PENDING] * 6

    assert login() == 5
    assert "expired" in capsys.readouterr().err
    assert sum(pauses) == 30


def test_token_and_sso_exclude_each_other(
    pauses: list[float], login: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert login("--token", "hf_x") == 2
    assert "--token" in capsys.readouterr().err
