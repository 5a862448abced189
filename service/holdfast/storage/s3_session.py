"""Creates S3 clients with boto3; the service's only module that does so.

Settings are resolved as by boto3.

Nodes have their own credentials; `sky_tasks/smoke.yaml` tests a store from a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from holdfast.egress_policy import EgressPolicy
from holdfast.storage.store_policy import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


__all__ = [
    "MAX_CONCURRENT",
    "S3_ERRORS",
    "error_code",
    "is_amazon",
    "is_final",
    "open_client",
    "refusal_status",
]

MAX_CONCURRENT: Final = 8
"""Limit of concurrent requests.
With a higher value, small servers do not respond sooner; with a lower value, deleting a large checkpoint takes
minutes."""

S3_ERRORS: Final = (BotoCoreError, ClientError)

_SETTINGS: Final = Config(
    connect_timeout=5,
    read_timeout=20,
    retries={"mode": "standard", "max_attempts": 3},
    max_pool_connections=MAX_CONCURRENT,
    # Many servers do not support checksums in trailers.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_TRANSIENT: Final = frozenset(
    {
        *("RequestTimeout", "SlowDown", "Throttling", "ConditionalRequestConflict"),
        *("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    }
)
"""Error codes below 500 after which a retry may succeed."""


def open_client(
    settings: StoreSettings = StoreSettings(), guard: EgressPolicy | None = None
) -> S3Client:
    """Create a client like the worker's: path-style addressing unless the endpoint is Amazon's.

    The connections of a guarded client go to addresses that `guard` selects.

    Raises:
        ValueError, BotoCoreError: the profile or endpoint is invalid.
    """
    keys: Any = dict(settings.keys) if len(settings.keys) > 1 else {}  # Half a key pair is useless.
    session = boto3.session.Session(
        profile_name=settings.profile, region_name=settings.region, **keys
    )
    endpoint = settings.endpoint
    client = session.client("s3", config=_SETTINGS, endpoint_url=endpoint)
    if not is_amazon(client):
        in_path = _SETTINGS.merge(Config(s3={"addressing_style": "path"}))
        client = session.client("s3", config=in_path, endpoint_url=endpoint)
    if settings.is_guarded:
        assert guard, "a guarded client needs a guard"
        _guard_connections(client, guard)
    return client


def is_amazon(client: S3Client) -> bool:
    """Whether a client is of Amazon's servers."""
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _guard_connections(client: Any, guard: EgressPolicy) -> None:
    """Resolve a client's host names with the guard for each connection.

    botocore has no public hook for it.
    """

    class Guarded:
        def _new_conn(self: Any) -> Any:
            name = self._dns_host
            # Affects the connection only: the certificate is still checked against the host name.
            self._dns_host = guard.pick(name, self.port)[0]
            try:
                return super()._new_conn()  # type: ignore[misc]
            finally:
                self._dns_host = name

    def pool(base: type, connection: type) -> type:
        kind = type("GuardedConnection", (Guarded, connection), {})
        return type("GuardedPool", (base,), {"ConnectionCls": kind})

    manager = client._endpoint.http_session._manager  # noqa: SLF001 - see above
    manager.pool_classes_by_scheme = {
        "http": pool(AWSHTTPConnectionPool, AWSHTTPConnection),
        "https": pool(AWSHTTPSConnectionPool, AWSHTTPSConnection),
    }


def error_code(error: Exception) -> str:
    """Return S3's error code; empty if the error is not from S3."""
    return (
        str(error.response.get("Error", {}).get("Code", ""))
        if isinstance(error, ClientError)
        else ""
    )


def refusal_status(ask: Callable[[], object]) -> int:
    """Return the HTTP status of a refused request; 0 if it succeeds."""
    try:
        ask()
    except ClientError as error:
        return _status(error)
    return 0


def is_final(error: Exception) -> bool:
    """Whether a retry would fail again: credentials, permissions, or a missing bucket."""
    if isinstance(error, ClientError):
        return _status(error) < 500 and error_code(error) not in _TRANSIENT
    return isinstance(
        error, NoCredentialsError | PartialCredentialsError | ProfileNotFound | ValueError
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
