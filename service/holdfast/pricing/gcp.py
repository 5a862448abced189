"""Google Cloud's advice about spot nodes: obtainability, uptime, rates of preemption.

Two methods of the Compute Engine API (beta): `advice.capacity` rates the present, `advice.capacityHistory` has daily rates of preemption of the last
thirty days. One question for an instance type in a region or zone; a question about several types has one answer for all of them. Blocking: call it from
a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from holdfast.ports import Clock
from holdfast.pricing.cloud_http import CloudHttp
from holdfast.pricing.cloud_identity import METADATA_URL, Environment, GoogleIdentity
from holdfast.pricing.provider_cache import AnswerCache, ProviderUnavailable

COMPUTE_URL: Final = "https://compute.googleapis.com/compute/beta"
ADVICE_TTL: Final = timedelta(minutes=30)
"""How long advice is cached. It holds for the moment; a lower value reaches the daily limit with fewer places."""
HISTORY_TTL: Final = timedelta(hours=6)
"""How long rates of preemption are cached. Google Cloud adds one each day."""
TOKEN_TTL: Final = timedelta(minutes=4)
"""How long a token is used. That of a metadata service may expire five minutes later."""
RETRY: Final = timedelta(hours=1)
"""Time without a hint for a place after a refusal. A lower value uses up the daily limit; a higher value misses hints for longer."""
REQUESTS_PER_DAY: Final = 960
"""Requests for advice in a day, enough for about twenty places. A higher value uses more of the project's quota."""
HISTORY_DAYS: Final = 7
"""Newest complete days whose rates of preemption are averaged. A lower value follows single days; a higher value lags."""
_MACHINE_TYPE: Final = re.compile(r"(?!n1-)[a-z]\w*-(?!custom-)[a-z0-9-]+")
"""Instance types with an answer: no custom types, no TPUs, and not N1, whose GPUs are not part of the type."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_PROJECT: Final = re.compile(r"[a-z0-9.:-]+")
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)s")


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityAdvice:
    """Google Cloud's advice about all nodes of a job in one zone."""

    obtainability: float
    """Likelihood that they are placed, 0 to 1."""
    uptime_s: float | None
    """Time that most of them can be expected to run; None if it is not said."""
    as_of: datetime
    """When Google Cloud was asked."""


@dataclass
class GoogleAdvice:
    """Advice of Google Cloud, as far as this service has access."""

    clock: Clock
    environment: Environment
    url: str = COMPUTE_URL
    metadata_url: str = METADATA_URL
    http: CloudHttp = field(init=False)
    _identity: GoogleIdentity = field(init=False)
    _cache: AnswerCache = field(init=False)

    def __post_init__(self) -> None:
        self.http = CloudHttp(self.clock)
        machine = CloudHttp(self.clock, uses_proxy=False)
        self._identity = GoogleIdentity(
            self.clock, self.http, machine, self.environment, metadata_url=self.metadata_url
        )
        self._cache = AnswerCache(
            self.clock, "Google Cloud's advice", per_day=REQUESTS_PER_DAY, what="advice"
        )

    def capacity(
        self, region: str, zone: str, machine_type: str, nodes: int
    ) -> CapacityAdvice | None:
        """Return the advice about nodes in a zone, or in the best one of a region if it is empty."""
        if not _is_known(region, zone, machine_type):
            return None

        def ask() -> CapacityAdvice:
            now = self.clock.now()
            zones = {"zones": [{"zone": f"zones/{zone}"}]} if zone else {}
            body = {
                "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
                "instanceFlexibilityPolicy": {
                    "instanceSelections": {"nodes": {"machineTypes": [machine_type]}}
                },
                "size": nodes,
                "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", **zones},
            }
            return _advice(self._post(region, "capacity", body), now)

        key = ("capacity", region, zone, machine_type, str(nodes))
        return self._cache.get(key, ADVICE_TTL, ask, retry=RETRY)

    def preemption_rate(self, region: str, zone: str, machine_type: str) -> float | None:
        """Return the share of stopped spot nodes that were preempted, mean of the last days."""
        if not _is_known(region, zone, machine_type):
            return None

        def ask() -> float:
            now = self.clock.now()
            place = {"locationPolicy": {"location": f"zones/{zone}"}} if zone else {}
            body = {
                "instanceProperties": {
                    "machineType": machine_type,
                    "scheduling": {"provisioningModel": "SPOT"},
                },
                "types": ["PREEMPTION"],
                **place,
            }
            days = sorted(_days(self._post(region, "capacityHistory", body), now))
            if not days:
                raise ProviderUnavailable(
                    f"it has no rates of preemption of {machine_type} in {zone or region}",
                    is_quiet=True,
                )
            return fmean(rate for _, rate in days[-HISTORY_DAYS:])

        key = ("history", region, zone, machine_type)
        return self._cache.get(key, HISTORY_TTL, ask, retry=RETRY)

    def _post(self, region: str, method: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        access = self._cache.get(("access",), TOKEN_TTL, self._access, retry=RETRY)
        if access is None:
            raise ProviderUnavailable("this service has no access", is_quiet=True)
        project, token = access
        self.http.require_open()
        self._cache.count_question()
        url = f"{self.url}/projects/{project}/regions/{region}/advice/{method}"
        return self.http.json(url, {"Authorization": f"Bearer {token}"}, body=body)

    def _access(self) -> tuple[str, str]:
        project = self._identity.project()
        if not _PROJECT.fullmatch(project):  # It becomes part of a path.
            raise ProviderUnavailable(f"{project!r} is not a project of Google Cloud")
        return project, self._identity.token()


def _is_known(region: str, zone: str, machine_type: str) -> bool:
    return bool(
        _NAME.fullmatch(region)
        and (not zone or _NAME.fullmatch(zone))
        and _MACHINE_TYPE.fullmatch(machine_type)
    )


def _advice(answer: Mapping[str, Any], now: datetime) -> CapacityAdvice:
    match answer:
        case {
            "recommendations": [{"scores": {"obtainability": int() | float() as score, **more}}, *_]
        } if 0 <= score <= 1:
            seconds = _SECONDS.fullmatch(str(more.get("estimatedUptime", "")))
            return CapacityAdvice(
                obtainability=float(score),
                uptime_s=float(seconds[1]) if seconds else None,
                as_of=now,
            )
    raise ProviderUnavailable("it gave an answer without a recommendation", is_quiet=True)


def _days(answer: Mapping[str, Any], now: datetime) -> Iterator[tuple[datetime, float]]:
    """Yield the ends of complete days with their rates; malformed entries are skipped."""
    days = answer.get("preemptionHistory")
    for day in days if isinstance(days, list) else ():
        match day:
            case {
                "interval": {"endTime": str() as end},
                "preemptionRate": int() | float() as rate,
            } if 0 <= rate <= 1:
                try:
                    at = datetime.fromisoformat(end)
                except ValueError:
                    continue
                if at.tzinfo and at <= now:
                    yield at, float(rate)
