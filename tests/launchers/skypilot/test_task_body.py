"""The task body, job name and prices sent to SkyPilot, and the rows read from it."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.skypilot import task_body
from holdfast.launchers.skypilot.models import ManagedJob, read_costs, read_events, read_listing
from holdfast.launchers.skypilot.naming import MAX_NAME_CHARS, JobNames, cluster_of
from holdfast.launchers.skypilot.placement_prices import PlacementPrices
from holdfast.launchers.skypilot.task_body import NUDGE_ENV, TOKEN_ENV, WorkdirCopies
from holdfast.ports import AvoidedNode, Launch
from holdfast.pricing import open_catalog
from hypothesis import given
from hypothesis import strategies as st
from support.skypilot.launcher import CANARY, NewSkyPilotHarness, SkyPilotHarness, do

REAL_ROW = {
    "job_id": 2, "task_id": 0, "job_name": "hfxx-j0002-1", "job_duration": 0.0, "status": "PENDING",
    "schedule_state": "LAUNCHING", "cluster_resources_full": "-", "cloud": "-", "region": "-", "zone": "-",
    "infra": "-", "recovery_count": 0, "details": "Job is in backoff", "failure_reason": None, "user_hash": "hfa1b2c3",
    "submitted_at": 1795255080.74107, "start_at": None, "end_at": None, "last_recovered_at": -1.0,
    "current_cluster_name": None,
}  # fmt: skip


def launch(**task: Any) -> Launch:
    return Launch(
        key="job-1",
        job_id="job",
        first_attempt=3,
        task={"run": "true", "envs": {"A": "b"}, **task},
        max_failures=1,
        env={"HOLDFAST_TOKEN": f"{CANARY}-worker", "HOLDFAST_JOB": "job"},
        secrets={"KEY": f"{CANARY}-user"},
    )


def built_task(**task: Any) -> dict[str, Any]:
    return task_body.build_task(
        launch(**task), name="hf-job-1", token="hfl_x", nudge_url="http://n", workdir=None, wheelhouse=Path("/w")
    )  # fmt: skip


# Task bodies


def test_secrets_are_kept_out_of_plain_envs() -> None:
    task = built_task()

    assert task["secrets"] == {"KEY": f"{CANARY}-user", "HOLDFAST_TOKEN": f"{CANARY}-worker"}
    assert task["envs"] == {"A": "b", "HOLDFAST_JOB": "job", TOKEN_ENV: "hfl_x", NUDGE_ENV: "http://n"}  # fmt: skip
    assert task["name"] == "hf-job-1"


def test_user_variables_are_not_exported_on_the_server() -> None:
    """SkyPilot exports envs to the shell of event_callback; HISTFILE could overwrite any file."""
    hostile = {
        "HISTFILE": "~/.bashrc",
        "LD_PRELOAD": "/evil.so",
        "HOLDFAST_SEED": "1",
        "EMPTY": None,
    }
    confined = replace(launch(envs=hostile), folders=Folders(is_confined=True))

    task = task_body.build_task(
        confined, name="hf-job-1", token="hfl_x", nudge_url="http://n", workdir=None, wheelhouse=Path("/w")
    )  # fmt: skip

    assert task["envs"].keys() == {"HOLDFAST_SEED", "HOLDFAST_JOB", TOKEN_ENV, NUDGE_ENV}
    assert task["secrets"] == {
        "HISTFILE": "~/.bashrc",
        "LD_PRELOAD": "/evil.so",
        "EMPTY": "",
        "KEY": f"{CANARY}-user",
        "HOLDFAST_TOKEN": f"{CANARY}-worker",
    }


def test_callback_of_the_user_runs_after_ours() -> None:
    first, second = built_task(event_callback="echo mine")["event_callback"].splitlines()

    assert NUDGE_ENV in first
    assert first.endswith("|| true")
    assert second == "echo mine"


def test_local_folders_of_workdir_and_file_mounts_are_found() -> None:
    mounts = {
        "/a": "s3://b",
        "/b": "/home/b",
        "/c": {"source": "/home/c"},
        "/d": {"source": "s3://d"},
    }

    found = task_body.local_folders({"workdir": "/home/w", "file_mounts": mounts})

    assert sorted(map(str, found)) == ["/home/b", "/home/c", "/home/w"]


def test_workdir_is_copied_once_per_launch(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    source.mkdir()
    (source / "train.py").write_text("first")
    files = WorkdirCopies(tmp_path / "home")

    there = files.workdir("job-1", str(source))
    (source / "train.py").write_text("second")

    assert there
    assert files.workdir("job-1", str(source)) == there
    assert (there / "train.py").read_text() == "first"
    assert files.workdir("job-1", None) is None
    with pytest.raises(LaunchRefused, match="not a directory"):
        files.workdir("job-2", str(tmp_path / "nowhere"))


def test_concurrent_workdir_copies_are_complete(
    tmp_path: Path,
) -> None:
    """The lease of a job is shorter than a copy of many files may take."""
    source = tmp_path / "mine"
    for number in range(300):
        (source / f"{number % 7}").mkdir(parents=True, exist_ok=True)
        (source / f"{number % 7}" / f"{number}.py").write_text(f"{number}")
    files = WorkdirCopies(tmp_path / "home")
    ready = Barrier(6)

    def copy(_: int) -> int:
        ready.wait()
        there = files.workdir("job-1", str(source))
        assert there
        return sum(path.is_file() for path in there.rglob("*"))

    with ThreadPoolExecutor(6) as replicas:
        found = [*replicas.map(copy, range(6))]

    assert found == [300] * 6
    assert [path.name for path in (tmp_path / "home/workdirs").iterdir()] == ["job-1"]


def test_copy_failed_by_a_full_disk_is_retried(tmp_path: Path) -> None:
    """The disk may have been full for a moment, which is not a fault of the task."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "home").write_text("in the way")
    files = WorkdirCopies(tmp_path / "home")
    with pytest.raises(LauncherUnreachable, match="cannot copy workdir"):
        files.workdir("job-1", str(tmp_path / "mine"))
    (tmp_path / "home").unlink()

    assert files.workdir("job-1", str(tmp_path / "mine"))


