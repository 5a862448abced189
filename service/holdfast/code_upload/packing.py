"""What of a folder of code is left out: `.git`, and what its ignore file names.

A folder of this machine as entries and pieces to be uploaded, without what its ignore file names.
"""

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
"""The first that is there counts, as in SkyPilot; only the one at the root does."""


def ignored_by(content: bytes) -> GitIgnoreSpec:
    """What an ignore file names.

    Raises:
        ValueError: it cannot be understood.
    """
    return GitIgnoreSpec.from_lines(content.decode(errors="surrogateescape").splitlines())


def goes(name: str, ignored: GitIgnoreSpec) -> bool:
    """True for a relative name that is sent; directories end with a slash."""
    # The matcher takes no half characters, which stand for bytes of a name that is not UTF-8.
    text = name.encode(errors="replace").decode()
    return Path(name).name != ".git" and not ignored.match_file(text)


_KINDS: Final = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe"}


class ChangedFile(Exception):
    """A file is another one than it was when it was read first."""


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """Where a piece is."""

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFolder:
    """A folder, read once."""

    top: Path
    entries: tuple[TreeEntry, ...]
    places: Mapping[str, PieceLocation]
    """Of each piece, by its SHA-256."""
    notes: tuple[str, ...]
    """What is left out though no ignore file names it, as sentences."""

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(entry.size_bytes for entry in self.entries)

    def read(self, piece: str) -> bytes:
        """The content of a piece.

        Raises:
            ChangedFile: it is not there any more.
        """
        place = self.places[piece]
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
    """A folder as it is now.

    Raises:
        BadRequest: something in it cannot be uploaded, by its name.
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
    return PackedFolder(top=top, entries=tuple(entries), places=places, notes=tuple(notes))


def _names(top: Path) -> Iterator[str]:
    """Relative names of all that is sent; those of empty folders end with a slash."""
    ignored = _ignored(top)
    for place, folders, files in os.walk(top, onerror=_raise):
        below = Path(place).relative_to(top)
        sent = [name for name in folders if goes(f"{below / name}/", ignored)]
        links = [name for name in sent if Path(place, name).is_symlink()]
        folders[:] = sorted(set(sent) - set(links))
        own = sorted([*links, *(name for name in files if goes(str(below / name), ignored))])
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
    """One entry, whose pieces are noted; None, with a note, for what has no content."""
    if why := wrong_path(path.removesuffix("/")):
        raise BadRequest(f"{path!r} {why}")
    file = top / path
    mode = file.lstat().st_mode
    if stat.S_ISLNK(mode):
        link = str(file.readlink())
        if _is_loop(file):
            raise BadRequest(
                f"{path!r} is a link that leads to itself; remove it, or leave it out with .gitignore"
            )
        if leads_out(path, link) or not is_within(file, top):
            raise BadRequest(
                f"{path!r} is a link out of the folder, to {link!r}; copy what it leads to, or leave it out with .gitignore"
            )
        return TreeEntry(path=path, link=link)
    if stat.S_ISDIR(mode):
        return TreeEntry(path=path)
    if not stat.S_ISREG(mode):
        notes.append(f"{path!r} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, and is left out")
        return None
    size, pieces = 0, list[str]()
    with file.open("rb") as stream:
        before = os.fstat(stream.fileno())
        while content := stream.read(PIECE_BYTES):
            pieces.append(hashlib.sha256(content).hexdigest())
            places[pieces[-1]] = PieceLocation(path, size, len(content))
            size += len(content)
        after = os.fstat(stream.fileno())
    # A part of before the change and one of after it would make a file that never was.
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
    """What is wrong with a folder of too many entries, with the folders that have most."""
    counts = Counter(path.partition("/")[0] for path in _names(top))
    largest = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(3))
    return (
        f"{top} holds {counts.total():,} files, and at most {MOST_ENTRIES:,} are uploaded; most are in {largest}; "
        "leave them out with .gitignore"
    )


def _raise(error: OSError) -> None:
    """os.walk would skip a folder that it cannot read."""
    raise error
