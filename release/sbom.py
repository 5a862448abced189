"""The software bill of materials: every package that this version of Holdfast is used with, in CycloneDX.

`cyclonedx-py` describes the Python packages of the development environment, which has the versions of requirements.lock,
and `npm sbom` the packages that the dashboard is built from. What only development needs is left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.checks import ReleaseError
from release.packages import run

Bom = dict[str, Any]

ROOT_REF: Final = "holdfast-train"
NOT_DISTRIBUTED: Final = {"dev"}
"""Extras that no user installs."""


def write_sbom(root: Path, tools: Path, target: Path, version: str) -> Path:
    """Write the bill of materials of the checkout; return its path.

    `tools` is the folder of programs with `cyclonedx-py`.

    Raises:
        ReleaseError: a tool is missing or fails, a version differs from the lock, or the result is invalid.
    """
    if not (tools / "cyclonedx-py").is_file():
        raise ReleaseError(f"{tools}/cyclonedx-py is missing: run make release-tools")
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "python.json")
        options: list[str | Path] = [
            "--output-reproducible",
            "--spec-version",
            "1.6",
            "--output-file",
            draft,
        ]
        run([tools / "cyclonedx-py", "environment", *options, sys.executable], os.environ)
        python = json.loads(draft.read_text())
    npm: list[str | Path] = [
        root / "dashboard/npm.sh",
        "sbom",
        "--sbom-format=cyclonedx",
        "--package-lock-only",
    ]
    dashboard = json.loads(run([*npm, "--omit=dev"], os.environ))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    direct = direct_requirements(project)
    names = {canonicalize_name(need.name) for need in direct}
    bom = merge(python, dashboard, names, version, dependencies(direct))
    check_lock(bom, (root / "requirements.lock").read_text())
    target.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")
    run([tools / "python", "-c", _VALIDATE, target], os.environ)
    return target


_VALIDATE: Final = """
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(pathlib.Path(sys.argv[1]).read_text())
sys.exit(error and f"the bill of materials is invalid: {error}")
"""


def direct_requirements(project: Mapping[str, Any]) -> list[Requirement]:
    """What Holdfast and its extras require themselves."""
    extras = project["optional-dependencies"]
    texts = list(project["dependencies"])
    for extra in extras.keys() - NOT_DISTRIBUTED:
        texts += extras[extra]
    needs = [Requirement(text) for text in texts]
    return [need for need in needs if need.name != project["name"]]


def dependencies(direct: Iterable[Requirement]) -> dict[str, set[str]]:
    """The names of all needed packages, each with those that it needs here.

    Only extras that are asked for count: cyclonedx-py would follow all, and so from a user's package to pytest.

    Raises:
        ReleaseError: one of them is not installed.
    """
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = list(direct)
    while pending:
        need = pending.pop()
        name, extras = canonicalize_name(need.name), frozenset(need.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            texts = distribution(name).requires or []
        except PackageNotFoundError as error:
            raise ReleaseError(f"{name} is not installed here: run make setup") from error
        inner = [item for item in map(Requirement, texts) if _applies(item, extras)]
        found.setdefault(name, set()).update(canonicalize_name(item.name) for item in inner)
        pending += inner
    return found


def _applies(need: Requirement, extras: Iterable[str]) -> bool:
    marker = need.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def merge(
    python: Bom, dashboard: Bom, direct: Iterable[str], version: str, edges: Mapping[str, set[str]]
) -> Bom:
    """One bill of materials with Holdfast as its subject.

    It has no serial number and no time, so that it is the same for the same commit.
    """
    refs: dict[str, str] = {
        canonicalize_name(part["name"]): part["bom-ref"].partition("+")[0]
        for part in python["components"]
    }
    parts = [
        _public(part) for part in python["components"] if canonicalize_name(part["name"]) in edges
    ]
    depends_on = {refs[name]: [refs[other] for other in others] for name, others in edges.items()}
    page = dashboard["metadata"]["component"]["bom-ref"]
    depends_on |= {item["ref"]: item.get("dependsOn", []) for item in dashboard["dependencies"]}
    first = sorted([*(refs[name] for name in direct), *depends_on[page]])
    parts += dashboard["components"]
    subject = {
        "type": "application",
        "bom-ref": ROOT_REF,
        "name": ROOT_REF,
        "version": version,
        "purl": f"pkg:pypi/{ROOT_REF}@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    depends = [
        {"ref": part["bom-ref"], "dependsOn": sorted(depends_on.get(part["bom-ref"], []))}
        for part in parts
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": sorted(parts, key=lambda part: str(part["bom-ref"])),
        "dependencies": [
            {"ref": ROOT_REF, "dependsOn": first},
            *sorted(depends, key=lambda item: str(item["ref"])),
        ],
    }


def check_lock(bom: Bom, lock: str) -> None:
    """Compare the versions of Python packages with the lock.

    Raises:
        ReleaseError: they differ, or a package is not in the lock.
    """
    lines = (line.partition("==") for line in lock.splitlines() if not line.startswith("#"))
    pinned = {canonicalize_name(name): pin for name, _, pin in lines}
    for part in bom["components"]:
        if not part["purl"].startswith("pkg:pypi/") or _COMES_WITH_TORCH.match(part["name"]):
            continue
        pin = pinned.get(canonicalize_name(part["name"]))
        if pin != part["version"]:
            raise ReleaseError(
                f"{part['name']} is installed as {part['version']}, and requirements.lock has {pin}: run make setup"
            )


_COMES_WITH_TORCH: Final = re.compile(r"nvidia-|cuda-|triton$")
"""The CUDA build of torch pins these itself; the lock leaves them out (tests/repository/test_lock.py)."""


def _public(part: Bom) -> Bom:
    """A component without the build of this machine, such as `+cpu` of torch."""
    return part | {
        "bom-ref": part["bom-ref"].partition("+")[0],
        "version": part["version"].partition("+")[0],
        "purl": part["purl"].partition("%2B")[0],
    }
