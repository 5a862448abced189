"""What an identity provider says about an account, and what a sign-in asks of a provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderAccount:
    """An account at the identity provider."""

    issuer: str
    subject: str
    """What identifies the account; unlike its name and mail address it is never given to another one."""
    name: str | None
    """The name of a user that it gets; None: the provider sends none that is possible."""
    groups: frozenset[str] | None
    """None: the response does not say; the groups known before remain valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderGrant:
    """The result of a sign-in."""

    account: ProviderAccount
    refresh_token: str | None = field(repr=False)
    """With which the account is checked later; None: the provider sent none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """A sign-in that a person completes in a browser on any machine."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    """The same with the code in it; None: the provider offers none."""
    expires_in_s: int
    interval_s: int
    """Seconds between two polls."""


@dataclass(frozen=True, slots=True)
class StillPending:
    """The person has not completed the sign-in yet."""

    slows_down: bool
    """Whether the next polls have to wait for longer."""


class IdentityProvider(Protocol):
    """A provider at which users sign in.

    Each method may take seconds, and raises `IdentityProviderFailed` without a valid response.
    """

    name: str
    """Displayed on the button."""

    def authorization_url(self, parameters: Mapping[str, str]) -> str:
        """Return the address at which a browser starts a sign-in."""
        ...

    def exchange(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> ProviderGrant:
        """Return the result of a browser's sign-in.

        Raises:
            SignInRefused: the code is wrong or was used before.
        """
        ...

    def start_device(self) -> DeviceCode:
        """Start a sign-in without a browser on this machine."""
        ...

    def poll_device(self, device_code: str) -> ProviderGrant | StillPending:
        """Return the result of such a sign-in.

        Raises:
            SignInRefused: it was denied, or has expired.
        """
        ...

    def refresh(
        self, refresh_token: str, subject: str, keep: Callable[[str], None]
    ) -> ProviderAccount:
        """Check that an account can still sign in.

        `keep` stores the new refresh token as soon as it arrives: the old one may be invalid, whatever fails later.

        Raises:
            SignInRefused: it cannot.
        """
        ...
