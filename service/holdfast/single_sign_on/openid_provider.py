"""An OpenID Connect provider: discovery, keys, and the requests of sign-ins and checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc.jwk import KeySet

from holdfast.domain.access.group_roles import user_name
from holdfast.errors import IdentityProviderFailed, SignInRefused
from holdfast.ports import Clock
from holdfast.single_sign_on.accounts import (
    DeviceCode,
    ProviderAccount,
    ProviderGrant,
    StillPending,
)
from holdfast.single_sign_on.connection import ProviderConnection, ProviderResponse
from holdfast.single_sign_on.id_token import Expected, WrongSignature, public_keys, validate

METADATA_S: Final = 3600.0
"""Seconds for which the provider's description and keys are kept.
A lower value adds requests to sign-ins; a higher value uses old addresses for longer."""
FAILURE_S: Final = 5.0
"""Seconds for which a failed request for the description is not repeated. With a lower value, sign-ins wait for each other's
failures; a higher value notices later that the provider responds again."""
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
MAX_DEVICE_S: Final = 1800
"""Seconds that a device's sign-in may last, whatever the provider says."""
MAX_INTERVAL_S: Final = 60
_REFUSALS: Final = frozenset(
    [
        "invalid_grant",
        "access_denied",
        "expired_token",
        "interaction_required",
        "login_required",
        "consent_required",
    ]
)
"""Errors that concern the account or its sign-in; all others, such as a wrong secret, concern this service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderSettings:
    """The settings of a provider."""

    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    """None: a public client."""
    audience: str
    groups_claim: str
    scopes: str
    """Separated by spaces."""


class OpenIdProvider:
    """One OpenID Connect provider. Its description is requested when it is first needed."""

    def __init__(
        self,
        settings: ProviderSettings,
        clock: Clock,
        connection: ProviderConnection,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = urlsplit(settings.issuer).hostname or settings.issuer
        self._settings = settings
        self._clock = clock
        self._connection = connection
        self._now_s = now_s
        self._lock = Lock()
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._failure: tuple[float, str] | None = None
        self._keys: tuple[float, KeySet] | None = None

    def authorization_url(self, parameters: Mapping[str, str]) -> str:
        """Return the address at which a browser starts a sign-in; `verifier` becomes its challenge."""
        given = dict(parameters)
        given["code_challenge"] = create_s256_code_challenge(given.pop("verifier"))
        url: str = prepare_grant_uri(
            self._endpoint("authorization_endpoint"),
            self._settings.client_id,
            "code",
            scope=self._settings.scopes,
            code_challenge_method="S256",
            **given,
        )
        return url

    def exchange(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> ProviderGrant:
        """Return the result of a browser's sign-in."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        return self._grant(self._token_request(form), nonce=nonce)

    def start_device(self) -> DeviceCode:
        """Start a sign-in without a browser on this machine."""
        if "device_authorization_endpoint" not in self._described():
            raise IdentityProviderFailed(
                f"{self.name} offers no sign-in for the command line; sign in with the dashboard, or use an access token"
            )
        url = self._endpoint("device_authorization_endpoint")
        response = self._request(url, {"scope": self._settings.scopes})
        if response.status != 200:
            raise self._error(response)
        fields = response.fields
        complete = fields.get("verification_uri_complete")
        name = "verification address"
        return DeviceCode(
            device_code=_text(fields, "device_code", 4096),
            user_code=_text(fields, "user_code", 64),
            verification_uri=self._connection.check_url(name, fields.get("verification_uri")),
            verification_uri_complete=self._connection.check_url(name, complete)
            if complete is not None
            else None,
            expires_in_s=_seconds(fields.get("expires_in"), 600, MAX_DEVICE_S),
            interval_s=_seconds(fields.get("interval"), 5, MAX_INTERVAL_S),
        )

    def poll_device(self, device_code: str) -> ProviderGrant | StillPending:
        """Return the result of such a sign-in."""
        form = {"grant_type": DEVICE_GRANT, "device_code": device_code}
        response = self._request(self._endpoint("token_endpoint"), form)
        if response.status != 200:
            error = response.fields.get("error")
            if error in {"authorization_pending", "slow_down"}:
                return StillPending(slows_down=error == "slow_down")
            raise self._error(response)
        return self._grant(response.fields)

    def refresh(
        self, refresh_token: str, subject: str, keep: Callable[[str], None]
    ) -> ProviderAccount:
        """Check that an account can still sign in; `keep` stores a new refresh token."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        fields = self._token_request(form)
        if new := _refresh_token(fields):
            keep(new)
        if fields.get("id_token") is not None:
            return self._grant(fields, subject=subject).account
        groups = None
        if "userinfo_endpoint" in self._described():
            groups = self._groups(self._user_info(fields, subject))
        issuer = self._settings.issuer
        return ProviderAccount(issuer=issuer, subject=subject, name=None, groups=groups)

    def _grant(
        self, fields: Mapping[str, Any], *, nonce: str | None = None, subject: str | None = None
    ) -> ProviderGrant:
        access_token = fields.get("access_token")
        expected = Expected(
            issuer=self._settings.issuer,
            client_id=self._settings.client_id,
            audience=self._settings.audience,
            nonce=nonce,
            subject=subject,
            access_token=access_token if isinstance(access_token, str) else None,
        )
        claims = dict(self._validated(fields.get("id_token"), expected))
        if not self._mentions_groups(claims) and "userinfo_endpoint" in self._described():
            claims = {**self._user_info(fields, claims["sub"]), **claims}
        is_mail_known = claims.get("email_verified") is not False
        proposals = [
            claims.get("preferred_username"),
            claims.get("email") if is_mail_known else None,
            claims["sub"],
        ]
        return ProviderGrant(
            account=ProviderAccount(
                issuer=self._settings.issuer,
                subject=claims["sub"],
                name=user_name(proposals),
                groups=self._groups(claims),
            ),
            refresh_token=_refresh_token(fields),
        )

    def _validated(self, id_token: object, expected: Expected) -> Mapping[str, Any]:
        now = self._clock.now()
        try:
            return validate(id_token, self._public_keys(), expected, now)
        except WrongSignature:
            # The provider may have changed its keys since they were requested.
            self._keys = None
        try:
            return validate(id_token, self._public_keys(), expected, now)
        except WrongSignature as error:
            raise IdentityProviderFailed(
                f"the signature of the identity provider's ID token is not valid: {error}"
            ) from error

    def _user_info(self, fields: Mapping[str, Any], subject: str) -> Mapping[str, Any]:
        token = _text(fields, "access_token", 65_536)
        bearer = {"Authorization": f"Bearer {token}"}
        info = self._connection.get(self._endpoint("userinfo_endpoint"), bearer)
        if info.get("sub") != subject:
            raise IdentityProviderFailed("the identity provider described another account")
        return info

    def _mentions_groups(self, claims: Mapping[str, Any]) -> bool:
        return self._settings.groups_claim in claims or self._exceeds(claims)

    def _exceeds(self, claims: Mapping[str, Any]) -> bool:
        """Whether the provider left out groups because there are too many, as Microsoft Entra does."""
        elsewhere = claims.get("_claim_names")
        return isinstance(elsewhere, dict) and self._settings.groups_claim in elsewhere

    def _groups(self, claims: Mapping[str, Any]) -> frozenset[str]:
        claim = self._settings.groups_claim
        if claim not in claims and self._exceeds(claims):
            raise IdentityProviderFailed(
                f"the account has too many groups for a token; let {self.name} send only those of this application"
            )
        groups = claims.get(claim, [])
        listed = [groups] if isinstance(groups, str) else groups
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise IdentityProviderFailed(f"the claim {claim} is not a list of names of groups")
        return frozenset(listed)

    def _token_request(self, form: Mapping[str, str]) -> Mapping[str, Any]:
        response = self._request(self._endpoint("token_endpoint"), form)
        if response.status != 200:
            raise self._error(response)
        return response.fields

    def _request(self, url: str, form: Mapping[str, str]) -> ProviderResponse:
        """Send a form with the credentials of this service."""
        settings = self._settings
        offered = self._described().get("token_endpoint_auth_methods_supported")
        basic, post = "client_secret_basic", "client_secret_post"
        method = post if isinstance(offered, list) and basic not in offered else basic
        headers: dict[str, str] = {}
        whole = dict(form)
        if settings.client_secret is not None and method == basic:
            auth = ClientAuth(settings.client_id, settings.client_secret, basic)
            _, headers, _ = auth.prepare("POST", url, {}, "")
            whole["client_id"] = settings.client_id
        else:
            whole["client_id"] = settings.client_id
            if settings.client_secret is not None:
                whole["client_secret"] = settings.client_secret
        return self._connection.post(url, whole, headers)

    def _error(self, response: ProviderResponse) -> SignInRefused | IdentityProviderFailed:
        code = _printable(response.fields.get("error")) or f"status {response.status}"
        why = _printable(response.fields.get("error_description"))
        said = f"{code}: {why}" if why else code
        if code in _REFUSALS:
            return SignInRefused(f"{self.name} refused the sign-in ({said}); start it again")
        return IdentityProviderFailed(
            f"{self.name} did not accept a request of this service ({said})"
        )

    def _endpoint(self, name: str) -> str:
        return self._connection.check_url(name, self._described().get(name))

    def _described(self) -> Mapping[str, Any]:
        """Return the provider's description of itself."""
        with self._lock:
            now_s = self._now_s()
            if self._metadata is not None and now_s - self._metadata[0] <= METADATA_S:
                return self._metadata[1]
            if self._failure is not None and now_s - self._failure[0] <= FAILURE_S:
                raise IdentityProviderFailed(self._failure[1])
            try:
                self._metadata = (now_s, self._discover())
            except IdentityProviderFailed as error:
                self._failure = (self._now_s(), error.detail)
                raise
            return self._metadata[1]

    def _discover(self) -> Mapping[str, Any]:
        issuer = self._settings.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._connection.get(url)
        if found.get("issuer") != issuer:
            raise IdentityProviderFailed(
                f"the provider at {issuer} calls itself {_printable(found.get('issuer'))!r}; "
                "set HOLDFAST_OIDC_ISSUER to exactly that if it is the right one"
            )
        return found

    def _public_keys(self) -> KeySet:
        url = self._endpoint("jwks_uri")
        with self._lock:
            if self._keys is None or self._now_s() - self._keys[0] > METADATA_S:
                self._keys = (self._now_s(), public_keys(self._connection.get(url)))
            return self._keys[1]


def _refresh_token(fields: Mapping[str, Any]) -> str | None:
    token = fields.get("refresh_token")
    return token if isinstance(token, str) and token else None


def _text(fields: Mapping[str, Any], name: str, longest: int) -> str:
    text = fields.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= longest or not text.isprintable():
        raise IdentityProviderFailed(f"the identity provider sent no usable {name}")
    return text


def _seconds(value: object, default: int, most: int) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
    return min(max(1, int(value)), most) if is_number else default  # type: ignore[call-overload]


def _printable(value: object) -> str:
    """Return a text of the provider without anything that a terminal would act on."""
    return (
        "".join(char for char in value if char.isprintable())[:200]
        if isinstance(value, str)
        else ""
    )
