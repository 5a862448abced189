"""The two kinds of sign-in: of a browser, and of the command line with a code.

The service stores nothing before the provider has confirmed an account, so that callers without an account cannot fill its
database. What has to be remembered is encrypted, and kept by the browser or the command line itself.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, Final

from holdfast.domain.access.permissions import TOKEN_DAYS
from holdfast.errors import IdentityProviderFailed, SignInRefused
from holdfast.ports import Clock
from holdfast.single_sign_on.accounts import (
    DeviceCode,
    IdentityProvider,
    ProviderGrant,
    StillPending,
)
from holdfast.store.identity.access_tokens import Token
from holdfast.store.identity.sign_ins import SignInRequest, SignIns
from holdfast.store.secrets import SecretBox

MAX_SIGN_INS: Final = 8
"""Sign-ins that wait for the provider at once. A lower value refuses bursts of people; with a higher value, a provider that does
not respond occupies the threads of all other requests."""
ATTEMPT: Final = timedelta(minutes=10)
"""Time for a person to sign in with a browser. A lower value refuses slow ones; a higher value gives a thief of the browser's
cookies more time."""
FAILURE: Final = timedelta(minutes=1)
"""Time for which a browser can ask why its sign-in failed."""
BROWSER: Final = timedelta(hours=24)
"""Validity of a browser's sign-in. A lower value makes people sign in more often; a higher value leaves more unattended
machines signed in."""
COMMAND_LINE: Final = timedelta(days=TOKEN_DAYS)
"""Validity of a token of the command line, as long as the provider confirms its user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedSignIn:
    """The start of a browser's sign-in."""

    url: str
    """The address at the provider."""
    state: str
    sealed: str
    """What the browser has to keep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedSignIn:
    """A sign-in whose account is confirmed."""

    text: str
    """The text of the token."""
    token: Token
    return_to: str = "/"
    """The page at which the browser started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOrigin:
    """Where a request came from, for the audit log."""

    address: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class SingleSignOn:
    """Sign-in through one identity provider."""

    issuer: str
    provider: IdentityProvider
    sign_ins: SignIns
    box: SecretBox
    clock: Clock
    _turns: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MAX_SIGN_INS))

    def start(self, redirect_uri: str, return_to: str) -> StartedSignIn:
        """Start the sign-in of a browser.

        Raises:
            IdentityProviderFailed: the provider cannot be reached.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        given = {"redirect_uri": redirect_uri, "state": state, "nonce": nonce}
        with self._turn():
            url = self.provider.authorization_url({**given, "verifier": verifier})
        values = {**given, "verifier": verifier, "return_to": return_to}
        return StartedSignIn(url=url, state=state, sealed=self.seal("attempt", values, ATTEMPT))

    def finish(
        self, sealed: str | None, response: Mapping[str, str], origin: RequestOrigin
    ) -> CompletedSignIn:
        """Complete the sign-in of a browser with the parameters that the provider sent it back with.

        Raises:
            SignInRefused: the browser did not start it, or the provider or the groups refuse it.
            IdentityProviderFailed: the provider gave no valid response.
            Conflict: another user has the name.
        """
        kept = self.open("attempt", sealed)
        state = response.get("state", "").encode()
        if kept is None or not hmac.compare_digest(state, str(kept["state"]).encode()):
            raise SignInRefused(
                "this browser did not start the sign-in, or more than 10 minutes ago; start it again"
            )
        if response.get("iss", self.issuer) != self.issuer:
            raise SignInRefused("another identity provider answered the sign-in; start it again")
        if error := response.get("error"):
            why = response.get("error_description", "")
            said = "".join(c for c in f"{error}: {why}" if c.isprintable())[:200].removesuffix(": ")
            raise SignInRefused(
                f"{self.provider.name} refused the sign-in ({said}); start it again"
            )
        if not (code := response.get("code")):
            raise SignInRefused(f"{self.provider.name} sent no code; start the sign-in again")
        with self._turn():
            grant = self.provider.exchange(
                code, kept["verifier"], kept["redirect_uri"], kept["nonce"]
            )
        text, token = self._complete(grant, "dashboard, single sign-on", BROWSER, origin)
        return CompletedSignIn(text=text, token=token, return_to=kept["return_to"])

    def start_device(self) -> tuple[DeviceCode, str]:
        """Start a sign-in of the command line; return its code, and a handle for `poll_device`.

        Raises:
            IdentityProviderFailed: the provider cannot be reached, or offers no such sign-in.
        """
        with self._turn():
            code = self.provider.start_device()
        lasts = timedelta(seconds=code.expires_in_s)
        return code, self.seal("device", {"device_code": code.device_code}, lasts)

    def poll_device(self, handle: str, origin: RequestOrigin) -> CompletedSignIn | StillPending:
        """Return the result of a sign-in of the command line.

        Raises:
            SignInRefused: it has expired or was denied, or the groups refuse it.
            IdentityProviderFailed: the provider gave no valid response.
            Conflict: another user has the name.
        """
        kept = self.open("device", handle)
        if kept is None:
            raise SignInRefused("the code has expired; start again with holdfast login --sso")
        with self._turn():
            result = self.provider.poll_device(kept["device_code"])
        if isinstance(result, StillPending):
            return result
        text, token = self._complete(result, "command line, single sign-on", COMMAND_LINE, origin)
        return CompletedSignIn(text=text, token=token)

    def seal(self, purpose: str, values: Mapping[str, Any], lasts: timedelta) -> str:
        """Encrypt values for one purpose and a time."""
        until = (self.clock.now() + lasts).timestamp()
        return self.box.encrypt(purpose, {**values, "until": until})

    def open(self, purpose: str, sealed: str | None) -> dict[str, Any] | None:
        """Return such values; None if they are not of this service and purpose, or too old."""
        values = self.box.decrypt(purpose, sealed) if sealed else None
        if values is None or values["until"] <= self.clock.now().timestamp():
            return None
        return values

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Send requests to the provider, unless too many people do so at once."""
        if not self._turns.acquire(blocking=False):
            raise IdentityProviderFailed(
                f"{MAX_SIGN_INS} sign-ins wait for the identity provider; try again in a few seconds"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _complete(
        self, grant: ProviderGrant, token_name: str, lifetime: timedelta, origin: RequestOrigin
    ) -> tuple[str, Token]:
        account = grant.account
        request = SignInRequest(
            issuer=account.issuer,
            subject=account.subject,
            proposed_name=account.name,
            groups=account.groups or frozenset(),
            refresh_token=grant.refresh_token,
            token_name=token_name,
            lifetime=lifetime,
            address=origin.address,
            request_id=origin.request_id,
        )
        return self.sign_ins.complete(request)
