"""Store of uploaded code: content-addressed pieces and directories, separate for each owner.

A piece counts as present only for an owner who has uploaded it: knowing a hash gives no access to the content. The
modification time of a directory or piece is its last use; unused ones are deleted after some days.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Final

from holdfast.code_upload.tree import TreeEntry, id_of, is_within, tree_error
from holdfast.errors import BadRequest, NotPossibleNow
from holdfast.ports import Clock

REF_PREFIX: Final = "upload:"
"""Prefix of the `workdir` of a stored job with uploaded code: `upload:OWNER/ID`.

Paths of users are absolute and cannot have it.
"""
LEAST_BYTES: Final = 4096
"""Minimum bytes counted for an entry, since an empty one also occupies disk space."""
GRACE: Final = timedelta(days=1)
"""How long a piece without a directory is kept.

A lower value deletes those of an upload that is resumed a day later.
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """An uploaded directory and its missing pieces."""

    id: str
    missing: tuple[str, ...]
    """Pieces that its owner has to upload before it exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadLimits:
    """How much code is stored, and for how long."""

    most_bytes: int
    """Limit for each owner."""
    most_total_bytes: int
    """Limit for all owners together."""
    days: float
    """Days for which unused code is kept."""

    def check(self, own: int, total: int) -> None:
        """Check the bytes that an owner, and that all owners would use.

        Raises:
            NotPossibleNow: they do not fit.
        """
        way_out = f"exclude files with .gitignore; code that no job uses is deleted after {timedelta(self.days).days} days"
        if own > self.most_bytes:
            raise NotPossibleNow(
                f"your uploaded code would take {_mb(own)}, and HOLDFAST_CODE_MB allows {_mb(self.most_bytes)}; {way_out}"
            )
        if total > self.most_total_bytes:
            raise NotPossibleNow(
                f"the uploaded code of all users would take {_mb(total)}, and HOLDFAST_CODE_TOTAL_MB allows "
                f"{_mb(self.most_total_bytes)}; {way_out}"
            )


class Uploads:
    """All uploaded code of a service. Its methods block: call them from a thread."""

    def __init__(self, root: Path, clock: Clock, limits: UploadLimits) -> None:
        self._root = root
        self._clock = clock
        self._limits = limits
        self._lasts = timedelta(days=limits.days)
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    def add_pieces(self, user: str, pieces: Sequence[tuple[str, bytes]]) -> None:
        """Store pieces with their claimed SHA-256.

        Raises:
            BadRequest: the content of a piece does not match.
            NotPossibleNow: the store is full.
        """
        check_digests(pieces)
        owner = owner_of(user)
        new = [(d, c) for d, c in pieces if not self._has(owner, d, len(c))]
        self._reserve(owner, sum(max(len(content), LEAST_BYTES) for _, content in new))
        for digest, content in new:
            self._put_piece(owner, digest, content)

    def add_tree(self, user: str, entries: Sequence[TreeEntry]) -> Tree:
        """Create the directory with these entries once all pieces exist.

        Raises:
            BadRequest: the entries are invalid.
            NotPossibleNow: the store is full.
        """
        if why := tree_error(entries):
            raise BadRequest(why)
        owner, tree_id = owner_of(user), id_of(entries)
        folder = self._trees(owner) / tree_id
        if folder.exists():
            self._touch(folder)
            return Tree(tree_id, ())
        sizes = dict(pair for entry in entries for pair in entry.sized())
        missing = {
            piece: size for piece, size in sizes.items() if not self._has(owner, piece, size)
        }
        if missing:
            self._reserve(owner, sum(missing.values()), commits=False)
            return Tree(tree_id, tuple(missing))
        self._reserve(owner, sum(map(_entry_overhead, entries)))
        self._make(owner, folder, entries)
        return Tree(tree_id, ())

    def ref(self, user: str, tree_id: str) -> str:
        """Return the reference with which a job names an uploaded directory of its submitter."""
        return f"{REF_PREFIX}{owner_of(user)}/{tree_id}"

    def folder(self, workdir: str | None) -> Path | None:
        """Resolve the `workdir` of a job; None if it is not an upload."""
        if not is_upload(workdir):
            return None
        owner, tree_id = split_ref(str(workdir))
        return self._trees(owner) / tree_id

    def mark_used(self, workdir: str) -> bool:
        """Record the use of an uploaded directory; False if it was deleted."""
        folder = self.folder(workdir)
        if folder is None or not folder.exists():
            return False
        self._touch(folder)
        return True

    def delete_expired(self, live: Iterable[str]) -> None:
        """Delete code that was not used recently.

        `live` are the directories of jobs that have not ended.
        """
        for workdir in live:
            self.mark_used(workdir)
        now = self._clock.now()
        for owner in self._owners():
            kept: set[str] = set()
            trees = self._trees(owner)
            for tree in trees.glob("*") if trees.exists() else ():
                is_whole = not tree.name.startswith(".")
                if now - _time(tree) > (self._lasts if is_whole else GRACE):
                    self._remove(tree)
                elif is_whole:
                    with suppress(FileNotFoundError):
                        kept |= set(self._tree_file(owner, tree.name).read_text().split())
            for piece in (self._root / owner / "pieces").glob("*/*"):
                if piece.name not in kept and now - _time(piece) > GRACE:
                    piece.unlink(missing_ok=True)
            for file in (self._root / owner / "lists").glob("*"):
                if not (trees / file.name).exists() and now - _time(file) > GRACE:
                    file.unlink(missing_ok=True)
        with self._lock:
            self._used.clear()

    def _remove(self, tree: Path) -> None:
        # Renamed first: a partially deleted directory must not be used.
        gone = tree.with_name(f".{token_hex(8)}")
        tree.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _make(self, owner: str, folder: Path, entries: Sequence[TreeEntry]) -> None:
        draft = folder.with_name(f".{token_hex(8)}")
        draft.mkdir(parents=True, mode=0o700)
        try:
            for entry in sorted(entries, key=lambda entry: entry.link is not None):
                self._put_entry(owner, draft, entry)
            for entry in entries:
                if entry.link is not None and not is_within(draft / entry.path, draft):
                    raise BadRequest(f"{entry.path!r} is a link out of the directory; exclude it")
            pieces = {piece for entry in entries for piece in entry.pieces}
            file = self._tree_file(owner, folder.name)
            file.parent.mkdir(exist_ok=True, mode=0o700)
            file.write_text("\n".join(sorted(pieces)))
            self._touch(file)
            self._touch(draft)
            draft.rename(folder)
        except OSError as error:
            if not folder.exists():  # Another request may have created it concurrently.
                raise NotPossibleNow(f"the directory cannot be stored: {error.strerror}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _put_piece(self, owner: str, digest: str, content: bytes) -> None:
        file = self._piece_file(owner, digest)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = file.with_name(f".{file.name}.{token_hex(4)}")
        draft.write_bytes(content)
        # Readable by jobs; the parent directory is only accessible to the service.
        draft.chmod(0o644)
        self._touch(draft)
        draft.rename(file)

    def _put_entry(self, owner: str, draft: Path, entry: TreeEntry) -> None:
        target = draft / entry.path
        if entry.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.link is not None:
            target.symlink_to(entry.link)
        elif _is_shared(entry):
            os.link(self._piece_file(owner, entry.pieces[0]), target)
        else:
            with target.open("wb") as file:
                for piece in entry.pieces:
                    file.write(self._piece_file(owner, piece).read_bytes())
            target.chmod(0o755 if entry.is_executable else 0o644)

    def _has(self, owner: str, digest: str, size: int) -> bool:
        # A string, as a directory has thousands of pieces, and a `Path` takes ten times as long as the existence check.
        file = f"{self._root}/{self._piece_name(owner, digest)}"
        try:
            is_whole = os.stat(file).st_size == size  # noqa: PTH116
            if is_whole:
                self._touch(file)  # It stays until its directory is created.
        except FileNotFoundError:
            return False
        return is_whole

    def _reserve(self, owner: str, more: int, *, commits: bool = True) -> None:
        """Count `more` bytes of an owner, or only check that they fit.

        Raises:
            NotPossibleNow: they do not fit.
        """
        with self._lock:
            for one in {owner, *self._owners()} - self._used.keys():
                self._used[one] = _disk_usage(self._root / one)
            own, total = self._used[owner] + more, sum(self._used.values()) + more
            if more:
                self._limits.check(own, total)
            if commits:
                self._used[owner] = own

    def _owners(self) -> list[str]:
        return [path.name for path in self._root.glob("*")]

    def _trees(self, owner: str) -> Path:
        return self._root / owner / "trees"

    def _tree_file(self, owner: str, tree_id: str) -> Path:
        """Return the file that lists the pieces of a directory."""
        return self._root / owner / "lists" / tree_id

    def _piece_file(self, owner: str, digest: str) -> Path:
        return self._root / self._piece_name(owner, digest)

    def _piece_name(self, owner: str, digest: str) -> str:
        return f"{owner}/pieces/{digest[:2]}/{digest}"

    def _touch(self, path: Path | str) -> None:
        at = self._clock.now().timestamp()
        os.utime(path, (at, at))


def is_upload(workdir: str | None) -> bool:
    """Whether the `workdir` of a stored job is uploaded code."""
    return workdir is not None and workdir.startswith(REF_PREFIX)


def split_ref(workdir: str) -> tuple[str, str]:
    """Return the owner and the id of an uploaded directory by the `workdir` of a job."""
    owner, _, tree_id = workdir.removeprefix(REF_PREFIX).partition("/")
    return owner, tree_id


def check_digests(pieces: Sequence[tuple[str, bytes]]) -> None:
    """Compare pieces with their claimed SHA-256.

    Raises:
        BadRequest: the content of a piece does not match.
    """
    for digest, content in pieces:
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadRequest(f"the content does not match {digest}; compute its SHA-256 again")


def owner_of(user: str) -> str:
    """Return the directory name of a user; the service's owner has no name."""
    return f"u-{hashlib.sha256(user.encode()).hexdigest()[:32]}" if user else "owner"


def _is_shared(entry: TreeEntry) -> bool:
    """Whether a file is a hard link to its piece."""
    return len(entry.pieces) == 1 and not entry.is_executable


def _entry_overhead(entry: TreeEntry) -> int:
    """Estimate the disk usage of an entry besides its pieces, including its parent directory."""
    return LEAST_BYTES if _is_shared(entry) else LEAST_BYTES + max(entry.size_bytes, LEAST_BYTES)


def _disk_usage(folder: Path) -> int:
    """Sum the disk usage below a directory, counting each file once."""
    return sum({found.st_ino: max(found.st_size, LEAST_BYTES) for found in _below(folder)}.values())


def _below(folder: Path) -> Iterator[os.stat_result]:
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):  # Another replica may be deleting expired code.
                yield Path(place, name).lstat()


def _time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1024 / 1024:,.1f} MiB"
