"""The built wheel: its contents, and its use in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from holdfast_worker.protocol.release import DISTRIBUTION

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "sqlalchemy",
    "fastapi",
    "starlette",
    "uvicorn",
    "alembic",
    "boto3",
    "numpy",
    "psutil",
)
WITHOUT_HEAVY = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that contains only the wheel."""
    fresh = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python"), "install"]
    subprocess.run([*pip, "-q", "--no-index", "--no-deps", str(wheel)], check=True)
    return fresh / "bin"


def run(programs: Path, *command: str) -> str:
    """Run a program of the fresh environment with this one's dependencies; return its output."""
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    argv = [str(programs / command[0]), *command[1:]]
    result = subprocess.run(argv, env=env, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_wheel_has_only_two_top_level_packages(wheel: Path) -> None:
    members = zipfile.ZipFile(wheel).namelist()

    tops = {member.partition("/")[0] for member in members}

    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "holdfast",
        "holdfast_worker",
    }


def test_recordings_of_tests_are_not_distributed(wheel: Path) -> None:
    """Some of them have no licence that would permit it."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]

    assert "/tests" in targets["sdist"]["exclude"]
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "spot_traces" in name]


def test_wheel_contains_runtime_files_of_the_service(wheel: Path) -> None:
    members = set(zipfile.ZipFile(wheel).namelist())
    migrations = {path.name for path in (ROOT / "migrations/versions").glob("*.py")}

    assert {f"holdfast/_migrations/versions/{name}" for name in migrations} <= members
    assert "holdfast/_migrations/env.py" in members
    assert "holdfast/pricing/snapshot.csv" in members
    tasks = {"train.yaml", "smoke.yaml", "install.sh"}
    assert {f"holdfast/_sky_tasks/{name}" for name in tasks} <= members
    assert "holdfast/domain/offers.yaml" in members
    assert {"holdfast/_skypilot.lock", "holdfast/skypilot_server/holdfast_gate.py"} <= members
    assert {"holdfast/_docs/errors.md", "holdfast/_examples/tiny_gpt/train.py"} <= members
    assert {"holdfast/py.typed", "holdfast_worker/py.typed"} <= members
    assert "holdfast/web/index.html" in members
    assert [name for name in members if re.fullmatch(r"holdfast/web/assets/index-.+\.js", name)]
    assert not [member for member in members if member.endswith(".pyc")]


def test_installed_wheel_works(programs: Path) -> None:
    code = """if True:
        import holdfast, holdfast_worker.protocol.environment
        from holdfast.domain.jobfile.parser import parse_job_file
        from holdfast.rendering import render
        from holdfast.store.database import newest_revision
        print(holdfast.__file__)
        print(newest_revision())
        print(render(parse_job_file("run: echo hello").spec).text)
    """

    where, revision, *task = run(programs, "python", "-c", code).splitlines()

    assert Path(where).is_relative_to(programs.parent)
    assert revision == max(path.name[:4] for path in (ROOT / "migrations/versions").glob("*.py"))
    assert "run: echo hello" in task


def test_programs_are_installed(programs: Path) -> None:
    assert "holdfast" in run(programs, "holdfast", "--version").lower()
    assert "run" in run(programs, "holdfast-worker", "--help")


@pytest.mark.parametrize("arguments", ["serve", "up", "up --configure", "up --stop", "db current"])
def test_service_command_on_client_install_names_missing_extra(
    programs: Path, arguments: str
) -> None:
    code = f"""{WITHOUT_HEAVY}
from holdfast.cli import main
sys.argv = ["holdfast", *{arguments.split()!r}]
main()
"""
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "HOLDFAST_HOME": "/nowhere"}

    refused = subprocess.run(
        [str(programs / "python"), "-c", code], env=env, text=True, capture_output=True, check=False
    )

    assert refused.returncode == 2, refused.stderr
    assert f"pip install '{DISTRIBUTION}[service] @ file://" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_mcp_server_on_client_install_names_its_extra(programs: Path) -> None:
    code = f"""{WITHOUT_HEAVY.replace("'torch'", "'mcp', 'mcp_types', 'torch'")}
from holdfast.cli import main
sys.argv = ["holdfast", "mcp"]
main()
"""
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}

    refused = subprocess.run(
        [str(programs / "python"), "-c", code], env=env, text=True, capture_output=True, check=False
    )

    assert refused.returncode == 2, refused.stderr
    assert f"pip install '{DISTRIBUTION}[mcp] @ file://" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "module",
    [
        "holdfast.client",
        "holdfast.sdk.models",
        "holdfast.cli",
        "holdfast.submission.preview",
        "holdfast_worker.protocol.environment",
    ],
)
def test_a_client_needs_neither_database_nor_server_nor_torch(programs: Path, module: str) -> None:
    run(programs, "python", "-c", f"{WITHOUT_HEAVY}\nimport {module}")
