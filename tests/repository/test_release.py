"""What `make release` checks and builds. Tests that build everything are marked `full`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from release import checks, empty_environment, packages, sbom  # noqa: E402
from release.checks import ReleaseError  # noqa: E402

EPOCH = 1_700_000_000
VERSION = checks.version_of(ROOT)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILT = ("service/holdfast/web", "service/holdfast/docs_site")
"""What a release contains besides committed files."""


def need_built_files() -> None:
    if not all((ROOT / name / "index.html").exists() for name in BUILT):
        skip_or_fail("needs the dashboard and the documentation site: run make setup docs")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed checkout with the files that the checks read."""
    for name in ("pyproject.toml", "CHANGELOG.md", *checks.COPIES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        subprocess.run(git, cwd=tmp_path, check=True)
    return tmp_path


def write_section(checkout: Path, text: str) -> None:
    (checkout / "CHANGELOG.md").write_text(
        f"# Changes\n\n{text}\n\n## 0.0.9 - 2026-01-02\n\n* Old.\n"
    )


def test_version_is_the_same_everywhere() -> None:
    checks.check_copies(ROOT, VERSION)


@pytest.mark.parametrize("name", checks.COPIES)
def test_another_version_in_a_copy_is_refused(checkout: Path, name: str) -> None:
    text = (checkout / name).read_text()
    (checkout / name).write_text(text.replace(VERSION, "7.7.7", 1))

    with pytest.raises(ReleaseError, match=rf"{name} has .*7\.7\.7, and pyproject.toml {VERSION}"):
        checks.check_copies(checkout, VERSION)


def test_uncommitted_changes_are_refused_by_name(checkout: Path) -> None:
    checks.check_tree(checkout)
    (checkout / "extra.txt").touch()

    with pytest.raises(ReleaseError, match=r"not committed \(extra.txt\): .*DRAFT=yes"):
        checks.check_tree(checkout)


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="a release is built from a checkout"):
        checks.check_tree(tmp_path)


def test_commit_determines_the_time(checkout: Path) -> None:
    shown = ["git", "-C", checkout, "show", "-s", "--format=%ct %H"]
    time, commit = subprocess.check_output(shown, text=True).split()

    assert (checks.commit_time(checkout), checks.commit_of(checkout)) == (int(time), commit)


def test_notes_are_the_section_of_the_version(checkout: Path) -> None:
    write_section(
        checkout,
        "## 2.0.0 - 2026-11-27\n\n### Added\n\n* Add one thing\n  in two lines.\n* Add two.",
    )

    notes = checks.release_notes(checkout, "2.0.0")

    assert notes == ("# Holdfast 2.0.0\n\n### Added\n\n* Add one thing in two lines.\n* Add two.\n")


@pytest.mark.parametrize(
    ("section", "flaw"),
    [
        ("## 1.9.0 - 2026-11-27\n\n* Other.", "has no section of version 2.0.0: add ## 2.0.0 -"),
        ("## 2.0.0 - 2026-11-27\n\n### Added", "of version 2.0.0 in CHANGELOG.md is empty"),
        ("## 2.0.0 - Unreleased\n\n* New.", r"has no date \(Unreleased\): write ## 2.0.0 -"),
        ("## 2.0.0\n\n* New.", r"has no date \(nothing\)"),
    ],
)
def test_incomplete_section_of_the_changelog_is_refused(
    checkout: Path, section: str, flaw: str
) -> None:
    write_section(checkout, section)

    with pytest.raises(ReleaseError, match=flaw):
        checks.release_notes(checkout, "2.0.0")


def test_draft_needs_no_date_but_a_section(checkout: Path) -> None:
    write_section(checkout, "## 2.0.0 - Unreleased\n\n* New.")

    assert "* New." in checks.release_notes(checkout, "2.0.0", is_draft=True)
    with pytest.raises(ReleaseError, match=r"no section of version 3\.0\.0"):
        checks.release_notes(checkout, "3.0.0", is_draft=True)


