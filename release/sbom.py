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
from pathlib import Path
from typing import Any, Final

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
        options = ["--output-reproducible", "--spec-version", "1.6", "--output-file", draft]
        run([tools / "cyclonedx-py", "environment", *options, sys.executable], os.environ)
        python = json.loads(draft.read_text())
    npm = [root / "dashboard/npm.sh", "sbom", "--sbom-format=cyclonedx", "--package-lock-only"]
    dashboard = json.loads(run([*npm, "--omit=dev"], os.environ))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    bom = merge(python, dashboard, direct_requirements(project), version)
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


def direct_requirements(project: Mapping[str, Any]) -> set[str]:
    """Names of all packages that Holdfast and its extras name themselves."""
    extras = project["optional-dependencies"]
    texts = list(project["dependencies"])
    for extra in extras.keys() - NOT_DISTRIBUTED:
        texts += extras[extra]
    names = {_normal(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in texts}
    return names - {_normal(project["name"])}


def merge(python: Bom, dashboard: Bom, direct: Iterable[str], version: str) -> Bom:
    """One bill of materials with Holdfast as its subject.

    It has no serial number and no time, so that it is the same for the same commit.

    Raises:
        ReleaseError: a direct requirement is not installed.
    """
    refs = {_normal(part["name"]): part["bom-ref"] for part in python["components"]}
    if missing := sorted(set(direct) - refs.keys()):
        raise ReleaseError(f"{', '.join(missing)} is not installed here: run make setup")
    edges = {item["ref"]: item.get("dependsOn", []) for item in python["dependencies"]}
    needed = _reachable([refs[name] for name in direct], edges)
    parts = [_public(part) for part in python["components"] if part["bom-ref"] in needed]
    page = dashboard["metadata"]["component"]["bom-ref"]
    scripts = {item["ref"]: item.get("dependsOn", []) for item in dashboard["dependencies"]}
    edges |= scripts
    first = sorted([*(refs[name] for name in direct), *scripts[page]])
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
        {"ref": part["bom-ref"], "dependsOn": sorted(edges.get(part["bom-ref"], []))}
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
    pinned = {_normal(name): pin for name, _, pin in lines}
    for part in bom["components"]:
        if not part["purl"].startswith("pkg:pypi/") or _COMES_WITH_TORCH.match(part["name"]):
            continue
        pin = pinned.get(_normal(part["name"]))
        if pin != part["version"]:
            raise ReleaseError(
                f"{part['name']} is installed as {part['version']}, and requirements.lock has {pin}: run make setup"
            )


_COMES_WITH_TORCH: Final = re.compile(r"nvidia-|cuda-|triton$")
"""The CUDA build of torch pins these itself; the lock leaves them out (tests/repository/test_lock.py)."""


def _reachable(start: Iterable[str], edges: Mapping[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    pending = list(start)
    while pending:
        ref = pending.pop()
        if ref not in seen:
            seen.add(ref)
            pending += edges.get(ref, [])
    return seen


def _public(part: Bom) -> Bom:
    """A component without the build of this machine, such as `+cpu` of torch."""
    return part | {
        "version": part["version"].partition("+")[0],
        "purl": part["purl"].partition("%2B")[0],
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
