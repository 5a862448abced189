"""The GPUs of a job in the API, in metrics, in its story and in the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus, Throttle
from holdfast_worker.protocol.reports import ReportKind
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

HEALTHY = GpuReading(
    gpu=0,
    name="NVIDIA H100 80GB HBM3",
    utilization=0.97,
    memory_used_bytes=70 * 2**30,
    memory_total_bytes=80 * 2**30,
    temperature_c=61,
    power_w=652.3,
    power_limit_w=700.0,
    throttles=(Throttle.POWER_CAP,),
)
LOST = GpuReading(gpu=1, faults=(GpuFault.OFF_BUS,), xids=(79,))


@pytest.fixture
def job_id(world: SimulatedService) -> str:
    """A job in training."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    return job


def report(world: SimulatedService, job: str, kind: ReportKind, body: dict[str, Any]) -> None:
    """Report as the worker of the newest attempt, after the simulated one."""
    attempt = world.job(job)["attempt"]
    n = world.services.journal.marks(job).get(attempt, 0) + 1
    reports = [{"n": n, "at": world.clock.now().isoformat(), "kind": kind, "body": body}]
    answer = world.http.post(
        f"/v1/jobs/{job}/reports",
        json={"attempt": attempt, "reports": reports},
        headers=world.worker_token(job),
    )
    assert answer.status_code == 200, answer.text


def report_gpus(world: SimulatedService, job: str) -> None:
    node = NodeGpus(0, "hpc07", world.clock.now().isoformat(), [HEALTHY, LOST])
    report(world, job, ReportKind.GPUS_READ, {"nodes": [node.dump()]})


def report_fault(world: SimulatedService, job: str) -> None:
    body = {"node": 0, "host": "hpc07", "gpu": 1, "faults": ["off_bus"], "detail": LOST.detail}
    report(world, job, ReportKind.GPU_UNHEALTHY, body)


def test_job_shows_the_newest_readings(world: SimulatedService, job_id: str) -> None:
    assert world.http.get(f"/v1/jobs/{job_id}/gpus").json() == {"attempt": None, "nodes": []}
    report_gpus(world, job_id)
    found = world.http.get(f"/v1/jobs/{job_id}/gpus").json()
    assert found["attempt"] == 1
    [node] = found["nodes"]
    healthy, lost = node["gpus"]
    assert (node["node"], node["host"]) == (0, "hpc07")
    assert (healthy["utilization"], healthy["temperature_c"], healthy["detail"]) == (0.97, 61, "")
    assert (lost["temperature_c"], lost["faults"], lost["xids"]) == (None, ["off_bus"], [79])
    assert lost["detail"] == "has fallen off the bus; Xid 79"


def test_metrics_sum_up_gpus_of_jobs_in_training(world: SimulatedService, job_id: str) -> None:
    report_gpus(world, job_id)
    text = world.http.get("/metrics").text
    for line in (
        "holdfast_gpus 2.0",
        'holdfast_unhealthy_gpus{fault="off_bus"} 1.0',
        'holdfast_unhealthy_gpus{fault="heat"} 0.0',
        'holdfast_throttled_gpus{reason="power_cap"} 1.0',
        'holdfast_gpu_temperature_celsius{stat="max"} 61.0',
        'holdfast_gpu_power_watts{stat="mean"} 652.3',
    ):
        assert line in text.splitlines()


def test_fault_is_in_events_story_and_hints(world: SimulatedService, job_id: str) -> None:
    report_fault(world, job_id)
    what = "GPU 1 of hpc07 (node 0) has fallen off the bus; Xid 79"
    events = world.http.get(f"/v1/jobs/{job_id}/events").json()
    [event] = [each for each in events if each["kind"] == "GpuUnhealthy"]
    assert event["body"]["faults"] == ["off_bus"]
    story = world.http.get(f"/v1/jobs/{job_id}/story").text
    assert f"{what}." in story
    hints = world.http.get(f"/v1/jobs/{job_id}/hints", params={"logs": False}).json()["hints"]
    assert [(hint["trouble"], hint["evidence"][0]["text"]) for hint in hints] == [
        ("gpu_broken", what)
    ]
    assert world.job(job_id)["state"] == "training"


def test_show_lists_gpus_and_their_faults(
    world: SimulatedService, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_gpus(world, job_id)
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        shown = CliRunner().invoke(app, ["show", job_id]).output
    line = (
        "hpc07 (node 0): 2 x NVIDIA H100 80GB HBM3 · 97% busy · 70 of 80 GiB · up to 61 °C · 652 W"
    )
    assert line in shown
    assert "GPU 1 of hpc07 (node 0) has fallen off the bus; Xid 79" in shown
