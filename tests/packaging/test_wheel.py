"""The wheel that a service packs installs on nodes and contains the running code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from holdfast.packaging.wheel import own_wheel, wheelhouse

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheelhouse of this checkout."""
    return wheelhouse(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The initial packages of a new Python.

    Their installation takes five seconds, a copy a moment.
    """
    fresh = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True)
    (site,) = fresh.glob("lib/python3*/site-packages")
    return site


@pytest.fixture
def node(tmp_path: Path, pip: Path) -> dict[str, str]:
    """The environment of a shell on a node: an empty Python, without a package index."""
    empty = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "python")]
    subprocess.run(empty, check=True)
    (site,) = tmp_path.glob("python/lib/python3*/site-packages")
    shutil.copytree(pip, site, dirs_exist_ok=True)
    return {
        "PATH": f"{tmp_path / 'python' / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
    }


@pytest.fixture
def torch(node: dict[str, str]) -> None:
    """An image with torch: all packages of this environment except for Holdfast."""
    image = Path(node["HOME"]) / "image"
    image.mkdir()
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        if "holdfast" not in item.name and item.suffix != ".pth":
            (image / item.name).symlink_to(item)
    site = packages(node)
    # The pip of a new environment is too old for torch.
    for old in site.glob("setuptools*"):
        shutil.rmtree(old)
    (site / "image.pth").write_text(f"{image}\n")


def packages(node: dict[str, str]) -> Path:
    """The site-packages of the node's Python."""
    (site,) = Path(node["HOME"]).glob("python/lib/python3*/site-packages")
    return site


def program(file: Path, text: str) -> Path:
    """Create a program at this path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return file


def old_python(file: Path) -> Path:
    """Create a Python that is too old for the worker."""
    return program(file, '[ "$1" = --version ] && echo Python 3.10.12\nexit 1\n')


def run(env: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, text=True, capture_output=True, check=False)


def test_equal_files_yield_one_wheel(wheel_folder: Path, tmp_path: Path) -> None:
    again = wheelhouse(tmp_path)

    before = own_wheel(tmp_path).stat().st_mtime_ns
    assert wheelhouse(tmp_path) == again
    assert own_wheel(tmp_path).stat().st_mtime_ns == before
    assert again.name == wheel_folder.name
    assert own_wheel(tmp_path).read_bytes() == next(wheel_folder.glob("*.whl")).read_bytes()
    assert {path.suffix for path in again.iterdir()} == {".whl", ".sh"}


def test_wheel_contains_the_running_code(wheel_folder: Path) -> None:
    with zipfile.ZipFile(next(wheel_folder.glob("*.whl"))) as wheel:
        members = set(wheel.namelist())
        wire = wheel.read("holdfast_worker/protocol/environment.py")

    assert wire == (ROOT / "worker/holdfast_worker/protocol/environment.py").read_bytes()
    assert {"holdfast/domain/offers.yaml", "holdfast_worker/py.typed"} <= members
    assert not [name for name in members if "__pycache__" in name or name.endswith(".pyc")]
    assert not [name for name in members if name.startswith("holdfast/docs_site/")], (
        "no node needs it"
    )


def test_installed_worker_is_on_the_path(wheel_folder: Path, node: dict[str, str]) -> None:
    installed = run(node, "bash", str(wheel_folder / "install.sh"), "bare")
    again = run(node, "bash", "-x", str(wheel_folder / "install.sh"), "bare")
    # The worker's dependencies come from this environment; only the wheel is under test.
    helped = run({**node, "PYTHONPATH": sysconfig.get_path("purelib")}, "holdfast-worker", "--help")

    assert installed.returncode == 0, installed.stderr
    assert again.returncode == 0
    assert "pip install" not in again.stderr
    assert helped.returncode == 0, helped.stderr
    assert "run" in helped.stdout


@pytest.mark.full
@pytest.mark.usefixtures("torch")
def test_install_with_dependencies_present_needs_no_index(
    wheel_folder: Path, node: dict[str, str]
) -> None:
    installed = run(node, "bash", str(wheel_folder / "install.sh"), "worker")
    helped = run(node, "holdfast-worker", "--help")

    assert installed.returncode == helped.returncode == 0, installed.stderr + helped.stderr
    assert (packages(node) / "holdfast_worker/protocol/environment.py").exists()


def test_install_without_writable_stamp_succeeds(wheel_folder: Path, node: dict[str, str]) -> None:
    """As in a conda environment of root, where pip installs elsewhere.

    A directory also stops root.
    """
    (Path(node["HOME"]) / "python/.holdfast-wheel").mkdir()

    installed = run(node, "bash", str(wheel_folder / "install.sh"), "bare")

    assert (installed.returncode, installed.stderr) == (0, "")
    assert (packages(node) / "holdfast_worker/protocol/environment.py").exists()


@pytest.mark.full
def test_install_with_unmet_dependencies_fails_with_message(
    wheel_folder: Path, node: dict[str, str]
) -> None:
    refused = run(node, "bash", str(wheel_folder / "install.sh"), "worker")

    assert refused.returncode == 1
    assert "holdfast: the worker could not be installed: see the lines above; " in refused.stderr


def test_missing_wheel_is_reported_with_its_folder(
    wheel_folder: Path, node: dict[str, str]
) -> None:
    alone = Path(node["HOME"]) / "alone"
    alone.mkdir()
    (alone / "install.sh").write_bytes((wheel_folder / "install.sh").read_bytes())

    refused = run(node, "bash", str(alone / "install.sh"))

    assert refused.returncode == 1
    assert f"no wheel in {alone}" in refused.stderr


def test_old_python_of_the_user_is_kept(
    wheel_folder: Path, node: dict[str, str], tmp_path: Path
) -> None:
    old = old_python(tmp_path / "old" / "python")

    refused = run(
        {**node, "PATH": f"{old.parent}{os.pathsep}{node['PATH']}"},
        "bash",
        str(wheel_folder / "install.sh"),
    )

    assert refused.returncode == 1
    assert f"{old} is Python 3.10.12, but 3.11 is needed; activate a newer one" in refused.stderr


@pytest.mark.full
@pytest.mark.usefixtures("torch")
def test_old_python_is_replaced_for_a_task_with_the_worker(
    wheel_folder: Path, node: dict[str, str]
) -> None:
    home = Path(node["HOME"])
    old = old_python(home / "sky-user-env/bin/python")
    # `uv venv` is replaced by this environment's own Python.
    program(
        home / ".local/bin/uv",
        f'echo "$@" > {home}/asked\nrm -r {home}/sky-user-env\nmv {home}/python {home}/sky-user-env\n',
    )

    installed = run(
        {**node, "PATH": f"{old.parent}:/usr/bin:/bin"},
        "bash",
        str(wheel_folder / "install.sh"),
        "worker",
    )

    assert installed.returncode == 0, installed.stderr
    assert "Python 3.10.12 is older than 3.11" in installed.stderr
    assert "without the packages of the image" in installed.stderr
    assert (home / "asked").read_text().split()[-3:] == ["--python", "3.12", str(old.parents[1])]


@pytest.mark.parametrize("place", ["sky-user-env/bin/python", "conda/bin/python"])
def test_task_without_the_worker_keeps_its_python(
    wheel_folder: Path, node: dict[str, str], place: str
) -> None:
    home = Path(node["HOME"])
    old = old_python(home / place)
    before = old.read_bytes()
    program(home / ".local/bin/uv", f"touch {home}/asked\nexit 1\n")

    passed = run(
        {**node, "PATH": f"{old.parent}:/usr/bin:/bin"},
        "bash",
        str(wheel_folder / "install.sh"),
        "bare",
    )

    (line,) = passed.stderr.splitlines()
    assert passed.returncode == 0
    assert "continuing without the worker" in line
    assert f"{old} is Python 3.10.12, but 3.11 is needed" in line
    assert old.read_bytes() == before
    assert not (home / "asked").exists()


def test_task_without_the_worker_tolerates_a_failed_install(
    wheel_folder: Path, node: dict[str, str], tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(wheel_folder / "install.sh", alone)
    (alone / "holdfast_train-0-py3-none-any.whl").write_text("torn")

    passed = run(node, "bash", str(alone / "install.sh"), "bare")

    assert passed.returncode == 0
    assert "continuing without the worker" in passed.stderr
