"""Code of a run: its commit in a new directory, or the reason why it is unavailable."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import BadRequest
from holdfast.reproduce.git import check_out, has_commit, read_checkout


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOverride:
    """Options for the source of the code."""

    repositories: Sequence[Path]
    """Repositories to search for the commit, in this order."""
    to: Path
    """The directory to create."""
    patch: Path | None = None
    """Changes since the commit; None: no patch."""
    as_is: bool = False
    """Whether to use the original directory in its current state."""


def workdir_of(
    manifest: Mapping[str, Any], workdir: str | None, override: CodeOverride
) -> str | None:
    """Return a directory with the original code; None for a job without one.

    Raises:
        BadRequest: the original code is unavailable; the message names the remedy.
    """
    if workdir is None:
        return None
    if override.as_is:
        if not Path(workdir).is_dir():
            raise BadRequest(f"the directory {workdir} does not exist here; omit --as-is")
        return workdir
    commit = _commit(manifest, override)
    home = next((place for place in override.repositories if has_commit(place, commit)), None)
    if home is None:
        looked = ", ".join(map(str, override.repositories))
        raise BadRequest(f"commit {commit} is in none of {looked}: clone its repository, or fetch it, and name it with --repo")  # fmt: skip
    if override.to.exists():
        raise BadRequest(f"{override.to} exists; name a folder that does not with --to")
    check_out(home, commit, override.to, override.patch)
    return str((override.to / _folder(manifest, workdir)).absolute())


def _commit(manifest: Mapping[str, Any], override: CodeOverride) -> str:
    commit = manifest.get("git_commit")
    if not commit:
        raise BadRequest("its manifest names no commit, so its code is unavailable; --as-is uses its directory in its current state")  # fmt: skip
    if manifest.get("git_dirty") and override.patch is None:
        raise BadRequest(
            f"its code was commit {commit} with uncommitted changes; pass them with --patch FILE (the output of git diff), "
            "or use its directory in its current state with --as-is"
        )
    return str(commit)


def _folder(manifest: Mapping[str, Any], workdir: str) -> str:
    """Return the path of `workdir` below the top of the repository."""
    folder_path = (manifest.get("holdfast") or {}).get("folder")
    if folder_path is None and (found := read_checkout(Path(workdir))):
        return found.folder
    return str(folder_path or "")


def script_mismatch(manifest: Mapping[str, Any], workdir: str | None) -> str | None:
    """Describe how the script of a directory differs from the original.

    None if it is the same or unknown.
    """
    name, digest = manifest.get("script"), manifest.get("script_sha256")
    if workdir is None or not name or not digest:
        return None
    found = [path for path in Path(workdir).rglob(str(name)) if path.is_file()]
    if not found or any(hashlib.sha256(p.read_bytes()).hexdigest() == digest for p in found):
        return None
    return f"{found[0]} is not the original script: its digest differs"
