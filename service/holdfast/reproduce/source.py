"""The code of a run: its commit in a folder of its own, or a sentence that says why it cannot be had."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import BadRequest
from holdfast.reproduce.git import check_out, has_commit, look


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOverride:
    """What a person says about the code."""

    repositories: Sequence[Path]
    """Where the commit is looked for, in this order."""
    to: Path
    """The folder that is made."""
    patch: Path | None = None
    """What was changed since the commit; None: nothing is to be changed."""
    as_is: bool = False
    """Whether the folder of then is taken as it is now."""


def workdir_of(manifest: Mapping[str, Any], workdir: str | None, wish: CodeOverride) -> str | None:
    """The folder with the code of then; None for a job that needs none.

    Raises:
        BadRequest: the code of then cannot be had; the message says what would help.
    """
    if workdir is None:
        return None
    if wish.as_is:
        if not Path(workdir).is_dir():
            raise BadRequest(f"there is no folder {workdir} here; leave --as-is out")
        return workdir
    commit = _commit(manifest, wish)
    home = next((place for place in wish.repositories if has_commit(place, commit)), None)
    if home is None:
        looked = ", ".join(map(str, wish.repositories))
        raise BadRequest(f"commit {commit} is in none of {looked}: clone its repository, or fetch it, and name it with --repo")  # fmt: skip
    if wish.to.exists():
        raise BadRequest(f"{wish.to} exists; name a folder that does not with --to")
    check_out(home, commit, wish.to, wish.patch)
    return str((wish.to / _folder(manifest, workdir)).absolute())


def _commit(manifest: Mapping[str, Any], wish: CodeOverride) -> str:
    commit = manifest.get("git_commit")
    if not commit:
        raise BadRequest("its manifest names no commit, so that its code cannot be had again; --as-is takes its folder as it is now")  # fmt: skip
    if manifest.get("git_dirty") and wish.patch is None:
        raise BadRequest(
            f"its code was commit {commit} with changes that nobody committed; give them with --patch FILE (as git diff prints "
            "them), or take its folder as it is now with --as-is"
        )
    return str(commit)


def _folder(manifest: Mapping[str, Any], workdir: str) -> str:
    """Where `workdir` is below the top of the repository."""
    told = (manifest.get("holdfast") or {}).get("folder")
    if told is None and (found := look(Path(workdir))):
        return found.folder
    return str(told or "")


def other_script(manifest: Mapping[str, Any], workdir: str | None) -> str | None:
    """What is wrong with the script of a folder, in words; None where it is that of then, or lies where nobody can tell."""
    name, digest = manifest.get("script"), manifest.get("script_sha256")
    if workdir is None or not name or not digest:
        return None
    found = [path for path in Path(workdir).rglob(str(name)) if path.is_file()]
    if not found or any(hashlib.sha256(p.read_bytes()).hexdigest() == digest for p in found):
        return None
    return f"{found[0]} is not the script of then: its digest is another"
