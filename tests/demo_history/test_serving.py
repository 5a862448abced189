"""The command that serves a demo, as a real process.

It leaves user files alone and cleans up.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from support.live_service import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running demo service, whose home lies in a temporary directory.

    The last test may stop it.
    """
    tmp_path = tmp_path_factory.mktemp("demo")
    service = Service(tmp_path)
    service.words = ("serve", "--demo", "11")
    (tmp_path / "tmp").mkdir()
    service.environment |= {
        "TMPDIR": str(tmp_path / "tmp"),
        "HOLDFAST_DATABASE_URL": f"sqlite:///{tmp_path / 'own.db'}",
        "HOLDFAST_SKYPILOT_URL": "http://127.0.0.1:9",
        # A month of user activity is generated in seconds.
        "HOLDFAST_REQUESTS_PER_MINUTE": "5",
        "HOLDFAST_SUBMISSIONS_PER_MINUTE": "1",
    }
    service.start()
    yield service
    if service.process:
        service.end(signal.SIGTERM)


@pytest.mark.full
def test_demo_continues_and_runs_submitted_jobs(service: Service) -> None:
    job = service.submit(
        name="mine",
        run="python train.py",
        resources={"accelerators": "A10G:4"},
        holdfast={"checkpoint": {"store": "s3://nobody/mine"}},
    )

    began = service.until(job, lambda shown: shown["state"] == "training")
    later = service.until(job, lambda shown: shown["step"] > began["step"] + 10)

    assert later["simulated"]
    assert later["zone"].startswith("aws/")
    assert service.cli("preempt", job, "--notice", "10s", "--force").returncode == 0
    service.until(job, lambda shown: shown["preemptions"] == 1)
    assert service.cli("cancel", job).returncode == 0
    assert service.ended(job)["state"] == "cancelled"


@pytest.mark.full
def test_demo_touches_no_user_files_and_cleans_up(service: Service) -> None:
    folder = service.folder
    url = service.environment["HOLDFAST_URL"]
    log = (folder / "service.log").read_text()

    who = service.get("/v1/whoami").json()
    [home] = (folder / "tmp").iterdir()
    listed = service.json("ps", "--limit", "200")
    result = service.cli("whoami")

    assert who["demo_seed"] == 11
    assert "this is a demonstration" in log
    assert f"HOLDFAST_URL={url} HOLDFAST_HOME={home}" in log
    assert "demonstration (seed 11) with generated data" in result.stderr
    assert len(listed) >= 40
    service.end(signal.SIGTERM)
    assert not home.exists()
    assert not service.home.exists()
    assert not (folder / "own.db").exists()
