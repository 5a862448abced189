"""Webhooks, signed as Standard Webhooks says, and sent to the address that was checked and no other.

The signature is HMAC-SHA-256 over `id.timestamp.body` under the bytes that `whsec_` is the Base64 of.
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
"""How long a receiver may take for each step. Smaller: slow ones are sent a message twice. Bigger: they hold a thread."""
WHOLE_S: Final = 10.0
"""How long it may take in all, byte by byte or not."""
MOST_BYTES: Final = 64 * 1024
"""Of an answer that are read; what it says does not matter. Bigger: a receiver can waste memory."""
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PREFIX: Final = "whsec_"
_GONE: Final = 410


@dataclass(frozen=True)
class Webhooks:
    """Sends webhooks."""

    guard: EgressPolicy
    clock: Clock
    takes_http: bool = False
    """Whether a public host may be one without TLS."""
    tls: ssl.SSLContext = field(default_factory=system_tls)

    def place(self, url: str) -> Destination:
        """Where a webhook leads.

        Raises:
            BadChannel: it cannot be a webhook, by what it looks like.
        """
        parts = self._split(url)
        if parts.fragment:
            _key(parts.fragment)
        if why := self.guard.literal(parts.hostname or ""):
            raise BadChannel(f"url: nothing is sent there, as {parts.hostname} {why}")
        return Destination(way=TransportKind.WEBHOOK, shown=f"{parts.scheme}://{_named(parts)}")

    def send(self, url: str, secrets: Sequence[str], letter: Message) -> None:
        """Nothing, once the receiver said that it has it.

        Raises:
            NotDelivered: it did not.
            BadChannel: as with `place`.
        """
        parts = self._split(url)
        keys = [*secrets, *filter(None, [parts.fragment])]
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
        addresses = self.guard.pick(parts.hostname or "", port)
        body = letter.payload.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Holdfast",
            "Connection": "close",
            **self._signed(letter.id, body, keys),
        }
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        connection = _Pinned(addresses, parts, port, self.tls)
        try:
            status = connection.post(path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Not the words of the error alone: those of some hold the address.
            raise NotDelivered(f"{_named(parts)}: {type(error).__name__}: {error}"[:300]) from error
        finally:
            connection.close()
        if 300 <= status < 400:
            raise NotDelivered(f"{_named(parts)} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise NotDelivered(f"{_named(parts)} answered {status}", for_good=status == _GONE)

    def _signed(self, message_id: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
        timestamp = str(int(self.clock.now().timestamp()))
        told = b".".join((message_id.encode(), timestamp.encode(), body))
        signatures = [sign(told, secret) for secret in secrets]
        headers = {"webhook-id": message_id, "webhook-timestamp": timestamp}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})

    def _split(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            # Not its words, which repeat what was written.
            raise BadChannel(
                "url: this is no address of a webhook; write https://host/path"
            ) from error
        if not url.isascii() or not url.isprintable() or " " in url:
            raise BadChannel("url: write it in ASCII, other letters as %XX, a host as xn--...")
        if not _HOST.fullmatch(parts.hostname or "") or port == 0:
            raise BadChannel("url: a webhook needs a host, such as https://example.com/hook")
        if parts.username is not None or parts.password is not None:
            raise BadChannel("url: a webhook has no user and password; its signature proves enough")
        if parts.scheme == "http" and not self.takes_http:
            raise BadChannel("url: a webhook begins with https://; HOLDFAST_NOTIFY_HTTP lets it be http://")  # fmt: skip
        return parts


def sign(told: bytes, secret: str) -> str:
    """One signature of a message: `v1,` and Base64."""
    digest = hmac.new(_key(secret), told, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class _Pinned:
    """One request to one of some addresses, under the name that the certificate has to be for."""

    def __init__(
        self, addresses: Sequence[str], parts: SplitResult, port: int, tls: ssl.SSLContext
    ) -> None:
        self._addresses, self._port = addresses, port
        self._host = parts.hostname or ""
        self._tls = tls if parts.scheme == "https" else None
        self._http = http.client.HTTPConnection(self._host, port, timeout=TIMEOUT_S)
        self._is_default = parts.port is None
        self._named = _named(parts)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer."""
        self._http.sock = self._connected()
        # A receiver that sends a byte now and then never runs into the time-out of a step.
        end = Timer(WHOLE_S, self._cut)
        end.daemon = True
        end.start()
        try:
            if self._tls:
                link = self._tls.wrap_socket(
                    self._http.sock, server_hostname=self._host, do_handshake_on_connect=False
                )
                self._http.sock = link  # Before it speaks, so that it can be cut.
                link.do_handshake()
            self._http.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self._named, **headers}.items():
                self._http.putheader(name, value)
            self._http.putheader("Content-Length", str(len(body)))
            self._http.endheaders(body)
            answer = self._http.getresponse()
            with suppress(OSError, http.client.HTTPException):  # It has the message.
                answer.read(MOST_BYTES)
            return answer.status
        finally:
            end.cancel()

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def _connected(self) -> socket.socket:
        """A connection to the first address that takes one."""
        *others, last = self._addresses
        for address in others:
            with suppress(OSError):
                return socket.create_connection((address, self._port), timeout=TIMEOUT_S)
        return socket.create_connection((last, self._port), timeout=TIMEOUT_S)

    def _cut(self) -> None:
        with suppress(OSError):  # It is closed already.
            # Not the method of a TLS socket, which first goes back to speaking plainly.
            socket.socket.shutdown(self._http.sock, socket.SHUT_RDWR)


def _named(parts: SplitResult) -> str:
    """Host and port as the URL has them, which is what people are shown."""
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
            "url: what follows # is the secret of a webhook, whsec_ and Base64 of 24 to 64 bytes"
        )
    return key
