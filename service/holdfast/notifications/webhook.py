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
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Timer
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.domain.notifications.channels import Destination, Message, TransportKind
from holdfast.egress_policy import EgressPolicy, system_tls
from holdfast.errors import BadChannel, NotDelivered
from holdfast.ports import Clock

TIMEOUT_S: Final = 5.0
"""Time limit of a receiver for each step.
A lower value sends duplicates to slow receivers; a higher value occupies a thread longer."""
TOTAL_S: Final = 10.0
"""Time limit of a receiver in total, however slowly it responds."""
MAX_REPLY_BYTES: Final = 64 * 1024
"""Maximum number of response bytes read; their content is ignored.
With a higher value, a receiver can waste memory."""
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
            transport=TransportKind.WEBHOOK, shown=f"{parts.scheme}://{_host_and_port(parts)}"
        )

    def send(self, url: str, secrets: Sequence[str], message: Message) -> None:
        """Send a message; return once the receiver has confirmed it.

        Raises:
            NotDelivered: the receiver did not confirm it.
            BadChannel: the URL is invalid, or this service does not send there.
        """
        parts = self._split(url)
        keys = [*secrets, *filter(None, [parts.fragment])]
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
        addresses = self.egress_policy.pick(parts.hostname or "", port)
        body = message.payload.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Holdfast",
            "Connection": "close",
            **self._signature_headers(message.id, body, keys),
        }
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        connection = _PinnedConnection(addresses, parts, port, self.tls)
        try:
            status = connection.post(path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The text of some errors contains the address.
            raise NotDelivered(
                f"{_host_and_port(parts)}: {type(error).__name__}: {error}"[:300]
            ) from error
        finally:
            connection.close()
        if 300 <= status < 400:
            raise NotDelivered(
                f"{_host_and_port(parts)} responded with status {status}; redirects are not followed"
            )
        if not 200 <= status < 300:
            raise NotDelivered(
                f"{_host_and_port(parts)} responded with status {status}", for_good=status == _GONE
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


class _PinnedConnection:
    """A request to one of several addresses, with the host name to verify in the certificate."""

    def __init__(
        self, addresses: Sequence[str], parts: SplitResult, port: int, tls: ssl.SSLContext
    ) -> None:
        self._addresses, self._port = addresses, port
        self._host = parts.hostname or ""
        self._tls = tls if parts.scheme == "https" else None
        self._http = http.client.HTTPConnection(self._host, port, timeout=TIMEOUT_S)
        self._is_default = parts.port is None
        self._host_header = _host_and_port(parts)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Send the request; return the response status."""
        self._http.sock = self._connect()
        # A receiver that sends single bytes slowly never exceeds the time limit of a step.
        end = Timer(TOTAL_S, self._abort)
        end.daemon = True
        end.start()
        try:
            if self._tls:
                link = self._tls.wrap_socket(
                    self._http.sock, server_hostname=self._host, do_handshake_on_connect=False
                )
                self._http.sock = link  # Set before the handshake, so that the timer can abort it.
                link.do_handshake()
            self._http.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self._host_header, **headers}.items():
                self._http.putheader(name, value)
            self._http.putheader("Content-Length", str(len(body)))
            self._http.endheaders(body)
            answer = self._http.getresponse()
            with suppress(OSError, http.client.HTTPException):  # The receiver has the message.
                answer.read(MAX_REPLY_BYTES)
            return answer.status
        finally:
            end.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _connect(self) -> socket.socket:
        """Connect to the first address that accepts."""
        *others, last = self._addresses
        for address in others:
            with suppress(OSError):
                return socket.create_connection((address, self._port), timeout=TIMEOUT_S)
        return socket.create_connection((last, self._port), timeout=TIMEOUT_S)

    def _abort(self) -> None:
        with suppress(OSError):  # It is already closed.
            # The method of a TLS socket would first end TLS on it.
            socket.socket.shutdown(self._http.sock, socket.SHUT_RDWR)


def _host_and_port(parts: SplitResult) -> str:
    """Return host and port as in the URL, which is what users see."""
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    return named if parts.port is None else f"{named}:{parts.port}"


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
