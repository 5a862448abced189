"""A certified OpenID Connect provider on loopback, a person with a browser, and a service that uses the provider."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
from fastapi.testclient import TestClient
from holdfast.background.sign_in_checks import SignInChecks
from holdfast.clock import SystemClock
from holdfast.server.single_sign_on import open_single_sign_on
from holdfast.settings import Settings
from holdfast.single_sign_on.flows import SingleSignOn
from support.simulated_service import SimulatedService

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ROOT / "build/openid-provider/node_modules"
PROGRAM: Final = ROOT / "tests/openid_provider/provider.mjs"
HERE: Final = "http://127.0.0.1:8642"
CLIENT_SECRET: Final = "a-secret-of-tests"
GROUPS: Final = "platform=admin; nlp-team=nlp:member; nlp-leads=nlp:admin; staff=viewer"


class ProviderNotInstalled(Exception):
    """The provider, or Node.js, is not installed."""


class ShiftedClock:
    """The clock of this machine, moved by tests: a provider in another process has the real time."""

    def __init__(self) -> None:
        self._shift = timedelta(0)

    def now(self) -> datetime:
        return SystemClock().now().astimezone(UTC) + self._shift

    def advance(self, **span: float) -> None:
        self._shift += timedelta(**span)


@dataclass
class OpenIdServer:
    """A running provider."""

    issuer: str
    process: subprocess.Popen[str]

    def set_account(
        self, subject: str, *groups: str, disabled: bool = False, **claims: Any
    ) -> None:
        """Create or change an account, and let its person sit at the browser."""
        names = {
            "preferred_username": subject,
            "email": f"{subject}@example.com",
            "email_verified": True,
        }
        account = {"claims": {**names, "groups": list(groups), **claims}, "disabled": disabled}
        self._control(accounts={subject: account}, present=subject)

    def seat(self, subject: str | None) -> None:
        """Let another person sit at the browser; None denies each sign-in."""
        self._control(present=subject)

    def stop(self) -> None:
        """End the provider."""
        self.process.terminate()
        self.process.wait(30)

    def _control(self, **change: Any) -> None:
        httpx2.post(f"{self.issuer}/control", json=change, timeout=30).raise_for_status()


@contextmanager
def openid_server() -> Iterator[OpenIdServer]:
    """Run a provider that knows the service at `HERE`."""
    node = shutil.which("node") or f"{sysconfig.get_path('scripts')}/node"
    if not (MODULES / "oidc-provider").exists() or not Path(node).exists():
        raise ProviderNotInstalled("oidc-provider is not installed; run make openid-provider")
    command = [node, f"{PROGRAM}", f"{MODULES}", f"{HERE}/sign-in/callback"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            issuer = process.stdout.readline().strip()
            assert issuer.startswith("http://127.0.0.1:"), f"the provider has ended: {issuer}"
            yield OpenIdServer(issuer, process)
        finally:
            process.terminate()


def oidc_settings(issuer: str, **other: Any) -> Settings:
    """The settings of a service with a provider."""
    given = {
        "oidc_issuer": issuer,
        "oidc_client_id": "holdfast",
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_groups": GROUPS,
    }
    return Settings(**{**given, **other})


@dataclass
class SignInService:
    """A service whose users sign in through a provider."""

    world: SimulatedService
    single_sign_on: SingleSignOn
    clock: ShiftedClock = field(default_factory=ShiftedClock)

    def browser(self) -> TestClient:
        """A browser without a session, on another machine behind a tunnel."""
        return TestClient(
            self.world.app,
            base_url=HERE,
            client=("192.0.2.9", 40000),
            raise_server_exceptions=False,
            follow_redirects=False,
        )

    def with_token(self, text: str) -> TestClient:
        """A client with a token."""
        client = self.browser()
        client.headers["Authorization"] = f"Bearer {text}"
        return client

    def check(self) -> int:
        """Run the checks that are due."""
        return SignInChecks(self.single_sign_on).check_due()

    def audit(self) -> list[str]:
        """The actions in the audit log, newest first."""
        rows = self.world.services.audit.page(limit=200)
        return [row.audit_action.action for row in rows]


def use_provider(world: SimulatedService, settings: Settings) -> SignInService:
    """Let a service use the provider of the settings."""
    clock = ShiftedClock()
    services = world.services
    single_sign_on = open_single_sign_on(
        settings, services.engine, clock, services.tokens, b"the secret of a service in tests"
    )
    assert single_sign_on is not None
    world.services = replace(services, single_sign_on=single_sign_on, clock=clock)
    world.app.state.services = world.services
    return SignInService(world, single_sign_on, clock)


def visit_provider(url: str) -> str:
    """Follow a sign-in with a browser at the provider; return where it leads back to."""
    with httpx2.Client(timeout=30) as http:
        while not url.startswith(f"{HERE}/"):
            answer = http.get(url)
            assert answer.is_redirect, answer.text
            url = urljoin(url, answer.headers["location"])
    return url


def sign_in(browser: TestClient, return_to: str = "/") -> tuple[str, Any]:
    """Sign in with a browser; return the address of the callback and the response to it."""
    started = browser.get("/sign-in", params={"return_to": return_to})
    assert started.status_code == 303, started.text
    callback = visit_provider(started.headers["location"])
    return callback, browser.get(callback)


def failure_of(browser: TestClient) -> str:
    """Why the last sign-in of a browser failed, as its login page displays it."""
    text = browser.get("/v1/sign-in").json()["failure"]
    assert isinstance(text, str), "the sign-in has not failed"
    return text


def enter_code(address: str) -> None:
    """Complete the sign-in of a device, as the present person, at an address with the code."""
    with httpx2.Client(timeout=30, follow_redirects=True) as http:
        page = http.get(address)
        for _ in range(3):
            fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page.text))
            action = re.search(r'action="([^"]+)"', page.text)
            if action is None:
                break
            code = parse_qs(urlsplit(address).query)["user_code"]
            form = {"user_code": code[0], "confirm": "yes", **fields}
            form.pop("abort", None)
            page = http.post(urljoin(address, action[1]), data=form)
        assert page.status_code == 200, page.text
