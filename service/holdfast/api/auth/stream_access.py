"""Access to open streams: it ends when the caller loses their token or membership."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.domain.access.permissions import Action, Caller
from holdfast.errors import StoreUnavailable, Unauthenticated
from holdfast.services import Services

log = logging.getLogger(__name__)

RECHECK_S: Final = 2.0
"""Seconds between checks.

A lower value adds queries per stream; a higher value lets a revoked caller read for longer. Five seconds are promised.
"""


@dataclass
class StreamAccess:
    """The current permissions of an open stream."""

    services: Services
    caller: Caller
    """The caller at the last check."""
    _checked_at_s: float = field(default_factory=time.monotonic)

    async def is_allowed(self, project: str | None) -> bool:
        """Whether the caller may still see `project`, or their own projects if it is None."""
        if time.monotonic() - self._checked_at_s >= RECHECK_S:
            caller = await asyncio.to_thread(self._reauthenticated)
            if caller is None:
                return False
            self.caller, self._checked_at_s = caller, time.monotonic()
        return project is None or self.caller.may(Action.SEE, project)

    def _reauthenticated(self) -> Caller | None:
        """Authenticate the caller again; None if they have lost access."""
        if self.caller.token_id is None:
            return self.caller if self.services.trusts_loopback() else None
        token = self.services.access_tokens.get(self.caller.token_id)
        if token.refusal(self.services.clock.now()):
            return None
        try:
            return self.services.users.caller(token)
        except Unauthenticated:
            return None


def _stream_access(services: TheServices, caller: TheCaller) -> Iterator[StreamAccess]:
    with services.rate_limiter.streams.open(caller.name or None):
        yield StreamAccess(services, caller)


TheStreamAccess = Annotated[StreamAccess, Depends(_stream_access)]
"""The stream access of the caller, for long-lived routes."""


@contextmanager
def end_stream_on_outage() -> Iterator[None]:
    """End a stream cleanly if the database is unavailable.

    Its client reconnects at its last position.
    """
    try:
        yield
    except StoreUnavailable as error:
        log.info("a live stream ended: %s", error)
