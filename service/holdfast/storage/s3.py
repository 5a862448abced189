"""A checkpoint store that is a bucket, at Amazon or at anything that speaks like it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import DepotRefused, DepotUnreachable
from holdfast.ports import Stored, StoreListing
from holdfast.storage.s3_session import LANES, S3_ERRORS, code_of, is_final, open_client
from holdfast.storage.store_policy import StorePolicy, StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


T = TypeVar("T")

CLIENT_LASTS_S: Final = 900.0
"""Before its keys are looked up anew, as somebody may have changed them. Shorter makes clients for nothing."""

_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})


class S3CheckpointBucket:
    """What a job keeps under a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, client: S3Client) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._client = client

    def look(self, directory: str) -> StoreListing:
        """See `Depot`."""
        pages = _tried(lambda: list(self._pages(directory)))
        found = [
            Stored(self._own(item["Key"]), item["Size"], item["LastModified"])
            for page in pages
            for item in page.get("Contents", [])
        ]
        # The first page's: what is written while the others are read is then no older than it is.
        return StoreListing(_date(pages[0]), tuple(found))

    def directories(self, prefix: str) -> Sequence[str]:
        """See `Depot`."""
        pages = _tried(lambda: list(self._pages(prefix, Delimiter="/")))
        return [
            self._own(item["Prefix"]) for page in pages for item in page.get("CommonPrefixes", [])
        ]

    def has(self, key: str) -> bool:
        """See `Depot`."""
        full = self._full(key)
        return (
            self._found(lambda: self._client.head_object(Bucket=self._bucket, Key=full)) is not None
        )

    def read(self, key: str) -> bytes | None:
        """See `Depot`."""
        full = self._full(key)

        def fetch() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=full)["Body"].read()

        return self._found(fetch)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Depot`. One request for each: not every server knows how to delete many in one."""
        with ThreadPoolExecutor(min(LANES, len(keys) or 1)) as lanes:
            for _ in lanes.map(self._delete, keys):
                pass

    def _delete(self, key: str) -> None:
        full = self._full(key)
        self._found(lambda: self._client.delete_object(Bucket=self._bucket, Key=full))

    def _pages(self, prefix: str, **words: str) -> Iterator[Any]:
        lister: Any = self._client.get_paginator("list_objects_v2")
        yield from lister.paginate(Bucket=self._bucket, Prefix=self._full(prefix), **words)

    def _found(self, ask: Callable[[], T]) -> T | None:
        """The answer; None if there is no such object."""

        def asked() -> T | None:
            try:
                return ask()
            except S3_ERRORS as error:
                if code_of(error) in _ABSENT:
                    return None
                raise

        return _tried(asked)

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _own(self, key: str) -> str:
        return key.removeprefix(f"{self._prefix}/")


class Clients:
    """Clients of S3, each for the jobs that want the same. To make one takes a tenth of a second and some megabytes."""

    def __init__(self, rules: StorePolicy) -> None:
        self._rules = rules
        self._made: dict[StoreSettings, tuple[float, S3Client]] = {}

    def get(self, envs: Mapping[str, str], *, is_confined: bool) -> S3Client:
        """A client as a job's own variables want it; not older than keys may be.

        Raises:
            DepotRefused: there is no such profile or endpoint, or it is not for a confined job.
        """
        wish, now_s = StoreSettings.of(envs), time.monotonic()
        if is_confined:
            wish = self._rules.admit(wish)
        made_s, client = self._made.get(wish, (-math.inf, None))
        if client is None or now_s - made_s > CLIENT_LASTS_S:
            client = _tried(lambda: open_client(wish, self._rules.guard))
            self._made[wish] = (now_s, client)
        return client


def _tried(ask: Callable[[], T]) -> T:
    """The answer, or what stands in its way, in our words."""
    try:
        return ask()
    except (*S3_ERRORS, ValueError) as error:
        kind = DepotRefused if is_final(error) else DepotUnreachable
        raise kind(str(error)) from error


def _date(page: Any) -> datetime:
    """When the server said it, by its own clock.

    Raises:
        DepotUnreachable: it does not say.
    """
    told = page["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(told)
    except ValueError as error:
        raise DepotUnreachable("its answers have no date, so that no age can be told") from error
