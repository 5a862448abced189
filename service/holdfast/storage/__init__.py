"""Checkpoint stores, as the service sees them: what a job keeps in one, and the removal of what it does not need.

folder     one that is a folder of this machine
rules      what jobs of users may say of theirs
bucket     one that is a bucket
session    the service's one door to boto3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from holdfast_worker.protocol.release import requirement

from holdfast.errors import DepotRefused
from holdfast.host.allowed_folders import Folders
from holdfast.ports import CheckpointBucket, Clock
from holdfast.storage.directory import DirectoryCheckpointBucket
from holdfast.storage.store_policy import StorePolicy

if TYPE_CHECKING:
    from holdfast.storage.s3 import Clients


__all__ = ["CheckpointBuckets", "DirectoryCheckpointBucket", "StorePolicy"]


def _any_folder(job_id: str) -> Folders:
    del job_id
    return Folders()


class CheckpointBuckets:
    """The stores of all jobs."""

    def __init__(
        self,
        clock: Clock,
        rules: StorePolicy = StorePolicy(),
        folders_of: Callable[[str], Folders] = _any_folder,
    ) -> None:
        """`folders_of` a job say what it may use of this machine, and whether it is confined to `rules`."""
        self._clock = clock
        self._rules = rules
        self._folders_of = folders_of
        self._clients: Clients | None = None

    def open(self, store: str, job_id: str, envs: Mapping[str, str]) -> CheckpointBucket:
        """The part of a store that belongs to one job, whose own `envs` may say where it is.

        Raises:
            DepotRefused: it is nothing that the service can open.
        """
        parts, folders = urlsplit(store), self._folders_of(job_id)
        if parts.scheme == "file":
            return DirectoryCheckpointBucket(
                Path(unquote(parts.path)) / job_id,
                self._clock,
                folders if folders.is_confined else None,
            )
        try:
            from holdfast.storage.s3 import Clients, S3CheckpointBucket  # noqa: PLC0415 - boto3 only where needed
        except ModuleNotFoundError as error:
            if error.name not in {"boto3", "botocore"}:
                raise
            raise DepotRefused(
                f"boto3 is not installed beside the service; pip install {requirement('service')}"
            ) from error
        self._clients = self._clients or Clients(self._rules)
        prefix = "/".join(part for part in (*parts.path.split("/"), job_id) if part)
        return S3CheckpointBucket(
            parts.netloc, prefix, self._clients.get(envs, is_confined=folders.is_confined)
        )
