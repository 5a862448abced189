"""Stores that users' jobs may name.

Endpoints follow the egress policy of webhooks, profiles an allowlist. The service's own credentials sign only for the
endpoint configured for the service. Otherwise, a job could choose the receiver of signed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast_worker.protocol.object_stores import (
    AZURE_HOST,
    CONNECTION_STRING,
    CREDENTIALS,
    GOOGLE,
    GOOGLE_ENDPOINT,
    StoreNotConfigured,
    azure_options,
    google_options,
)

from holdfast.egress_policy import EgressPolicy
from holdfast.errors import CheckpointStoreRefused, NotDelivered

_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
}
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_PAIR: Final = frozenset({"aws_access_key_id", "aws_secret_access_key"})
_ENDPOINT: Final = "AWS_ENDPOINT_URL_S3"
_OF_MACHINE: Final = frozenset(
    {
        *(
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
        ),
        *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST", "AZURE_USE_AZURE_CLI"),
    }
)
"""Variables that would make the service read its own files, or send requests to any server."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Store settings from a job's own variables.

    Missing ones are resolved in this process, as by boto3.
    """

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Credentials by their names in `Session`; empty if the job has none."""
    is_guarded: bool = False
    """Whether connections go to public addresses only, because a user named the endpoint."""

    @classmethod
    def from_env(cls, envs: Mapping[str, str]) -> StoreSettings:
        """Parse a job's variables."""
        return cls(
            profile=envs.get("AWS_PROFILE"),
            region=envs.get("AWS_REGION") or envs.get("AWS_DEFAULT_REGION"),
            endpoint=envs.get("AWS_ENDPOINT_URL_S3") or envs.get("AWS_ENDPOINT_URL"),
            keys=tuple((name, value) for var, name in _KEYS.items() if (value := envs.get(var))),
        )


def _default_egress_policy() -> EgressPolicy:
    return EgressPolicy(way_out="HOLDFAST_STORE_ENDPOINTS may allow the endpoint")


@dataclass(frozen=True, kw_only=True)
class StorePolicy:
    """Settings that confined jobs may use."""

    service_endpoint: str | None = None
    """The endpoint configured for this service; None: Amazon's."""
    endpoints: frozenset[str] = frozenset()
    """Other allowed endpoints, at any address."""
    profiles: frozenset[str] = frozenset()
    egress_policy: EgressPolicy = field(default_factory=_default_egress_policy)

    def admit(self, settings: StoreSettings) -> StoreSettings:
        """Return the settings a confined job gets.

        Raises:
            CheckpointStoreRefused: the profile or endpoint is not allowed, or it would use the service's own credentials.
        """
        if settings.profile is not None and settings.profile not in self.profiles:
            raise CheckpointStoreRefused(
                f"AWS_PROFILE={settings.profile}: HOLDFAST_STORE_PROFILES does not allow this profile; give the job its own credentials"
            )
        if settings.endpoint is None:
            return settings
        named = _normal(settings.endpoint)
        if self.service_endpoint is not None and named == _normal(self.service_endpoint):
            return replace(settings, endpoint=self.service_endpoint)
        if not {name for name, value in settings.keys if value} >= _PAIR:
            raise CheckpointStoreRefused(
                f"{_ENDPOINT}={settings.endpoint}: the service's own credentials are not used for an endpoint that a job names; "
                "give the job AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in envs"
            )
        is_allowed = named in {_normal(endpoint) for endpoint in self.endpoints}
        if not is_allowed:
            self._check(settings.endpoint)
        return replace(settings, profile=None, is_guarded=not is_allowed)

    def admit_cloud(
        self,
        scheme: str,
        own: Mapping[str, str],
        theirs: Mapping[str, str],
        *,
        is_confined: bool,
    ) -> Mapping[str, str]:
        """The variables with which to open a job's store at Google or Azure.

        `own` are the service's, `theirs` the job's, which come first. Credentials of both are never mixed.

        Raises:
            CheckpointStoreRefused: a confined job may not use a variable, or would use the service's own credentials.
            StoreNotConfigured: a variable is missing or invalid.
        """
        has_credentials = bool(CREDENTIALS & theirs.keys())
        kept = {
            name: value
            for name, value in own.items()
            if not (has_credentials and name in CREDENTIALS)
            and CONNECTION_STRING not in theirs  # It names account and endpoint, too.
        }
        if is_confined and theirs:
            for name in sorted(_OF_MACHINE & theirs.keys()):
                raise CheckpointStoreRefused(
                    f"{name}={theirs[name]}: names something on the service's machine; give the job its own credentials, "
                    "or write tidy: worker"
                )
            self._admit_server(scheme, own, {**kept, **theirs}, has_credentials=has_credentials)
        return {**kept, **theirs}

    def _admit_server(
        self,
        scheme: str,
        own: Mapping[str, str],
        variables: Mapping[str, str],
        *,
        has_credentials: bool,
    ) -> None:
        """Check the server of a confined job: obstore connects without the egress policy."""
        options_of = google_options if scheme == GOOGLE else azure_options
        options, endpoint = options_of(variables)
        with suppress(StoreNotConfigured):
            if endpoint.rstrip("/") == options_of(own)[1].rstrip("/"):
                return
        is_public = endpoint == GOOGLE_ENDPOINT or AZURE_HOST.fullmatch(endpoint)
        if not is_public and _origin(endpoint) not in {_origin(one) for one in self.endpoints}:
            raise CheckpointStoreRefused(
                f"{endpoint}: is not a server of Google or Azure, and HOLDFAST_STORE_ENDPOINTS does not allow it"
            )
        # A connection string without a key would let obstore use the service's from the environment.
        is_explicit = scheme == GOOGLE or "credential_type" in options
        if not (has_credentials and is_explicit):
            raise CheckpointStoreRefused(
                f"{endpoint}: the service's own credentials are not used for a server or an account that a job names; "
                "give the job its own in envs"
            )

    def _check(self, endpoint: str) -> None:
        parts = _split(endpoint)
        if parts.scheme != "https":
            raise CheckpointStoreRefused(
                f"{_ENDPOINT}={endpoint}: does not use TLS; write https://"
            )
        try:
            self.egress_policy.pick(parts.hostname or "", parts.port or _PORTS[parts.scheme])
        except NotDelivered as error:
            raise CheckpointStoreRefused(f"{_ENDPOINT}={endpoint}: {error.detail}") from error


def _origin(endpoint: str) -> tuple[str, str, int]:
    """Scheme, host and port; the path of an endpoint may name an account."""
    parts = urlsplit(endpoint)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def _normal(endpoint: str) -> tuple[str, str, int]:
    parts = _split(endpoint)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _split(endpoint: str) -> SplitResult:
    """Split an endpoint into scheme, host and port.

    Raises:
        CheckpointStoreRefused: the text is not an endpoint.
    """
    try:
        parts = urlsplit(endpoint)
        plain = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        plain = None
    more = "@?#\\" if plain else ""
    if not plain or any(c in more or c <= " " for c in endpoint) or parts.path not in {"", "/"}:
        raise CheckpointStoreRefused(
            f"{_ENDPOINT}={endpoint!r}: is not an endpoint; write it like https://s3.example.com"
        )
    return parts
