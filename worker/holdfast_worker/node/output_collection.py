"""Collects the output files of a node at the end of an attempt, for the checkpoint store.

Standard library only, except for the store.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.clock import now
from holdfast_worker.config import Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.node.output_nodes import RETRY_S, CollectingNode, OutputNodes
from holdfast_worker.node.output_selection import OutputLimits, OutputSelection, reason_of
from holdfast_worker.protocol.output_files import (
    OUTPUT_COMMITS,
    OUTPUT_PART_BYTES,
    OUTPUTS,
    OutputCollection,
    OutputFile,
    data_prefix,
    is_replaced,
    parse_commit_key,
)
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import Store, StoreError, StoreUnreachable
from holdfast_worker.storage.retry import retry_until

T = TypeVar("T")

COLLECTION_S: Final = 600.0
"""Time limit of a collection. A lower value loses large files on a slow store; a higher value pays for nodes while a store is away."""
LANES: Final = 4
"""Files that are sent at once, each with one part in memory.
A lower value takes longer with many small files; a higher value needs more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputUpload:
    """Sends selected files to a store."""

    store: Store
    selection: OutputSelection
    epoch: int
    until_s: float
    """Deadline by the monotonic clock."""
    nonce: str
    """Random for each collection."""

    def send(self, attempt: int | None, exit_code: int) -> OutputCollection:
        """Send all files, and then the list of them.

        That of node 0 replaces the files of earlier attempts.

        Raises:
            StoreError: the store cannot be used; nothing was replaced.
            FencedOut: a newer attempt has begun or sent its own; nothing was replaced.
        """
        self._check_epoch()
        with ThreadPoolExecutor(
            min(LANES, self.store.max_concurrency), thread_name_prefix="holdfast-outputs"
        ) as lanes:
            sent = list(lanes.map(self._send_file, itertools.count(), self.selection.paths))
        files = list[OutputFile]()
        for path, file in zip(self.selection.paths, sent, strict=True):
            if isinstance(file, OutputFile):
                files.append(file)
            else:
                self.selection.leave_out(path, file)
        collection = OutputCollection(
            epoch=self.epoch,
            node=self.selection.node,
            nonce=self.nonce,
            attempt=attempt,
            exit_code=exit_code,
            collected_at=now(),
            files=tuple(files),
            left_out=tuple(self.selection.left_out),
            left_out_count=self.selection.left_out_count,
        )
        self._check_epoch()
        self._retry(lambda: self.store.put(collection.commit_key, collection.dump()))
        self._delete_replaced(collection)
        return collection

    def _send_file(self, number: int, path: str) -> OutputFile | str:
        """Send one file; return the reason if it cannot be read any more."""
        digest, size = hashlib.sha256(), 0
        prefix = data_prefix(self.epoch, self.nonce, self.selection.node)
        try:
            with self.selection.opened(path) as file:
                # A file that still grows is cut where it ended.
                left = os.fstat(file.fileno()).st_size
                for part in itertools.count():
                    data = file.read(min(OUTPUT_PART_BYTES, left))
                    if not data:
                        break
                    if time.monotonic() > self.until_s:
                        raise StoreUnreachable(f"they take longer than {COLLECTION_S:g} s")
                    key = f"{prefix}{number:06d}/{part:06d}"
                    self._retry(partial(self.store.put, key, data))
                    digest.update(data)
                    size += len(data)
                    left -= len(data)
        except (OSError, ValueError) as error:
            return reason_of(error)
        return OutputFile(number, path, size, digest.hexdigest())

    def _check_epoch(self) -> None:
        """Check that no newer attempt has begun, or sent files without a claim.

        Raises:
            FencedOut: one has.
        """
        FencingTokens(self.store).check(self.epoch, self._retry_until_s)
        keys = self._retry(lambda: self.store.list(OUTPUT_COMMITS))
        newest = max((commit.epoch for commit in map(parse_commit_key, keys) if commit), default=0)
        if newest > self.epoch:
            raise FencedOut(f"a newer attempt, of epoch {newest}, has sent its own")

    def _delete_replaced(self, kept: OutputCollection) -> None:
        """Delete the files that these have replaced. A failure costs only storage."""
        with suppress(StoreError):
            # A list is deleted before its files.
            for key in sorted(self._retry(lambda: self.store.list(OUTPUTS))):
                if is_replaced(key, kept):
                    self._retry(partial(self.store.delete, key))

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_until(action, self._retry_until_s)

    @property
    def _retry_until_s(self) -> float:
        return min(self.until_s, time.monotonic() + RETRY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCollector:
    """Collects the output files of one node."""

    config: Config
    run_dir: RunDir
    place: CollectingNode
    is_leaving: Callable[[], bool]
    """Whether this node has to end, and waits for others no longer."""

    def collect(self, exit_code: int) -> None:
        """Collect the files of an attempt that has ended by itself; problems are logged.

        They do not change the result of the attempt.
        """
        if not self.config.outputs or not self.config.store:
            return
        try:
            store = open_store(self.config.store, self.config.job, environment())
            self._collect(store, exit_code)
        except (StoreError, FencedOut, OSError, ValueError) as error:
            log_info(f"the output files are not collected: {error}")

    def _collect(self, store: Store, exit_code: int) -> None:
        nonce, until_s = secrets.token_hex(4), time.monotonic() + COLLECTION_S
        nodes = OutputNodes(
            store=store, place=self.place, until_s=until_s, is_leaving=self.is_leaving
        )
        nodes.epoch = self.config.epoch or self.run_dir.epoch() or 0
        if not nodes.epoch and not self.place.node:
            # A script without `Run` has claimed none.
            nodes.epoch = FencingTokens(store).acquire_next(nonce, until_s)
        if not nodes.epoch and not nodes.find_epoch():
            log_info("the output files of this node are not collected: node 0 collects none")
            return
        selection = OutputSelection(
            Path.cwd(), OutputLimits.of_node(self.place.node, self.place.nodes), self.place.node
        )
        selection.add(self.config.outputs)
        upload = OutputUpload(
            store=store, selection=selection, epoch=nodes.epoch, nonce=nonce, until_s=until_s
        )
        if self.place.nodes == 1:
            self._send(upload, exit_code)
            return
        nodes.begin()
        try:
            nodes.share(selection)
            if not self.place.node or not selection.is_empty:
                self._send(upload, exit_code)
            if selection.shared_count:
                log_info(f"{selection.shared_count} output files are those of other nodes")
        finally:
            nodes.end()
        nodes.wait_for_others()

    def _send(self, upload: OutputUpload, exit_code: int) -> None:
        sent = upload.send(self.config.attempt or None, exit_code)
        count = len(sent.files)
        log_info(f"collected {count} output file{'s' * (count != 1)}")
        for left in sent.left_out:
            log_info(f"output file {left.path} is left out: it {left.reason}")
        if (more := sent.left_out_count - len(sent.left_out)) > 0:
            log_info(f"{more} more output files are left out")
