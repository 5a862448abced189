"""The one door of the service to boto3. Credentials, region and endpoint are found as boto3 finds them.

Nodes have keys of their own; `sky_tasks/smoke.yaml` tries a store from one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

__all__ = ["LANES", "S3_ERRORS", "Wish", "code_of", "is_final", "open_client", "refusal_of"]

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


_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job's own variables say of its store. What they do not say is found in this process, as boto3 finds it."""

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """By what `Session` calls them; empty where the job brings none."""

    @classmethod
    def of(cls, envs: Mapping[str, str]) -> Wish:
        """What some variables say."""
        return cls(
            profile=envs.get("AWS_PROFILE"),
            region=envs.get("AWS_REGION") or envs.get("AWS_DEFAULT_REGION"),
            endpoint=envs.get("AWS_ENDPOINT_URL_S3") or envs.get("AWS_ENDPOINT_URL"),
            keys=tuple((name, value) for var, name in _KEYS.items() if (value := envs.get(var))),
        )


def open_client(wish: Wish = Wish()) -> S3Client:
    """A client like the worker's: the bucket in the path where the endpoint is not Amazon's.

    Raises:
        ValueError, BotoCoreError: profile or endpoint are none.
    """
    keys: Any = dict(wish.keys) if len(wish.keys) > 1 else {}  # Half a pair opens nothing.
    session = boto3.session.Session(profile_name=wish.profile, region_name=wish.region, **keys)
    endpoint = wish.endpoint
    client = session.client("s3", config=_SETTINGS, endpoint_url=endpoint)
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if host.endswith(("amazonaws.com", "amazonaws.com.cn")):
        return client
    in_path = _SETTINGS.merge(Config(s3={"addressing_style": "path"}))
    return session.client("s3", config=in_path, endpoint_url=endpoint)


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
