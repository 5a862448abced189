"""Hints in the API and on the command line, from recorded data, with and without logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from holdfast.api.app import create_app
from holdfast.api.routes.diagnostics import HEAD_BYTES, TAIL_BYTES
from holdfast.cli.app import app
from holdfast.domain.jobfile.spec import Engine
from holdfast.ports import LogSource
from holdfast_worker.protocol.reports import Json, Report, ReportKind, RuntimeMetricName
from support.simulated_service import HidingCloud, SimulatedService, client, served
from typer.testing import CliRunner

OOM = b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB\n"


class CloudWithOutput(HidingCloud):
    """A cloud on which one node has printed output."""

    printed = b""

    async def logs(self, key: str) -> Sequence[LogSource]:
        return [LogSource(attempt=1, node=0, rank=None, size_bytes=len(self.printed))]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return self.printed[offset : offset + limit]


@pytest.fixture
def job(world: SimulatedService) -> str:
    """A job that trains, and waits for data half of the time."""
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    n = world.services.journal.marks(job_id).get(1, 0)
    for step in range(1, 21):
        values: Json = {RuntimeMetricName.LOADING: 0.5}
        body: dict[str, Json] = {"step": step, "values": values}
        at = world.services.clock.now().isoformat()
        report = Report(1, n + step, at, ReportKind.PROGRESS, body)
        world.services.journal.ingest(job_id, 1, [report])
    return job_id


def test_hints_from_logs_precede_hints_from_metrics(world: SimulatedService, job: str) -> None:
    world.cloud.__class__ = CloudWithOutput
    assert isinstance(world.cloud, CloudWithOutput)
    filling = b"step 1\n" * ((HEAD_BYTES + TAIL_BYTES) // 7)
    world.cloud.printed = b"Address already in use\n" + filling + OOM
    http = client(create_app(world.services))

    found = http.get(f"/v1/jobs/{job}/hints").json()
    without = http.get(f"/v1/jobs/{job}/hints", params={"logs": False}).json()

    names = [hint["trouble"] for hint in found["hints"]]
    assert names == ["port_in_use", "gpu_memory", "slow_loading"]
    assert found["hints"][1]["evidence"] == [
        {"attempt": 1, "node": 0, "rank": 1, "text": OOM.decode().strip()}
    ]
    assert (found["attempt"], found["unread"]) == (1, None)
    assert [hint["trouble"] for hint in without["hints"]] == ["slow_loading"]
    assert without["attempt"] is None


def test_hints_without_a_launcher_omit_logs(world: SimulatedService, job: str) -> None:
    http = client(create_app(replace(world.services, launchers={})))

    found = http.get(f"/v1/jobs/{job}/hints").json()

    assert [hint["trouble"] for hint in found["hints"]] == ["slow_loading"]
    assert found["unread"] == f"this service runs without the {Engine.LOCAL} launcher"


def test_hints_follow_the_timeline_and_state(
    world: SimulatedService, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        why = CliRunner().invoke(app, ["why", job])
        show = CliRunner().invoke(app, ["show", job])

    for each in (why.stdout, show.stdout):
        text = " ".join(each.split())
        assert "hint: Steps wait for data. Give the DataLoader num_workers above 0" in text
        assert "attempt 1: 50% of step time" in text
