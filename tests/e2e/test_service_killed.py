"""The service may be killed: training continues, and every event is recorded once."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest
from support.live_service import EXAMPLE, Service

STEPS = 80


def test_killed_service_resumes_its_job(service: Service) -> None:
    store = service.folder / "store"
    job = service.submit(
        name="survivor",
        workdir=str(EXAMPLE),
        run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.1",
        holdfast={"checkpoint": {"store": f"file://{store}", "every": "10 steps"}},
    )
    service.until(job, lambda job: job["step"] >= 5)

    service.end(signal.SIGKILL)
    commits = store / job / "commits"
    service.wait(lambda: commits.is_dir() and len(list(commits.iterdir())) >= 3, "it saves on")
    service.start()
    done = service.ended(job)

    assert (done["state"], done["step"], done["attempt"], done["preemptions"]) == (
        "succeeded",
        STEPS,
        1,
        0,
    )
    kinds = [event["kind"] for event in service.json("events", job)]
    assert kinds.count("LaunchRequested") == kinds.count("NodesReady") == 1
    assert (
        kinds.count("TrainingStarted") == kinds.count("WorkerLeft") == kinds.count("Finished") == 1
    )
    saved = [checkpoint["step"] for checkpoint in service.json("checkpoints", job)]
    # Which steps are saved depends on the machine, as a save waits for the one before: each that was saved is known, once.
    assert saved == sorted((int(commit.name[:12]) for commit in commits.iterdir()), reverse=True)
    assert saved[0] == STEPS
    assert all(newer - older >= 10 for newer, older in pairwise(saved[1:])), "but for the last step"
    assert service.cli("db", "check").returncode == 0


@pytest.mark.parametrize(
    "by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_signalled_service_completes_its_steps(service: Service, by: signal.Signals) -> None:
    """Regression: SIGTERM from Docker or systemd ended the service in the middle of a step."""
    service.end(by)

    log = (service.folder / "service.log").read_text()
    assert log.rstrip().endswith("Holdfast has stopped; jobs continue")
    assert "Traceback" not in log
