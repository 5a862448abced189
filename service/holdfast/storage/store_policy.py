"""What jobs of users may say of their stores: endpoints are held to the policy of webhooks, profiles to a list.

The service's own keys sign only for the endpoint that the service itself is configured with. Otherwise a job would decide
who receives requests that are signed with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.egress_policy import EgressPolicy
from holdfast.errors import DepotRefused, NotDelivered

_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
}
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_PAIR: Final = frozenset({"aws_access_key_id", "aws_secret_access_key"})
_ENDPOINT: Final = "AWS_ENDPOINT_URL_S3"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a job's own variables say of its store. What they do not say is found in this process, as boto3 finds it."""

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """By what `Session` calls them; empty where the job brings none."""
    is_guarded: bool = False
    """Whether each connection goes to a public address alone, as somebody else has named the endpoint."""

    @classmethod
    def of(cls, envs: Mapping[str, str]) -> StoreSettings:
        """What some variables say."""
        return cls(
            profile=envs.get("AWS_PROFILE"),
            region=envs.get("AWS_REGION") or envs.get("AWS_DEFAULT_REGION"),
            endpoint=envs.get("AWS_ENDPOINT_URL_S3") or envs.get("AWS_ENDPOINT_URL"),
            keys=tuple((name, value) for var, name in _KEYS.items() if (value := envs.get(var))),
        )


def _guard() -> EgressPolicy:
    return EgressPolicy(way_out="HOLDFAST_STORE_ENDPOINTS may allow the endpoint")


@dataclass(frozen=True, kw_only=True)
class StorePolicy:
    """What confined jobs may say."""

    own: str | None = None
    """The endpoint that this service is configured with; None: Amazon's."""
    endpoints: frozenset[str] = frozenset()
    """Others that they may name, wherever these are."""
    profiles: frozenset[str] = frozenset()
    guard: EgressPolicy = field(default_factory=_guard)

    def admit(self, wish: StoreSettings) -> StoreSettings:
        """What a confined job may have of what it wants.

        Raises:
            DepotRefused: its profile or endpoint is not for such jobs, or it would have the service's own keys sign.
        """
        if wish.profile is not None and wish.profile not in self.profiles:
            raise DepotRefused(
                f"AWS_PROFILE={wish.profile}: HOLDFAST_STORE_PROFILES does not allow this profile; give the job keys of its own"
            )
        if wish.endpoint is None:
            return wish
        named = _normal(wish.endpoint)
        if self.own is not None and named == _normal(self.own):
            return replace(wish, endpoint=self.own)
        if not {name for name, value in wish.keys if value} >= _PAIR:
            raise DepotRefused(
                f"{_ENDPOINT}={wish.endpoint}: the service's own keys do not sign for an endpoint that a job names; "
                "give the job AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in envs"
            )
        is_allowed = named in {_normal(endpoint) for endpoint in self.endpoints}
        if not is_allowed:
            self._check(wish.endpoint)
        return replace(wish, profile=None, is_guarded=not is_allowed)

    def _check(self, endpoint: str) -> None:
        parts = _split(endpoint)
        if parts.scheme != "https":
            raise DepotRefused(f"{_ENDPOINT}={endpoint}: has no TLS; write https://")
        try:
            self.guard.pick(parts.hostname or "", parts.port or _PORTS[parts.scheme])
        except NotDelivered as error:
            raise DepotRefused(f"{_ENDPOINT}={endpoint}: {error.detail}") from error


def _normal(endpoint: str) -> tuple[str, str, int]:
    parts = _split(endpoint)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _split(endpoint: str) -> SplitResult:
    """The parts of an endpoint that is a scheme, a host and a port.

    Raises:
        DepotRefused: it is anything else.
    """
    try:
        parts = urlsplit(endpoint)
        plain = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        plain = None
    more = "@?#\\" if plain else ""
    if not plain or any(c in more or c <= " " for c in endpoint) or parts.path not in {"", "/"}:
        raise DepotRefused(
            f"{_ENDPOINT}={endpoint!r}: is not an endpoint; write one such as https://s3.example.com"
        )
    return parts
