"""What of a folder of code is left out: `.git`, and what its ignore file names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

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
