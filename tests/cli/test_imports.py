"""Imports of a command: version and completions load no packages of other commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"alembic", "boto3", "fastapi", "httpx2", "numpy", "pydantic", "pydantic_settings", "sqlalchemy", "torch", "uvicorn", "yaml"}  # fmt: skip
PROGRAM = """
import json, sys
from holdfast.cli import main
sys.argv[0] = "holdfast"
try:
    main()
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def run(*args: str, **env: str) -> tuple[list[str], set[str]]:
    """Run a command; returns its output and the packages that it imports."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, imported = done.stdout.splitlines()
    return lines, set(json.loads(imported))


def test_version_imports_no_heavy_package() -> None:
    lines, imported = run("--version")

    assert lines[0].startswith("holdfast ")
    assert not imported & HEAVY


@pytest.mark.parametrize(("line", "index"), [("holdfast pr", "1"), ("holdfast ", "1")])
def test_completion_of_a_command_imports_no_heavy_package(line: str, index: str) -> None:
    lines, imported = run(_HOLDFAST_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=index)

    assert {"prices", "prove", "preempt", "projects"} <= set(lines)
    assert not imported & (HEAVY - {"pydantic"})  # Typer itself imports it to convert values.


def test_completion_of_an_option_imports_no_server() -> None:
    lines, imported = run(
        _HOLDFAST_COMPLETE="complete_bash", COMP_WORDS="holdfast ps --", COMP_CWORD="2"
    )

    assert {"--status", "--json"} <= set(lines)
    assert not imported & {"alembic", "boto3", "fastapi", "sqlalchemy", "torch", "uvicorn"}
