"""What has to be true before a release is built, and its notes.

The version is written in `pyproject.toml`. Files that repeat it, because other programs read them, are compared with it.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

COPIES: Final = {
    "deploy/chart/Chart.yaml": r'^(?:version|appVersion): "?([^"\s]+)',
    "docker-compose.yml": r"^ +image: holdfast(?:-skypilot)?:(?:\S+-)?([\w.]+)",
}
"""Files that repeat the version, with a pattern of each place."""


class ReleaseError(Exception):
    """A release that cannot be made, with the reason and the remedy."""


def version_of(root: Path) -> str:
    """The version of this checkout."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def check_copies(root: Path, version: str) -> None:
    """Compare the version with the files that repeat it.

    Raises:
        ReleaseError: one of them has another version, or none.
    """
    for name, pattern in COPIES.items():
        found = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        if set(found) != {version}:
            shown = ", ".join(sorted(set(found))) or "no version"
            raise ReleaseError(
                f"{name} has {shown}, and pyproject.toml {version}: make them the same"
            )


def check_tree(root: Path) -> None:
    """Check that what is built is what is committed.

    Raises:
        ReleaseError: it is not, or this is no checkout.
    """
    changes = _git(root, "status", "--porcelain").splitlines()
    if changes:
        names = ", ".join(line[3:] for line in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise ReleaseError(
            f"the checkout has changes that are not committed ({names}{more}): "
            "commit them, or try a release with make release DRAFT=yes"
        )


def commit_time(root: Path) -> int:
    """When the commit was made, in seconds since 1970: the time of every file of the release."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def commit_of(root: Path) -> str:
    """The commit that is built."""
    return _git(root, "rev-parse", "HEAD").strip()


def release_notes(root: Path, version: str, *, is_draft: bool = False) -> str:
    """The section of the version in the changelog, without its heading.

    A draft may be of a version that is not dated yet.

    Raises:
        ReleaseError: the section is missing, empty or not dated.
    """
    changelog = (root / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## \[?{re.escape(version)}\]?(?: - (.*))?$", changelog, re.MULTILINE)
    if not heading:
        raise ReleaseError(
            f"CHANGELOG.md has no section of version {version}: "
            f"add ## {version} - YYYY-MM-DD, and below it what changes for users"
        )
    following = changelog[heading.end() :]
    notes = re.split(r"^## ", following, maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not re.search(r"^\* ", notes, re.MULTILINE):
        raise ReleaseError(
            f"the section of version {version} in CHANGELOG.md is empty: write what changes for users"
        )
    if not is_draft and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1] or ""):
        raise ReleaseError(
            f"the section of version {version} in CHANGELOG.md has no date ({heading[1] or 'nothing'}): "
            f"write ## {version} - YYYY-MM-DD, or try a release with make release DRAFT=yes"
        )
    return f"# Holdfast {version}\n\n{_with_long_lines(notes)}\n"


def images(root: Path) -> dict[str, list[str]]:
    """Images of other projects by the file that names them: bases of the image, and services beside it."""
    dockerfile = (root / "Dockerfile").read_text()
    compose = (root / "docker-compose.yml").read_text()
    return {
        "Dockerfile": re.findall(r"^ARG \w+_IMAGE=(\S+)", dockerfile, re.MULTILINE),
        "docker-compose.yml": [
            name
            for name in re.findall(r"^ +image: (\S+)", compose, re.MULTILINE)
            if not name.startswith("holdfast")
        ],
    }


def images_without_digest(root: Path) -> list[str]:
    """Images of other projects that only a tag names, which their registry may move."""
    return sorted({name for names in images(root).values() for name in names if "@" not in name})


def _with_long_lines(text: str) -> str:
    """Join the lines of each paragraph and item: pages of releases show line breaks as they are."""
    return re.sub(r"(?<=\S)\n +(?=[^\s*])", " ", text)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"a release is built from a checkout: {done.stderr.strip()}")
    return done.stdout
