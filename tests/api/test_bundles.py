"""The bundle of a job: all its records in one verifiable file, without secrets."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.api.routes.billing import bill_view
from holdfast.cli.app import app
from holdfast.domain.billing.bill import LatestPoint, compute_bill
from holdfast.domain.events import decode
from holdfast.domain.jobs.lifecycle import fold
from holdfast.errors import NotFound
from holdfast.ports import LogSource
from support.simulated_service import JOB_FILE, HidingCloud, SimulatedService, served
from support.snapshots import created_once
from typer.testing import CliRunner

SECRET = JOB_FILE + "secrets: {HF_TOKEN: hf_abcdefgh}\n"


def download(world: SimulatedService, job_id: str) -> tuple[bytes, dict[str, str]]:
    """The bundle, and the text of each file in it."""
    answer = world.http.get(f"/v1/jobs/{job_id}/bundle")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="holdfast-{job_id}.zip"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        folder = f"holdfast-{job_id}/"
        names = archive.namelist()
        assert all(name.startswith(folder) for name in names)
        return answer.content, {
            name.removeprefix(folder): archive.read(name).decode() for name in names
        }


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def ended(world: SimulatedService) -> str:
    """A job that has ended after one preemption."""
    return created_once(world, end_job)


def end_job(world: SimulatedService) -> str:
    job_id: str = world.submit(SECRET)["id"]
    world.until(job_id, "training")
    world.pass_time(20)
    world.take_node(job_id, notice_s=30)
    world.until(job_id, "succeeded")
    return job_id


def test_each_file_matches_its_listed_digest(world: SimulatedService, ended: str) -> None:
    _, found = download(world, ended)

    listed = dict(reversed(line.split("  ")) for line in found.pop("SHA256SUMS").splitlines())

    assert listed == {n: hashlib.sha256(t.encode()).hexdigest() for n, t in found.items()}
    assert sorted(found) == [
        "README.md",
        "bill.csv",
        "bill.json",
        "checkpoints.jsonl",
        "events.jsonl",
        "job-file.yaml",
        "job.json",
        "newest-points.json",
        "prices.jsonl",
        "story.txt",
        "tasks/launch-001.yaml",
        "versions.json",
    ]


def test_the_readme_names_every_file_and_the_job(world: SimulatedService, ended: str) -> None:
    _, found = download(world, ended)

    readme = found["README.md"].replace("NNN", "001")

    assert f"# The evidence of job {ended}\n" in readme
    assert "{" not in readme
    assert [name for name in found if name != "README.md" and name not in readme] == []


def test_bundle_of_an_ended_job_is_reproducible(world: SimulatedService, ended: str) -> None:
    first, _ = download(world, ended)
    world.pass_time(100)

    again, _ = download(world, ended)

    assert again == first


def test_bill_can_be_recomputed_from_bundled_events(world: SimulatedService, ended: str) -> None:
    """The bill can be verified from the bundle alone."""
    _, found = download(world, ended)
    parsed = json.loads(found["bill.json"])
    events = [decode(e["kind"], _time(e["at"]), e["body"]) for e in lines(found["events.jsonl"])]
    points = {
        int(attempt): LatestPoint(step=p["step"], at=_time(p["at"]))
        for attempt, p in json.loads(found["newest-points.json"]).items()
    }

    account = compute_bill(events, points, _time(parsed["until"]), with_rules=True)

    recorded = world.services.journal.events(ended)
    assert bill_view(fold(ended, events), account, recorded).model_dump(mode="json") == parsed
    assert parsed["paid_micros"] > 0
    rows = list(csv.DictReader(io.StringIO(found["bill.csv"])))
    assert (
        sum(Decimal(row["paid_usd"]) for row in rows) == Decimal(parsed["paid_micros"]) / 1_000_000
    )


def _time(text: str) -> datetime:

    return datetime.fromisoformat(text)


STARTED = """10:00:00 allocation: job=7 restart=0 attempt=2 nodes=n1 n2
10:00:01 preflight: n1 proj=ok pkgs=ok
10:00:01 preflight: n2 proj=ok pkgs=missing
10:00:02 staging: n2 staged -> /tmp/holdfast-7
10:00:03 probe: NODE n1 OK -> PY 3.11 torch 2.9.1
10:00:03 probe: NODE n2 OK -> PY 3.11 torch 2.9.1
[RANK 0] WORLD_SIZE=2
step 1 loss 0.5 of probe: nothing
10:00:09 ended
"""


class CloudWithOutput(HidingCloud):
    """A cloud whose second attempt printed its start-up output."""

    async def logs(self, key: str) -> Sequence[LogSource]:
        self._answer()
        sizes = [(1, 0, 999), (2, 0, len(STARTED)), (2, 1, 99)]
        return [
            LogSource(attempt=attempt, node=node, rank=None, size_bytes=size)
            for attempt, node, size in sizes
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        text = "[RANK 1] WORLD_SIZE=2\nloading\n" if source.node else STARTED
        return text.encode()[offset : offset + limit]


def test_bundle_has_preflight_probe_and_rank_lines(world: SimulatedService, ended: str) -> None:
    world.cloud.__class__ = CloudWithOutput

    _, found = download(world, ended)
    world.cloud.dark = True
    _, unread = download(world, ended)

    printed = STARTED.splitlines()[:-2]
    assert found["start.txt"].splitlines() == [
        *(f"attempt 2, node 0: {line}" for line in printed),
        "attempt 2, node 1: [RANK 1] WORLD_SIZE=2",
    ]
    assert "`start.txt`" in found["README.md"]
    assert unread["start.txt"] == "The logs could not be read: no answer for 30 s\n"


def test_bundle_contains_job_file_and_launched_tasks(world: SimulatedService, ended: str) -> None:
    _, found = download(world, ended)

    requested, task = (
        yaml.safe_load(found["job-file.yaml"]),
        yaml.safe_load(found["tasks/launch-001.yaml"]),
    )

    assert requested["name"] == task["name"] == "tiny"
    assert requested["holdfast"]["tags"] == {"team": "nlp"}
    assert task["run"] == "holdfast-worker run train.py"
    assert json.loads(found["job.json"])["state"] == "succeeded"
    assert {line["kind"] for line in lines(found["prices.jsonl"])} == {"NodesReady"}
    assert [line["state"] for line in lines(found["checkpoints.jsonl"])]
    assert found["story.txt"].startswith("Succeeded at step 60. 1 preemption.\n")


def test_bundle_contains_no_secret(world: SimulatedService, ended: str) -> None:
    content, found = download(world, ended)

    assert not [name for name, text in found.items() if "hf_abcdefgh" in text]
    assert b"hf_abcdefgh" not in content
    assert "HF_TOKEN" in found["job-file.yaml"]
    assert world.services.tokens.for_worker(ended) not in "".join(found.values())


def test_bundled_task_of_each_launch_has_its_own_limits(world: SimulatedService) -> None:
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    world.http.post(f"/v1/jobs/{job_id}/pause", json={})
    world.until(job_id, "paused")
    world.http.post(f"/v1/jobs/{job_id}/resume", json={"limits": {"max_failures": 7}})
    world.until(job_id, "training")

    _, found = download(world, job_id)

    tasks = [yaml.safe_load(t) for name, t in sorted(found.items()) if name.startswith("tasks/")]
    assert len(tasks) == 2
    assert {task["name"] for task in tasks} == {"tiny"}


def test_waiting_job_has_a_bundle(world: SimulatedService) -> None:
    job_id: str = world.submit()["id"]

    _, found = download(world, job_id)

    assert [line["kind"] for line in lines(found["events.jsonl"])] == ["Submitted"]
    assert not [name for name in found if name.startswith("tasks/")]
    assert json.loads(found["bill.json"])["paid_micros"] == 0


def test_unknown_job_has_no_bundle(world: SimulatedService) -> None:
    assert world.http.get("/v1/jobs/nothing/bundle").status_code == 404


def test_command_line_writes_the_bundle_to_a_file(
    world: SimulatedService, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, _ = download(world, ended)
    monkeypatch.chdir(tmp_path)
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        saved = CliRunner().invoke(app, ["bundle", ended])
        named = CliRunner().invoke(app, ["bundle", ended, "-o", "evidence.zip", "--json"])
        none = CliRunner().invoke(app, ["bundle", "nothing"])

    assert f"as holdfast-{ended}.zip" in saved.stderr
    assert Path(f"holdfast-{ended}.zip").read_bytes() == content
    assert json.loads(named.stdout) == {
        "file": "evidence.zip",
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert isinstance(none.exception, NotFound)
    assert len(list(tmp_path.glob("*.zip"))) == 2
