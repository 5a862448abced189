"""Directories on the service's machine that jobs of users may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.host.allowed_folders import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The folders of a confined job of project nlp, whose root is `data/nlp`."""
    for name in ("home/launches", "data/nlp/code", "data/nlp-secret", "data/vision"):
        (tmp_path / name).mkdir(parents=True)
    folders = Folders(tmp_path / "home", (f"{tmp_path}/data/{{project}}",))
    return folders.of_job("nlp", is_confined=True)


def test_directory_below_the_root_is_allowed(folders: Folders, tmp_path: Path) -> None:
    assert folders.refusal(tmp_path / "data/nlp") == ""
    assert folders.refusal(tmp_path / "data/nlp/code") == ""


@pytest.mark.parametrize("name", ["data", "data/nlp-secret", "data/vision", "data/nlp/../vision"])
def test_directory_outside_of_the_root_is_refused(
    folders: Folders, tmp_path: Path, name: str
) -> None:
    assert "which HOLDFAST_FOLDERS allows" in folders.refusal(tmp_path / name)


@pytest.mark.parametrize("target", ["data/vision", "home", "home/launches"])
def test_link_out_of_the_root_is_refused(folders: Folders, tmp_path: Path, target: str) -> None:
    link = tmp_path / "data/nlp/link"
    link.symlink_to(tmp_path / target)

    assert folders.refusal(link)


def test_home_is_refused_even_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    folders = Folders(tmp_path / "home", (str(tmp_path),)).of_job("nlp", is_confined=True)

    assert "the service's own directory or inside it" in folders.refusal(tmp_path / "home")
    assert "contains the service's own directory" in folders.refusal(tmp_path)


def test_owner_may_copy_a_directory_above_home_without_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    folders = Folders(tmp_path / "home")

    assert "contains the service's own directory" in folders.refusal(tmp_path)
    assert folders.refusal(tmp_path, without_home=True) == ""


def test_only_the_uploaded_code_of_the_job_is_allowed_in_home(tmp_path: Path) -> None:
    uploaded, other = tmp_path / "home/code/1", tmp_path / "home/code/2"
    for folder in (uploaded, other):
        folder.mkdir(parents=True)
    folders = Folders(tmp_path / "home").of_job("nlp", is_confined=True, uploaded=uploaded)

    assert folders.refusal(uploaded) == ""
    assert folders.refusal(other)
