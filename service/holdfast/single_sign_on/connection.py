"""Requests to an identity provider: checked addresses, JSON only, all bounded.

The provider's own host and port may be inside a private network, as a person with access to the settings chose it. Its
description may name other hosts, which have to be public: a provider must not use this service to reach others. Addresses
that hand out cloud credentials are refused in both cases.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from holdfast.egress_policy import EgressPolicy, Resolve, networks, system_tls
from holdfast.errors import IdentityProviderFailed, NotDelivered
from holdfast.pinned_connection import PinnedConnection, PinnedResponse, host_and_port, port_of

MAX_BYTES: Final = 256 * 1024
"""Size of a response. A lower value refuses users with many groups; with a higher value, a provider can waste memory."""
_EVERYWHERE: Final = networks("0.0.0.0/0, ::/0")
_UNAVAILABLE: Final = 500


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    """A response with a JSON object."""

    status: int
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ProviderConnection:
    """Sends requests to the hosts of one identity provider."""

    issuer: str
    resolve: Resolve | None = None
    """Resolves names; None: the system does."""
    tls: ssl.SSLContext = field(default_factory=system_tls)

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Return the JSON object at a URL.

        Raises:
            IdentityProviderFailed: there is no such response.
        """
        response = self._send("GET", url, headers or {})
        if response.status != http.HTTPStatus.OK:
            raise _failure(url, f"responded with status {response.status}")
        return response.fields

    def post(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> ProviderResponse:
        """Send a form; the response may be an error of OAuth.

        Raises:
            IdentityProviderFailed: there is no response, or none of OAuth.
        """
        body = urlencode(form).encode()
        content = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", url, {**content, **headers}, body)

    def check_url(self, what: str, url: object) -> str:
        """Return a URL that the provider names.

        Raises:
            IdentityProviderFailed: it is not one that this service would use, or send a person to.
        """
        if not isinstance(url, str) or not is_web_address(url):
            raise IdentityProviderFailed(
                f"{self.issuer} names no usable {what}; an address begins with https://"
            )
        if urlsplit(url).scheme == "http" and urlsplit(self.issuer).scheme == "https":
            raise IdentityProviderFailed(f"{self.issuer} names a {what} without TLS")
        return url

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> ProviderResponse:
        parts = urlsplit(url)
        try:
            addresses = self._policy(parts).pick(parts.hostname or "", port_of(parts))
        except NotDelivered as error:
            raise IdentityProviderFailed(f"the identity provider: {error.detail}") from error
        connection = PinnedConnection(addresses, parts, self.tls)
        common = {"Accept": "application/json", "User-Agent": "Holdfast", "Connection": "close"}
        try:
            response = connection.request(method, {**common, **headers}, body, MAX_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failure(url, f"cannot be reached ({type(error).__name__}: {error})") from error
        finally:
            connection.close()
        if response.status >= _UNAVAILABLE:
            raise _failure(url, f"responded with status {response.status}")
        return ProviderResponse(response.status, _object(url, response))

    def _policy(self, parts: SplitResult) -> EgressPolicy:
        issuer = urlsplit(self.issuer)
        is_own = parts.hostname == issuer.hostname and port_of(parts) == port_of(issuer)
        return EgressPolicy(
            _EVERYWHERE if is_own else (),
            self.resolve,
            way_out="only the issuer's own host and port may be inside a private network",
        )


def is_web_address(url: str) -> bool:
    """Whether a text is an address for a browser, without user, password, or unusual characters."""
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.username is None and parts.password is None
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and not set(url) & set(' "<>\\^`{|}')
    return usable and is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname)


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine, so that it needs no TLS."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _object(url: str, response: PinnedResponse) -> Mapping[str, Any]:
    if response.body is None:
        raise _failure(url, f"sent more than {MAX_BYTES} bytes, or not all of its response")
    try:
        fields = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise _failure(url, f"did not respond with JSON (status {response.status})") from error
    if not isinstance(fields, dict):
        raise _failure(url, f"did not respond with a JSON object (status {response.status})")
    return fields


def _failure(url: str, what: str) -> IdentityProviderFailed:
    # Without the path and query, which may contain a code.
    return IdentityProviderFailed(f"{host_and_port(urlsplit(url))} {what}"[:300])
