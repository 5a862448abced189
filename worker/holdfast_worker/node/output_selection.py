"""Selects the output files of a node, within limits. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Self

from holdfast_worker.protocol.output_files import (
    MAX_LEFT_OUT,
    MAX_OTHERS_BYTES,
    MAX_OTHERS_FILES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUT_FILES,
    LeftOutFile,
    is_safe_path,
    node_path,
)

MAX_CANDIDATES: Final = 100_000
"""Names that are looked at. A lower value misses files in large folders; a higher value delays the end of the node."""

_LEAVES: Final = "is a link that leaves the working directory"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of the files of one node."""

    files: int = MAX_OUTPUT_FILES
    total_bytes: int = MAX_OUTPUT_BYTES

    @classmethod
    def of_node(cls, node: int, nodes: int) -> Self:
        """The limits of a node. All but node 0 share limits of their own, which need no agreement."""
        if not node:
            return cls()
        others = nodes - 1
        return cls(
            min(MAX_OUTPUT_FILES, MAX_OTHERS_FILES // others),
            min(MAX_OUTPUT_BYTES, MAX_OTHERS_BYTES // others),
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A name that matches."""

    path: str
    identity: str
    """Equal for the same file on several nodes that share a file system; empty if it is unknown."""
    size: int = 0
    reason: str = ""
    """Why it cannot be collected."""


@dataclass
class OutputSelection:
    """The files below a directory that match patterns, and those that are left out."""

    root: Path
    limits: OutputLimits = OutputLimits()
    node: int = 0
    paths: list[str] = field(default_factory=list)
    """Relative paths, in the order of the patterns."""
    left_out: list[LeftOutFile] = field(default_factory=list)
    """At most MAX_LEFT_OUT of them."""
    left_out_count: int = 0
    shared_count: int = 0
    """Number of names that are left to other nodes, which have the same files."""
    _candidates: dict[str, _Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Resolve the directory once, as links in it are compared with it."""
        self.root = self.root.resolve()

    def add(self, patterns: Iterable[str]) -> None:
        """Select the matching files."""
        found = self._candidates
        for pattern in patterns:
            try:
                for path in self._matches(pattern):
                    if len(found) >= MAX_CANDIDATES:
                        reason = f"matches more than {MAX_CANDIDATES} names"
                        found[pattern] = _Candidate(pattern, "", reason=reason)
                        self.leave()
                        return
                    if path not in found:
                        found[path] = self._candidate(path)
            except OSError as error:
                reason = f"cannot be searched: {error.strerror or error}"
                found.setdefault(pattern, _Candidate(pattern, "", reason=reason))
        self.leave()

    def leave(self, shared: Collection[str] = ()) -> None:
        """Select again within the limits, without files of these identities, which other nodes send."""
        self.paths, self.left_out, self.left_out_count, self.shared_count = [], [], 0, 0
        total = 0
        for each in self._candidates.values():
            if each.identity in shared:
                self.shared_count += 1
            elif each.reason:
                self.leave_out(each.path, each.reason)
            elif len(self.paths) >= self.limits.files:
                self.leave_out(each.path, f"would be more than {self.limits.files} files")
            elif total + each.size > self.limits.total_bytes:
                most = self.limits.total_bytes
                self.leave_out(each.path, f"would exceed {most} bytes, of which it has {each.size}")
            else:
                total += each.size
                self.paths.append(each.path)

    def leave_out(self, path: str, reason: str) -> None:
        """Record a file that is not collected."""
        self.left_out_count += 1
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(
                LeftOutFile(path.encode(errors="replace").decode(errors="replace"), reason)
            )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send or to list."""
        return not self.paths and not self.left_out_count

    def identities(self) -> list[str]:
        """The identities of all names that match, also of those that are left out."""
        return [each.identity for each in self._candidates.values() if each.identity]

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
        raise ValueError(_LEAVES if is_file else "is not a file")

    def _matches(self, pattern: str) -> Iterator[str]:
        """Paths that match, with all files below a matching directory.

        A directory among them is a link that leaves.
        """
        for found in sorted(self.root.glob(pattern.strip("/"))):
            if not found.is_dir() or not found.resolve().is_relative_to(self.root):
                yield found.relative_to(self.root).as_posix()
            else:
                for top, folders, names in os.walk(found):
                    folders.sort()
                    for name in sorted(names):
                        yield (Path(top) / name).relative_to(self.root).as_posix()

    def _candidate(self, path: str) -> _Candidate:
        # With the longest prefix that it may have among the files of all nodes.
        if not is_safe_path(path) or not is_safe_path(node_path(self.node, path, "_")):
            reason = "has a name that other machines cannot create"
        elif (self.root / path).is_dir():
            reason = _LEAVES
        else:
            try:
                with self.opened(path) as file:
                    found = os.fstat(file.fileno())
            except (OSError, ValueError) as error:
                reason = reason_of(error)
            else:
                return _Candidate(path, _identity(path, found), found.st_size)
        try:
            identity = _identity(path, (self.root / path).lstat())
        except OSError:  # It is gone.
            identity = ""
        return _Candidate(path, identity, reason=reason)


def _identity(path: str, found: os.stat_result) -> str:
    """Equal on nodes that have a file on a file system that they share.

    Files of separate file systems have other numbers or times, also if their names and sizes are equal.
    """
    parts = [path, found.st_ino, found.st_size, found.st_mtime_ns]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def reason_of(error: OSError | ValueError) -> str:
    """Why a file is left out, as a sentence without its subject."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)
