"""Directory tree of uploaded code: its entries, pieces and id; shared by client and service."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Length of all pieces of a file but the last.

A lower value makes more requests; a higher value loses more when one fails.
"""
BODY_BYTES: Final = PIECE_BYTES + 1024 * 1024
"""Maximum body of an upload: a piece, a bundle of small ones, or the list of a directory's entries."""
MOST_ENTRIES: Final = 20_000
"""Maximum entries of a directory.

A lower value refuses large repositories; a higher value slows down each launch.
"""
LONGEST_NAME_BYTES: Final = 255
LONGEST_PATH_BYTES: Final = 2048
_NO_NAMES: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file, a link or an empty directory."""

    path: str
    """Relative, with slashes; that of an empty directory ends with one."""
    size_bytes: int = 0
    pieces: tuple[str, ...] = ()
    """SHA-256 of each piece of a file in order; none for an empty one."""
    is_executable: bool = False
    link: str | None = None
    """Target of a link; None for other entries."""

    @property
    def is_folder(self) -> bool:
        """Whether it is an empty directory."""
        return self.path.endswith("/")

    def sized(self) -> Iterator[tuple[str, int]]:
        """Yield each piece with its length."""
        for number, piece in enumerate(self.pieces):
            yield piece, min(PIECE_BYTES, self.size_bytes - number * PIECE_BYTES)


def id_of(entries: Sequence[TreeEntry]) -> str:
    """Compute the id of a directory from its entries; equal content has an equal id."""
    rows = [
        {  # Equal to `dataclasses.asdict` with sorted keys, which takes four times as long.
            "is_executable": entry.is_executable,
            "link": entry.link,
            "path": entry.path,
            "pieces": entry.pieces,
            "size_bytes": entry.size_bytes,
        }
        for entry in sorted(entries, key=lambda entry: entry.path)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def tree_error(entries: Sequence[TreeEntry]) -> str | None:
    """Return the first mistake in a list of entries as a sentence, or None."""
    leaves: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        path = entry.path.removesuffix("/")
        if why := wrong_path(path) or _wrong_content(entry):
            return f"{entry.path!r} {why}"
        if path in leaves:
            return f"{entry.path!r} is listed twice; list it once"
        leaves.add(path)
        # Parents of a known directory are also known.
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    if both := leaves & folders:
        return (
            f"{min(both)!r} is listed as a directory with entries and by itself; list one of them"
        )
    return None


def wrong_path(path: str) -> str | None:
    """Return why a path is not valid in a directory, as the end of a sentence, or None."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8; rename it, or exclude it with .gitignore"
    if "\0" in path:
        return "contains a NUL character; rename it"
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
    """Whether the text of a link leads out of its directory."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return link.startswith("/") or target == ".." or target.startswith("../")


def is_within(link: Path, folder: Path) -> bool:
    """Whether a resolved link stays within a directory and is not circular."""
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _wrong_content(entry: TreeEntry) -> str | None:
    has_content = bool(entry.size_bytes or entry.pieces or entry.is_executable)
    if (entry.is_folder or entry.link is not None) and has_content:
        return "is not a file but has content; omit size, pieces and is_executable"
    if entry.link is not None:
        if entry.is_folder:
            return "is a link and a directory; omit the slash at its end"
        if not entry.link or not entry.link.isprintable():
            return f"is a link to {entry.link!r}, which is not a plain path; exclude it"
        if leads_out(entry.path, entry.link):
            return f"is a link out of the directory, to {entry.link!r}; exclude it"
    if len(entry.pieces) != -(-entry.size_bytes // PIECE_BYTES):
        return f"has {len(entry.pieces)} pieces, which do not match its size; all but the last have {PIECE_BYTES} bytes"
    return None