# Names


@given(st.text(), st.text(), st.from_regex(r"[a-z0-9]{1,13}", fullmatch=True), st.integers(1, 99))
def test_job_name_identifies_installation_and_launch(
    ours: str, theirs: str, job: str, number: int
) -> None:
    names, others = JobNames(ours), JobNames(theirs)
    name = names.job_name(f"{job}-{number}")

    assert names.key(name) == f"{job}-{number}"
    assert len(name) <= MAX_NAME_CHARS
    assert others.prefix == names.prefix or others.key(name) is None
    assert cluster_of(name, 7) == f"{name}-7"
    assert names.key_of_cluster(cluster_of(name, 7)) == f"{job}-{number}"
    assert names.key_of_cluster(name) is None


@pytest.mark.parametrize("name", ["", "train", "hf", "x-job-1", "job-1"])
def test_foreign_job_name_has_no_launch_key(name: str) -> None:
    assert JobNames("x").key(name) is None
    assert JobNames("x").key(JobNames("x").prefix + "no launch") is None


# Rows


def test_real_row_is_parsed() -> None:
    [row] = read_listing({"jobs": [REAL_ROW, {**REAL_ROW, "task_id": 1}], "total": 2})

    assert (row.engine_id, row.name, row.status.value) == (2, "hfxx-j0002-1", "PENDING")
    assert (row.location, row.region, row.nodes, row.up_since) == (None, None, None, None)
    assert not row.never_started


def test_row_with_nodes_is_parsed() -> None:
    fields = {
        "cloud": "AWS",
        "region": "us-east-1",
        "zone": "us-east-1b",
        "cluster_resources_full": "2x(gpus=A100:8)",
    }
    [row] = read_listing({"jobs": [{**REAL_ROW, **fields, "last_recovered_at": 1795255080.5}]})

    assert (row.location, row.region, row.nodes) == ("aws/us-east-1/us-east-1b", "aws/us-east-1", 2)
    assert row.up_since
    assert row.up_since.timestamp() == 1795255080.5


def test_events_are_read_oldest_first_in_utc_and_sanitized() -> None:
    found = [
        {"new_status": "STARTING", "code": None, "reason": "b\0\ud800", "timestamp": "2026-11-21T09:58:12"},
        {"new_status": "PENDING", "code": 7, "reason": None, "timestamp": "2026-11-21T11:58:11.5+02:00"},
    ]  # fmt: skip

    first, second = read_events(found)

    assert (first.status, first.code, first.reason) == ("PENDING", "7", "")
    assert first.at.isoformat() == "2026-11-21T09:58:11.500000+00:00"
    assert (second.reason, second.at.isoformat()) == ("b?", "2026-11-21T09:58:12+00:00")


