"""A failed job is fixed and retried: it ends like an uninterrupted run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.live_service import EXAMPLE, Service

STEPS = 40
FAILS_AT = 25


@pytest.fixture
def failing_example(tmp_path: Path) -> Path:
    """The example with a failure at one step, enabled by a variable, once its job has a checkpoint."""
    folder = tmp_path / "fragile"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    script = (EXAMPLE / "train.py").read_text()
    fault = """\
        if str(run.step) == os.environ["FAILS_AT"]:
            while not [*Path(os.environ["COMMITS"], os.environ["HOLDFAST_JOB"]).glob("commits/*")]:
                time.sleep(0.05)
            raise SystemExit(1)
"""
    step = "        scheduler.step()\n"
    assert step in script
    script = script.replace(step, step + fault).replace(
        "import argparse\n", "import argparse\nimport os\n"
    )
    (folder / "train.py").write_text(script)
    return folder


def weights(service: Service, job: str) -> str:
    """Digest of the newest checkpoint's weights."""
    newest: dict[str, Any] = service.json("checkpoints", job)[0]
    assert newest["step"] == STEPS
    digest: str = newest["weights_sha256"]
    return digest


@pytest.mark.full
def test_retried_job_ends_with_weights_of_uninterrupted_run(
    service: Service, failing_example: Path
) -> None:
    def submit(fails_at: str) -> str:
        return service.submit(
            name="fragile",
            workdir=str(failing_example),
            run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.05",
            envs={
                "SKYPILOT_NUM_GPUS_PER_NODE": "2",
                "FAILS_AT": fails_at,
                "COMMITS": f"{service.folder}/store",
            },
            holdfast={
                "checkpoint": {"store": f"file://{service.folder}/store", "every": "10 steps"},
                "limits": {"max_failures": 1},
            },
        )

    whole, broken = submit("never"), submit(str(FAILS_AT))
    failed = service.ended(broken)
    store = service.folder / "store" / broken
    service.wait(lambda: not list(store.glob("probes/*")), "its store is at rest")
    left = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    refused = service.cli("resume", broken)
    result = service.cli("retry", broken, "--env", "FAILS_AT=never")
    assert result.returncode == 0, result.stderr
    again = result.stdout.split()[2]
    done, uninterrupted = service.ended(again), service.ended(whole)

    manifest = service.json("manifest", again)
    step = failed["last_checkpoint_step"]
    assert (failed["state"], failed["exit_code"], failed["can"]["retry"]["allowed"]) == (
        "failed",
        1,
        True,
    )
    # Which steps are saved depends on the machine, as a save waits for the one before.
    commits = (int(path.name[:12]) for path in left if path.parent.name == "commits")
    assert step == max(commits)
    assert refused.returncode == 6
    assert f'"fragile", which resumes from step {step} of job {broken}' in " ".join(
        result.stdout.split()
    )
    assert (done["state"], uninterrupted["state"]) == ("succeeded", "succeeded")
    assert (done["from_job"], done["lost_steps"]) == (broken, 0)
    assert (manifest["world_size"], manifest["config"]["steps"]) == (2, STEPS)
    assert manifest["holdfast"]["job"] == again
    [started] = [e for e in service.json("events", again) if e["kind"] == "TrainingStarted"]
    assert started["body"]["step"] == step
    assert started["body"]["restored_from"].startswith(f"{broken}/step-{step}-e1-")
    assert weights(service, again) == weights(service, whole)
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == left
    assert f"of job {broken}" in service.cli("why", again).stdout