def test_release_of_this_checkout_has_notes() -> None:
    assert checks.release_notes(ROOT, VERSION, is_draft=True).count("\n* ") > 10


def test_archives_of_equal_files_are_identical(tmp_path: Path) -> None:
    for name, mode in (("one", 0o644), ("two", 0o600)):
        (tmp_path / name / "inner").mkdir(parents=True)
        for file in ("b.txt", "inner/a.txt"):
            (tmp_path / name / file).write_text(file)
            (tmp_path / name / file).chmod(mode)
    os.utime(tmp_path / "two/b.txt", (1, 1))

    one, two = (
        packages.archive_folder(tmp_path / name, tmp_path / f"{name}.tar.gz", EPOCH)
        for name in ("one", "two")
    )

    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        assert archive.getnames() == ["b.txt", "inner/a.txt"]
        assert {(m.mtime, m.mode, m.uid) for m in archive.getmembers()} == {(EPOCH, 0o644, 0)}


def test_chart_is_packaged_the_same_every_time(tmp_path: Path) -> None:
    helm = ROOT / "build/chart/bin/helm"
    if not helm.exists():
        skip_or_fail("Helm is not installed: run make chart")
    charts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        chart = packages.package_chart(helm, ROOT / "deploy/chart", tmp_path / name, EPOCH)
        charts.append(chart)

    shown = subprocess.check_output([helm, "show", "chart", charts[0]], text=True)

    assert charts[0].name == f"holdfast-{VERSION}.tgz"
    assert charts[0].read_bytes() == charts[1].read_bytes()
    assert f"appVersion: {VERSION}" in shown


def test_chart_without_helm_names_the_target(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="run make chart"):
        packages.package_chart(tmp_path / "helm", ROOT / "deploy/chart", tmp_path, EPOCH)


def test_different_wheels_are_refused_with_names(tmp_path: Path) -> None:
    wheels = tmp_path / "one.whl", tmp_path / "two.whl"
    for wheel in wheels:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("same.py", "1")
            archive.writestr("other.py", wheel.name)

    packages.compare_wheels(wheels[0], wheels[0])
    with pytest.raises(ReleaseError, match=r"two builds of one.whl differ in other.py$"):
        packages.compare_wheels(*wheels)


