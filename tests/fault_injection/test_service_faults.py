"""A real service under six faults: limits hold, requests are answered, and jobs continue.

No test fails because of its duration. With `pytest -s`, each prints how long the responses and the limit
took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TypeAlias

import pytest
from fault_injection.faults import (
    FaultReport,
    ServiceUnderFault,
    few_descriptors,
    full_disk,
    no_free_connections,
    remote_jobs,
    run_fault,
    silent_server,
    small_disk,
    stopped_inside_a_write,
)
from support.postgres import Cluster

Checked: TypeAlias = Callable[[FaultReport], FaultReport]
MOST_LINES = 150
"""Log lines during a fault; a traceback for each connection or poll would be thousands."""


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    with silent_server() as url:
        yield url


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> str:
    return cluster.new_pattern_copy()


@pytest.fixture(scope="module")
def over_postgresql(tmp_path_factory: pytest.TempPathFactory, silent: str, url: str) -> Iterator[ServiceUnderFault]:  # fmt: skip
    with ServiceUnderFault(tmp_path_factory.mktemp("pg"), silent, url) as target:
        yield target


@pytest.fixture(scope="module")
def over_small_disk(
    tmp_path_factory: pytest.TempPathFactory, silent: str
) -> Iterator[ServiceUnderFault]:
    folder = tmp_path_factory.mktemp("small")
    with small_disk(folder / "disk") as disk:
        target = ServiceUnderFault(folder, silent)
        target.service.environment["HOLDFAST_HOME"] = str(disk / "home")
        with target:
            yield target


@pytest.fixture
def checked(request: pytest.FixtureRequest) -> Checked:
    """Print how long a service took, and check the conditions that hold under every fault."""

    def note(report: FaultReport) -> FaultReport:
        times = [
            f"{name} {getattr(report, name):.2f}" for name in ("ready_s", "cancel_s", "limit_s")
        ]
        print(request.node.name, *times)
        assert "bug" not in report.log
        assert "Traceback" not in report.log
        assert len(report.log.splitlines()) < MOST_LINES
        is_refused = report.cancel == 503 and "nothing was recorded" in report.cancel_detail
        assert report.cancel == 202 or is_refused
        return report

    return note


def test_limits_hold_while_skypilot_is_silent(
    checked: Checked, over_postgresql: ServiceUnderFault
) -> None:
    report = checked(run_fault(over_postgresql, nullcontext, remote_jobs))

    assert (report.guard, report.is_held_during) == ("deadline", True)
    assert (report.ready, report.cancel) == (200, 202)


def test_limits_hold_once_a_frozen_postgresql_answers(
    checked: Checked, over_postgresql: ServiceUnderFault, cluster: Cluster
) -> None:
    report = checked(run_fault(over_postgresql, cluster.frozen, blocks=True))

    assert (report.guard, report.is_held_during) == ("max_cost", False)
    assert (report.ready, report.cancel) == (503, 503)
    assert "does not respond" in report.cancel_detail


def test_limits_hold_while_no_connection_is_left(
    checked: Checked, over_postgresql: ServiceUnderFault, url: str
) -> None:
    report = checked(run_fault(over_postgresql, lambda: no_free_connections(url)))

    assert (report.guard, report.is_held_during) == ("max_cost", True)


def test_limits_hold_while_a_replica_is_stopped_in_a_write(
    checked: Checked, over_postgresql: ServiceUnderFault, tmp_path: Path, silent: str, url: str
) -> None:
    other = ServiceUnderFault(tmp_path, silent, f"{url}&application_name=other")
    other.service.environment["HOLDFAST_HOME"] = str(over_postgresql.service.home)

    with other:
        report = checked(
            run_fault(over_postgresql, lambda: stopped_inside_a_write(other.pid, url, "other"))
        )
        other.service.wait(other.is_ready, "it continues")

    assert (report.guard, report.is_held_during, report.ready) == ("max_cost", True, 200)
    assert "Traceback" not in other.log
    assert "bug" not in other.log


def test_limits_hold_once_a_full_disk_has_room(
    checked: Checked, over_small_disk: ServiceUnderFault
) -> None:
    disk = over_small_disk.service.folder / "disk"

    report = checked(run_fault(over_small_disk, lambda: full_disk(disk), blocks=True))

    assert (report.guard, report.is_held_during) == ("max_cost", False)
    assert (report.ready, report.cancel) == (503, 503)
    assert "full" in report.cancel_detail


def test_limits_hold_with_64_descriptors_and_more_callers(
    checked: Checked, over_small_disk: ServiceUnderFault
) -> None:
    port = over_small_disk.service.port

    report = checked(run_fault(over_small_disk, lambda: few_descriptors(over_small_disk.pid, port)))

    assert (report.guard, report.is_held_during) == ("max_cost", True)
    assert (report.ready, report.cancel) == (200, 202)
