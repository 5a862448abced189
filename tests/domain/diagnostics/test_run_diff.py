"""Differences of two runs: the likely cause is first, and mere names are left out."""

from __future__ import annotations

from typing import Any

from holdfast.domain.billing.bill import LatestPoint, compute_bill
from holdfast.domain.diagnostics.run_diff import differences, steps_per_hour
from holdfast.domain.events import Event
from support.events import at, finished, launched, ready, submitted, training

SIXTEEN: dict[str, Any] = {
    "format": 1,
    "config": {"lr": 0.0003, "epochs": 50},
    "world_size": 16,
    "gpus_per_node": 4,
    "git_commit": "a1b9f4c7",
    "torch": "2.4.1+cu121",
    "cuda": "12.1",
    "nccl": "2.20.5",
    "nccl_transport": "IB",
    "environment": {"NCCL_IB_HCA": "mlx5"},
    "lock": ["numpy==1.26.4", "nvidia-nccl-cu12==2.20.5", "torch==2.4.1"],
    "holdfast": {"job": "j1", "attempt": 1, "at": "2026-03-01", "zone": "us-east-1a"},
}
"""The manifest of a run whose result was published."""


def test_slower_run_is_explained_by_floating_versions() -> None:
    """The same script on a new allocation: another CUDA wheel, and NCCL over sockets by mistake."""
    later = {
        **SIXTEEN,
        "torch": "2.5.0+cu124",
        "cuda": "12.4",
        "nccl_transport": "Socket",
        "environment": {},
        "lock": ["numpy==1.26.4", "nvidia-nccl-cu12==2.21.5", "torch==2.5.0"],
        "holdfast": {"job": "j9", "attempt": 3, "at": "2026-03-15", "zone": "us-east-1b"},
    }

    found = differences(SIXTEEN, later)

    assert [(one.category, one.key) for one in found] == [
        ("transport", "environment.NCCL_IB_HCA"),
        ("transport", "nccl_transport"),
        ("stack", "cuda"),
        ("stack", "lock.nvidia-nccl-cu12"),
        ("stack", "lock.torch"),
        ("stack", "torch"),
        ("surroundings", "holdfast.zone"),
    ]
    assert (found[1].before, found[1].after) == ("IB", "Socket")
    assert (found[0].before, found[0].after) == ("mlx5", None)


def test_repeated_run_has_no_differences() -> None:
    again = {**SIXTEEN, "holdfast": {**SIXTEEN["holdfast"], "job": "j2", "at": "2026-04-01"}}

    assert differences(SIXTEEN, again) == []


def test_configuration_precedes_packages_in_differences() -> None:
    later = {
        **SIXTEEN,
        "config": {"lr": 0.1, "epochs": 50},
        "lock": ["rich==14.0", *SIXTEEN["lock"]],
    }

    found = differences(SIXTEEN, later)

    assert [(one.category, one.key) for one in found] == [
        ("configuration", "config.lr"),
        ("packages", "lock.rich"),
    ]


def test_throughput_counts_kept_steps_per_useful_time() -> None:
    log: list[Event] = [submitted(), launched(1), ready(10), training(20, step=0)]
    ended = [*log, finished(3620)]

    account = compute_bill(ended, {1: LatestPoint(step=1800, at=at(3620))}, at(4000))

    assert steps_per_hour(account) == 1800
    assert steps_per_hour(compute_bill(log[:3], {}, at(100))) is None


def test_ranges_of_nodes_are_part_of_the_configuration() -> None:
    fixed, elastic = ({"holdfast": {"num_nodes": n}} for n in (8, {"min": 2, "max": 8}))

    found = {one.key: one.category for one in differences(fixed, elastic)}

    assert set(found.values()) == {"configuration"}
    assert "holdfast.num_nodes.min" in found
