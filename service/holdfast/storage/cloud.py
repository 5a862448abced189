"""A checkpoint store in Google Cloud Storage or Azure Blob Storage.

The service's only module that imports obstore.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import httpx2
import obstore
from holdfast_worker.protocol.object_stores import (
    GOOGLE,
    VARIABLES,
    CloudStoreConfig,
    StoreNotConfigured,
    cloud_store,
    failure_of,
    is_missing_bucket,
)
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, ObjectStore

from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.ports import StoredObject, StoreListing
from holdfast.settings import own_variable
from holdfast.storage.store_policy import StorePolicy

T = TypeVar("T")

MAX_CONCURRENT: Final = 8
"""Limit of concurrent deletions.
With a higher value, servers do not respond sooner; with a lower value, deleting a large checkpoint takes minutes."""
RETRIES: Final = 2
"""Retries of a request. A lower value reports a brief fault as an unreachable store; a higher value waits longer for one."""
STORE_TTL_S: Final = 900.0
"""How long an opened store is used before its credentials are looked up again.
A lower value opens stores unnecessarily."""

_ERRORS: Final = (BaseError, FileNotFoundError, ValueError)


class CloudCheckpointBucket:
    """A job's objects under a prefix of a bucket or container."""

    def __init__(self, config: CloudStoreConfig, bucket: ObjectStore) -> None:
        self._config = config
        self._bucket = bucket

    def list_objects(self, directory: str) -> StoreListing:
        """See `CheckpointBucket`."""
        # Before the listing, so that nothing in it is older than it seems.
        listed_at = _server_time(self._config)

        def fetch() -> list[Any]:
            pages = obstore.list(self._bucket, self._config.key(directory.rstrip("/")))
            return [item for page in pages for item in page]

        found = self._translated(fetch)
        return StoreListing(
            listed_at,
            tuple(
                StoredObject(self._relative_key(item["path"]), item["size"], item["last_modified"])
                for item in found
            ),
        )

    def list_directories(self, prefix: str) -> Sequence[str]:
        """See `CheckpointBucket`."""
        found = self._translated(
            lambda: obstore.list_with_delimiter(self._bucket, self._config.key(""))
        )
        names = (self._relative_key(name) for name in found["common_prefixes"])
        return [f"{name}/" for name in names if name.startswith(prefix)]

    def has(self, key: str) -> bool:
        """See `CheckpointBucket`."""
        full = self._config.key(key)
        return self._get_optional(lambda: obstore.head(self._bucket, full)) is not None

    def read(self, key: str) -> bytes | None:
        """See `CheckpointBucket`."""
        full = self._config.key(key)
        return self._get_optional(lambda: bytes(obstore.get(self._bucket, full).bytes()))

    def delete(self, keys: Sequence[str]) -> None:
        """See `CheckpointBucket`.

        One request per object: a bulk deletion ends at the first missing one.
        """
        with ThreadPoolExecutor(min(MAX_CONCURRENT, len(keys) or 1)) as lanes:
            for _ in lanes.map(self._delete, keys):
                pass

    def _delete(self, key: str) -> None:
        self._get_optional(lambda: obstore.delete(self._bucket, self._config.key(key)))

    def _get_optional(self, ask: Callable[[], T]) -> T | None:
        """Return the response; None if there is no such object."""

        def asked() -> T | None:
            try:
                return ask()
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None

        return self._translated(asked)

    def _translated(self, ask: Callable[[], T]) -> T:
        return translated(self._config, ask)

    def _relative_key(self, key: str) -> str:
        return key.removeprefix(f"{self._config.prefix}/")


