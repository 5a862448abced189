"""Git commands: the commit of a directory, and checkouts into new directories."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import BadRequest, NotInstalled

GIT_TIMEOUT_S: Final = 30.0
"""Seconds for one query.

A higher value delays a submission if the repository is on a hanging network mount.
"""


@dataclass(frozen=True, slots=True)
class GitCheckout:
    """Git state of a directory."""

    commit: str
    is_dirty: bool
    """Whether tracked files have been modified."""
    folder: str
    """Path below the top of the repository; empty for the top itself."""


def read_checkout(folder: Path) -> GitCheckout | None:
    """Read the Git state of a directory; None without Git, repository or commit."""
    try:
        commit = _output(folder, "rev-parse", "--verify", "HEAD")
        if commit is None:
            return None
        changed = _output(folder, "status", "--porcelain", "--untracked-files=no", ".")
        return GitCheckout(commit, bool(changed), (_output(folder, "rev-parse", "--show-prefix") or "").rstrip("/"))  # fmt: skip
    except (NotInstalled, BadRequest):
        return None


def has_commit(folder: Path, commit: str) -> bool:
    """Whether the repository of a directory contains a commit."""
    return folder.is_dir() and _output(folder, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def check_out(repository: Path, commit: str, to: Path, patch: Path | None = None) -> None:
    """Check out a commit into a new directory and apply a patch, if any.

    The repository's own files stay unchanged.

    Raises:
        BadRequest: git failed, with its message.
    """
    _call(repository, "worktree", "add", "--detach", str(to.absolute()), commit)
    if patch:
        _call(to, "apply", str(patch.absolute()))


def _output(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if it fails."""
    done = _run(folder, *words)
    return done.stdout.strip() if done.returncode == 0 else None


def _call(folder: Path, *words: str) -> None:
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
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise NotInstalled("git is required, and is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise BadRequest(
            f"git {words[0]} in {folder} took more than {GIT_TIMEOUT_S:.0f} s"
        ) from error
