"""A folder of code as it is uploaded: its entries, the pieces of its files, and its id. Client and service read this alike."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Length of all pieces of a file but the last. A lower value makes more requests; a higher value loses more when one breaks."""
BODY_BYTES: Final = PIECE_BYTES + 1024 * 1024
"""Longest body of an upload: a piece or a bundle of small ones, or the list of a folder's entries."""
MOST_ENTRIES: Final = 20_000
"""Entries of a folder. A lower value refuses large repositories; a higher value makes each launch slower."""
LONGEST_NAME_BYTES: Final = 255
LONGEST_PATH_BYTES: Final = 2048
_NO_NAMES: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file, a link or an empty folder."""

    path: str
    """Relative, with slashes; that of an empty folder ends with one."""
    size_bytes: int = 0
    pieces: tuple[str, ...] = ()
    """SHA-256 of each piece of a file in order; none for an empty one."""
    is_executable: bool = False
    link: str | None = None
    """Where a link leads; None for what is no link."""

    @property
    def is_folder(self) -> bool:
        """Whether it is an empty folder."""
        return self.path.endswith("/")

    def sized(self) -> Iterator[tuple[str, int]]:
        """Each piece with its length."""
        for number, piece in enumerate(self.pieces):
            yield piece, min(PIECE_BYTES, self.size_bytes - number * PIECE_BYTES)


def id_of(entries: Sequence[TreeEntry]) -> str:
    """The id of a folder with these entries: the same content has the same."""
    rows = [
        {  # As `dataclasses.asdict` returns it with its keys sorted, which takes four times as long.
            "is_executable": entry.is_executable,
            "link": entry.link,
            "path": entry.path,
            "pieces": entry.pieces,
            "size_bytes": entry.size_bytes,
        }
        for entry in sorted(entries, key=lambda entry: entry.path)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def mistake(entries: Sequence[TreeEntry]) -> str | None:
    """The first thing wrong with a list of entries, as a sentence; None: they make a folder."""
    leaves: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        path = entry.path.removesuffix("/")
        if why := wrong_path(path) or _wrong_content(entry):
            return f"{entry.path!r} {why}"
        if path in leaves:
            return f"{entry.path!r} is listed twice; list it once"
        leaves.add(path)
        # The folders above one that was seen were seen with it.
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    if both := leaves & folders:
        return f"{min(both)!r} is listed as a folder with entries and by itself; list one of them"
    return None


def wrong_path(path: str) -> str | None:
    """Why a path cannot be one of a folder, as the end of a sentence; None: it can."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8; rename it, or leave it out with .gitignore"
    if "\0" in path:
        return "holds a NUL character; rename it"
    parts = path.split("/")
    if not _NO_NAMES.isdisjoint(parts):
        return "is not a plain relative path; write one such as src/train.py"
    if len(encoded) > LONGEST_NAME_BYTES and (
        len(encoded) > LONGEST_PATH_BYTES
        or any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts)
    ):
        return f"is too long; a name has at most {LONGEST_NAME_BYTES} bytes, a path {LONGEST_PATH_BYTES}"
    return None


def leads_out(path: str, link: str) -> bool:
    """Whether the text of a link leads out of the folder that it is in."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return link.startswith("/") or target == ".." or target.startswith("../")


def is_within(link: Path, folder: Path) -> bool:
    """Whether a link stays in a folder once all links on its way are followed, and does not lead in a circle."""
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _wrong_content(entry: TreeEntry) -> str | None:
    has_content = bool(entry.size_bytes or entry.pieces or entry.is_executable)
    if (entry.is_folder or entry.link is not None) and has_content:
        return "is no file and has content; leave out size, pieces and is_executable"
    if entry.link is not None:
        if entry.is_folder:
            return "is a link and a folder; leave out the slash at its end"
        if not entry.link or not entry.link.isprintable():
            return f"is a link to {entry.link!r}, which is no plain path; leave it out"
        if leads_out(entry.path, entry.link):
            return f"is a link out of the folder, to {entry.link!r}; leave it out"
    if len(entry.pieces) != -(-entry.size_bytes // PIECE_BYTES):
        return f"has {len(entry.pieces)} pieces, which do not fit its size; all but the last have {PIECE_BYTES} bytes"
    return None
