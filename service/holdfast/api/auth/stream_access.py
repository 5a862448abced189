"""Whether a stream may go on: whoever opened it may have lost their token, or their place in the project, since."""

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
from holdfast.api.dependencies import The
from holdfast.domain.access.permissions import Action, Caller
from holdfast.errors import StoreUnavailable
from holdfast.services import Services

log = logging.getLogger(__name__)

RECHECK_S: Final = 2.0
"""How often it is looked. Smaller: more queries for each stream. Bigger: who was locked out goes on reading for longer;
five seconds are promised."""


@dataclass
class StreamAccess:
    """What an open stream may show."""

    services: Services
    caller: Caller
    """As of the last look."""
    _looked_at_s: float = field(default_factory=time.monotonic)

    async def holds(self, project: str | None) -> bool:
        """Whether the caller may still see what is in `project`; in the projects that they are in, if it is None."""
        if time.monotonic() - self._looked_at_s >= RECHECK_S:
            caller = await asyncio.to_thread(self._renewed)
            if caller is None:
                return False
            self.caller, self._looked_at_s = caller, time.monotonic()
        return project is None or self.caller.may(Action.SEE, project)

    def _renewed(self) -> Caller | None:
        """The caller as they are now; None where they may not come in any more."""
        if self.caller.token_id is None:
            return self.caller if self.services.trusts_loopback() else None
        token = self.services.keyring.get(self.caller.token_id)
        if token.refusal(self.services.clock.now()):
            return None
        return self.services.people.caller(token)


def _permit(services: The, caller: TheCaller) -> Iterator[StreamAccess]:
    with services.traffic.streams.one(caller.name or None):
        yield StreamAccess(services, caller)


ThePermit = Annotated[StreamAccess, Depends(_permit)]
"""The permit of the caller, for routes that go on for long."""


@contextmanager
def ended_by_outages() -> Iterator[None]:
    """End a stream in order where the database cannot be used: its client connects again, from where it was."""
    try:
        yield
    except StoreUnavailable as error:
        log.info("a live stream ended: %s", error)
