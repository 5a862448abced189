"""Checkpoint stores as the service uses them: lists and deletes a job's objects.

directory     a store in a directory of this machine
s3            a store in a bucket of Amazon S3
cloud         a store in a bucket of Google Cloud Storage or a container of Azure Blob Storage
store_policy  the stores that users' jobs may name
s3_session    creates S3 clients with boto3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from holdfast_worker.protocol.object_stores import CLOUDS
from holdfast_worker.protocol.release import requirement

from holdfast.errors import CheckpointStoreRefused
from holdfast.host.allowed_folders import Folders
from holdfast.ports import CheckpointBucket, Clock
from holdfast.storage.directory import DirectoryCheckpointBucket
from holdfast.storage.store_policy import StorePolicy

if TYPE_CHECKING:
    from holdfast.storage.cloud import CloudStores
    from holdfast.storage.s3 import S3Clients


__all__ = ["CheckpointBuckets", "DirectoryCheckpointBucket", "StorePolicy"]


def _any_folder(job_id: str) -> Folders:
    del job_id
    return Folders()


class CheckpointBuckets:
    """The checkpoint stores of all jobs."""

    def __init__(
        self,
        clock: Clock,
        rules: StorePolicy = StorePolicy(),
        folders_of: Callable[[str], Folders] = _any_folder,
    ) -> None:
        """`folders_of` returns the directories a job may use, and whether it is confined to `rules`."""
        self._clock = clock
        self._policy = rules
        self._folders_of = folders_of
        self._clients: S3Clients | None = None
        self._clouds: CloudStores | None = None

    def open(self, store: str, job_id: str, envs: Mapping[str, str]) -> CheckpointBucket:
        """Open one job's part of a store, whose endpoint and credentials the job's `envs` may name.

        Raises:
            CheckpointStoreRefused: the service cannot open this store.
        """
        parts, folders = urlsplit(store), self._folders_of(job_id)
        if parts.scheme == "file":
            return DirectoryCheckpointBucket(
                Path(unquote(parts.path)) / job_id,
                self._clock,
                folders if folders.is_confined else None,
            )
        try:
            if parts.scheme in CLOUDS:
                from holdfast.storage.cloud import CloudStores  # noqa: PLC0415 - obstore only where needed

                self._clouds = self._clouds or CloudStores(self._policy)
                return self._clouds.open(store, job_id, envs, is_confined=folders.is_confined)
            from holdfast.storage.s3 import S3CheckpointBucket, S3Clients  # noqa: PLC0415 - boto3 only where needed
        except ModuleNotFoundError as error:
            if error.name not in {"boto3", "botocore", "obstore"}:
                raise
            raise CheckpointStoreRefused(
                f"{error.name} is not installed in the service's environment; run pip install {requirement('service')}"
            ) from error
        self._clients = self._clients or S3Clients(self._policy)
        prefix = "/".join(part for part in (*parts.path.split("/"), job_id) if part)
        return S3CheckpointBucket(
            parts.netloc, prefix, self._clients.get(envs, is_confined=folders.is_confined)
        )
