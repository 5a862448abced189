"""Collects the output files of a job on its first node, for the checkpoint store.

Standard library only, except for the store.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.clock import now
from holdfast_worker.config import Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.protocol.output_files import (
    MAX_LEFT_OUT,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUT_FILES,
    OUTPUT_COMMITS,
    OUTPUT_DATA,
    OUTPUT_PART_BYTES,
    LeftOutFile,
    OutputCollection,
    OutputFile,
    is_older,
    is_safe_path,
    parse_output_epoch,
    part_key,
)
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import Store, StoreError, StoreUnreachable
from holdfast_worker.storage.retry import retry_until

T = TypeVar("T")

COLLECTION_S: Final = 600.0
"""Time limit of a collection. A lower value loses large files on a slow store; a higher value pays for nodes while a store is away."""
RETRY_S: Final = 60.0
"""How long a failed request is repeated. A lower value gives up during a short outage; a higher value pays for idle nodes."""
LANES: Final = 4
"""Files that are sent at once, each with one part in memory.
A lower value takes longer with many small files; a higher value needs more memory."""
MAX_CANDIDATES: Final = 100_000
"""Names that are looked at. A lower value misses files in large folders; a higher value delays the end of the node."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of the files of one collection."""

    files: int = MAX_OUTPUT_FILES
    total_bytes: int = MAX_OUTPUT_BYTES


@dataclass
class OutputSelection:
    """The files below a directory that match patterns, and those that are left out."""

    root: Path
    limits: OutputLimits = OutputLimits()
    paths: list[str] = field(default_factory=list)
    """Relative paths, in the order of the patterns."""
    left_out: list[LeftOutFile] = field(default_factory=list)
    """At most MAX_LEFT_OUT of them."""
    left_out_count: int = 0
    _seen: set[str] = field(default_factory=set)
    _bytes: int = 0

    def __post_init__(self) -> None:
        """Resolve the directory once, as links in it are compared with it."""
        self.root = self.root.resolve()

    def add(self, patterns: Iterable[str]) -> None:
        """Select the matching files."""
        for pattern in patterns:
            try:
                for path in self._matches(pattern):
                    if len(self._seen) >= MAX_CANDIDATES:
                        self.leave_out(pattern, f"matches more than {MAX_CANDIDATES} names")
                        return
                    self._add(path)
            except OSError as error:
                self.leave_out(pattern, f"cannot be searched: {error.strerror or error}")

    def leave_out(self, path: str, reason: str) -> None:
        """Record a file that is not collected."""
        self.left_out_count += 1
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(
                LeftOutFile(path.encode(errors="replace").decode(errors="replace"), reason)
            )

    def opened(self, path: str) -> BinaryIO:
        """Open a file that lies below the directory, also after links are resolved.

        Raises:
            ValueError: it is elsewhere, or not a file.
            OSError: it cannot be read.
        """
        # Not blocked by a pipe without a writer. The open file is checked, as a name may change in between.
        number = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(number, "rb")
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        if is_file and Path(f"/proc/self/fd/{number}").readlink().is_relative_to(self.root):
            return file
        file.close()
        raise ValueError(
            "is a link that leaves the working directory" if is_file else "is not a file"
        )

    def _matches(self, pattern: str) -> Iterator[str]:
        """Paths of files that match, with all files below a matching directory."""
        for found in sorted(self.root.glob(pattern.strip("/"))):
            if not found.is_dir():
                yield found.relative_to(self.root).as_posix()
            elif not found.resolve().is_relative_to(self.root):
                self.leave_out(
                    found.relative_to(self.root).as_posix(),
                    "is a link that leaves the working directory",
                )
            else:
                for top, folders, names in os.walk(found):
                    folders.sort()
                    for name in sorted(names):
                        yield (Path(top) / name).relative_to(self.root).as_posix()

    def _add(self, path: str) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        if not is_safe_path(path):
            self.leave_out(path, "has a name that other machines cannot create")
            return
        try:
            with self.opened(path) as file:
                size = os.fstat(file.fileno()).st_size
        except (OSError, ValueError) as error:
            self.leave_out(path, reason_of(error))
            return
        if len(self.paths) >= self.limits.files:
            self.leave_out(path, f"would be more than {self.limits.files} files")
        elif self._bytes + size > self.limits.total_bytes:
            self.leave_out(
                path, f"would exceed {self.limits.total_bytes} bytes, of which it has {size}"
            )
        else:
            self._bytes += size
            self.paths.append(path)


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
        """Send all files, and then the list of them, which replaces those of earlier attempts.

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
        self._delete_others(collection)
        return collection

    def _send_file(self, number: int, path: str) -> OutputFile | str:
        """Send one file; return the reason if it cannot be read any more."""
        digest, size = hashlib.sha256(), 0
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
                    key = part_key(self.epoch, self.nonce, number, part)
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
        newest = max(filter(None, map(parse_output_epoch, keys)), default=0)
        if newest > self.epoch:
            raise FencedOut(f"a newer attempt, of epoch {newest}, has sent its own")

    def _delete_others(self, kept: OutputCollection) -> None:
        """Delete the files of earlier attempts. A failure costs only storage."""
        with suppress(StoreError):
            for prefix in (OUTPUT_COMMITS, OUTPUT_DATA):
                for key in self._retry(partial(self.store.list, prefix)):
                    if is_older(key, kept):
                        self._retry(partial(self.store.delete, key))

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_until(action, self._retry_until_s)

    @property
    def _retry_until_s(self) -> float:
        return min(self.until_s, time.monotonic() + RETRY_S)


def collect_outputs(config: Config, run_dir: RunDir, exit_code: int) -> None:
    """Collect the output files of an attempt that has ended by itself; problems are logged.

    They do not change the result of the attempt.
    """
    if not config.outputs or not config.store:
        return
    until_s = time.monotonic() + COLLECTION_S
    selection = OutputSelection(Path.cwd())
    selection.add(config.outputs)
    try:
        store = open_store(config.store, config.job, environment())
        nonce = secrets.token_hex(4)
        epoch = config.epoch or run_dir.epoch()
        # A script without `Run` has claimed none.
        epoch = epoch or FencingTokens(store).acquire_next(nonce, until_s)
        upload = OutputUpload(
            store=store, selection=selection, epoch=epoch, nonce=nonce, until_s=until_s
        )
        sent = upload.send(config.attempt or None, exit_code)
    except (StoreError, FencedOut, OSError, ValueError) as error:
        log_info(f"the output files are not collected: {error}")
        return
    log_info(f"collected {len(sent.files)} output files")
    for left in sent.left_out:
        log_info(f"output file {left.path} is left out: it {left.reason}")
    if (more := sent.left_out_count - len(sent.left_out)) > 0:
        log_info(f"{more} more output files are left out")


def reason_of(error: OSError | ValueError) -> str:
    """Why a file is left out, as a sentence without its subject."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)
