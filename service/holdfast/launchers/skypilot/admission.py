"""Admission gate of launches, and the launch guarantee that follows from it.

With the gate, a launch happens exactly once: SkyPilot asks this service before it creates a job, and each token passes
once. The gate needs one line in the configuration of SkyPilot's server (`admin_policy`). The line names either our
module in SkyPilot's environment, which asks only about our launches, or our URL, which is asked about every request.
With the URL, recoveries wait while this service is down; a second probe detects this setting. Probes cover validations
only. If a launch becomes a job without a question, the guarantee is withdrawn until SkyPilot asks about another launch.

Without the gate, a launch whose response was lost is repeated only after its request must have ended. Duplicates are
searched in each listing and cancelled, and their workers are fenced: two clusters may run for a minute, but only one
can write.

SkyPilot posts a JSON string that contains JSON, with the task as YAML, and expects the same format back. It treats a
400 and every other failure as a refusal. Jobs without a launch token belong to others and pass unchanged.
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
"""Key of the probe launch, which only validates: its token passes the gate in a validation."""
WIDE_PROBE: Final = "probe-1"
"""Key of the probe that our module ignores.
Its token passes only a gate that is asked about every request."""
_POSITIVE_TTL: Final = timedelta(minutes=10)
"""How long a detected gate is assumed to exist; configurations seldom change."""
_NEGATIVE_TTL: Final = timedelta(seconds=30)
"""How long a missing gate is assumed absent.
SkyPilot's server rereads its configuration only occasionally."""


class LaunchGuarantee(StrEnum):
    """Guarantees about launches."""

    EXACTLY_ONCE = "exactly-once"
    AT_MOST_60S_OVERLAP = "at-most-60s-overlap"


class GateProbe:
    """Detects whether SkyPilot asks this service before it launches."""

    def __init__(self, door: SkyPilotClient, memory: LaunchStore, clock: Clock) -> None:
        self._client = door
        self._store = memory
        self._clock = clock
        self._cached: tuple[datetime, LaunchGuarantee] | None = None
        self._exact_since: datetime | None = None
        """Since when each probe passes the gate; None while it does not."""
        self._bypassed_at: datetime | None = None
        """When a launch bypassed the gate; None since a later launch was asked about."""
        self._cached_scope: tuple[datetime, bool] | None = None
        self._lock = asyncio.Lock()

    async def guarantee(self) -> LaunchGuarantee:
        """Return the current guarantee.

        Raises:
            LauncherUnreachable: SkyPilot does not respond, or its gate blocks all launches.
        """
        async with self._lock:
            probed = await self._probe(self._clock.now())
        return LaunchGuarantee.AT_MOST_60S_OVERLAP if self._bypassed_at else probed

    async def is_exactly_once(self) -> bool:
        """Whether SkyPilot asks this service before each launch.

        Raises:
            LauncherUnreachable: SkyPilot does not respond, or its gate blocks all launches.
        """
        return await self.guarantee() is LaunchGuarantee.EXACTLY_ONCE

    def record_probe(self, launch: Admission, *, was_asked: bool) -> None:
        """Record whether SkyPilot asked about a launch that became a job; this outweighs the probe.

        SkyPilot reads the policy for validations, which the probe uses, at startup, but the policy for launches each
        time. Only launches show that a gate was removed or restored since.
        """
        if was_asked:
            if self._bypassed_at and launch.state_at > self._bypassed_at:
                self._bypassed_at = None
        elif self._exact_since and launch.posted_at and launch.posted_at >= self._exact_since:
            self._bypassed_at = self._clock.now()
            log.warning(
                "SkyPilot did not ask about %s: the admission gate is no longer configured",
                launch.key,
            )

    async def covers_all_requests(self) -> bool:
        """Whether SkyPilot asks about requests of others, which then wait for this service as well.

        Raises:
            LauncherUnreachable: SkyPilot does not respond, or its gate blocks all launches.
        """
        if not await self.is_exactly_once():
            return False
        now = self._clock.now()
        if self._cached_scope is None or now - self._cached_scope[0] >= _POSITIVE_TTL:
            self._cached_scope = (now, await self._passes(WIDE_PROBE, now))
        return self._cached_scope[1]

    async def _probe(self, now: datetime) -> LaunchGuarantee:
        """Return the newest probe's result, or that of a new probe if it is outdated."""
        if self._cached:
            at, known = self._cached
            if now - at < (
                _POSITIVE_TTL if known is LaunchGuarantee.EXACTLY_ONCE else _NEGATIVE_TTL
            ):
                return known
        if await self._passes(PROBE, now):
            found, self._exact_since = LaunchGuarantee.EXACTLY_ONCE, self._exact_since or now
        else:
            found, self._exact_since, self._bypassed_at = (
                LaunchGuarantee.AT_MOST_60S_OVERLAP,
                None,
                None,
            )
        if not self._cached or self._cached[1] is not found:
            log.info("launch guarantee of SkyPilot at %s: %s", self._client.url, found)
        self._cached = (now, found)
        return found

    async def _passes(self, key: str, now: datetime) -> bool:
        """Whether the token of this launch reaches our gate when SkyPilot validates it."""
        row = self._store.open(key, key, now)
        if row.state is not TokenState.ISSUED:
            self._store.renew(key, row.generation, now)
            row = self._store.open(key, key, now)
        task = dump({"name": key, "run": "true", "envs": {TOKEN_ENV: self._store.token(row)}})
        try:
            await self._client.validate({"dag": task, "request_options": _NO_OPTIONS})
        except RequestFailed as refusal:
            # If another replica probes at the same time, one token passes, which answers both.
            passed = self._store.open(key, key, now).state is TokenState.CONSUMED
            if "policy" in refusal.detail.lower() and not passed:
                raise LauncherUnreachable(
                    f"SkyPilot's admin_policy refuses all launches: {strip_ansi(refusal.detail)}"
                ) from refusal
        return self._store.open(key, key, now).state is TokenState.CONSUMED