@pytest.mark.parametrize("value", [None, {}, {"jobs": None}, {"jobs": [{}]}, {"jobs": [{**REAL_ROW, "job_id": True}]}, {"jobs": [{**REAL_ROW, "job_id": 2**63}]}, {"jobs": [{**REAL_ROW, "status": "?"}]}, {"jobs": [REAL_ROW, None]}, {"jobs": [REAL_ROW, []]}, {"jobs": [{**REAL_ROW, "job_name": None}]}, {"jobs": [{**REAL_ROW, "task_id": None}]}, {"jobs": [{**REAL_ROW, "task_id": "1"}]}])  # fmt: skip
def test_invalid_listing_is_rejected_as_a_whole(value: Any) -> None:
    with pytest.raises(LauncherUnreachable):
        read_listing(value)


def test_cluster_is_running_according_to_its_status() -> None:
    fields = {"cloud": "AWS", "launched_at": 7, "duration": 3600, "total_cost": 2.5}

    up, gone = read_costs([{**fields, "name": "a", "status": "UP"}, {"name": "b", "status": None}])

    assert (up.cluster, up.cloud, up.is_running, up.launched_at) == ("a", "aws", True, 7)
    assert (up.usd, up.duration_s) == (2.5, 3600)
    assert (gone.is_running, gone.cloud, gone.usd, gone.duration_s) == (False, None, None, None)


@pytest.mark.parametrize("value", [None, {}, [None], [{}], [{"name": "a"}], [{"name": "a", "status": ""}], [{"name": "a", "status": 7}], [{"name": None, "status": "UP"}]])  # fmt: skip
def test_invalid_cost_report_is_rejected_as_a_whole(value: Any) -> None:
    """A cluster without a status must not count as terminated."""
    with pytest.raises(LauncherUnreachable):
        read_costs(value)


# Prices


def set_cost_report(harness: SkyPilotHarness, **fields: Any) -> None:
    """Let SkyPilot return this for every cluster."""
    harness.server._costs = lambda body: (  # type: ignore[method-assign]
        {"name": name, "status": "UP", **fields} for name in body.get("cluster_names", [])
    )


P4D_MICROS = 23_715_690
"""The catalog's on-demand price in eu-north-1, where these jobs are placed."""
P4D_SPOT_MICROS = 6_165_700
"""The highest spot price there: the catalog has zone ids, and SkyPilot zone names."""


def test_price_is_read_once_for_each_placement(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000))
    placed = harness.until(LaunchStatus.UP, limit_s=600).recent_placements[0]
    harness.pass_time(3600)

    assert placed.on_demand_micros_per_hour == P4D_MICROS
    assert (placed.price_source, placed.is_price_estimate) == ("SkyPilot's cost report", False)
    assert placed.price_as_of
    assert (placed.cloud, placed.instance_type, placed.is_spot) == ("aws", "p4d.24xlarge", True)
    assert abs(placed.micros_per_hour - 6_000_000) < 20_000
    assert harness.look().recent_placements[0].micros_per_hour == placed.micros_per_hour


def test_terminated_cluster_has_instance_type_of_cost_report(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The listing of a job without a cluster has the requested resources, no instance type."""
    harness = new_harness(JobSimulation(runs_s=100))
    harness.submit()
    harness.pass_time(3600)

    placed = harness.until(LaunchStatus.ENDED).recent_placements[0]

    assert (placed.instance_type, placed.is_price_estimate) == ("p4d.24xlarge", False)
    assert placed.on_demand_micros_per_hour == P4D_MICROS


def test_node_of_unknown_type_has_no_savings(new_harness: NewSkyPilotHarness) -> None:
    """A reported cost cannot be compared with the price of the catalog's most expensive node."""
    harness = new_harness(JobSimulation(runs_s=100))
    set_cost_report(harness, cloud="AWS", total_cost=6.0, duration=3600)
    harness.submit()
    harness.pass_time(3600)

    placed = harness.until(LaunchStatus.ENDED).recent_placements[0]

    assert placed.micros_per_hour == placed.on_demand_micros_per_hour == 6_000_000
    assert not placed.is_price_estimate


@pytest.mark.parametrize("odd", [None, "x", 0, -1, float("nan"), float("inf"), True])
def test_invalid_cost_report_falls_back_to_highest_price(
    new_harness: NewSkyPilotHarness, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000))
    set_cost_report(harness, total_cost=odd, duration=odd, launched_at=odd)

    with caplog.at_level(logging.WARNING):
        placed = harness.until(LaunchStatus.UP).recent_placements[0]

    assert placed.micros_per_hour == P4D_SPOT_MICROS
    assert placed.on_demand_micros_per_hour == P4D_MICROS
    assert placed.is_price_estimate
    assert placed.price_source.endswith("the highest of eu-north-1")
    assert "a price of 6.17 $/h" in caplog.text


