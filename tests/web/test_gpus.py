"""The GPUs on the page of a job: hidden without readings, faults first, readable in both themes."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus, Throttle
from holdfast_worker.protocol.reports import Report, ReportKind
from playwright.sync_api import Page, expect
from support.simulated_service import SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

HEALTHY = GpuReading(
    gpu=0,
    name="NVIDIA H100 80GB HBM3",
    utilization=0.97,
    memory_used_bytes=70 * 2**30,
    temperature_c=61,
    power_w=652.3,
    clock_mhz=1755,
    uncorrected_errors=0,
    throttles=(Throttle.POWER_CAP,),
)
LOST = GpuReading(gpu=1, faults=(GpuFault.OFF_BUS,), xids=(79,))


@pytest.fixture
def job(world: SimulatedService) -> str:
    """A job in training."""
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    return job_id


def report_gpus(world: SimulatedService, job: str) -> None:
    now = world.clock.now().isoformat()
    nodes: list[Any] = [NodeGpus(n, f"hpc0{n}", now, [HEALTHY, LOST]).dump() for n in (0, 1)]
    n = world.services.journal.marks(job).get(1, 0) + 1
    report = Report(1, n, now, ReportKind.GPUS_READ, {"nodes": nodes})
    world.services.journal.ingest(job, 1, [report])


def test_gpus_are_hidden_without_readings(page: Page, url: str, job: str) -> None:
    page.goto(f"{url}/jobs/{job}")
    expect(page.get_by_role("heading", name="Training", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="GPUs", exact=True)).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.full)])
@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.full)])
def test_gpus_and_their_faults_are_shown(
    page: Page,
    url: str,
    world: SimulatedService,
    job: str,
    theme: Literal["light", "dark"],
    width: int,
) -> None:
    report_gpus(world, job)
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{url}/jobs/{job}")
    rows = page.get_by_role("table", name="Readings of GPUs", exact=True).locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("97 %")
    expect(rows.nth(0)).to_contain_text("61 °C")
    expect(rows.nth(0)).to_contain_text("healthy")
    expect(rows.nth(1)).to_contain_text("off bus")
    words = "GPU 1 of hpc01 (node 1) has fallen off the bus; Xid 79"
    expect(page.get_by_text(words)).to_be_visible()
    assert violations(page) == []
