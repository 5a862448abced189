"""HTTP requests to an address that was checked, bounded in time and size.

Redirects are not followed. A client library would resolve the name again, and a changed DNS response would lead to an address that the egress policy
refuses.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import Final
from urllib.parse import SplitResult

TIMEOUT_S: Final = 5.0
"""Time limit of a receiver for each step.
A lower value fails with slow receivers; a higher value occupies a thread longer."""
TOTAL_S: Final = 10.0
"""Time limit of a receiver in total, however slowly it responds."""
MAX_REPLY_BYTES: Final = 64 * 1024
"""Maximum number of response bytes read by default.
With a higher value, a receiver can waste memory."""


@dataclass(frozen=True, slots=True)
class PinnedResponse:
    """A response without its headers."""

    status: int
    body: bytes | None
    """None: it was longer than allowed, or did not arrive."""


class PinnedConnection:
    """A request to one of several addresses, with the host name to verify in the certificate."""

    def __init__(self, addresses: Sequence[str], parts: SplitResult, tls: ssl.SSLContext) -> None:
        self._addresses, self._port = addresses, port_of(parts)
        self._host = parts.hostname or ""
        self._tls = tls if parts.scheme == "https" else None
        self._http = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        self._host_header = host_and_port(parts)
        self._path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"

    def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> PinnedResponse:
        """Send the request and return the response.

        Raises:
            OSError: the receiver cannot be reached, or is too slow.
            HTTPException: it does not speak HTTP.
            ValueError: a header is invalid.
        """
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
            self._http.putrequest(method, self._path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self._host_header, **headers}.items():
                self._http.putheader(name, value)
            if body is not None:
                self._http.putheader("Content-Length", str(len(body)))
            self._http.endheaders(body)
            answer = self._http.getresponse()
            content: bytes | None = None
            with suppress(OSError, http.client.HTTPException):  # The receiver has the request.
                content = answer.read(max_bytes + 1)
            too_long = content is not None and len(content) > max_bytes
            return PinnedResponse(answer.status, None if too_long else content)
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


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL, or that of its scheme."""
    return parts.port or {"https": 443, "http": 80}[parts.scheme]


def host_and_port(parts: SplitResult) -> str:
    """Return host and port as in the URL, which is what users see."""
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    return named if parts.port is None else f"{named}:{parts.port}"
