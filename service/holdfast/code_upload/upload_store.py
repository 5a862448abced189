"""Code that clients uploaded: pieces of files by content, and the folders made of them, apart for each owner.

A piece counts as present for an owner only if that owner has uploaded it: to know a hash gives nobody the content. The time of
last change of a folder or piece is when it was used last; what was not used for some days is removed.
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

from holdfast.code_upload.tree import TreeEntry, id_of, is_within, mistake
from holdfast.errors import BadRequest, NotPossibleNow
from holdfast.ports import Clock

REF: Final = "upload:"
"""How `workdir` of a stored job begins if it is uploaded code: `upload:OWNER/ID`. No path of a person does, as those are absolute."""
LEAST_BYTES: Final = 4096
"""What an entry counts at least, since an empty one takes room, too."""
GRACE: Final = timedelta(days=1)
"""How long a piece stays that belongs to no folder. A lower value removes those of an upload that is resumed a day later."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder, as far as it has arrived."""

    id: str
    missing: tuple[str, ...]
    """Pieces that its owner has to upload before it exists."""


class Uploads:
    """All uploaded code of a service. Its methods block: call them from a thread."""

    def __init__(
        self, root: Path, clock: Clock, *, most_bytes: int, most_total_bytes: int, days: float
    ) -> None:
        """`most_bytes` are of one owner, `most_total_bytes` of all together."""
        self._root = root
        self._clock = clock
        self._most_bytes = most_bytes
        self._most_total_bytes = most_total_bytes
        self._lasts = timedelta(days=days)
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    def put(self, user: str, pieces: Sequence[tuple[str, bytes]]) -> None:
        """Keep pieces, each with the SHA-256 that it is said to have.

        Raises:
            BadRequest: one is not what was said.
            NotPossibleNow: there is no room for them.
        """
        for digest, content in pieces:
            if hashlib.sha256(content).hexdigest() != digest:
                raise BadRequest(f"the content is not that of {digest}; compute its SHA-256 again")
        owner = _owner(user)
        new = [(self._piece(owner, d), c) for d, c in pieces if not self._has(owner, d, len(c))]
        self._reserve(owner, sum(max(len(content), LEAST_BYTES) for _, content in new))
        for file, content in new:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = file.with_name(f".{file.name}.{token_hex(4)}")
            draft.write_bytes(content)
            draft.chmod(0o644)  # As jobs get it; the folder above is the service's alone.
            self._touch(draft)
            draft.rename(file)

    def add(self, user: str, entries: Sequence[TreeEntry]) -> Tree:
        """The folder with these entries; it exists once nothing of it is missing.

        Raises:
            BadRequest: they make no folder.
            NotPossibleNow: there is no room for it.
        """
        if why := mistake(entries):
            raise BadRequest(why)
        owner, tree_id = _owner(user), id_of(entries)
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
        self._reserve(owner, sum(map(_cost, entries)))
        self._make(owner, folder, entries)
        return Tree(tree_id, ())

    def ref(self, user: str, tree_id: str) -> str:
        """How a job names an uploaded folder of its submitter."""
        return f"{REF}{_owner(user)}/{tree_id}"

    def folder(self, workdir: str | None) -> Path | None:
        """Where the folder is that a job's `workdir` refers to; None where it names no upload."""
        if not is_upload(workdir):
            return None
        owner, _, tree_id = str(workdir).removeprefix(REF).partition("/")
        return self._trees(owner) / tree_id

    def use(self, workdir: str) -> bool:
        """Note that a job needs an uploaded folder; False where it is gone."""
        folder = self.folder(workdir)
        if folder is None or not folder.exists():
            return False
        self._touch(folder)
        return True

    def tidy(self, live: Iterable[str]) -> None:
        """Remove what no job has used for long; `live` are the folders of jobs that have not ended."""
        for workdir in live:
            self.use(workdir)
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
                        kept |= set(self._list(owner, tree.name).read_text().split())
            for piece in (self._root / owner / "pieces").glob("*/*"):
                if piece.name not in kept and now - _time(piece) > GRACE:
                    piece.unlink(missing_ok=True)
            for file in (self._root / owner / "lists").glob("*"):
                if not (trees / file.name).exists() and now - _time(file) > GRACE:
                    file.unlink(missing_ok=True)
        with self._lock:
            self._used.clear()

    def _remove(self, tree: Path) -> None:
        # Under another name first: half of a folder must not be taken for all of it.
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
                    raise BadRequest(f"{entry.path!r} is a link out of the folder; leave it out")
            pieces = {piece for entry in entries for piece in entry.pieces}
            file = self._list(owner, folder.name)
            file.parent.mkdir(exist_ok=True, mode=0o700)
            file.write_text("\n".join(sorted(pieces)))
            self._touch(file)
            self._touch(draft)
            draft.rename(folder)
        except OSError as error:
            if not folder.exists():  # Another request may have made the same one.
                raise NotPossibleNow(f"the folder cannot be kept: {error.strerror}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _put_entry(self, owner: str, draft: Path, entry: TreeEntry) -> None:
        target = draft / entry.path
        if entry.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.link is not None:
            target.symlink_to(entry.link)
        elif _is_shared(entry):
            os.link(self._piece(owner, entry.pieces[0]), target)
        else:
            with target.open("wb") as file:
                for piece in entry.pieces:
                    file.write(self._piece(owner, piece).read_bytes())
            target.chmod(0o755 if entry.is_executable else 0o644)

    def _has(self, owner: str, digest: str, size: int) -> bool:
        # A text, as a folder has thousands of pieces, and a `Path` takes ten times as long as to look whether the file exists.
        file = f"{self._root}/{self._name_of_piece(owner, digest)}"
        try:
            is_whole = os.stat(file).st_size == size  # noqa: PTH116
            if is_whole:
                self._touch(file)  # It stays until its folder is made.
        except FileNotFoundError:
            return False
        return is_whole

    def _reserve(self, owner: str, more: int, *, commits: bool = True) -> None:
        """Count `more` bytes of an owner, or only look whether there is room for them.

        Raises:
            NotPossibleNow: there is not.
        """
        with self._lock:
            for one in {owner, *self._owners()} - self._used.keys():
                self._used[one] = _weight(self._root / one)
            own, everybody = self._used[owner] + more, sum(self._used.values()) + more
            way_out = f"leave files out with .gitignore; what no job uses is removed after {self._lasts.days} days"
            if more and own > self._most_bytes:
                raise NotPossibleNow(
                    f"your uploaded code would take {_mb(own)}, and HOLDFAST_CODE_MB allows {_mb(self._most_bytes)}; {way_out}"
                )
            if more and everybody > self._most_total_bytes:
                raise NotPossibleNow(
                    f"the uploaded code of all users would take {_mb(everybody)}, and HOLDFAST_CODE_TOTAL_MB allows "
                    f"{_mb(self._most_total_bytes)}; {way_out}"
                )
            if commits:
                self._used[owner] = own

    def _owners(self) -> list[str]:
        return [path.name for path in self._root.glob("*")]

    def _trees(self, owner: str) -> Path:
        return self._root / owner / "trees"

    def _list(self, owner: str, tree_id: str) -> Path:
        """File with the pieces of a folder."""
        return self._root / owner / "lists" / tree_id

    def _piece(self, owner: str, digest: str) -> Path:
        return self._root / self._name_of_piece(owner, digest)

    def _name_of_piece(self, owner: str, digest: str) -> str:
        return f"{owner}/pieces/{digest[:2]}/{digest}"

    def _touch(self, path: Path | str) -> None:
        at = self._clock.now().timestamp()
        os.utime(path, (at, at))


def is_upload(workdir: str | None) -> bool:
    """Whether the `workdir` of a stored job is uploaded code."""
    return workdir is not None and workdir.startswith(REF)


def _owner(user: str) -> str:
    """The folder of a user; the service's owner has no name."""
    return f"u-{hashlib.sha256(user.encode()).hexdigest()[:32]}" if user else "owner"


def _is_shared(entry: TreeEntry) -> bool:
    """Whether a file is the same one on the disk as its piece."""
    return len(entry.pieces) == 1 and not entry.is_executable


def _cost(entry: TreeEntry) -> int:
    """What an entry takes beside its pieces, with the folder that it may be alone in."""
    return LEAST_BYTES if _is_shared(entry) else LEAST_BYTES + max(entry.size_bytes, LEAST_BYTES)


def _weight(folder: Path) -> int:
    """What everything below a folder takes, each file once."""
    return sum({found.st_ino: max(found.st_size, LEAST_BYTES) for found in _below(folder)}.values())


def _below(folder: Path) -> Iterator[os.stat_result]:
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):  # Another replica may be tidying.
                yield Path(place, name).lstat()


def _time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1024 / 1024:,.1f} MiB"
