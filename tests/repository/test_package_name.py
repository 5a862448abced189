"""Every message, script and page that installs the package uses its distribution name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.protocol.release import DISTRIBUTION, requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
FOLDERS = ("service/holdfast", "worker", "sky_tasks", "examples", "docs", "dashboard/src", "deploy")
LOOSE = ("README.md", "CONTRIBUTING.md", "Makefile", "Dockerfile", "docker-compose.yml", "pyproject.toml")  # fmt: skip
WORDS = frozenset({".py", ".md", ".sh", ".sbatch", ".yaml", ".yml", ".toml", ".ts", ".tsx", ""})
OTHERS = re.compile(r"(?<![\w./-])holdfast(?:\[[a-z]|==\d| @ )|pip install [^`|\n]*(?<![\w./-])holdfast(?![\w.-])")  # fmt: skip
"""Another project's name in a place that names a package."""
OURS = re.compile(rf"{DISTRIBUTION}\[([a-z,]+)\]|requirement\(['\"](\w+)['\"]\)")


def texts() -> Iterator[tuple[Path, str]]:
    """All texts with installation commands or package names."""
    found = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))
    for file in (*found, *(ROOT / name for name in LOOSE)):
        if file.is_file() and file.suffix in WORDS and "web" not in file.relative_to(ROOT).parts:
            yield file, file.read_text()


def test_project_has_the_name_that_the_code_uses() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert set(PROJECT["scripts"]) == {"holdfast", "holdfast-worker"}


def test_no_text_installs_another_project() -> None:
    found = [f"{file}: {match[0]}" for file, text in texts() for match in OTHERS.finditer(text)]

    assert found == []


def test_every_named_extra_exists() -> None:
    named = {
        extra
        for _, text in texts()
        for match in OURS.finditer(text)
        for extra in (match[1] or match[2]).split(",")
    }

    # Decision 0011 explains why this extra does not exist.
    assert named - {"skypilot"} <= EXTRAS
    assert {"service", "worker", "demo", "huggingface"} <= named


def test_documented_installation_names_a_file_or_an_address() -> None:
    lines = [
        line
        for file, text in texts()
        if file.suffix == ".md"
        for line in text.splitlines()
        if "pip install" in line and re.search(rf"{DISTRIBUTION}|holdfast_train", line)
    ]

    assert len(lines) >= 3
    assert [line for line in lines if not re.search(r" @ (file|https)://|\./dist/", line)] == []


def test_installer_of_a_node_finds_the_wheel_by_its_name() -> None:
    script = (ROOT / "sky_tasks/install.sh").read_text()
    stem = DISTRIBUTION.replace("-", "_")

    assert f"-name '{stem}-*.whl'" in script
    assert f"--reinstall-package {DISTRIBUTION} " in script
    assert (
        f"/dist/{stem}-{PROJECT['version']}-py3-none-any.whl"
        in (ROOT / "docs/howto/installation.md").read_text()
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            {"url": "file:///w/x.whl", "archive_info": {}},
            f"'{DISTRIBUTION}[demo] @ file:///w/x.whl'",
        ),
        (
            {"url": "https://git.example.com/x", "vcs_info": {"vcs": "git"}},
            f"'{DISTRIBUTION}[demo] @ git+https://git.example.com/x'",
        ),
        ({}, f"'{DISTRIBUTION}[demo]==7.8'"),
    ],
)
def test_requirement_names_where_this_version_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, object], words: str
) -> None:
    info = tmp_path / f"{DISTRIBUTION.replace('-', '_')}-7.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 7.8\n")
    if source:
        (info / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(tmp_path)

    assert requirement("demo") == words
