"""One command reproduces a run with its code, launch and result, or explains why it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.live_service import EXAMPLE, Service

STEPS = 20


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with the example in a subdirectory."""
    top = tmp_path / "book"
    shutil.copytree(EXAMPLE, top / "demos", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q", "book")
    git(top, "add", ".")
    git(top, "commit", "-qm", "begin")
    return top


@pytest.mark.full
def test_run_reproduced_from_manifest_gives_identical_weights(
    service: Service, repository: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    first = service.submit(
        name="number-in-a-table",
        workdir=str(repository / "demos"),
        run=f"holdfast-worker run train.py --steps {STEPS}",
        envs={"HOLDFAST_SEED": "7"},
        holdfast={"checkpoint": {"store": f"file://{service.folder}/store", "every": "10 steps"}},
    )
    service.ended(first)
    kept = service.folder / "run_manifest.json"
    kept.write_text(json.dumps(service.json("manifest", first)))
    # Two weeks later the script has changed, and its old directory is gone.
    script = repository / "demos/train.py"
    script.write_text(script.read_text().replace("lr=3e-3", "lr=9e-3"))
    git(repository, "commit", "-qam", "quicker")
    git(repository, "mv", "demos", "moved")

    done = service.cli("reproduce", str(kept), "--repo", str(repository), "--follow", "--json")
    body = json.loads(done.stdout)
    again = service.json("manifest", body["job_id"])
    known = json.loads(kept.read_text())

    assert done.returncode == 0, done.stderr
    assert (body["reproduces"], body["state"], body["likeness"]) == (
        first,
        "succeeded",
        "identical",
    )
    assert known["git_commit"] == again["git_commit"] == commit
    assert (again["git_dirty"], again["seed"]) == (False, 7)
    assert again["script_sha256"] == known["script_sha256"]
    assert again["holdfast"]["result"]["step"] == STEPS
    assert again["holdfast"]["result"]["weights_sha256"] == known["holdfast"]["result"]["weights_sha256"]  # fmt: skip
    assert service.json("show", body["job_id"])["tags"] == {"reproduces": first}
    assert "quicker" in git(repository, "log", "-1", "--format=%s"), (
        "the repository itself was left alone"
    )
    assert git(service.folder / f"reproduced-{first}", "rev-parse", "HEAD") == commit
