"""torch's distributed checkpoint, `async_save`, with its two storages for buckets."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from checkpoint.state import State

REGION = "us-east-1"


class CountingStager(DefaultStager):
    """A stager that reuses its memory and counts the staged bytes."""

    staged_bytes = 0

    def stage(self, state_dict: Any, **rest: Any) -> Any:
        """Stage the state and return the copy."""
        staged = super().stage(state_dict, **rest)
        copies = staged.result() if isinstance(staged, Future) else staged
        self.staged_bytes = sum(t.nbytes for t in _tensors(copies))
        return staged


def cached_stager() -> CountingStager:
    """The fastest stager: reused memory; with a GPU, pinned and copied during computation."""
    is_gpu = torch.cuda.is_available()
    return CountingStager(
        StagingOptions(
            use_pinned_memory=is_gpu,
            use_shared_memory=False,
            use_async_staging=is_gpu,
            use_non_blocking_copy=is_gpu,
        )
    )


class Dcp:
    """One rank that saves and restores."""

    def __init__(self, state: State, url: str, *, storage: str, threads: int, cached: bool) -> None:
        self._state = state
        self._url = url
        self._storage = storage
        self._threads = threads
        self._stager = cached_stager() if cached else None
        self._saved: Future[Any] | None = None

    def save(self, number: int) -> None:
        """Stage the state and start to write it."""
        answer = dcp.async_save(
            self._state.tree(),
            storage_writer=writer(self._storage, f"{self._url}/{number}", self._threads),
            async_stager=self._stager,
            no_dist=True,
        )
        if isinstance(answer, Future):
            self._saved = answer
        else:
            # The training must not change a weight before all are staged.
            answer.staging_completion.result()
            self._saved = answer.upload_completion

    def settle(self) -> None:
        """Wait until the checkpoint is written."""
        assert self._saved
        self._saved.result()

    @property
    def is_durable(self) -> bool:
        """Whether the checkpoint is written."""
        return self._saved is None or self._saved.done()

    def restore(self, number: int) -> None:
        """Read the checkpoint into the existing tensors."""
        dcp.load(
            self._state.tree(),
            storage_reader=reader(self._storage, f"{self._url}/{number}"),
            no_dist=True,
        )


def writer(storage: str, path: str, threads: int) -> Any:
    """Return a storage writer for `path`."""
    if storage == "s3fs":
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(path, thread_count=threads)
    from s3torchconnector.dcp import S3StorageWriter

    return S3StorageWriter(REGION, path, s3client_config=_client(), thread_count=threads)


def reader(storage: str, path: str) -> Any:
    """Return a storage reader for `path`."""
    if storage == "s3fs":
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(path)
    from s3torchconnector.dcp import S3StorageReader

    return S3StorageReader(REGION, path, s3client_config=_client())


def _client() -> Any:
    from s3torchconnector import S3ClientConfig

    return S3ClientConfig(force_path_style=True)


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tensor for item in items for tensor in _tensors(item)]
