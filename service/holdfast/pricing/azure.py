"""Azure's spot placement scores: high, medium or low for an instance type and a place.

Azure asks callers to keep scores for 15 to 30 minutes. Blocking: call it from a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.ports import Clock
from holdfast.pricing.cloud_http import CloudHttp
from holdfast.pricing.cloud_identity import (
    AZURE_LOGIN_URL,
    METADATA_URL,
    AzureIdentity,
    Environment,
)
from holdfast.pricing.provider_cache import AnswerCache, ProviderUnavailable

MANAGEMENT_URL: Final = "https://management.azure.com"
API_VERSION: Final = "2025-06-05"
SCORES_TTL: Final = timedelta(minutes=30)
"""How long scores are cached. A lower value asks about fewer kinds of nodes within the daily limit; Azure advises against a higher one."""
TOKEN_TTL: Final = timedelta(minutes=4)
"""How long a token is used. That of a metadata service may expire soon after."""
RETRY: Final = timedelta(hours=1)
"""Time without a score for a place after a refusal. A lower value uses up the daily limit; a higher value misses scores for longer."""
REQUESTS_PER_DAY: Final = 480
"""Requests for scores in a day, enough for about ten places. A higher value uses more of the subscription's quota of reads."""
PROBABILITIES: Final = {"high": 0.85, "medium": 0.5, "low": 0.15}
"""Azure names ranks. These numbers are the middles of the ranges that Google Cloud calls high, medium and low."""
_NAME: Final = re.compile(r"[a-z0-9]+")
_ID: Final = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureScore:
    """Azure's score of a placement in one zone, or in one region."""

    zone: str
    """Empty: the score is that of the region."""
    probability: float
    as_of: datetime
    """When Azure was asked."""


@dataclass
class AzureScores:
    """Spot placement scores of Azure, as far as this service has access."""

    clock: Clock
    environment: Environment
    url: str = MANAGEMENT_URL
    login_url: str = AZURE_LOGIN_URL
    metadata_url: str = METADATA_URL
    http: CloudHttp = field(init=False)
    _identity: AzureIdentity = field(init=False)
    _cache: AnswerCache = field(init=False)

    def __post_init__(self) -> None:
        self.http = CloudHttp(self.clock)
        machine = CloudHttp(self.clock, uses_proxy=False)
        self._identity = AzureIdentity(
            self.http,
            machine,
            self.environment,
            login_url=self.login_url,
            metadata_url=self.metadata_url,
        )
        self._cache = AnswerCache(
            self.clock, "Azure's spot market", per_day=REQUESTS_PER_DAY, what="placement scores"
        )

    def scores(
        self, region: str, size: str, nodes: int, *, in_zones: bool
    ) -> tuple[AzureScore, ...]:
        """Return the scores of the zones of a region, or of the region; empty without data."""
        if not (_NAME.fullmatch(region) and size):
            return ()

        def ask() -> tuple[AzureScore, ...]:
            now = self.clock.now()
            body = {
                "desiredLocations": [region],
                "desiredSizes": [{"sku": size}],
                "desiredCount": nodes,
                "availabilityZones": in_zones,
            }
            entries = self._post(region, body).get("placementScores")
            return tuple(
                AzureScore(
                    zone=str(entry.get("availabilityZone") or "") if in_zones else "",
                    probability=_probability(entry),
                    as_of=now,
                )
                for entry in (entries if isinstance(entries, list) else ())
                if _is_score(entry, region, size)
            )

        key = ("scores", region, size, str(nodes), str(in_zones))
        return self._cache.get(key, SCORES_TTL, ask, retry=RETRY) or ()

    def _post(self, region: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        access = self._cache.get(("access",), TOKEN_TTL, self._access, retry=RETRY)
        if access is None:
            raise ProviderUnavailable("this service has no access", is_quiet=True)
        subscription, token = access
        self.http.require_open()
        self._cache.count_question()
        path = f"subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}"
        url = f"{self.url}/{path}/placementScores/spot/generate?api-version={API_VERSION}"
        return self.http.json(url, {"Authorization": f"Bearer {token}"}, body=body)

    def _access(self) -> tuple[str, str]:
        subscription = self._identity.subscription()
        if not _ID.fullmatch(subscription):  # It becomes part of a path.
            raise ProviderUnavailable(f"{subscription!r} is not a subscription of Azure")
        return subscription, self._identity.token()


def _is_score(entry: object, region: str, size: str) -> bool:
    """Whether an entry is a score of these nodes. Azure also names those without fresh data."""
    return (
        isinstance(entry, dict)
        and str(entry.get("score", "")).lower() in PROBABILITIES
        and str(entry.get("region", "")).lower() == region
        and str(entry.get("sku", "")).lower() == size.lower()
    )


def _probability(entry: Mapping[str, Any]) -> float:
    """The number of a score. Without quota for the nodes, no placement can succeed."""
    if entry.get("isQuotaAvailable") is False:
        return 0.0
    return PROBABILITIES[str(entry["score"]).lower()]
