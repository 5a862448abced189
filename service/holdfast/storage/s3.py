"""A checkpoint store in a bucket of Amazon S3 or a compatible service."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast_worker.protocol.object_stores import OWN_SERVER

from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.ports import StoredObject, StoreListing
from holdfast.storage.s3_session import (
    MAX_CONCURRENT,
    S3_ERRORS,
    error_code,
    is_amazon,
    is_final,
    open_client,
)
from holdfast.storage.store_policy import StorePolicy, StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


T = TypeVar("T")

CLIENT_TTL_S: Final = 900.0
"""How long a client is used before its credentials are looked up again.
A lower value creates clients unnecessarily."""

_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})


class S3CheckpointBucket:
    """A job's objects under a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, client: S3Client) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._client = client

    def place(self) -> str:
        """See `PlacedBucket`."""
        if not is_amazon(self._client):
            return OWN_SERVER
        reply = _translated(lambda: self._client.head_bucket(Bucket=self._bucket))
        region = reply.get("BucketRegion")
        return f"aws/{region}" if region else ""

    def list_objects(self, directory: str) -> StoreListing:
        """See `CheckpointBucket`."""
        pages = _translated(lambda: list(self._pages(directory)))
        found = [
            StoredObject(self._relative_key(item["Key"]), item["Size"], item["LastModified"])
            for page in pages
            for item in page.get("Contents", [])
        ]
        # Date of the first page: objects written while later pages are read are then not older than the listing.
        return StoreListing(_date(pages[0]), tuple(found))

    def list_directories(self, prefix: str) -> Sequence[str]:
        """See `CheckpointBucket`."""
        pages = _translated(lambda: list(self._pages(prefix, Delimiter="/")))
        return [
            self._relative_key(item["Prefix"])
            for page in pages
            for item in page.get("CommonPrefixes", [])
        ]

    def has(self, key: str) -> bool:
        """See `CheckpointBucket`."""
        full = self._full_key(key)
        return (
            self._get_optional(lambda: self._client.head_object(Bucket=self._bucket, Key=full))
            is not None
        )

    def read(self, key: str) -> bytes | None:
        """See `CheckpointBucket`."""
        full = self._full_key(key)

        def fetch() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=full)["Body"].read()

        return self._get_optional(fetch)

    def delete(self, keys: Sequence[str]) -> None:
        """See `CheckpointBucket`.

        One request per object, because some servers lack multi-object deletion.
        """
        with ThreadPoolExecutor(min(MAX_CONCURRENT, len(keys) or 1)) as lanes:
            for _ in lanes.map(self._delete, keys):
                pass

    def _delete(self, key: str) -> None:
        full = self._full_key(key)
        self._get_optional(lambda: self._client.delete_object(Bucket=self._bucket, Key=full))

    def _pages(self, prefix: str, **words: str) -> Iterator[Any]:
        lister: Any = self._client.get_paginator("list_objects_v2")
        yield from lister.paginate(Bucket=self._bucket, Prefix=self._full_key(prefix), **words)

    def _get_optional(self, ask: Callable[[], T]) -> T | None:
        """Return the response; None if there is no such object."""

        def asked() -> T | None:
            try:
                return ask()
            except S3_ERRORS as error:
                if error_code(error) in _ABSENT:
                    return None
                raise

        return _translated(asked)

    def _full_key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _relative_key(self, key: str) -> str:
        return key.removeprefix(f"{self._prefix}/")


class S3Clients:
    """S3 clients, shared by jobs with equal settings.

    Creating one takes 0.1 s and some megabytes.
    """

    def __init__(self, rules: StorePolicy) -> None:
        self._policy = rules
        self._cached: dict[StoreSettings, tuple[float, S3Client]] = {}

    def get(self, envs: Mapping[str, str], *, is_confined: bool) -> S3Client:
        """Return a client for a job's variables that is not older than CLIENT_TTL_S.

        Raises:
            CheckpointStoreRefused: the profile or endpoint does not exist, or a confined job may not use it.
        """
        settings, now_s = StoreSettings.from_env(envs), time.monotonic()
        if is_confined:
            settings = self._policy.admit(settings)
        made_s, client = self._cached.get(settings, (-math.inf, None))
        if client is None or now_s - made_s > CLIENT_TTL_S:
            client = _translated(lambda: open_client(settings, self._policy.egress_policy))
            self._cached[settings] = (now_s, client)
        return client


def _translated(ask: Callable[[], T]) -> T:
    """Return the response, or raise its error as one of ours."""
    try:
        return ask()
    except (*S3_ERRORS, ValueError) as error:
        kind = CheckpointStoreRefused if is_final(error) else CheckpointStoreUnreachable
        raise kind(str(error)) from error


def _date(page: Any) -> datetime:
    """Return the response time by the server's clock.

    Raises:
        CheckpointStoreUnreachable: the response has no date.
    """
    date = page["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(date)
    except ValueError as error:
        raise CheckpointStoreUnreachable(
            "responses of the store have no Date header, so ages are unknown"
        ) from error