@pytest.mark.parametrize(
    ("cloud", "usd", "micros"),
    [
        ("Kubernetes", 0.0, 0),
        ("SSH", 0, 0),
        ("Slurm", 0.0, 0),
        ("Kubernetes", 2.0, 2_000_000),
        ("AWS", 0.0, P4D_SPOT_MICROS),
    ],
)
def test_zero_price_is_accepted_only_for_self_hosted_nodes(
    new_harness: NewSkyPilotHarness, cloud: str, usd: float, micros: int
) -> None:
    """Self-hosted nodes are mostly free; for cloud machines, 0 means unknown."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    set_cost_report(harness, cloud=cloud, total_cost=usd, duration=3600)

    assert harness.until(LaunchStatus.UP).recent_placements[0].micros_per_hour == micros


CATALOG = """InstanceType,Price,SpotPrice,Region,AvailabilityZone
p4d.24xlarge,21.96,8.0,us-east-1,a
p4d.24xlarge,21.96,2.5,us-east-1,b
p4d.24xlarge,21.96,21.96,us-east-1,c
p4d.24xlarge,21.96,,us-east-1,d
p4d.24xlarge,23.72,1.0,eu-north-1,a
"""


def listed_job(size: str, **fields: str) -> ManagedJob:
    """A listed job on nodes of this size in us-east-1b."""
    fields = {"cloud": "AWS", "region": "us-east-1", "zone": "us-east-1b", **fields}
    [row] = read_listing({"jobs": [{**REAL_ROW, **fields, "cluster_resources_full": size}]})
    return row


def prices_with(harness: SkyPilotHarness, folder: Path) -> PlacementPrices:
    """Prices of a service whose SkyPilot has its catalog in this folder."""
    catalog = open_catalog([folder], harness.clock, asks_aws=False)
    return PlacementPrices(harness.launcher._client, catalog, harness.clock)


def test_catalog_gives_the_highest_spot_price_of_the_region(
    new_harness: NewSkyPilotHarness, tmp_path: Path
) -> None:
    (tmp_path / "aws").mkdir()
    (tmp_path / "aws" / "vms.csv").write_text(CATALOG)
    prices = prices_with(new_harness(), tmp_path)
    row = listed_job("2x(gpus=A100:8, p4d.24xlarge, [spot], ...)")

    price = do(prices.get("c", row, 2, placements=1))

    assert (price.micros, price.on_demand_micros) == (16_000_000, 43_920_000)
    assert price.source == f"SkyPilot catalog {tmp_path.name} aws/vms.csv: the highest of us-east-1"
    assert price.is_estimate
    assert prices.cached("c") == {1: price}


def test_unknown_node_has_a_high_marked_price_and_no_savings(
    new_harness: NewSkyPilotHarness, tmp_path: Path
) -> None:
    prices = prices_with(new_harness(), tmp_path)

    spot = do(
        prices.get("a", listed_job("1x(gpus=B300:8, p9.48xlarge, [spot], ...)"), 1, placements=1)
    )
    full = do(prices.get("b", listed_job("3x(m6i.large, ...)"), 3, placements=1))

    assert (spot.micros, spot.on_demand_micros) == (120_000_000, 120_000_000)
    assert (full.micros, full.on_demand_micros) == (180_000_000, 180_000_000)
    assert spot.is_estimate
    assert full.is_estimate


def test_on_demand_node_has_no_savings(new_harness: NewSkyPilotHarness, tmp_path: Path) -> None:
    harness = new_harness()
    set_cost_report(harness, cloud="AWS", total_cost=10.0, duration=3600)

    price = do(
        prices_with(harness, tmp_path).get(
            "c", listed_job("1x(gpus=A100:8, p4d.24xlarge, ...)"), 1, placements=1
        )
    )

    assert price.micros == price.on_demand_micros == 10_000_000
    assert not price.is_estimate


def test_zone_of_an_unhealthy_gpu_is_the_last_choice() -> None:
    places = [{"infra": "aws/us-east-1"}, {"infra": "gcp/us-central1"}]
    task = {"run": "true", "resources": {"any_of": places}}
    seen = AvoidedNode(host="ip-10-0-0-1", cloud="AWS", zone="us-east-1/us-east-1a")
    changed = task_body.with_avoided_last(task, [seen])
    assert changed["resources"] == {"ordered": places[::-1]}
    assert task_body.with_avoided_last(task, [AvoidedNode(host="ip-10-0-0-1")]) == task
