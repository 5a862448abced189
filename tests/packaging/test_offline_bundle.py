"""Requirements of nodes without a network: packed into a tar file and installed offline."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from holdfast.errors import BadRequest, Unavailable
from holdfast.packaging.offline_bundle import BundleRequest, pack
from support.wheels import wheel_of

NO_INDEX = "http://127.0.0.1:9/simple"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as pip's only index, with two small packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel_of(folder, "tiny", "1.2", requires=("tinier>=2",))
    wheel_of(folder, "tinier", "2.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    file = tmp_path / "requirements.txt"
    file.write_text("tiny==1.2\n")
    return file


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the node, where pip has only an index that refuses every connection."""
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), "PIP_INDEX_URL": NO_INDEX}  # fmt: skip
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_offline_node_installs_the_packed_requirements(
    index: Path, requirements: Path, tmp_path: Path
) -> None:
    packed = pack(BundleRequest(requirements=requirements, bare=True), tmp_path / "wheels.tar")
    for file in index.iterdir():
        file.unlink()
    node = tmp_path / "node"
    node.mkdir()
    with tarfile.open(packed.file) as tar:
        tar.extractall(node, filter="data")

    done = run(node, "bash", "holdfast-wheels/install.sh", "env")
    output = run(node, "env/bin/python", "-c", "import tiny, tinier, holdfast_worker.protocol.environment; print(tiny.__version__)")  # fmt: skip
    (node / "holdfast-wheels/wheels/tinier-2.5-py3-none-any.whl").write_bytes(b"torn")
    incomplete = run(node, "bash", "holdfast-wheels/install.sh", "again")

    assert [name.partition("-")[0] for name in packed.wheels] == [
        "holdfast_train",
        "tinier",
        "tiny",
    ]
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1" not in done.stdout + done.stderr, "the index was asked"
    assert "installed 3 packages" in done.stdout
    assert output.stdout == "1.2\n"
    assert (incomplete.returncode, "files differ from the packed ones" in incomplete.stderr) == (
        1,
        True,
    )
    assert not (node / "again").exists()


def test_unavailable_requirement_is_named_and_leaves_no_archive(
    index: Path, tmp_path: Path
) -> None:
    del index
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("no-such-thing==1.0\n")

    with pytest.raises(Unavailable, match=r"cannot download the wheels: .*no-such-thing"):
        pack(BundleRequest(requirements=requirements, bare=True), tmp_path / "wheels.tar")
    with pytest.raises(BadRequest, match="is not a file"):
        pack(BundleRequest(requirements=tmp_path / "nothing.txt"), tmp_path / "wheels.tar")

    assert not list(tmp_path.glob("*.tar*"))
