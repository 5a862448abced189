"""JSON over HTTP with the APIs of clouds that have no client here. Blocking.

What goes wrong raises `ProviderUnavailable`. A cloud that fails or is slow is then left alone for a time, so that the many places of a job do not wait for
it one after the other.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from holdfast.egress_policy import system_tls
from holdfast.ports import Clock
from holdfast.pricing.provider_cache import ProviderUnavailable

CONNECT_S: Final = 2.0
TOTAL_S: Final = 5.0
"""Time limit of a request in seconds.
With a higher value, the plan of a job waits longer for a hint; with a lower value, slow answers are discarded."""
BUSY_S: Final = 3.0
"""Seconds in a minute that may be spent on waiting for one cloud.
With a higher value, decisions about jobs with many places wait longer; with a lower value, hints of these places arrive over several minutes."""
MINUTE: Final = timedelta(minutes=1)
OUTAGE_PAUSE: Final = timedelta(minutes=10)
"""Time without questions after one without an answer. A lower value delays plans more; a higher value misses hints for longer."""
MAX_REPLY_BYTES: Final = 1024 * 1024
"""Response bytes that are read. Answers have a few kilobytes; a higher value wastes memory on others."""
OK: Final = 200
TOO_MANY_REQUESTS: Final = 429
INTERNAL_ERROR: Final = 500
MAX_DETAIL: Final = 200
"""Characters of an error message that are logged."""


@dataclass
class CloudHttp:
    """HTTP to one cloud. Thread-safe."""

    clock: Clock
    uses_proxy: bool = True
    """Whether a proxy of the environment is used. The metadata service of a machine is not behind one."""
    monotonic_s: Callable[[], float] = time.monotonic
    _paused_until: datetime | None = None
    _minute_began: datetime | None = None
    _spent_s: float = 0.0
    """Seconds spent in this minute."""
    _lock: Lock = field(default_factory=Lock)

    def json(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Return the JSON object at a URL, or the one that answers a posted body or form.

        Raises:
            ProviderUnavailable: there is none.
        """
        method = "GET" if body is None and form is None else "POST"
        try:
            answer = json.loads(self._send(method, url, headers=headers, json=body, data=form))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ProviderUnavailable(f"{_host(url)} answered with something else than JSON")
        return answer

    def text(self, url: str, headers: Mapping[str, str]) -> str:
        """Return the text at a URL.

        Raises:
            ProviderUnavailable: there is none.
        """
        return self._send("GET", url, headers=headers).decode(errors="replace")

    def require_open(self) -> None:
        """Check that the cloud may be asked now.

        Raises:
            ProviderUnavailable: it did not answer lately, or has answered slowly.
        """
        now = self.clock.now()
        with self._lock:
            if self._paused_until and now < self._paused_until:
                why = "it is slow or does not answer, and is asked again later"
                raise ProviderUnavailable(why, is_quiet=True, retry=self._paused_until - now)

    def _send(self, method: str, url: str, **content: Any) -> bytes:
        self.require_open()
        host, began_s = _host(url), self.monotonic_s()
        try:
            status, answer = self._exchange(method, url, began_s + TOTAL_S, content)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            self._pause(OUTAGE_PAUSE)
            why = f"{host} did not answer ({type(error).__name__})"
            raise ProviderUnavailable(why, retry=OUTAGE_PAUSE) from error
        self._count(self.monotonic_s() - began_s)
        if status == TOO_MANY_REQUESTS or status >= INTERNAL_ERROR:
            self._pause(OUTAGE_PAUSE)
            raise ProviderUnavailable(f"{host} answered with status {status}", retry=OUTAGE_PAUSE)
        if status != OK:
            raise ProviderUnavailable(f"{host} answered with status {status}: {_detail(answer)}")
        return answer

    def _exchange(
        self, method: str, url: str, until_s: float, content: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        # Questions are rare, so that no connection is kept between them.
        client = httpx2.Client(
            timeout=httpx2.Timeout(TOTAL_S, connect=CONNECT_S),
            trust_env=self.uses_proxy,
            verify=_tls(),
            headers={"User-Agent": "Holdfast"},
        )
        answer = b""
        with client, client.stream(method, url, **content) as reply:
            for part in reply.iter_bytes():
                answer += part
                if self.monotonic_s() > until_s:
                    raise httpx2.ReadTimeout("the answer takes too long")
                if len(answer) > MAX_REPLY_BYTES:
                    raise httpx2.ReadError("the answer is too long")
            return reply.status_code, answer

    def _count(self, spent_s: float) -> None:
        """Count waiting time, and pause until the next minute once it is used up."""
        now = self.clock.now()
        with self._lock:
            if self._minute_began is None or now - self._minute_began >= MINUTE:
                self._minute_began, self._spent_s = now, 0.0
            self._spent_s += spent_s
            is_busy, left = self._spent_s > BUSY_S, MINUTE - (now - self._minute_began)
        if is_busy:
            self._pause(left)

    def _pause(self, span: timedelta) -> None:
        until = self.clock.now() + span
        with self._lock:
            self._paused_until = max(until, self._paused_until or until)


@cache
def _tls() -> ssl.SSLContext:
    return system_tls()


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _detail(content: bytes) -> str:
    """The message of an error of Google Cloud or Azure, or the beginning of another one."""
    try:
        error = json.loads(content)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace")
    words = " ".join(str(message).split())
    return words if len(words) <= MAX_DETAIL else f"{words[:MAX_DETAIL]}..."
