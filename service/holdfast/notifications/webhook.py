"""Webhooks signed according to Standard Webhooks, sent only to the address that was checked.

The signature is HMAC-SHA-256 over `id.timestamp.body` with the key bytes encoded in Base64 after `whsec_`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.domain.notifications.channels import Destination, Message, TransportKind
from holdfast.egress_policy import EgressPolicy, system_tls
from holdfast.errors import BadChannel, NotDelivered
from holdfast.pinned_connection import PinnedConnection, host_and_port, port_of
from holdfast.ports import Clock

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PREFIX: Final = "whsec_"
_GONE: Final = 410


@dataclass(frozen=True)
class WebhookTransport:
    """Transport for webhooks."""

    egress_policy: EgressPolicy
    clock: Clock
    allows_http: bool = False
    """Whether public hosts may be used without TLS."""
    tls: ssl.SSLContext = field(default_factory=system_tls)

    def destination(self, url: str) -> Destination:
        """Return where a webhook leads.

        Raises:
            BadChannel: the URL is not a valid webhook.
        """
        parts = self._split(url)
        if parts.fragment:
            _key(parts.fragment)
        if why := self.egress_policy.literal(parts.hostname or ""):
            raise BadChannel(f"url: not allowed, because {parts.hostname} {why}")
        return Destination(
            transport=TransportKind.WEBHOOK, shown=f"{parts.scheme}://{host_and_port(parts)}"
        )

    def send(self, url: str, secrets: Sequence[str], message: Message) -> None:
        """Send a message; return once the receiver has confirmed it.

        Raises:
            NotDelivered: the receiver did not confirm it.
            BadChannel: the URL is invalid, or this service does not send there.
        """
        parts = self._split(url)
        keys = [*secrets, *filter(None, [parts.fragment])]
        addresses = self.egress_policy.pick(parts.hostname or "", port_of(parts))
        body = message.payload.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Holdfast",
            "Connection": "close",
            **self._signature_headers(message.id, body, keys),
        }
        connection = PinnedConnection(addresses, parts, self.tls)
        try:
            status = connection.request("POST", headers, body).status
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The text of some errors contains the address.
            raise NotDelivered(
                f"{host_and_port(parts)}: {type(error).__name__}: {error}"[:300]
            ) from error
        finally:
            connection.close()
        if 300 <= status < 400:
            raise NotDelivered(
                f"{host_and_port(parts)} responded with status {status}; redirects are not followed"
            )
        if not 200 <= status < 300:
            raise NotDelivered(
                f"{host_and_port(parts)} responded with status {status}", for_good=status == _GONE
            )

    def _signature_headers(
        self, message_id: str, body: bytes, secrets: Sequence[str]
    ) -> dict[str, str]:
        timestamp = str(int(self.clock.now().timestamp()))
        signed = b".".join((message_id.encode(), timestamp.encode(), body))
        signatures = [sign(signed, secret) for secret in secrets]
        headers = {"webhook-id": message_id, "webhook-timestamp": timestamp}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})

    def _split(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            # The error's text is omitted, because it repeats the URL.
            raise BadChannel("url: not a webhook address; write https://host/path") from error
        if not url.isascii() or not url.isprintable() or " " in url:
            raise BadChannel(
                "url: contains non-ASCII characters; write them as %XX, and a host as xn--..."
            )
        if not _HOST.fullmatch(parts.hostname or "") or port == 0:
            raise BadChannel("url: a webhook needs a host, such as https://example.com/hook")
        if parts.username is not None or parts.password is not None:
            raise BadChannel(
                "url: a webhook must not contain user and password; it is authenticated by its signature"
            )
        if parts.scheme == "http" and not self.allows_http:
            raise BadChannel("url: a webhook must begin with https://; set HOLDFAST_NOTIFY_HTTP to allow http://")  # fmt: skip
        return parts


def sign(signed: bytes, secret: str) -> str:
    """Return one signature of a message: `v1,` and Base64."""
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not 24 <= len(key) <= 64:
        raise BadChannel(
            "url: the part after # must be the webhook's secret: whsec_ and Base64 of 24 to 64 bytes"
        )
    return key