class CloudStores:
    """Opened buckets and containers, shared by jobs with equal settings."""

    def __init__(self, rules: StorePolicy) -> None:
        self._policy = rules
        self._cached: dict[object, tuple[float, ObjectStore]] = {}

    def open(
        self, store: str, job_id: str, envs: Mapping[str, str], *, is_confined: bool
    ) -> CloudCheckpointBucket:
        """Open one job's part of a store, in a bucket that was not opened more than STORE_TTL_S ago.

        Raises:
            CheckpointStoreRefused: a variable is invalid, or a confined job may not use it.
        """
        scheme = store.partition("://")[0]
        own, theirs = own_variables(scheme), _known(scheme, envs)
        try:
            variables = self._policy.admit_cloud(scheme, own, theirs, is_confined=is_confined)
            config = cloud_store(store, variables, job_id)
        except StoreNotConfigured as error:
            raise CheckpointStoreRefused(str(error)) from error
        same, now_s = (config.url, frozenset(variables.items())), time.monotonic()
        opened_s, bucket = self._cached.get(same, (-math.inf, None))
        if bucket is None or now_s - opened_s > STORE_TTL_S:
            bucket = open_bucket(config)
            self._cached[same] = (now_s, bucket)
        return CloudCheckpointBucket(config, bucket)


class CloudProbe:
    """One object with which `holdfast doctor` tries out a store."""

    def __init__(self, store: str, name: str) -> None:
        """Open the store with this process's variables.

        Raises:
            CheckpointStoreRefused: a variable is missing or invalid.
        """
        try:
            self._config = cloud_store(store, own_variables(store.partition("://")[0]))
        except StoreNotConfigured as error:
            raise CheckpointStoreRefused(str(error)) from error
        self._bucket = open_bucket(self._config)
        self._key = self._config.key(name)

    def put(self, data: bytes) -> Mapping[str, Any]:
        """Write the object; return its version."""
        reply: Any = self._do(
            lambda: obstore.put(self._bucket, self._key, data, use_multipart=False)
        )
        return {name: reply[name] for name in ("e_tag", "version") if reply[name]}

    def refuses(self, data: bytes, condition: Any) -> bool:
        """Whether the store refuses a write whose condition, `create` or a version, is false."""

        def ask() -> bool:
            try:
                obstore.put(self._bucket, self._key, data, mode=condition, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return True
            return False

        return self._do(ask)

    def get(self) -> bytes:
        """Read the object."""
        return self._do(lambda: bytes(obstore.get(self._bucket, self._key).bytes()))

    def delete(self) -> None:
        """Delete the object."""
        self._do(lambda: obstore.delete(self._bucket, self._key))

    def _do(self, ask: Callable[[], T]) -> T:
        return translated(self._config, ask)


def own_variables(scheme: str) -> dict[str, str]:
    """This process's variables of a kind of store."""
    return {name: value for name in VARIABLES[scheme] if (value := own_variable(name))}


def _known(scheme: str, envs: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name in VARIABLES[scheme] if (value := envs.get(name))}


def open_bucket(config: CloudStoreConfig) -> ObjectStore:
    """Open a bucket or container.

    Raises:
        CheckpointStoreRefused: its credentials cannot be read.
    """
    more: dict[str, Any] = {
        "config": dict(config.options),
        "client_options": config.client_options,
        "retry_config": {"max_retries": RETRIES},
    }
    kind = GCSStore if config.scheme == GOOGLE else AzureStore
    try:
        return kind(config.bucket, **more)
    except (BaseError, ValueError) as error:
        raise CheckpointStoreRefused(failure_of(error, config).message) from None


def translated(config: CloudStoreConfig, ask: Callable[[], T]) -> T:
    """Return the response, or raise its error as one of ours, without the signature in its text."""
    try:
        return ask()
    except _ERRORS as error:
        failure = failure_of(error, config)
    kind = CheckpointStoreRefused if failure.is_final else CheckpointStoreUnreachable
    raise kind(failure.message)


def _server_time(config: CloudStoreConfig) -> datetime:
    """The time by the server's clock, which obstore does not return.

    Raises:
        CheckpointStoreUnreachable: the server did not respond, or without a date.
    """
    try:
        # Any answer has a date, also a refusal: this request has no credentials.
        reply = httpx2.head(config.endpoint, timeout=20, follow_redirects=False)
        return parsedate_to_datetime(reply.headers.get("date", ""))
    except httpx2.HTTPError as error:
        raise CheckpointStoreUnreachable(f"{config.endpoint}: {error}") from error
    except ValueError as error:
        raise CheckpointStoreUnreachable(
            "responses of the store have no Date header, so ages are unknown"
        ) from error
