"""Uploaded code of replicas without a shared home: in the database, copied to each home."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Protocol

from holdfast.code_upload.tree import TreeEntry, id_of, tree_error
from holdfast.code_upload.upload_store import (
    GRACE,
    LEAST_BYTES,
    Tree,
    UploadLimits,
    Uploads,
    check_digests,
    is_upload,
    owner_of,
    split_ref,
)
from holdfast.errors import BadRequest
from holdfast.ports import Clock


class SharedCode(Protocol):
    """Pieces and directories that all replicas see. Its methods block."""

    def sizes(self, owner: str, digests: Sequence[str], now: datetime) -> dict[str, int]:
        """Return the sizes in bytes of the pieces that exist, and record their use."""

    def add_piece(self, owner: str, digest: str, content: bytes, now: datetime) -> None:
        """Store a piece; it may exist."""

    def content(self, owner: str, digest: str) -> bytes | None:
        """Return the content of a piece; None if it does not exist."""

    def add_tree(self, owner: str, tree_id: str, entries: str, now: datetime) -> None:
        """Store a directory, whose pieces exist; it may exist as well."""

    def tree(self, owner: str, tree_id: str, now: datetime) -> str | None:
        """Return the entries of a directory and record its use; None if it does not exist."""

    def usage(self) -> Mapping[str, int]:
        """Return the size in bytes of the code of each owner."""

    def trees(self) -> Iterator[tuple[str, str]]:
        """Yield the owner and the entries of each directory."""

    def delete_trees(self, unused_since: datetime) -> int:
        """Delete directories that were last used before a time; return their number."""

    def delete_pieces(self, kept: Mapping[str, set[str]], unused_since: datetime) -> int:
        """Delete pieces last used before a time, except those kept by owner; return their number."""


class SharedUploads(Uploads):
    """Uploaded code in a database, with a copy of what this replica received or launched."""

    def __init__(self, root: Path, clock: Clock, shared: SharedCode, limits: UploadLimits) -> None:
        """`root` has the copies; their size is limited by that of the shared code."""
        unlimited = UploadLimits(
            most_bytes=sys.maxsize, most_total_bytes=sys.maxsize, days=limits.days
        )
        super().__init__(root, clock, unlimited)
        self._shared = shared
        self._shared_limits = limits

    def add_pieces(self, user: str, pieces: Sequence[tuple[str, bytes]]) -> None:
        """Store pieces with their claimed SHA-256.

        Raises:
            BadRequest: the content of a piece does not match.
            NotPossibleNow: the store is full.
        """
        check_digests(pieces)
        owner, now = owner_of(user), self._clock.now()
        there = self._shared.sizes(owner, [digest for digest, _ in pieces], now)
        new = {digest: content for digest, content in pieces if digest not in there}
        self._check_room(owner, sum(max(len(one), LEAST_BYTES) for one in new.values()))
        for digest, content in new.items():
            self._shared.add_piece(owner, digest, content, now)

    def add_tree(self, user: str, entries: Sequence[TreeEntry]) -> Tree:
        """Create the directory with these entries once all pieces exist.

        Raises:
            BadRequest: the entries are invalid.
            NotPossibleNow: the store is full.
        """
        if why := tree_error(entries):
            raise BadRequest(why)
        owner, tree_id, now = owner_of(user), id_of(entries), self._clock.now()
        if self._shared.tree(owner, tree_id, now) is not None:
            return Tree(tree_id, ())
        sizes = dict(pair for entry in entries for pair in entry.sized())
        there = self._shared.sizes(owner, list(sizes), now)
        missing = {piece: size for piece, size in sizes.items() if there.get(piece) != size}
        self._check_room(owner, sum(missing.values()))
        if missing:
            return Tree(tree_id, tuple(missing))
        # A copy is made first: that checks the links, which only a real directory shows.
        self._copy(owner, tree_id, entries)
        self._shared.add_tree(owner, tree_id, json.dumps([asdict(one) for one in entries]), now)
        return Tree(tree_id, ())

    def folder(self, workdir: str | None) -> Path | None:
        """Resolve the `workdir` of a job; None if it is not an upload.

        Copies it from the database if needed.
        """
        path = super().folder(workdir)
        if path is None or path.exists():
            return path
        owner, tree_id = split_ref(str(workdir))
        entries = self._shared.tree(owner, tree_id, self._clock.now())
        if entries is not None:
            self._copy(owner, tree_id, _entries(entries))
        return path

    def mark_used(self, workdir: str) -> bool:
        """Record the use of an uploaded directory; False if it was deleted."""
        if not is_upload(workdir):
            return False
        owner, tree_id = split_ref(workdir)
        if self._shared.tree(owner, tree_id, self._clock.now()) is None:
            return False
        copy = super().folder(workdir)
        if copy and copy.exists():
            self._touch(copy)
        return True

    def delete_expired(self, live: Iterable[str]) -> None:
        """Delete code that was not used recently, and copies of it."""
        super().delete_expired(live)
        now = self._clock.now()
        self._shared.delete_trees(now - self._lasts)
        kept: dict[str, set[str]] = {}
        for owner, entries in self._shared.trees():
            pieces = kept.setdefault(owner, set())
            pieces.update(piece for entry in _entries(entries) for piece in entry.pieces)
        self._shared.delete_pieces(kept, now - GRACE)

    def _copy(self, owner: str, tree_id: str, entries: Sequence[TreeEntry]) -> None:
        """Make the directory in the home of this replica.

        Raises:
            BadRequest: a link leads out of the directory, or a piece was deleted.
            NotPossibleNow: the directory cannot be written.
        """
        for piece, size in (pair for entry in entries for pair in entry.sized()):
            if self._has(owner, piece, size):
                continue
            content = self._shared.content(owner, piece)
            if content is None:
                raise BadRequest(
                    f"piece {piece} of the uploaded code was deleted; submit the job with its directory again"
                )
            self._put_piece(owner, piece, content)
        self._make(owner, self._trees(owner) / tree_id, entries)

    def _check_room(self, owner: str, more: int) -> None:
        if more:
            used = self._shared.usage()
            self._shared_limits.check(used.get(owner, 0) + more, sum(used.values()) + more)


def _entries(text: str) -> list[TreeEntry]:
    return [TreeEntry(**{**row, "pieces": tuple(row["pieces"])}) for row in json.loads(text)]
