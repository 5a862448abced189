"""Checkpoint stores: directories, and buckets of three clouds, opened by URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast_worker.protocol.object_stores import CLOUDS, STORE_FORMS
from holdfast_worker.storage.base import PlacedStore, StoreRefused
from holdfast_worker.storage.directory import DirectoryStore


def open_store(url: str, job: str, env: Mapping[str, str]) -> PlacedStore:
    """Open the part of a store that belongs to one job, with the variables in `env`.

    S3 also uses those of this process, as boto3 finds them.

    Raises:
        StoreRefused: the URL is not that of a store.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreRefused(f"the address must be {STORE_FORMS}") from error
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return DirectoryStore(Path(unquote(parts.path)) / job)
    if parts.scheme == "s3" and parts.netloc:
        from holdfast_worker.storage.s3 import S3Store  # noqa: PLC0415 - boto3 only where a bucket is used

        prefix = "/".join(part for part in (*parts.path.split("/"), job) if part)
        return S3Store(parts.netloc, prefix)
    if parts.scheme in CLOUDS and parts.netloc:
        from holdfast_worker.storage.cloud import open_cloud_store  # noqa: PLC0415 - as above

        return open_cloud_store(url, job, env)
    raise StoreRefused(f"the address must be {STORE_FORMS}")


def open_job_url(url: str, env: Mapping[str, str]) -> PlacedStore:
    """Open a job's part of a store by its URL, `STORE/JOB`.

    Raises:
        StoreRefused: the URL is not that of a store.
    """
    store, _, job = url.rstrip("/").rpartition("/")
    return open_store(store, job, env)