_NO_OPTIONS: Final = {
    "cluster_name": None,
    "idle_minutes_to_autostop": None,
    "down": False,
    "dryrun": False,
}

_CONSUMING: Final = "jobs.launch"
"""The request that consumes a token, matched exactly.
`jobs.launch_controller` and `jobs.launch_cluster` follow for a job that has already passed."""
_PROBING: Final = "validate"
_PROBES: Final = (f"hfl_{PROBE}_", f"hfl_{WIDE_PROBE}_")
_BOUNDS: Final = Bounds(size_bytes=1 << 20, values=500_000)
"""Limits far above those of a job file.
A refusal here would block the launches of other users."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request that SkyPilot asks about."""

    name: str
    task: str
    config: str
    token: str | None
    """The launch token; None for requests of others, which this service does not decide."""

    @classmethod
    def parse(cls, raw: bytes) -> AdmissionRequest:
        """Parse the body of SkyPilot's question.

        Raises:
            BadRequest: the body is not such a request.
        """
        try:
            payload = json.loads(raw)
            payload = json.loads(payload) if isinstance(payload, str) else payload
            name, task, config = (
                payload["request_name"],
                payload["task"],
                payload["skypilot_config"],
            )
            return cls(str(name), str(task), str(config), _token(load(str(task), _BOUNDS)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRequest("The body is not a request of SkyPilot's admission policy.") from error

    @property
    def consumes_token(self) -> bool:
        """Whether passing uses up the token."""
        if self.token is None:
            return False
        return self.name == _CONSUMING or (self.name == _PROBING and self.token.startswith(_PROBES))

    def unchanged_reply(self) -> str:
        """Reply that accepts the request unchanged: a string, to be sent as JSON."""
        return json.dumps({"task": self.task, "skypilot_config": self.config})


def _token(task: Any) -> str | None:
    envs = task.get("envs") if isinstance(task, dict) else None
    token = envs.get(TOKEN_ENV) if isinstance(envs, dict) else None
    return str(token) if token else None
