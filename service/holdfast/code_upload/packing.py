"""Packing of a local directory into entries and pieces, without `.git` and ignored files."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from holdfast.code_upload.tree import (
    MOST_ENTRIES,
    PIECE_BYTES,
    TreeEntry,
    is_within,
    leads_out,
    wrong_path,
)
from holdfast.errors import BadRequest

IGNORE_FILES: Final = (".skyignore", ".gitignore")
"""The first existing one applies, as in SkyPilot; only at the root."""


def ignored_by(content: bytes) -> GitIgnoreSpec:
    """Parse an ignore file.

    Raises:
        ValueError: it is invalid.
    """
    return GitIgnoreSpec.from_lines(content.decode(errors="surrogateescape").splitlines())


def is_included(name: str, ignored: GitIgnoreSpec) -> bool:
    """Whether a relative name is uploaded; directories end with a slash."""
    # The matcher refuses lone surrogates, which stand for bytes of a name that is not UTF-8.
    text = name.encode(errors="replace").decode()
    return Path(name).name != ".git" and not ignored.match_file(text)


_KINDS: Final = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe"}


class ChangedFile(Exception):
    """A file changed since it was first read."""


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """Location of a piece."""

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFolder:
    """A directory, read once."""

    top: Path
    entries: tuple[TreeEntry, ...]
    locations: Mapping[str, PieceLocation]
    """Location of each piece, by its SHA-256."""
    notes: tuple[str, ...]
    """Entries excluded without an ignore file, as sentences."""

    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
        return sum(entry.size_bytes for entry in self.entries)

    def read(self, piece: str) -> bytes:
        """Read the content of a piece.

        Raises:
            ChangedFile: it no longer exists.
        """
        place = self.locations[piece]
        try:
            with (self.top / place.path).open("rb") as file:
                file.seek(place.offset)
                content = file.read(place.size_bytes)
        except OSError as error:
            raise ChangedFile(place.path) from error
        if hashlib.sha256(content).hexdigest() != piece:
            raise ChangedFile(place.path)
        return content


def pack(folder: Path) -> PackedFolder:
    """Pack the current state of a directory.

    Raises:
        BadRequest: an entry cannot be uploaded; the message names it.
        ChangedFile: a file changed while it was read.
    """
    top, places, notes = folder.resolve(), dict[str, PieceLocation](), list[str]()
    entries: list[TreeEntry] = []
    try:
        for path in _names(top):
            if len(entries) == MOST_ENTRIES:
                raise BadRequest(_too_many(top))
            if entry := _entry(top, path, places, notes):
                entries.append(entry)
    except OSError as error:
        raise BadRequest(f"{error.filename} cannot be read: {error.strerror}") from error
    return PackedFolder(top=top, entries=tuple(entries), locations=places, notes=tuple(notes))


def _names(top: Path) -> Iterator[str]:
    """Yield relative names of all entries to upload; empty directories end with a slash."""
    ignored = _ignored(top)
    for place, folders, files in os.walk(top, onerror=_raise):
        below = Path(place).relative_to(top)
        sent = [name for name in folders if is_included(f"{below / name}/", ignored)]
        links = [name for name in sent if Path(place, name).is_symlink()]
        folders[:] = sorted(set(sent) - set(links))
        own = sorted([*links, *(name for name in files if is_included(str(below / name), ignored))])
        if not folders and not own and below.parts:
            yield f"{below}/"
        for name in own:
            yield str(below / name)


def _ignored(top: Path) -> GitIgnoreSpec:
    for name in IGNORE_FILES:
        if (file := top / name).is_file():
            try:
                return ignored_by(file.read_bytes())
            except ValueError as error:
                raise BadRequest(f"{file}: {error}; correct the pattern") from error
    return ignored_by(b"")


def _entry(
    top: Path, path: str, places: dict[str, PieceLocation], notes: list[str]
) -> TreeEntry | None:
    """Create an entry and record its pieces; None, with a note, for entries without content."""
    if why := wrong_path(path.removesuffix("/")):
        raise BadRequest(f"{path!r} {why}")
    file = top / path
    mode = file.lstat().st_mode
    if stat.S_ISLNK(mode):
        link = str(file.readlink())
        if _is_loop(file):
            raise BadRequest(
                f"{path!r} is a link that leads to itself; remove it, or exclude it with .gitignore"
            )
        if leads_out(path, link) or not is_within(file, top):
            raise BadRequest(
                f"{path!r} is a link out of the directory, to {link!r}; copy its target, or exclude it with .gitignore"
            )
        return TreeEntry(path=path, link=link)
    if stat.S_ISDIR(mode):
        return TreeEntry(path=path)
    if not stat.S_ISREG(mode):
        notes.append(
            f"{path!r} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, and is not uploaded"
        )
        return None
    size, pieces = 0, list[str]()
    with file.open("rb") as stream:
        before = os.fstat(stream.fileno())
        while content := stream.read(PIECE_BYTES):
            pieces.append(hashlib.sha256(content).hexdigest())
            places[pieces[-1]] = PieceLocation(path, size, len(content))
            size += len(content)
        after = os.fstat(stream.fileno())
    # Parts from before and after a change would make a file that never existed.
    if (before.st_mtime_ns, before.st_size) != (
        after.st_mtime_ns,
        after.st_size,
    ) or size != after.st_size:
        raise ChangedFile(path)
    return TreeEntry(
        path=path,
        size_bytes=size,
        pieces=tuple(pieces),
        is_executable=bool(mode & stat.S_IXUSR),
    )


def _is_loop(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _too_many(top: Path) -> str:
    """Describe a directory with too many entries, with its largest subdirectories."""
    counts = Counter(path.partition("/")[0] for path in _names(top))
    largest = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(3))
    return (
        f"{top} contains {counts.total():,} files, and at most {MOST_ENTRIES:,} are uploaded; most are in {largest}; "
        "exclude them with .gitignore"
    )


def _raise(error: OSError) -> None:
    """Raise the error; os.walk would skip an unreadable directory."""
    raise error
