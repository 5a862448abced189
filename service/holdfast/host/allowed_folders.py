"""Directories of the service's machine that jobs may name.

Its owner may name any, others only those below allowed roots. The service's home contains its secret, so no job may
use it, not even in part or through a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

PROJECT: Final = "{project}"
"""Placeholder for the job's project in an allowed root."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The directories of the service's machine that a job may name."""

    home: Path | None = None
    """The home of the service; None if there is none to protect."""
    roots: Sequence[str] = ()
    """Directories that `HOLDFAST_FOLDERS` permits for confined jobs."""
    is_confined: bool = False
    """True for the job of a user without rights on this machine; False: any directory except the
    home."""
    uploaded: Path | None = None
    """The job's uploaded code, which is inside the home; None: no uploaded code."""

    def of_job(self, project: str, *, is_confined: bool, uploaded: Path | None = None) -> Folders:
        """The permissions of one job of a project."""
        roots = tuple(root.replace(PROJECT, project) for root in self.roots)
        return replace(self, roots=roots, is_confined=is_confined, uploaded=uploaded)

    def refusal(self, path: Path, *, without_home: bool = False) -> str:
        """The reason why the job may not use a path, as the end of a sentence; empty if it may.

        Links are resolved first. `without_home`: the caller excludes the home from a directory that contains it.
        """
        try:
            real = path.resolve()
            home = self.home.resolve() if self.home else None
            roots = [Path(root).resolve() for root in self.roots]
            uploaded = self.uploaded.resolve() if self.uploaded else None
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # A loop, a name that is too long, a NUL.
            return f"cannot be resolved ({error}); write another path"
        if home and real.is_relative_to(home) and real != uploaded:
            return "is the service's own directory or inside it; copy the files elsewhere"
        if home and home.is_relative_to(real) and (self.is_confined or not without_home):
            return "contains the service's own directory; name a directory below it"
        if (
            not self.is_confined
            or real == uploaded
            or any(real.is_relative_to(root) for root in roots)
        ):
            return ""
        if not roots:
            return (
                "is a directory of the service's machine, and HOLDFAST_FOLDERS allows none to users"
            )
        return f"is not below {' or '.join(map(str, roots))}, which HOLDFAST_FOLDERS allows"


def roots_in(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of roots, such as `/srv/data, /srv/projects/{project}`.

    Raises:
        ValueError: one of them is not an absolute path.
    """
    roots = tuple(filter(None, map(str.strip, text.split(","))))
    for root in roots:
        if not root.startswith("/"):
            raise ValueError(f"{root!r} is not an absolute path; write one such as /srv/data")
    return roots
