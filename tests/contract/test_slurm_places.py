"""Launches of a planned job in partitions of a real Slurm."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from contract.launcher_backends import do, is_ended, is_up
from contract.slurm_launcher import SlurmBackend
from holdfast.domain.events import Outcome
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.places import place_of
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import LaunchRefused
from holdfast.ports import Launch
from holdfast.rendering import render
from local_slurm import SlurmCluster

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmBackend:
    return SlurmBackend(slurm, slurm.new_folder(), prices="stand/spot=0.25,stand/main=3")


def job(*entries: dict[str, Any], run: str = "sleep 600") -> JobSpec:
    fields = {
        "run": run,
        "num_nodes": 2,
        "resources": {"infra": "slurm", "ordered": list(entries)},
        "config": {"slurm": {"sbatch_options": {"mem": "100M"}, "probe": "off"}},
    }
    return parse_job_file(yaml.safe_dump(fields)).spec


SPEC = job(
    {"infra": "slurm/stand/spot", "use_spot": True},
    {"infra": "slurm/stand/lent", "use_spot": True},
    {"infra": "slurm/stand/main"},
)


def launch(spec: JobSpec, key: str, capacity: CapacityType, *places: str) -> Launch:
    placement = LaunchPlacement(capacity=capacity, places=places)
    task = render(spec.with_placement(placement)).task
    return Launch(key=key, job_id="job", first_attempt=1, task=task, max_failures=1)


def test_job_moves_from_a_preemptible_partition_to_another(cluster: SlurmBackend) -> None:
    """A move is the end of one launch and the request for the next."""
    do(cluster.launcher.submit(launch(SPEC, "job-1", SPOT, "slurm/stand/spot")))
    first = cluster.until("job-1", is_up).recent_placements[0]
    do(cluster.launcher.cancel("job-1"))
    ended = cluster.until("job-1", is_ended)
    do(cluster.launcher.submit(launch(SPEC, "job-2", ON_DEMAND, "slurm/stand/main")))
    second = cluster.until("job-2", is_up).recent_placements[0]
    do(cluster.launcher.cancel("job-2"))

    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED
    assert [(each.zone, each.is_spot, each.micros_per_hour) for each in (first, second)] == [
        ("slurm/stand/spot", True, 500_000),
        ("slurm/stand/main", False, 6_000_000),
    ]
    places = [place_of(SPEC.places, each.cloud, each.zone) for each in (first, second)]
    assert [place and place.name for place in places] == ["slurm/stand/spot", "slurm/stand/main"]


def test_one_slurm_job_starts_in_whichever_partition_has_nodes(cluster: SlurmBackend) -> None:
    cluster.cluster.run("scontrol", "update", "partitionname=spot", "state=down")
    try:
        asked = ("slurm/stand/spot", "slurm/stand/lent")
        do(cluster.launcher.submit(launch(SPEC, "job-1", SPOT, *asked)))
        first = cluster.until("job-1", is_up).recent_placements[-1]
        cluster.cluster.run("scontrol", "update", "partitionname=lent", "state=down")
        cluster.cluster.run("scontrol", "update", "partitionname=spot", "state=up")
        cluster.cluster.run("scontrol", "requeue", cluster.job("job-1"))
        second = cluster.until("job-1", lambda seen: is_up(seen) and seen.placements > 1)
    finally:
        for partition in ("spot", "lent"):
            cluster.cluster.run("scontrol", "update", f"partitionname={partition}", "state=up")
    do(cluster.launcher.cancel("job-1"))

    found = [first, second.recent_placements[-1]]
    assert [(each.zone, each.micros_per_hour) for each in found] == [
        ("slurm/stand/lent", 2_000_000),
        ("slurm/stand/spot", 500_000),
    ]


def test_waiting_job_is_denied_in_each_partition(cluster: SlurmBackend) -> None:
    asked = ("slurm/stand/spot", "slurm/stand/lent")
    for name in cluster.cluster.plan.names:
        cluster.cluster.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=test")
    try:
        do(cluster.launcher.submit(launch(SPEC, "job-1", SPOT, *asked)))
        seen = cluster.until("job-1", lambda seen: seen.denials)
    finally:
        for name in cluster.cluster.plan.names:
            cluster.cluster.run("scontrol", "update", f"nodename={name}", "state=resume")
    do(cluster.launcher.cancel("job-1"))

    zones = {denial.zone for denial in seen.denials}
    assert zones == {"slurm/stand/spot", "slurm/stand/lent"}


def test_unknown_partition_is_refused_by_slurm(cluster: SlurmBackend) -> None:
    entries = [{"infra": f"slurm/stand/{name}", "use_spot": True} for name in ("spot", "nosuch")]
    spec = job(*entries)

    with pytest.raises(LaunchRefused, match="invalid partition specified"):
        do(cluster.launcher.submit(launch(spec, "job-1", SPOT, *(p.name for p in spec.places))))
