"""`torch.save` into memory, with a blocking or threaded upload by boto3's transfer manager."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor

import boto3
import torch

from checkpoint.state import State


class TorchSave:
    """The method of most scripts."""

    def __init__(self, state: State, bucket: str, *, in_thread: bool) -> None:
        self._state = state
        self._bucket = bucket
        self._client = boto3.client("s3")
        self._pool = ThreadPoolExecutor(1) if in_thread else None
        self._upload: Future[None] | None = None

    def save(self, number: int) -> None:
        """Serialize the state, and send it or start to send it."""
        file = io.BytesIO()
        torch.save(self._state.tree(), file)
        file.seek(0)
        if self._pool:
            self._upload = self._pool.submit(self._send, file, number)
        else:
            self._send(file, number)

    def _send(self, file: io.BytesIO, number: int) -> None:
        self._client.upload_fileobj(file, self._bucket, f"{number}.pt")

    def settle(self) -> None:
        """Wait until all bytes are sent."""
        if self._upload:
            self._upload.result()

    @property
    def is_durable(self) -> bool:
        """Whether all bytes are sent."""
        return self._upload is None or self._upload.done()

    def restore(self, number: int) -> None:
        """Fetch the checkpoint and load it."""
        file = io.BytesIO()
        self._client.download_fileobj(self._bucket, f"{number}.pt", file)
        file.seek(0)
        self._state.load(torch.load(file, weights_only=True))
