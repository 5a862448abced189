"""How sure it is that a launch happens once, and how that is found out.

With the admission gate it is certain: SkyPilot asks this service before it makes a job, and each token passes once.
The gate needs one line in the configuration of SkyPilot's server (`admin_policy`), and so somebody who may write it.
It names our module in SkyPilot's environment, which asks about our launches alone, or our address, which SkyPilot asks about
everything: then recoveries wait while this service is away. Whether it does, a second probe tells. A probe proves
validations; where a launch becomes a job that nobody was asked about, the guarantee is gone until another is asked about.
Without it, a launch whose answer was lost is not repeated before its request must have come to an end, duplicates
are looked for in every listing and cancelled, and workers of a duplicate are fenced: two clusters may stand side by
side for a minute, and never do two of them write.

SkyPilot's admission policy, spoken from the other side: it asks before it makes a job, and we let a token pass once.

It posts a JSON string that holds JSON, with the whole task as YAML. It wants the same shape back, and takes a 400 for a no
and any other failure for a no, too. Our module `holdfast_gate` in its environment asks about our launches alone; where the
URL itself is its `admin_policy`, it asks about every request of everybody. Jobs that carry no launch token are somebody
else's and pass as they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.jobfile.bounded_yaml import Bounds, load
from holdfast.domain.jobs.launch_admission import Admission, TokenState
from holdfast.errors import BadRequest, LauncherUnreachable
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.observe import strip_ansi
from holdfast.launchers.skypilot.responses import RequestFailed
from holdfast.launchers.skypilot.task_body import TOKEN_ENV
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


class LaunchGuarantee(StrEnum):
    """What is promised about launches."""

    EXACTLY_ONCE = "exactly-once"
    AT_MOST_60S_OVERLAP = "at-most-60s-overlap"


class GateProbe:
    """Finds out whether SkyPilot asks this service before it launches."""

    def __init__(self, door: SkyPilotClient, memory: LaunchStore, clock: Clock) -> None:
        self._door = door
        self._memory = memory
        self._clock = clock
        self._known: tuple[datetime, LaunchGuarantee] | None = None
        self._sure_since: datetime | None = None
        """Since when each probe has passed the gate; None while it does not."""
        self._passed_by_at: datetime | None = None
        """When a launch was seen that had come by without a question; None since another was asked about."""
        self._known_width: tuple[datetime, bool] | None = None
        self._turn = asyncio.Lock()

    async def guarantee(self) -> LaunchGuarantee:
        """What holds now.

        Raises:
            LauncherUnreachable: SkyPilot does not answer, or it has a gate that does not let anything pass.
        """
        async with self._turn:
            probed = await self._probed(self._clock.now())
        return LaunchGuarantee.AT_MOST_60S_OVERLAP if self._passed_by_at else probed

    async def is_sure(self) -> bool:
        """Whether SkyPilot asks this service before each launch.

        Raises:
            LauncherUnreachable: as above.
        """
        return await self.guarantee() is LaunchGuarantee.EXACTLY_ONCE

    def record_probe(self, launch: Admission, *, was_asked: bool) -> None:
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

    async def _probed(self, now: datetime) -> LaunchGuarantee:
        """What the newest probe says; a new one, where that is old."""
        if self._known:
            at, known = self._known
            if now - at < (_TRUST if known is LaunchGuarantee.EXACTLY_ONCE else _DOUBT):
                return known
        if await self._passes(PROBE, now):
            found, self._sure_since = LaunchGuarantee.EXACTLY_ONCE, self._sure_since or now
        else:
            found, self._sure_since, self._passed_by_at = (
                LaunchGuarantee.AT_MOST_60S_OVERLAP,
                None,
                None,
            )
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
                    f"SkyPilot's admin_policy does not let launches pass: {strip_ansi(refusal.detail)}"
                ) from refusal
        return self._memory.open(key, key, now).state is TokenState.CONSUMED


_NO_OPTIONS: Final = {
    "cluster_name": None,
    "idle_minutes_to_autostop": None,
    "down": False,
    "dryrun": False,
}

_CONSUMING: Final = "jobs.launch"
"""Exactly this: `jobs.launch_controller` and `jobs.launch_cluster` come by here, too, for a job that has passed."""
_PROBING: Final = "validate"
_PROBES: Final = (f"hfl_{PROBE}_", f"hfl_{WIDE_PROBE}_")
_BOUNDS: Final = Bounds(size_bytes=1 << 20, values=500_000)
"""Far beyond those of a job file: a refusal here would keep tasks of others from being launched."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request that SkyPilot asks about."""

    name: str
    task: str
    config: str
    token: str | None
    """The launch token in it; None for a request that is not ours to judge."""

    @classmethod
    def read(cls, raw: bytes) -> AdmissionRequest:
        """The request in the body of SkyPilot's question.

        Raises:
            BadRequest: it cannot be understood.
        """
        try:
            told = json.loads(raw)
            told = json.loads(told) if isinstance(told, str) else told
            name, task, config = told["request_name"], told["task"], told["skypilot_config"]
            return cls(str(name), str(task), str(config), _token(load(str(task), _BOUNDS)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRequest(
                "this is not a request that SkyPilot's admission policy sends"
            ) from error

    @property
    def consumes(self) -> bool:
        """Whether its token is used up when it passes."""
        if self.token is None:
            return False
        return self.name == _CONSUMING or (self.name == _PROBING and self.token.startswith(_PROBES))

    def unchanged(self) -> str:
        """The reply that lets it pass as it is: a string, to be sent as JSON once more."""
        return json.dumps({"task": self.task, "skypilot_config": self.config})


def _token(task: Any) -> str | None:
    envs = task.get("envs") if isinstance(task, dict) else None
    token = envs.get(TOKEN_ENV) if isinstance(envs, dict) else None
    return str(token) if token else None