def test_checksums_cover_every_file(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tgz"):
        (tmp_path / name).write_text(name)

    for _ in range(2):
        sums = packages.write_checksums(tmp_path)
    checked = subprocess.check_output(["sha256sum", "--check", sums.name], cwd=tmp_path, text=True)

    assert checked == "a.tgz: OK\nb.whl: OK\n"


def test_missing_buildah_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(ReleaseError, match=r"apt-get install buildah; .*IMAGE=no"):
        packages.require_buildah()


def test_failed_program_is_shown_with_its_output() -> None:
    with pytest.raises(ReleaseError, match=r"(?s)-c .* failed:\nbecause"):
        packages.run([sys.executable, "-c", "print('because'); raise SystemExit(3)"], os.environ)


def part(name: str, version: str, kind: str = "pypi") -> dict[str, Any]:
    """A component of a bill of materials."""
    local = version.replace("+", "%2B")
    return {
        "bom-ref": f"{name}=={version}",
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{local}",
    }


def merged(direct: set[str], edges: dict[str, set[str]]) -> dict[str, Any]:
    """A merged bill of materials of some components."""
    python = {
        "components": [part("FastAPI", "1.0"), part("torch", "2.13.0+cpu"), part("mypy", "2.0")]
    }
    react = part("react", "19.0.0", "npm") | {"bom-ref": "react@19.0.0"}
    dashboard = {
        "metadata": {"component": {"bom-ref": "page"}},
        "components": [react],
        "dependencies": [{"ref": "page", "dependsOn": ["react@19.0.0"]}],
    }
    return sbom.merge(python, dashboard, direct, "1.2.3", edges)


def test_bill_of_materials_has_both_ecosystems() -> None:
    bom = merged({"fastapi"}, {"fastapi": {"torch"}, "torch": set()})

    assert [item["purl"] for item in bom["components"]] == [
        "pkg:pypi/FastAPI@1.0",
        "pkg:npm/react@19.0.0",
        "pkg:pypi/torch@2.13.0",
    ], "mypy is not distributed, and the build of torch is of this machine"
    assert {item["ref"]: item["dependsOn"] for item in bom["dependencies"]} == {
        "holdfast-train": ["FastAPI==1.0", "react@19.0.0"],
        "FastAPI==1.0": ["torch==2.13.0"],
        "react@19.0.0": [],
        "torch==2.13.0": [],
    }
    assert not {"serialNumber", "timestamp"} & (bom.keys() | bom["metadata"].keys())


def test_version_that_is_not_locked_is_refused() -> None:
    bom = merged({"fastapi"}, {"fastapi": set()})

    sbom.check_lock(bom, "# A comment.\nfastapi==1.0\n")
    with pytest.raises(ReleaseError, match=r"FastAPI is installed as 1.0, .* has 2.0: run make"):
        sbom.check_lock(bom, "fastapi==2.0\n")


def test_only_extras_that_are_asked_for_are_needed() -> None:
    plain, server = (sbom.dependencies([Requirement(text)]) for text in ("moto", "moto[server]"))

    assert "werkzeug" in plain["moto"]
    assert "flask" not in plain["moto"]
    assert {"werkzeug", "flask"} <= server["moto"]
    with pytest.raises(ReleaseError, match="not-there is not installed here: run make setup"):
        sbom.dependencies([Requirement("not-there")])


def test_tools_of_development_are_not_distributed() -> None:
    direct = sbom.direct_requirements(PROJECT)

    assert {"fastapi", "torch", "transformers"} <= {need.name for need in direct}
    assert not {"pytest", "mypy", "hypothesis"} & sbom.dependencies(direct).keys()


def test_bill_of_materials_without_its_tool_names_the_target(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="run make release-tools"):
        sbom.write_sbom(ROOT, tmp_path, tmp_path / "bom.json", VERSION)


@pytest.mark.full
def test_bill_of_materials_is_valid_and_repeatable(tmp_path: Path) -> None:
    tools = ROOT / "build/release-tools/bin"
    if not tools.exists():
        skip_or_fail("cyclonedx-py is not installed: run make release-tools")

    one, two = (sbom.write_sbom(ROOT, tools, tmp_path / name, VERSION) for name in ("one", "two"))

    parts = json.loads(one.read_text())["components"]
    assert one.read_bytes() == two.read_bytes()
    assert {"fastapi", "torch", "react"} <= {item["name"] for item in parts}
    assert all(item["purl"] for item in parts)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_builds_of_a_commit_are_identical(tmp_path: Path) -> None:
    """Also from another folder, with another umask and other times."""
    need_built_files()
    other = tmp_path / "other"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    built = [path for name in BUILT for path in (ROOT / name).rglob("*")]
    for path in [*(ROOT / name for name in names if name), *built]:
        if path.is_file():
            copy = other / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy, follow_symlinks=False)
            if not copy.is_symlink():
                copy.chmod(path.stat().st_mode & 0o700)
    files = []
    for number, root in enumerate((ROOT, other)):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(packages.build_distributions(root, folder, EPOCH))

    for one, two in zip(*files, strict=True):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes(), one.name


@pytest.mark.full
def test_programs_of_an_environment_are_used(tmp_path: Path) -> None:
    need_built_files()

    empty_environment.use_programs(Path(sys.executable).parent, tmp_path, VERSION)
    with pytest.raises(ReleaseError, match=r"prints .*, without 9\.9\.9"):
        empty_environment.use_programs(Path(sys.executable).parent, tmp_path, "9.9.9")
