"""The state of a git checkout, and a checkout of its commit in a separate directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from holdfast.errors import BadRequest
from holdfast.reproduce.git import check_out, has_commit, read_checkout
from holdfast.sdk.job_files import checkout_of


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit, and a script in one of its directories."""
    top = tmp_path / "book"
    (top / "demos").mkdir(parents=True)
    (top / "demos/train.py").write_text("print(1)\n")
    (top / "notes.txt").write_text("old\n")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-qm", "begin")
    return top


def test_checkout_is_described_by_commit_and_path(repository: Path) -> None:
    clean = read_checkout(repository / "demos")
    (repository / "notes.txt").write_text("new\n")
    checkout = read_checkout(repository / "demos")
    (repository / "demos/train.py").write_text("print(2)\n")
    changed = read_checkout(repository / "demos")
    top = read_checkout(repository)

    assert clean
    assert checkout
    assert changed
    assert top
    assert (clean.commit, clean.folder) == (git(repository, "rev-parse", "HEAD"), "demos")
    assert [clean.is_dirty, checkout.is_dirty, changed.is_dirty] == [False, False, True]
    assert top.folder == ""


def test_folder_without_a_repository_has_no_state(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")

    assert read_checkout(tmp_path) is None
    assert read_checkout(tmp_path / "empty") is None, "the repository has no commit"
    assert read_checkout(tmp_path / "nowhere") is None
    assert not has_commit(tmp_path / "nowhere", "abc")


@pytest.mark.parametrize("text", ["workdir: [", "- a list", "run: 'true'", "workdir: {url: x}", "workdir: ~nobody-at-all/x"])  # fmt: skip
def test_job_file_without_a_workdir_is_no_git_error(text: str) -> None:
    assert checkout_of(text) is None


def test_workdir_of_a_job_file_is_inspected(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)

    result = checkout_of("workdir: demos\nrun: python train.py\n")

    assert result
    assert (result.folder, result.is_dirty) == ("demos", False)


def test_earlier_commit_is_checked_out_into_its_own_directory(
    repository: Path, tmp_path: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "demos/train.py").write_text("print(2)\n")
    patch = tmp_path / "change.patch"
    patch.write_text(git(repository, "diff") + "\n")
    git(repository, "commit", "-qam", "later")

    check_out(repository, commit, tmp_path / "then")
    check_out(repository, commit, tmp_path / "patched", patch)

    assert (tmp_path / "then/demos/train.py").read_text() == "print(1)\n"
    assert (tmp_path / "patched/demos/train.py").read_text() == "print(2)\n"
    assert has_commit(repository, commit)
    assert not has_commit(repository, "0" * 40)
    with pytest.raises(BadRequest, match=r"git worktree failed: .*already exists"):
        check_out(repository, commit, tmp_path / "then")
