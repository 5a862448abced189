"""Git as seen from outside: which commit a folder is at, and a commit in a folder of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import BadRequest, NotInstalled

ASK_S: Final = 30.0
"""For one question. Longer holds up a submission for a repository on a network that hangs."""


@dataclass(frozen=True, slots=True)
class GitCheckout:
    """What a folder is in its repository."""

    commit: str
    is_dirty: bool
    """Whether files that git knows are others by now."""
    folder: str
    """The folder below the top of the repository; empty for the top itself."""


def look(folder: Path) -> GitCheckout | None:
    """What a folder is in its repository; None where there is no git, no repository, or no commit in it."""
    try:
        commit = _ask(folder, "rev-parse", "--verify", "HEAD")
        if commit is None:
            return None
        changed = _ask(folder, "status", "--porcelain", "--untracked-files=no", ".")
        return GitCheckout(commit, bool(changed), (_ask(folder, "rev-parse", "--show-prefix") or "").rstrip("/"))  # fmt: skip
    except (NotInstalled, BadRequest):
        return None


def has_commit(folder: Path, commit: str) -> bool:
    """Whether the repository of a folder has this commit."""
    return folder.is_dir() and _ask(folder, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def check_out(repository: Path, commit: str, to: Path, patch: Path | None = None) -> None:
    """Put a commit into a folder of its own, and a patch over it if there is one. The repository's own files stay as they are.

    Raises:
        BadRequest: git cannot, in its own words.
    """
    _tell(repository, "worktree", "add", "--detach", str(to.absolute()), commit)
    if patch:
        _tell(to, "apply", str(patch.absolute()))


def _ask(folder: Path, *words: str) -> str | None:
    """What git says; None where it has no answer."""
    done = _run(folder, *words)
    return done.stdout.strip() if done.returncode == 0 else None


def _tell(folder: Path, *words: str) -> None:
    done = _run(folder, *words)
    if done.returncode:
        why = done.stderr.strip().splitlines()
        raise BadRequest(f"git {words[0]} failed: {why[-1] if why else done.returncode}")


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
        )
    except OSError as error:
        raise NotInstalled("this needs git, which is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise BadRequest(f"git {words[0]} in {folder} took more than {ASK_S:.0f} s") from error
