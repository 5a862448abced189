"""The one door of the service to boto3. Credentials, region and endpoint are found as boto3 finds them.

Nodes have keys of their own; `sky_tasks/smoke.yaml` tries a store from one of them.
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


__all__ = ["LANES", "S3_ERRORS", "code_of", "is_final", "open_client", "refusal_of"]

LANES: Final = 8
"""Requests at once. More are not answered sooner by small servers; fewer take minutes to remove a large checkpoint."""

S3_ERRORS: Final = (BotoCoreError, ClientError)

_SETTINGS: Final = Config(
    connect_timeout=5,
    read_timeout=20,
    retries={"mode": "standard", "max_attempts": 3},
    max_pool_connections=LANES,
    # Checksums in trailers are unknown to many servers.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_PASSING: Final = frozenset(
    {
        *("RequestTimeout", "SlowDown", "Throttling", "ConditionalRequestConflict"),
        *("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    }
)
"""Codes below 500 after which another try may succeed."""


def open_client(
    wish: StoreSettings = StoreSettings(), guard: EgressPolicy | None = None
) -> S3Client:
    """A client like the worker's: the bucket in the path where the endpoint is not Amazon's.

    The connections of a guarded one go to addresses that `guard` picks.

    Raises:
        ValueError, BotoCoreError: profile or endpoint are none.
    """
    keys: Any = dict(wish.keys) if len(wish.keys) > 1 else {}  # Half a pair opens nothing.
    session = boto3.session.Session(profile_name=wish.profile, region_name=wish.region, **keys)
    endpoint = wish.endpoint
    client = session.client("s3", config=_SETTINGS, endpoint_url=endpoint)
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if not host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        in_path = _SETTINGS.merge(Config(s3={"addressing_style": "path"}))
        client = session.client("s3", config=in_path, endpoint_url=endpoint)
    if wish.is_guarded:
        assert guard, "whoever guards a client has a guard"
        _watch(client, guard)
    return client


def _watch(client: Any, guard: EgressPolicy) -> None:
    """Have the guard resolve names for a client, at the moment of each connection. botocore has no public way to it."""

    class Guarded:
        def _new_conn(self: Any) -> Any:
            name = self._dns_host
            # For the connection alone: the certificate is still compared with the name.
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


def code_of(error: Exception) -> str:
    """How S3 calls what went wrong; empty where it was not S3 who said it."""
    return (
        str(error.response.get("Error", {}).get("Code", ""))
        if isinstance(error, ClientError)
        else ""
    )


def refusal_of(ask: Callable[[], object]) -> int:
    """The HTTP status with which a request is refused; 0 if it is not."""
    try:
        ask()
    except ClientError as error:
        return _status(error)
    return 0


def is_final(error: Exception) -> bool:
    """Whether it would be said again: keys, permissions, a bucket that is not there."""
    if isinstance(error, ClientError):
        return _status(error) < 500 and code_of(error) not in _PASSING
    return isinstance(
        error, NoCredentialsError | PartialCredentialsError | ProfileNotFound | ValueError
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
