"""How sure it is that a launch happens once, and how that is found out.

With the admission gate it is certain: SkyPilot asks this service before it makes a job, and each token passes once.
The gate needs one line in the configuration of SkyPilot's server (`admin_policy`), and so somebody who may write it.
It names our module in SkyPilot's environment, which asks about our launches alone, or our address, which SkyPilot asks about
everything: then recoveries wait while this service is away. Whether it does, a second probe tells. A probe proves
validations; where a launch becomes a job that nobody was asked about, the guarantee is gone until another is asked about.
Without it, a launch whose answer was lost is not repeated before its request must have come to an end, duplicates
are looked for in every listing and cancelled, and workers of a duplicate are fenced: two clusters may stand side by
side for a minute, and never do two of them write.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.memory import Memory
from holdfast.adapters.skypilot.order import TOKEN_ENV
from holdfast.adapters.skypilot.replies import RequestFailed
from holdfast.adapters.skypilot.story import plain
from holdfast.domain.admission import Admission, TokenState
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Clock
from holdfast.rendering import dump

log = logging.getLogger(__name__)

PROBE: Final = "probe-0"
"""Key of the launch that never happens: its token passes the gate in a validation only."""
WIDE_PROBE: Final = "probe-1"
"""The same, and our module never asks about it: its token passes the gate only where everything does."""
_TRUST: Final = timedelta(minutes=10)
"""How long a gate that was seen is believed in. A configuration seldom changes."""
_DOUBT: Final = timedelta(seconds=30)
"""How long its absence is believed in. SkyPilot's server reads a changed configuration anew only now and then."""


class Guarantee(StrEnum):
    """What is promised about launches."""

    EXACTLY_ONCE = "exactly-once"
    AT_MOST_60S_OVERLAP = "at-most-60s-overlap"


class GateProbe:
    """Finds out whether SkyPilot asks this service before it launches."""

    def __init__(self, door: Door, memory: Memory, clock: Clock) -> None:
        self._door = door
        self._memory = memory
        self._clock = clock
        self._known: tuple[datetime, Guarantee] | None = None
        self._sure_since: datetime | None = None
        """Since when each probe has passed the gate; None while it does not."""
        self._passed_by_at: datetime | None = None
        """When a launch was seen that had come by without a question; None since another was asked about."""
        self._known_width: tuple[datetime, bool] | None = None
        self._turn = asyncio.Lock()

    async def guarantee(self) -> Guarantee:
        """What holds now.

        Raises:
            LauncherUnreachable: SkyPilot does not answer, or it has a gate that does not let anything pass.
        """
        async with self._turn:
            probed = await self._probed(self._clock.now())
        return Guarantee.AT_MOST_60S_OVERLAP if self._passed_by_at else probed

    async def is_sure(self) -> bool:
        """Whether SkyPilot asks this service before each launch.

        Raises:
            LauncherUnreachable: as above.
        """
        return await self.guarantee() is Guarantee.EXACTLY_ONCE

    def witness(self, launch: Admission, *, was_asked: bool) -> None:
        """Believe a launch that has become a job more than the probe.

        SkyPilot reads the policy for validations, by which the probe goes, at its start, and that for launches each
        time. Where the gate was taken away since, launches alone show it, and alone show that it is back.
        """
        if was_asked:
            if self._passed_by_at and launch.state_at > self._passed_by_at:
                self._passed_by_at = None
        elif self._sure_since and launch.posted_at and launch.posted_at >= self._sure_since:
            self._passed_by_at = self._clock.now()
            log.warning("SkyPilot did not ask about %s: its gate is gone", launch.key)

    async def asks_about_all(self) -> bool:
        """Whether SkyPilot asks about requests that are none of our launches, and so waits for us with them, too.

        Raises:
            LauncherUnreachable: as above.
        """
        if not await self.is_sure():
            return False
        now = self._clock.now()
        if self._known_width is None or now - self._known_width[0] >= _TRUST:
            self._known_width = (now, await self._passes(WIDE_PROBE, now))
        return self._known_width[1]

    async def _probed(self, now: datetime) -> Guarantee:
        """What the newest probe says; a new one, where that is old."""
        if self._known:
            at, known = self._known
            if now - at < (_TRUST if known is Guarantee.EXACTLY_ONCE else _DOUBT):
                return known
        if await self._passes(PROBE, now):
            found, self._sure_since = Guarantee.EXACTLY_ONCE, self._sure_since or now
        else:
            found, self._sure_since, self._passed_by_at = Guarantee.AT_MOST_60S_OVERLAP, None, None
        if not self._known or self._known[1] is not found:
            log.info("launches through SkyPilot at %s: %s", self._door.url, found)
        self._known = (now, found)
        return found

    async def _passes(self, key: str, now: datetime) -> bool:
        """Whether the token of this launch comes by our gate when SkyPilot validates it."""
        row = self._memory.open(key, key, now)
        if row.state is not TokenState.ISSUED:
            self._memory.renew(key, row.generation, now)
            row = self._memory.open(key, key, now)
        task = dump({"name": key, "run": "true", "envs": {TOKEN_ENV: self._memory.token(row)}})
        try:
            await self._door.validate({"dag": task, "request_options": _NO_OPTIONS})
        except RequestFailed as refusal:
            # Where another replica tries at the same moment, one token passes once, and that is the answer.
            passed = self._memory.open(key, key, now).state is TokenState.CONSUMED
            if "policy" in refusal.detail.lower() and not passed:
                raise LauncherUnreachable(
                    f"SkyPilot's admin_policy does not let launches pass: {plain(refusal.detail)}"
                ) from refusal
        return self._memory.open(key, key, now).state is TokenState.CONSUMED


_NO_OPTIONS: Final = {
    "cluster_name": None,
    "idle_minutes_to_autostop": None,
    "down": False,
    "dryrun": False,
}
